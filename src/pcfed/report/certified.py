"""The section on exact PC-FedAvg: rounds and bytes until models are certainly near the optimum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pcfed.experiments.exact import OURS, PAPER, Case, ExactResults, GapRecord
from pcfed.report.charts import BASELINES, Chart, Panel, Style, Trace
from pcfed.report.measures import MEGABYTE


@dataclass(frozen=True)
class Row:
    """What one method reached.

    Attributes
    ----------
    method : str
        Its name.
    reached : sequence of str
        For every target, rounds and megabytes, or that it was not reached.
    smallest : str
        The smallest gap, and what it was reached with.
    infeasibility : str
        At the bytes that exact PC-FedAvg needed for the second target.
    """

    method: str
    reached: Sequence[str]
    smallest: str
    infeasibility: str


@dataclass(frozen=True)
class Certified:
    """What the page says of one case."""

    id: str
    title: str
    targets: Sequence[str]
    rows: Sequence[Row]
    styles: dict[str, Style]
    charts: Sequence[Chart]


def certified(race: ExactResults) -> list[Certified]:
    """Return the section of every case.

    Parameters
    ----------
    race : ExactResults
        Exact PC-FedAvg and others, measured.
    """
    return [_case(race, case) for case in race.cases]


def _case(race: ExactResults, case: Case) -> Certified:
    names = race.names(case)
    others = [name for name in names if name != OURS]
    styles = {OURS: Style("method-pc", "solid", 3.25)}
    styles |= {name: BASELINES[i % len(BASELINES)] for i, name in enumerate(others)}
    panels = (
        _panel("Certified gap by round", "round", race, case, styles, _gap, _round),
        _panel("Certified gap by megabytes", "megabytes", race, case, styles, _gap, _megabytes),
        _panel("Objective of the feasible models", "round", race, case, styles, _value, _round),
        _panel("Infeasibility", "megabytes", race, case, styles, _outside, _megabytes),
    )
    caption = (
        "Both axes are logarithmic. The gap bounds how far the feasible models can be from the "
        "optimum, as a share of their objective. Of PC-FedAvg the pair of the grid with the "
        "smallest gap is drawn."
    )
    return Certified(
        id=case.slug,
        title=case.title,
        targets=[f"{target:g}" for target in case.targets],
        rows=[_row(race, case, name) for name in names],
        styles=styles,
        charts=(Chart("How near, and at what price", caption, panels),),
    )


def _row(race: ExactResults, case: Case, name: str) -> Row:
    """Return what a method reached in a case."""
    best = race.best(case, name)
    rounds = case.rounds if name == OURS else case.baseline_rounds
    found = [race.first(case, name, target) for target in case.targets]
    ours = race.first(case, OURS, case.targets[1])
    same = best.at(ours.bytes) if ours else None
    pairs = f", best of {len(race.of(case, name))} pairs" if name == PAPER else ""
    return Row(
        method=name,
        reached=[
            f"{look.round} rounds, {look.bytes / MEGABYTE:.3g} MB" if look else f"not in {rounds}"
            for look in found
        ],
        smallest=f"{best.smallest_gap:.2g} ({best.status}{pairs})",
        infeasibility=f"{same.infeasibility:.2g}" if same else "–",
    )


def _gap(look: GapRecord) -> float:
    return look.gap


def _value(look: GapRecord) -> float:
    return look.objective


def _outside(look: GapRecord) -> float:
    return look.infeasibility


def _round(look: GapRecord) -> float:
    return float(look.round)


def _megabytes(look: GapRecord) -> float:
    return look.bytes / MEGABYTE


def _panel(
    heading: str,
    unit: str,
    race: ExactResults,
    case: Case,
    styles: dict[str, Style],
    quantity: Callable[[GapRecord], float],
    over: Callable[[GapRecord], float],
) -> Panel:
    """Return a quantity of the best run of every method over rounds or bytes."""
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": unit}, "type": "log", "dtick": 1},
        "yaxis": {"title": {"text": ""}, "type": "log", "exponentformat": "power"},
    }
    ends = [(name, race.best(case, name).records) for name in styles]
    said = ", ".join(f"{name} {quantity(looks[-1]):.2g}" for name, looks in ends if looks)
    description = f"{heading} over {unit}, both logarithmic. At the end: {said}."
    return Panel(heading, description, list(_traces(race, case, styles, quantity, over)), layout)


def _traces(
    race: ExactResults,
    case: Case,
    styles: dict[str, Style],
    quantity: Callable[[GapRecord], float],
    over: Callable[[GapRecord], float],
) -> Iterator[Trace]:
    """Yield one line a method, ours last and so on top."""
    for name, style in reversed(styles.items()):
        looks = [look for look in race.best(case, name).records if quantity(look) > 0]
        yield {
            "type": "scatter",
            "name": name,
            "mode": "lines",
            "x": [float(f"{over(look):.5g}") for look in looks],
            "y": [float(f"{quantity(look):.5g}") for look in looks],
            "line": {"dash": style.dash, "width": style.width},
            "hovertemplate": "%{y:.3g}",
            "meta": {"method": name, "colour": style.colour},
        }
