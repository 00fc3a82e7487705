"""Charts as plain Plotly figures: data and layout, without colours.

Every trace names its series and a colour of the page's theme in ``meta``. The page's script adds
the colours, so that charts follow a change of the theme, and hides a series that is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pcfed.palette import Style

Trace = dict[str, Any]
Values = Sequence[float | None]


@dataclass(frozen=True)
class Panel:
    """One Plotly figure; screen readers read its description."""

    heading: str
    description: str
    data: Sequence[Trace]
    layout: Mapping[str, Any]
    height: float | None = None  # in rem; by default that of the style sheet


@dataclass(frozen=True)
class Chart:
    """A titled group of panels that belong together."""

    title: str
    caption: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Line:
    """A curve, and optionally the band around it from its smallest to its largest values."""

    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None


def line_panel(
    heading: str,
    lines: Mapping[str, Line],
    styles: Mapping[str, Style],
    x_title: str,
    y_title: str,
    *,
    on_top: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Panel:
    """Return a line chart in which the series ``on_top`` is drawn last.

    On logarithmic axes, values that are not positive are left out.
    """
    traces: list[Trace] = []
    for name in sorted(lines, key=lambda name: name == on_top):
        traces += _line_traces(name, lines[name], styles[name], log=log_y)
    ends = [f"{name} {line.y[-1]:.4g}" for name, line in lines.items() if len(line.y)]
    scale = ", on logarithmic axes" if log_x else ""
    description = f"Line chart of {heading} by {x_title}{scale}. Last values: {', '.join(ends)}."
    return Panel(heading, description, traces, axes(x_title, y_title, log_x=log_x, log_y=log_y))


def axes(x_title: str, y_title: str, *, log_x: bool = False, log_y: bool = False) -> dict[str, Any]:
    """Return the layout of two titled axes."""
    x: dict[str, Any] = {"title": {"text": x_title}}
    y: dict[str, Any] = {"title": {"text": y_title}}
    if x_title:
        x["unifiedhovertitle"] = {"text": f"{x_title}: %{{x}}"}
    if log_x:
        x |= {"type": "log", "dtick": 1}
    if log_y:
        y |= {"type": "log", "exponentformat": "power"}
    return {"xaxis": x, "yaxis": y}


def series_trace(name: str, x: Values, y: Values, style: Style, *, mode: str = "lines") -> Trace:
    """Return a series as a Plotly scatter trace, with ``mode`` ``"lines"`` or ``"markers"``."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": escape(name),  # Plotly renders some HTML in names
        "x": x,
        "y": y,
        "line": {"dash": style.dash, "width": style.width},
        "hovertemplate": "%{y:.4g}",
        "meta": {"series": name, "colour": style.colour},
    }


def rounded(values: Iterable[float], *, log: bool = False) -> list[float | None]:
    """Return values with five significant digits, and None for those that cannot be drawn.

    More digits would only make the page larger: a screen shows fewer.
    """
    return [
        float(f"{value:.5g}") if math.isfinite(value) and (value > 0 or not log) else None
        for value in values
    ]


def _line_traces(name: str, line: Line, style: Style, *, log: bool) -> Iterator[Trace]:
    """Yield the traces of a series: the two edges of its band, if it has one, then the line."""
    x = rounded(line.x)
    # A line through a single point is invisible.
    mode = "lines" if len(x) > 1 else "markers"
    trace = series_trace(name, x, rounded(line.y, log=log), style, mode=mode)
    if line.band is not None:
        low, high = (rounded(edge, log=log) for edge in line.band)
        for edge, fill in ((low, "none"), (high, "tonexty")):
            yield {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": edge,
                "fill": fill,
                "line": {"width": 0},
                "hoverinfo": "skip",
                "meta": {**trace["meta"], "band": True},
            }
        trace["customdata"] = [list(pair) for pair in zip(low, high, strict=True)]
        trace["hovertemplate"] += " (%{customdata[0]:.4g} to %{customdata[1]:.4g})"
    yield trace
