"""The section on the theorem: measured rates, with the bounds above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcfed.experiments.rates import RatePoint, Rates
from pcfed.report.charts import Chart, Panel, Trace


@dataclass(frozen=True)
class Theorem:
    """What the page says of the theorem."""

    id: str
    seeds: int
    findings: tuple[str, ...]
    charts: tuple[Chart, ...]


def theorem(rates: Rates) -> Theorem:
    """Return the section of measured rates.

    Parameters
    ----------
    rates : Rates
        The theorem, measured.
    """
    sub, squares = rates.fit(_suboptimality), rates.fit(_infeasibility)
    tail = rates.tail
    seeds = len({point.seed for point in rates.points})
    within = len(rates.points) - len(rates.violations)
    findings = (
        f"{within} of {len(rates.points)} runs are within all three bounds.",
        f"|f − f*| falls with slope {sub}, over the longer half of the runs "
        f"{tail.fit(_suboptimality)}; the theorem promises −0.5.",
        f"Squared infeasibility falls with slope {squares}, over the longer half of the runs "
        f"{tail.fit(_infeasibility)}; the theorem promises −1.",
    )
    panels = (
        _panel("|f − f*|, mean over the run", rates, _suboptimality, lambda p: p.upper),
        _panel("Squared infeasibility", rates, _infeasibility, lambda p: p.infeasibility_bound),
    )
    caption = (
        "Both axes are logarithmic. Dots are runs, one per number of rounds R and seed; dashed is "
        "what the theorem promises of them."
    )
    return Theorem("rates", seeds, findings, (Chart("Measured, and promised", caption, panels),))


def _suboptimality(point: RatePoint) -> float:
    return point.suboptimality


def _infeasibility(point: RatePoint) -> float:
    return point.infeasibility


def _panel(
    heading: str,
    rates: Rates,
    quantity: Callable[[RatePoint], float],
    bound: Callable[[RatePoint], float],
) -> Panel:
    """Return measurements and the bound over the number of rounds."""
    fit = rates.fit(quantity)
    layout = {
        "xaxis": {"title": {"text": "rounds R"}, "type": "log", "dtick": 1},
        "yaxis": {"title": {"text": ""}, "type": "log", "exponentformat": "power"},
    }
    description = f"{heading} over the number of rounds, both logarithmic. Fitted slope {fit}."
    return Panel(heading, description, list(_traces(rates, quantity, bound)), layout)


def _traces(
    rates: Rates, quantity: Callable[[RatePoint], float], bound: Callable[[RatePoint], float]
) -> Iterator[Trace]:
    """Yield the runs as dots and the bound as a line."""
    yield {
        **_trace("measured", "method-pc", rates, lambda point: abs(quantity(point))),
        "mode": "markers",
        "marker": {"size": 8},
    }
    yield {
        **_trace("bound", "method-1", rates, bound),
        "mode": "lines",
        "line": {"dash": "6px,5px", "width": 2},
    }


def _trace(
    name: str, colour: str, rates: Rates, quantity: Callable[[RatePoint], float]
) -> dict[str, Any]:
    """Return what the two kinds of traces share."""
    return {
        "type": "scatter",
        "name": name,
        "x": [point.rounds for point in rates.points],
        "y": [float(f"{np.abs(quantity(point)):.5g}") for point in rates.points],
        "hovertemplate": "%{y:.3g}",
        "meta": {"method": name, "colour": colour},
    }
