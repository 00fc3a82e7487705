"""The colour and the dash pattern of every method, in the figures and on the pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pcfed.algorithms import PCFedAvg
from pcfed.experiments import personal
from pcfed.experiments.rounds import ACCELERATED, OURS, PAPER
from pcfed.experiments.summary import Comparison
from pcfed.palette import COLOURS, NUM_ORDERED, STYLES, Style, series_styles

RECOMMENDED = Style("text", "solid", 3.25)
"""How the recommended method is drawn: in the colour of the text."""

BOUND = Style("series-1", "6px,5px", 2)
"""How a bound of the theorem is drawn."""

METHOD_STYLES: Mapping[str, Style] = {
    OURS: RECOMMENDED,
    **series_styles([PAPER, "FedAvg", "FedProx", "SCAFFOLD", ACCELERATED]),
    "Local": Style("series-4", "4px,2px", 1.75),
    personal.OURS: RECOMMENDED,
    personal.PAPER: STYLES[0],
    personal.SHARED: STYLES[1],
    personal.PROJECTED: Style("series-1", "4px,2px", 2.5),
    personal.ALONE: Style("series-4", "4px,2px", 1.75),
    personal.HALF_AVERAGE: Style("series-0", "9px,3px", 2.5),
    personal.OWN: STYLES[3],
    personal.ZERO_FREE: Style("series-3", "4px,2px", 2.25),
    personal.DITTO: STYLES[2],
}
"""The style of every method; training alone is drawn as the algorithm Local."""

POINTS = 0.75
"""Points per pixel of a page; matplotlib measures lines in points."""


def method_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of each method; names that are not of a method get the remaining ones."""
    order = list(names)
    unknown = [name for name in order if name not in METHOD_STYLES]
    used = {(style.colour, style.dash) for style in METHOD_STYLES.values()}
    numbered = series_styles(map(str, range(len(used) + len(unknown))))
    free = (each for each in numbered.values() if (each.colour, each.dash) not in used)
    others = dict(zip(unknown, free, strict=False))
    return {name: METHOD_STYLES.get(name) or others[name] for name in order}


def comparison_styles(comparison: Comparison) -> dict[str, Style]:
    """Return the style of each algorithm; variants of PC-FedAvg get an ordered colour scale."""
    algorithms = {run.name: run.algorithm for run in comparison.setting.runs}
    names = list(comparison.results)
    if len(names) > 1 and all(isinstance(algorithms.get(name), PCFedAvg) for name in names):
        last = len(names) - 1
        return {
            name: Style(f"ordered-{round(i * (NUM_ORDERED - 1) / last)}", "solid", 2)
            for i, name in enumerate(names)
        }
    return method_styles(names)


def matplotlib_style(style: Style) -> dict[str, Any]:
    """Return a style as arguments of matplotlib's functions for lines.

    Examples
    --------
    >>> matplotlib_style(Style("series-1", "6px,3px", 2.0))
    {'color': '#0072b2', 'ls': (0, (3.0, 1.5)), 'lw': 1.5}
    """
    dash: Any = "-"
    if style.dash != "solid":  # matplotlib's dashes are multiples of the width
        parts = style.dash.removesuffix("px").split("px,")
        dash = (0, tuple(float(part) / style.width for part in parts))
    return {"color": COLOURS[style.colour][0], "ls": dash, "lw": POINTS * style.width}
