"""Charts as plain Plotly figures: data and layout, without colours.

Every trace names its series and a colour of the page's theme in ``meta``. The page's script adds
the colours, so that charts follow a change of the theme, and hides a series that is switched off.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pcfed.palette import Style

Trace = dict[str, Any]
Values = Sequence[float | None]

MAX_CUT = 4.0
"""Values farther away than this many ranges of the later values are beyond the axis."""
MAX_NAME_LENGTH = 18
"""Longer names of rows are cut."""


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
    robust: bool = False,
) -> Panel:
    """Return a line chart in which the series ``on_top`` is drawn last.

    On logarithmic axes, values that are not positive are left out. With ``robust``, the axis fits
    the later half of the lines (`robust_range`).
    """
    traces: list[Trace] = []
    for name in sorted(lines, key=lambda name: name == on_top):
        traces += _line_traces(name, lines[name], styles[name], log=log_y)
    known = {name: [y for y in line.y if math.isfinite(y)] for name, line in lines.items()}
    ends = [f"{name} {values[-1]:.4g}" for name, values in known.items() if values]
    scale = ", on logarithmic axes" if log_x else ""
    description = f"Line chart of {heading} by {x_title}{scale}. Last values: {', '.join(ends)}."
    layout = axes(x_title, y_title, log_x=log_x, log_y=log_y)
    if robust and (limits := robust_range([line.y for line in lines.values()])) is not None:
        layout["yaxis"]["range"] = limits
    return Panel(heading, description, traces, layout)


def robust_range(lines: Iterable[Sequence[float]]) -> list[float] | None:
    """Return limits of an axis that shows the later half of some lines; None if all values fit.

    All values fit if they are within ``MAX_CUT`` times the range of the later half, or a quarter of
    the values there: one huge first value must not flatten the rest.

    Examples
    --------
    >>> robust_range([[3.0, 2.0, 1.5, 1.25]]) is None
    True
    >>> robust_range([[1e6, 2.0, 1.5, 1.25]])
    [1.1..., 3.0...]
    """
    known = [[y for y in line if math.isfinite(y)] for line in lines]
    late = [y for line in known for y in line[len(line) // 2 :]]
    if not late:
        return None
    every = [y for line in known for y in line]
    low, high = min(late), max(late)
    span = max(high - low, 0.25 * max(abs(low), abs(high)))
    cut_low, cut_high = low - MAX_CUT * span, high + MAX_CUT * span
    if cut_low <= min(every) and max(every) <= cut_high:
        return None
    ends = max(min(every), cut_low), min(max(every), cut_high)
    margin = 0.05 * (ends[1] - ends[0])
    return [ends[0] - margin, ends[1] + margin]


def keep_outliers_at_the_edge(traces: Sequence[Trace], layout: dict[str, Any]) -> bool:
    """Limit the x axis to values near the median, and move other dots to its ends, as triangles.

    Return whether there are such dots. Ends of intervals count as values, too.
    """
    values = [x for trace in traces for x in _with_ends(trace)]
    middle = statistics.median(values) if values else 0.0
    limits = robust_range([sorted(values, key=lambda x: -abs(x - middle))])
    if limits is None:
        return False
    layout["xaxis"]["range"] = limits
    low, high = limits
    moved = False
    for trace in traces:
        symbol = trace["marker"]["symbol"]
        trace["marker"]["symbol"] = [
            "triangle-left" if x < low else "triangle-right" if x > high else symbol
            for x in trace["x"]
        ]
        moved = moved or any(not low <= x <= high for x in trace["x"])
        trace["x"] = [min(max(x, low), high) for x in trace["x"]]
        trace["cliponaxis"] = False
    return moved


def _with_ends(trace: Trace) -> Iterator[float]:
    """Yield the values of a trace of dots, and the ends of their intervals."""
    yield from trace["x"]
    if "error_x" in trace:
        interval = trace["error_x"]
        yield from (x + each for x, each in zip(trace["x"], interval["array"], strict=True))
        yield from (x - each for x, each in zip(trace["x"], interval["arrayminus"], strict=True))


def row_layout(names: Sequence[str], x_title: str) -> dict[str, Any]:
    """Return the layout of a chart with a row per name, the first at the top."""
    short = [
        name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"
        for name in names
    ]
    rows = {
        "tickvals": list(range(len(names))),
        "ticktext": [plotly_text(name) for name in short],
        "range": [len(names) - 0.5, -0.5],
        "zeroline": False,
        "title": {"text": ""},
        "nticks": 0,
    }
    x = {"title": {"text": x_title}, "zeroline": False}
    return {"xaxis": x, "yaxis": rows, "hovermode": "closest"}


def row_height(num_rows: int, rem: float = 2.25) -> float:
    """Return the height of a chart with some rows of a height, in rem."""
    return 4.5 + rem * num_rows


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
        "name": plotly_text(name),
        "x": x,
        "y": y,
        "line": {"dash": style.dash, "width": style.width},
        "hovertemplate": "%{y:.4g}",
        "meta": {"series": name, "colour": style.colour},
    }


def plotly_text(text: str) -> str:
    """Return text such that Plotly, which renders some HTML, shows it as it is.

    Plotly does not know the entities of quotation marks.

    Examples
    --------
    >>> plotly_text('<b> & "c"')
    '&lt;b&gt; &amp; "c"'
    """
    return escape(text, quote=False)


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
