"""The section on the theorem: measured rates of convergence and the theorem's bounds."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from pcfed.experiments.rates import RatePoint, Rates
from pcfed.experiments.rounds import PAPER
from pcfed.experiments.styles import BOUND, METHOD_STYLES
from pcfed.report.charts import Chart, Panel, axes, rounded, series_trace
from pcfed.report.page import BulletList, ChartGroup, Paragraph, Section

Quantity = Callable[[RatePoint], float]
SUBOPTIMALITY: Quantity = attrgetter("suboptimality")
INFEASIBILITY: Quantity = attrgetter("infeasibility")


def rates_section(rates: Rates) -> Section:
    """Return the section of the measured rates."""
    seeds = len({point.seed for point in rates.points})
    within = len(rates.points) - len(rates.violations)
    text = (
        "PC-FedAvg with penalty ρ = √R and the largest step that the theorem admits, for growing "
        f"numbers of rounds R and {seeds} seeds, on a small problem whose optimum is known to a "
        "certified gap of 10⁻¹⁰."
    )
    findings = (
        f"{within} of {len(rates.points)} runs are within all three bounds.",
        f"|f − f*| falls with slope {_slopes(rates, SUBOPTIMALITY)}; the theorem promises −0.5.",
        f"Squared infeasibility falls with slope {_slopes(rates, INFEASIBILITY)}; the theorem "
        "promises −1.",
    )
    panels = (
        _panel("|f − f*|, mean over the run", rates, SUBOPTIMALITY, lambda p: p.upper),
        _panel("Squared infeasibility", rates, INFEASIBILITY, lambda p: p.infeasibility_bound),
    )
    caption = (
        "Both axes are logarithmic. Each dot is a run with one number of rounds R and one seed; "
        "the dashed line is the theorem's bound."
    )
    charts = ChartGroup("rates", [Chart("Measured values and bounds", caption, panels)])
    return Section(
        "rates", "The theorem: measured rates", [Paragraph(text), BulletList(findings), charts]
    )


def _slopes(rates: Rates, quantity: Quantity) -> str:
    return f"{rates.fit(quantity)}, over the longer half of the runs {rates.tail.fit(quantity)}"


def _panel(heading: str, rates: Rates, quantity: Quantity, bound: Quantity) -> Panel:
    """Return the runs as dots and the bound as a line, over the number of rounds."""
    rounds = [float(point.rounds) for point in rates.points]
    measured = rounded(abs(quantity(point)) for point in rates.points)
    bounds = rounded(abs(bound(point)) for point in rates.points)
    dots = series_trace("measured", rounds, measured, METHOD_STYLES[PAPER], mode="markers")
    dots["marker"] = {"size": 8}
    line = series_trace("bound", rounds, bounds, BOUND)
    slope = rates.fit(quantity)
    description = f"{heading} over the number of rounds, both logarithmic. Fitted slope {slope}."
    return Panel(heading, description, [dots, line], axes("rounds R", "", log_x=True, log_y=True))
