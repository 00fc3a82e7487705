"""Pages from templates: one HTML file each, with its style, its scripts and Plotly inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, Protocol

from pcfed.report.charts import Chart
from pcfed.report.optional import optional


class Drawn(Protocol):
    """A part of a page that has charts."""

    @property
    def id(self) -> str:
        """Where it is in the page."""

    @property
    def charts(self) -> Sequence[Chart]:
        """What is drawn there."""


def render(template: str, drawn: Iterable[Drawn], **values: Any) -> bytes:
    """Return a page; everything but our own style and scripts is escaped.

    Parameters
    ----------
    template : str
        Its file in this folder.
    drawn : iterable of Drawn
        The parts that have charts.
    **values
        What the template shows.
    """
    jinja = optional("jinja2")
    environment = jinja.Environment(
        autoescape=True,
        loader=jinja.FunctionLoader(_asset),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja.StrictUndefined,
    )
    page: str = environment.get_template(template).render(
        figures=_figures(drawn),
        style=_asset("style.css"),
        script=_asset("page.js"),
        plotly=optional("plotly.offline").get_plotlyjs(),
        **values,
    )
    return page.encode()


def _figures(drawn: Iterable[Drawn]) -> dict[str, Any]:
    """Return every panel as Plotly takes it, by the id of its place in the page."""
    return {
        f"{part.id}-{i}-{j}": {"data": panel.data, "layout": panel.layout}
        for part in drawn
        for i, chart in enumerate(part.charts)
        for j, panel in enumerate(chart.panels)
    }


def _asset(name: str) -> str:
    return files("pcfed.report").joinpath(name).read_text("utf-8")
