"""The HTML file of the report on experiments: complete, self-contained and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest

from pcfed.data import digits
from pcfed.experiments.claims import claims
from pcfed.experiments.summary import Comparison
from pcfed.report import write_report
from pcfed.report.comparison_charts import comparison_charts
from pcfed.report.comparison_metrics import comparison_metrics
from pcfed.report.page import Page, Paragraph, Section, import_optional, write_page
from tests.report.conftest import HOSTILE


class ParsedPage(HTMLParser):
    """The parts of a page: text by table row, attributes that load something, styles, tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.words: list[str] = []
        self.loads: list[str] = []
        self.styles: list[str] = []
        self.tags: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = tag
        if tag == "tr":
            self.rows.append("")
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}:
                self.loads.append(value or "")
            if name == "style":
                self.styles.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""
        if tag == "tr":
            self.rows.append("")

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self.styles.append(data)
        elif self.inside != "script":
            self.words.append(data)
            if self.rows:
                self.rows[-1] += data


@pytest.fixture(scope="session")
def page(report: Path) -> ParsedPage:
    return ParsedPage(report.read_text("utf-8"))


def test_every_claim_is_listed_with_measurement_and_verdict(
    page: ParsedPage, finished: list[Comparison]
):
    found = claims(finished)
    assert {claim.verdict for claim in found} == {"holds", "holds, but", "does not hold"}
    for claim in found:
        rows = [row for row in page.rows if claim.where in row and claim.measured in row]
        assert any(row.rstrip().endswith(f" {claim.verdict}") for row in rows)
        heading = claim.claim[0].upper() + claim.claim[1:]
        assert any(heading in row for row in page.rows)


def test_nothing_is_loaded_from_elsewhere(page: ParsedPage):
    assert page.loads
    for load in page.loads:
        assert load.startswith(("#", "data:")), load
    for style in page.styles:
        assert "@import" not in style
        assert not re.search(r"url\((?!['\"]?data:)", style)


def test_links_of_the_navigation_have_targets(page: ParsedPage, report: Path):
    ids = set(re.findall(r' id="([^"]+)"', report.read_text("utf-8")))
    targets = [load[1:] for load in page.loads if load.startswith("#")]
    assert len(targets) > 5
    assert set(targets) <= ids


def test_names_are_escaped(page: ParsedPage, report: Path):
    assert HOSTILE not in report.read_text("utf-8")
    assert any(HOSTILE in words for words in page.words)
    assert page.tags.count("script") == 3


def test_the_same_results_give_the_same_page(
    report: Path, finished: list[Comparison], tmp_path: Path
):
    again = tmp_path / "again.html"
    write_report(finished, again, provenance={"version": "1.2.3", HOSTILE: HOSTILE})
    assert again.read_bytes() == report.read_bytes()
    assert list(tmp_path.iterdir()) == [again]


def test_charts_are_valid_plotly_figures(finished: list[Comparison]):
    for comparison in finished:
        for chart in comparison_charts(comparison, comparison_metrics(comparison, digits())):
            for panel in chart.panels:
                assert len(go.Figure(panel.data, panel.layout).data) >= len(comparison.results)


def test_a_page_without_charts_has_no_scripts(tmp_path: Path):
    sections = [Section("one", HOSTILE, [Paragraph(HOSTILE, HOSTILE)])]
    path = tmp_path / "page.html"
    write_page(Page("title", HOSTILE, "lead", sections, {"term": "meaning"}), path)
    page = ParsedPage(path.read_text("utf-8"))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "button" not in page.tags  # the theme button needs a script
    assert path.stat().st_size < 50_000


def test_there_must_be_something_to_report(tmp_path: Path):
    with pytest.raises(ValueError, match="comparisons must not be empty"):
        write_report([], tmp_path / "report.html")


def test_a_missing_package_is_named_with_the_command_to_install_it():
    with pytest.raises(ImportError, match=r"nowhere is not .* pip install .*\[experiments\]'"):
        import_optional("nowhere.at.all")
