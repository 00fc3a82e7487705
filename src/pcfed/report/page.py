"""The page of every report: its contents as plain data, and one template that turns them into HTML.

A page is one file that loads nothing from elsewhere: style, scripts, charts and images are inside.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from pcfed.errors import install_command
from pcfed.palette import COLOURS, Style
from pcfed.report.charts import Chart
from pcfed.storage.atomic import write_atomically

PLOTLY = "plotly-basic.min.js"
"""Plotly with lines, dots and bars only: this file of the npm package plotly.js-basic-dist-min."""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text, with an optional label in bold; ``css_class`` may be note or hint."""

    template: ClassVar = "paragraph"
    text: str
    label: str = ""
    css_class: str = ""


@dataclass(frozen=True)
class BulletList:
    """A list of sentences, the most important first."""

    template: ClassVar = "bullet_list"
    entries: Sequence[str]


@dataclass(frozen=True)
class Definitions:
    """Terms with their definitions; ``links`` are the ids of the sections of some terms."""

    template: ClassVar = "definitions"
    entries: Mapping[str, str]
    css_class: str = "summary"
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Details:
    """Terms with their definitions, and preformatted text, that readers can unfold."""

    template: ClassVar = "details"
    summary: str
    entries: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Badge:
    """A verdict with a mark and a colour."""

    text: str
    mark: str
    css_class: str


@dataclass(frozen=True)
class Badges:
    """Badges with the number of times that each occurs."""

    template: ClassVar = "badges"
    counts: Sequence[tuple[Badge, int]]


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str = ""  # or the description of the image
    heading: str = ""  # ``row``, ``rowgroup`` or ``col`` if it is the heading of that
    rowspan: int = 1
    colspan: int = 1
    note: str = ""  # small print below the text
    css_class: str = ""
    style: Style | None = None  # of the series that the cell names; a sample is drawn
    badge: Badge | None = None  # shown instead of the text
    image: str = ""  # data URL, shown instead of the text
    tint: float | None = None  # background, from -1 (most negative) to 1


@dataclass(frozen=True)
class RowGroup:
    """Rows of a table that belong together."""

    rows: Sequence[Sequence[Cell]]
    css_class: str = ""


@dataclass(frozen=True)
class Table:
    """A table."""

    template: ClassVar = "table"
    label: str  # what it holds, for screen readers
    columns: Sequence[Cell]  # headings
    groups: Sequence[RowGroup]
    css_class: str = "numbers"
    caption: str = ""  # a visible title
    hint: str = ""  # a sentence on how to read it
    signed_colours: bool = False  # orange and blue stand for positive and negative values
    folded: str = ""  # a title, if readers must unfold the table
    stacked: bool = False  # cells of a row are below each other on narrow screens; else it scrolls


@dataclass(frozen=True)
class ChartGroup:
    """Charts, with a legend that switches their series on and off if there are styles."""

    template: ClassVar = "chart_group"
    id: str  # prefix of the ids of the charts in the page
    charts: Sequence[Chart]
    styles: Mapping[str, Style] = field(default_factory=dict)
    series: str = "algorithms"  # what the series are: algorithms, agents or trainings


Block = Paragraph | BulletList | Definitions | Details | Badges | Table | ChartGroup


@dataclass(frozen=True)
class Section:
    """A titled part of a page: its blocks, then its subsections."""

    id: str
    title: str
    blocks: Sequence[Block]
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Page:
    """What a report says."""

    title: str  # of the window
    heading: str
    lead: str  # the first paragraph
    sections: Sequence[Section]  # the first two levels are in the navigation
    glossary: Mapping[str, str]  # what the terms of the page mean
    notes: Sequence[Paragraph] = ()  # what to know before reading on
    live: str = ""  # "running" or "ended" if a server updates the page


def table_of(
    label: str, columns: Sequence[str], rows: Sequence[Sequence[str]], css_class: str = "numbers"
) -> Table:
    """Return a table of strings; the first cell of a row is its heading."""
    cells = [[Cell(first, heading="row"), *map(Cell, rest)] for first, *rest in rows]
    return Table(label, [Cell(name) for name in columns], [RowGroup(cells)], css_class)


def provenance_table(label: str, provenance: Mapping[str, str]) -> Table:
    """Return a table of names and values."""
    return table_of(label, (), list(provenance.items()), "provenance")


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number for a table, or an empty string if it is unknown.

    Examples
    --------
    >>> format_number(0.12345), format_number(None), format_number(1e-15)
    ('0.123', '', '0')
    """
    if value is None or math.isnan(value):
        return ""
    return "0" if abs(value) < 1e-12 else f"{value:.{digits}g}"


def write_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, with all text escaped; an existing file is replaced."""
    write_atomically(Path(path), render_page(page).encode())


def render_page(page: Page) -> str:
    """Return a page as HTML, with all text escaped."""
    jinja = import_optional("jinja2")
    environment = jinja.Environment(
        autoescape=True,
        loader=jinja.FunctionLoader(read_asset),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja.StrictUndefined,
    )
    figures = _figures(page.sections)
    # Plotly has a megabyte: a page without charts does not include it, a live page loads it once.
    plotly = read_asset(PLOTLY) if figures and not page.live else ""
    text: str = environment.get_template("page.html").render(
        page=page,
        figures=figures,
        style=read_asset("page.css"),
        colours=COLOURS,
        script=read_asset("page.js"),
        plotly=plotly,
        plotly_file=PLOTLY,
        version=version("pcfed"),
    )
    return text


def import_optional(module: str) -> Any:
    """Import a module of an extra, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        extra = "app" if package == "jinja2" else "experiments"
        raise ImportError(
            f"report: the package {package} is not installed; run {install_command(extra)}."
        ) from None


def _figures(sections: Sequence[Section]) -> dict[str, Any]:
    """Return every panel in the form that Plotly reads, by the id of its element."""
    return {
        f"{group.id}-{i}-{j}": {"data": panel.data, "layout": panel.layout}
        for group in _chart_groups(sections)
        for i, chart in enumerate(group.charts)
        for j, panel in enumerate(chart.panels)
    }


def _chart_groups(sections: Sequence[Section]) -> Iterator[ChartGroup]:
    for section in sections:
        yield from (block for block in section.blocks if isinstance(block, ChartGroup))
        yield from _chart_groups(section.sections)


def read_asset(name: str) -> str:
    """Return a file of this package."""
    return files("pcfed.report").joinpath(name).read_text("utf-8")
