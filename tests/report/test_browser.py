"""The page in a real browser: no errors, charts, legend, light and dark, desktop and phone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import Page as Tab

WIDTHS = {"desktop": 1280, "phone": 375}
READY = (
    "() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('.plot-container'))"
)


@contextmanager
def opened(
    browser: Browser, report: Path, width: int = 1280, scheme: str = "light"
) -> Iterator[Tab]:
    """Open the report; check afterwards that there were no errors and no other requests."""
    phone = width < 500
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        has_touch=phone,
        is_mobile=phone,
    )
    tab = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(report.as_uri())
    yield tab
    assert problems == []
    assert {url for url in requests if not url.startswith(("data:", "blob:"))} == {report.as_uri()}
    context.close()


def draw_all(tab: Tab) -> None:
    """Wait until all charts are drawn, which happens without scrolling."""
    tab.wait_for_function(READY)


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_charts_are_drawn_when_they_scroll_into_view(browser: Browser, report: Path, width: int):
    with opened(browser, report, width) as tab:
        total = tab.locator(".plot").count()
        assert total >= 9
        for i in range(total):
            plot = tab.locator(".plot").nth(i)
            plot.scroll_into_view_if_needed()
            plot.locator(".main-svg").first.wait_for()
            assert plot.locator("path.js-line, .bars path").count() > 0
            box = plot.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        assert tab.locator(".js-plotly-plot").count() == total
        wide = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
        assert max(tab.evaluate(wide)) <= width, "only tables scroll sideways"


def test_an_algorithm_is_switched_off_and_on_in_its_section(browser: Browser, report: Path):
    shown = """name => [...document.querySelectorAll('.plots')].map(group =>
        [...group.querySelectorAll('.plot')].flatMap(plot => plot.data)
            .filter(trace => trace.meta.series === name && trace.visible).length)"""
    with opened(browser, report) as tab:
        draw_all(tab)
        before = tab.evaluate(shown, "FedAvg")
        others = tab.evaluate(shown, "PC-FedAvg")
        assert before[0] > 0
        assert before[2] > 0
        button = tab.locator(".plots").first.get_by_role("button", name="FedAvg", exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert tab.evaluate(shown, "FedAvg") == [0, *before[1:]]
        assert tab.evaluate(shown, "PC-FedAvg") == others
        button.click()
        assert tab.evaluate(shown, "FedAvg") == before


def test_dark_follows_the_system_and_the_button(browser: Browser, report: Path):
    paper = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    ink = (
        "document.querySelector('.js-plotly-plot')"
        "._fullLayout.font.color.match(/\\d+/g).map(Number)[0]"
    )
    line = "document.querySelector('.js-plotly-plot').data.map(trace => trace.line.color).join()"
    with opened(browser, report, scheme="dark") as tab:
        draw_all(tab)
        assert tab.evaluate(paper) < 60
        assert tab.evaluate(ink) > 130
        colours = tab.evaluate(line)
        tab.click("#theme")
        assert tab.evaluate(paper) > 200
        assert tab.evaluate(ink) < 120
        assert tab.evaluate(line) != colours
        tab.reload()
        assert tab.evaluate(paper) > 200, "the choice is remembered"
    with opened(browser, report) as tab:
        assert tab.evaluate(paper) > 200
        tab.emulate_media(color_scheme="dark")
        assert tab.evaluate(paper) < 60


def test_hostile_names_are_harmless_and_images_are_complete(browser: Browser, report: Path):
    with opened(browser, report) as tab:
        draw_all(tab)
        assert tab.evaluate("window.hacked") is None
        images = "[...document.images].map(image => [image.naturalWidth, image.alt])"
        found = tab.evaluate(images)
        assert len(found) >= 130
        assert all(width == 8 and alt for width, alt in found)
