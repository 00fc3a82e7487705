"""Charts of trainings over rounds: objective, loss, scores, distances from the sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import numpy as np

from pcfed.palette import Style, series_styles
from pcfed.report.charts import Chart, Line, Panel, line_panel
from pcfed.simulation.result import Record
from pcfed.training.saved_run import SavedRun

Quantity = Callable[[Record], float]
OBJECTIVE: Quantity = attrgetter("objective")
LOSS: Quantity = attrgetter("loss")

MAX_POINTS = 600
"""Largest number of points of a line; a screen cannot show more."""
MAX_LINES = 8
"""Largest number of agents with a line of their own."""

DISTANCE_CAPTION = (
    "The models are shown before they are made feasible. A distance of zero (feasible) cannot be "
    "shown on a logarithmic axis."
)


def agent_styles(run: SavedRun) -> dict[str, Style]:
    """Return the styles of the agents that are drawn."""
    return series_styles(run.names[i] for i in _drawn_agents(run))


def overall_chart(run: SavedRun) -> Chart:
    """Return the objective and the loss of one training."""
    history = subsampled(run.history)
    name = run.path.name or "run"
    styles = {name: Style("text", "solid", 2.25)}
    panels = [
        line_panel("Objective", {name: _line(history, OBJECTIVE)}, styles, "round", "objective"),
        line_panel(
            "Loss at the shared model", {name: _line(history, LOSS)}, styles, "round", "loss"
        ),
    ]
    caption = "The objective has losses at the shared and at own models, and the coupling term."
    return Chart("All agents", caption, panels)


def agents_chart(run: SavedRun) -> Chart:
    """Return the distance from the set, and the score if there is one, with a line per agent."""
    history = subsampled(run.history)
    rounds = [record.round for record in history]
    drawn = _drawn_agents(run)
    styles = agent_styles(run)

    def panel(heading: str, y_title: str, field: str, *, log: bool = False) -> Panel:
        values = np.array([getattr(record, field) for record in history])
        lines = {run.names[i]: Line(rounds, values[:, i].tolist()) for i in drawn}
        return line_panel(heading, lines, styles, "round", y_title, log_y=log)

    panels = [panel("Distance from the agent's set", "distance", "infeasibility", log=True)]
    if _has_scores(history):
        panels.append(panel("Score on held-out rows", "score", "test_accuracy"))
    caption = DISTANCE_CAPTION
    if len(drawn) < len(run.names):
        caption += (
            f" Only the {len(drawn)} agents with the largest distances are drawn, "
            f"of {len(run.names)}."
        )
    return Chart("Each agent", caption, panels)


def compared_runs_chart(runs: Mapping[str, SavedRun]) -> list[Chart]:
    """Return a chart with one line per training, or nothing if no training has a history."""
    histories = {name: subsampled(run.history) for name, run in runs.items() if run.history}
    if not histories:
        return []
    styles = series_styles(runs)

    def panel(heading: str, y_title: str, quantity: Quantity, *, log: bool = False) -> Panel:
        lines = {name: _line(history, quantity) for name, history in histories.items()}
        return line_panel(heading, lines, styles, "round", y_title, log_y=log)

    panels = [
        panel("Objective", "objective", OBJECTIVE),
        panel("Loss at the shared model", "loss", LOSS),
        panel(
            "Largest distance from a set",
            "distance",
            lambda r: float(r.infeasibility.max()),
            log=True,
        ),
    ]
    if all(_has_scores(history) for history in histories.values()):
        panels.append(panel("Mean score on held-out rows", "score", _mean_score))
    return [Chart("All trainings", DISTANCE_CAPTION, panels)]


def subsampled(history: Sequence[Record]) -> list[Record]:
    """Return at most ``MAX_POINTS`` records, evenly spaced, with the first and the last."""
    if len(history) <= MAX_POINTS:
        return list(history)
    indices = np.linspace(0, len(history) - 1, MAX_POINTS).round().astype(int)
    return [history[i] for i in indices]


def _drawn_agents(run: SavedRun) -> list[int]:
    """Return the indices of all agents, or of those with the largest distances if too many."""
    m = len(run.names)
    if m <= MAX_LINES:
        return list(range(m))
    worst = np.nanmax([record.infeasibility for record in run.history], axis=0, initial=0.0)
    return sorted(np.argsort(-worst, kind="stable")[:MAX_LINES].tolist())


def _line(history: Sequence[Record], quantity: Quantity) -> Line:
    return Line([record.round for record in history], [quantity(record) for record in history])


def _mean_score(record: Record) -> float:
    known = record.test_accuracy[np.isfinite(record.test_accuracy)]
    return float(known.mean()) if known.size else math.nan


def _has_scores(history: Sequence[Record]) -> bool:
    return any(np.isfinite(record.test_accuracy).any() for record in history)
