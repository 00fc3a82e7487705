"""How trainings went, as charts over rounds: objective, loss, scores, distances from the sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

import numpy as np

from pcfed.report.charts import BASELINES, Chart, Panel, Style, Trace, layout_of
from pcfed.simulation.result import Record
from pcfed.training.saved_run import SavedRun

Quantity = Callable[[Record], float]

LINES = (Style("method-pc", "solid", 3), *BASELINES)
MOST_POINTS = 600
"""Points of a line at most; a screen has few more."""
MOST_LINES = 8
"""Agents that are drawn one by one."""


def looks(names: Iterable[str]) -> dict[str, Style]:
    """Return how each line is drawn; after some, colours come back with another dash."""
    dashes = ("", "4px,2px", "9px,3px", "1px,2px")
    found = {}
    for i, name in enumerate(names):
        again, style = divmod(i, len(LINES))
        dash = dashes[again % len(dashes)] or LINES[style].dash
        found[name] = Style(LINES[style].colour, dash, LINES[style].width)
    return found


def course_of(run: SavedRun) -> tuple[dict[str, Style], list[Chart]]:
    """Return the charts of one training: of all agents together, and one line an agent."""
    history = thinned(run.history)
    if not history:
        return {}, []
    whole = {run.path.name or "run": history}
    chosen = _chosen(run)
    agents = {run.names[i]: i for i in chosen}
    styles = looks(agents)
    left = len(run.names) - len(chosen)
    few = f" The {len(chosen)} that are farthest out; {left} more are not drawn." * (left > 0)

    def panel(heading: str, name: str, which: str, *, log: bool = False) -> Panel:
        values = {agent: _of(which, i) for agent, i in agents.items()}
        lines = {agent: (history, quantity) for agent, quantity in values.items()}
        return _panel(heading, lines, styles, name, log=log)

    plain = dict.fromkeys(whole, Style("text", "solid", 2.25))
    together = [
        _panel("Objective", _lines(whole, _objective), plain, "objective"),
        _panel("Loss at the average", _lines(whole, _loss), plain, "loss"),
    ]
    charts = [
        Chart("All agents together", "What is minimised, and its part without coupling.", together)
    ]
    own = [panel("Distance from the own set", "distance", "infeasibility", log=True)]
    if _scored(history):
        own.append(panel("Score on held-out rows", "score", "test_accuracy"))
    caption = "Before models are made feasible; zero is inside and is not drawn." + few
    return styles, [*charts, Chart("Each agent", caption, own)]


def courses(runs: Mapping[str, SavedRun]) -> list[Chart]:
    """Return the charts of several trainings, one line each."""
    known = {name: thinned(run.history) for name, run in runs.items() if run.history}
    styles = looks(runs)
    if not known:
        return []
    far = _panel(
        "Largest distance from a set", _lines(known, _farthest), styles, "distance", log=True
    )
    panels = [
        _panel("Objective", _lines(known, _objective), styles, "objective"),
        _panel("Loss at the average", _lines(known, _loss), styles, "loss"),
        far,
    ]
    if all(_scored(history) for history in known.values()):
        panels.append(_panel("Mean score on held-out rows", _lines(known, _score), styles, "score"))
    caption = "Before models are made feasible. Distances of zero are inside and not drawn."
    return [Chart("Over the rounds", caption, panels)]


def thinned(history: Sequence[Record]) -> list[Record]:
    """Return at most so many records as can be told apart, the first and the last among them."""
    if len(history) <= MOST_POINTS:
        return list(history)
    places = np.linspace(0, len(history) - 1, MOST_POINTS).round().astype(int)
    return [history[i] for i in places]


def _chosen(run: SavedRun) -> list[int]:
    """Return the agents to draw: all, or those that were farthest out of their sets."""
    m = len(run.names)
    if m <= MOST_LINES:
        return list(range(m))
    worst = np.nanmax([record.infeasibility for record in run.history], axis=0, initial=0.0)
    return sorted(np.argsort(-worst, kind="stable")[:MOST_LINES].tolist())


def _panel(
    heading: str,
    lines: Mapping[str, tuple[Sequence[Record], Quantity]],
    styles: Mapping[str, Style],
    name: str,
    *,
    log: bool = False,
) -> Panel:
    """Return a line chart over rounds."""
    data: list[Trace] = []
    ends = []
    for line, (history, quantity) in lines.items():
        values = [_finite(quantity(record), positive=log) for record in history]
        ends.append(f"{line} {'none' if values[-1] is None else format(values[-1], '.4g')}")
        data.append(
            {
                "type": "scatter",
                "mode": "lines" if len(history) > 1 else "markers",
                "name": escape(line),
                "x": [record.round for record in history],
                "y": values,
                "line": {"dash": styles[line].dash, "width": styles[line].width},
                "hovertemplate": "%{y:.4g}",
                "meta": {"method": line, "colour": styles[line].colour},
            }
        )
    layout = layout_of("round", name)
    if log:
        layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
    said = f"Line chart over rounds: {heading}. At the end: {', '.join(ends)}."
    return Panel(heading, said, data, layout)


def _lines(
    runs: Mapping[str, Sequence[Record]], quantity: Quantity
) -> dict[str, tuple[Sequence[Record], Quantity]]:
    return {name: (history, quantity) for name, history in runs.items()}


def _finite(value: float, *, positive: bool) -> float | None:
    """Return a number with five digits, or None for what cannot be drawn."""
    if not math.isfinite(value) or (positive and not value > 0):
        return None
    return float(f"{value:.5g}")


def _of(which: str, i: int) -> Quantity:
    return lambda record: float(getattr(record, which)[i])


def _objective(record: Record) -> float:
    return record.objective


def _loss(record: Record) -> float:
    return record.loss


def _farthest(record: Record) -> float:
    return float(record.infeasibility.max())


def _score(record: Record) -> float:
    known = record.test_accuracy[np.isfinite(record.test_accuracy)]
    return float(known.mean()) if known.size else math.nan


def _scored(history: Sequence[Record]) -> bool:
    return any(np.isfinite(record.test_accuracy).any() for record in history)
