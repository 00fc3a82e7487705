"""The documentation's site in a real browser, opened from the file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
PHONE = 390
MAX_INCHES = 7.5
"""Figures are drawn at most this wide, with text of 10 to 14 points, so that phones show it."""


@pytest.fixture(scope="session", autouse=True)
def site() -> None:
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built; run make docs")


def test_search_works_without_a_server(browser: Browser):
    tab = browser.new_page()
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto((SITE / "index.html").as_uri())
    tab.locator("input.md-search__input").click()
    tab.keyboard.type("halfspace")
    link = tab.locator(".md-search-result__link").first
    link.wait_for()
    assert str(link.get_attribute("href")).startswith(SITE.as_uri())
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    tab.close()


def test_no_page_is_wider_than_a_phone(browser: Browser):
    context = browser.new_context(viewport={"width": PHONE, "height": 844}, is_mobile=True)
    tab = context.new_page()
    wide = []
    for page in sorted(SITE.glob("*.html")):
        tab.goto(page.as_uri())
        if tab.evaluate("document.documentElement.scrollWidth") > PHONE:
            wide.append(page.name)
    context.close()
    assert wide == []


def test_figures_are_drawn_for_narrow_screens():
    from PIL import Image

    wide = {}
    for path in sorted((ROOT / "docs").rglob("*.png")):
        with Image.open(path) as picture:
            if "dpi" in picture.info:  # drawn by Matplotlib, not a screenshot
                inches = picture.width / picture.info["dpi"][0]
                wide |= {path.name: inches} if inches > MAX_INCHES else {}
    assert wide == {}
