"""Charts of trainings over rounds: distance from the optimum, objective, scores, feasibility."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pcfed.palette import STYLES, Style, series_styles
from pcfed.report.charts import (
    Chart,
    Line,
    Panel,
    Trace,
    keep_outliers_at_the_edge,
    line_panel,
    plotly_text,
    rounded,
    row_height,
    row_layout,
)
from pcfed.simulation.result import Record
from pcfed.training.saved_run import SavedRun

MAX_POINTS = 600
"""Largest number of points of a line; a screen cannot show more."""
MAX_LINES = 8
"""Largest number of agents with a line of their own."""
MAX_ROWS = 30
"""Largest number of agents in a comparison of scores."""

FEASIBLE = 1e-6
"""A model counts as inside its set up to this distance."""

ROUNDING = 1e-12
"""Smaller differences are rounding errors, as a fraction of the objective."""

CERTIFIED = "Certified relative gap"
ABOVE_BEST = "Objective above its smallest value"
GAP_CAPTION = (
    "How far above the optimum the models are at most: their objective minus the certified lower "
    "bound of the end, as a fraction of the objective at the end. The axis is logarithmic."
)
BEST_CAPTION = (
    "Without a certified lower bound, which there is at the end at the earliest, the first chart "
    "has the objective minus its smallest value, on a logarithmic axis."
)
DISTANCE_CAPTION = (
    "Distances are those of the models before they are made feasible. A distance of zero "
    "(feasible) cannot be shown on a logarithmic axis."
)
CUT_CAPTION = "Values far from those of the later rounds are beyond the axis."


# -- one training -------------------------------------------------------------------------------


def agent_styles(run: SavedRun) -> dict[str, Style]:
    """Return the styles of the agents that are drawn."""
    return series_styles(run.names[i] for i in _drawn_agents(run))


def overall_chart(run: SavedRun) -> Chart:
    """Return how far the models are from the optimum, and their objective."""
    name = run.path.name or "run"
    styles = {name: Style("text", "solid", 2.25)}
    panels, captions = [], []
    line, is_certified = gap_line(run)
    if line is not None:
        heading = CERTIFIED if is_certified else ABOVE_BEST
        title = "relative gap" if is_certified else "above the best"
        panels.append(line_panel(heading, {name: line}, styles, "round", title, log_y=True))
        captions.append(GAP_CAPTION if is_certified else BEST_CAPTION)
    else:
        captions.append("The objective is that of the models before they are made feasible.")
    objective = _objective_line(run)
    panels.append(
        line_panel("Objective", {name: objective}, styles, "round", "objective", robust=True)
    )
    captions.append(_cut_caption(panels))
    return Chart("All agents", " ".join(filter(None, captions)), panels)


def gap_line(run: SavedRun) -> tuple[Line | None, bool]:
    """Return how far above the optimum the feasible models are at most, and if that is certified.

    Without a certified lower bound, it is how far they are above their smallest objective. There is
    no line if fewer than two evaluated rounds have feasible models: the objective of others says
    nothing about the optimum.
    """
    feasible = [r for r in subsampled(run.history) if r.infeasibility.max() <= FEASIBLE]
    feasible = [r for r in feasible if math.isfinite(r.objective)]
    if len(feasible) < 2:
        return None, False
    rounds, outcome = [record.round for record in feasible], run.outcome
    low, scale, is_certified = min(record.objective for record in feasible), 1.0, False
    if outcome is not None and outcome.objective is not None and outcome.gap is not None:
        low, scale = outcome.objective - outcome.gap, abs(outcome.objective) or 1.0
        is_certified = True
    gaps = [(record.objective - low) / scale for record in feasible]
    # Near the smallest value itself, differences are rounding errors.
    floor = 0.0 if is_certified else ROUNDING * abs(low)
    return Line(rounds, [gap if gap > floor else math.nan for gap in gaps]), is_certified


def agents_chart(run: SavedRun) -> Chart | None:
    """Return scores and distances from the sets by agent; None if there are no such values."""
    history = subsampled(run.history)
    rounds = [record.round for record in history]
    drawn, styles = _drawn_agents(run), agent_styles(run)

    def panel(heading: str, y_title: str, field: str, *, log: bool = False) -> Panel:
        values = np.array([getattr(record, field) for record in history])
        lines = {run.names[i]: Line(rounds, values[:, i].tolist()) for i in drawn}
        return line_panel(heading, lines, styles, "round", y_title, log_y=log, robust=not log)

    panels, captions = [], []
    if _has_scores(history):
        panels.append(panel("Score on held-out rows", "score", "test_accuracy"))
        captions.append(_cut_caption(panels))
    if _is_infeasible(history):
        panels.append(panel("Distance from the own set", "distance", "infeasibility", log=True))
        captions.append(DISTANCE_CAPTION)
    if not panels:
        return None
    if len(drawn) < len(run.names):
        captions.append(
            f"Only {len(drawn)} of {len(run.names)} agents are drawn: those farthest from their "
            "sets, then those with the lowest scores."
        )
    title = "Each agent" if len(panels) > 1 else f"{panels[0].heading}, by agent"
    return Chart(title, " ".join(filter(None, captions)), panels)


# -- several trainings --------------------------------------------------------------------------


def compared_scores_chart(runs: Mapping[str, SavedRun], styles: Mapping[str, Style]) -> list[Chart]:
    """Return every agent's score by training as dots, if all trainings have the same agents."""
    outcomes = {name: run.outcome for name, run in runs.items() if run.outcome is not None}
    agents = {run.names for run in runs.values()}
    kinds = {outcome.score_name for outcome in outcomes.values()}
    if len(outcomes) < len(runs) or len(agents) > 1 or len(kinds) > 1:
        return []
    names, score_name = agents.pop()[:MAX_ROWS], kinds.pop()
    scores = {
        name: [agent.score for agent in outcome.agents[: len(names)]]
        for name, outcome in outcomes.items()
    }
    if not any(score is not None for each in scores.values() for score in each):
        return []
    # Dots of a row are a little apart, so that equal scores do not hide each other.
    offsets = np.linspace(-0.3, 0.3, len(runs)).tolist()
    traces = [
        _score_dots(name, names, scores[name], styles[name], offset, open_symbol=i >= len(STYLES))
        for i, (name, offset) in enumerate(zip(runs, offsets, strict=True))
    ]
    layout = row_layout(names, score_name)
    caption = (
        f"The {score_name} of every agent's own model on its held-out rows. The trainings of a row "
        "are in the order of the legend, from the top."
    )
    if keep_outliers_at_the_edge(traces, layout):
        caption += " A triangle at an end of the axis is a score beyond it."
    if len(names) < len(outcomes[next(iter(outcomes))].agents):
        caption += f" Only the first {len(names)} agents are drawn."
    description = f"Dot plot of {score_name} by agent, for {', '.join(runs)}."
    height = row_height(len(names), max(2.25, 0.6 * len(runs)))
    panel = Panel("Scores", description, traces, layout, height)
    return [Chart(f"Scores of the own models: {score_name}", caption, [panel])]


def compared_runs_chart(runs: Mapping[str, SavedRun], styles: Mapping[str, Style]) -> list[Chart]:
    """Return the course of the trainings with one line each, or nothing without any history."""
    histories = {name: subsampled(run.history) for name, run in runs.items() if run.history}
    if not histories:
        return []
    panels, captions = [], []
    gaps = {name: gap_line(runs[name]) for name in histories}
    certified = {name: line for name, (line, proved) in gaps.items() if line and proved}
    if certified:
        y_title = "relative gap"
        panels.append(line_panel(CERTIFIED, certified, styles, "round", y_title, log_y=True))
        captions.append(GAP_CAPTION)
    scored = {name: history for name, history in histories.items() if _has_scores(history)}
    if scored:
        lines = {
            name: Line([r.round for r in history], [_mean_score(r) for r in history])
            for name, history in scored.items()
        }
        heading = "Mean score on held-out rows"
        panels.append(line_panel(heading, lines, styles, "round", "score", robust=True))
    lines = {name: _objective_line(runs[name]) for name in histories}
    panels.append(line_panel("Objective", lines, styles, "round", "objective", robust=True))
    captions.append("Objectives can be compared where the problem is the same.")
    outside = {name: history for name, history in histories.items() if _is_infeasible(history)}
    if outside:
        lines = {
            name: Line([r.round for r in history], [float(r.infeasibility.max()) for r in history])
            for name, history in outside.items()
        }
        heading = "Largest distance from a set"
        panels.append(line_panel(heading, lines, styles, "round", "distance", log_y=True))
        captions.append(DISTANCE_CAPTION)
    captions.append(_cut_caption(panels))
    return [Chart("Course of the trainings", " ".join(filter(None, captions)), panels)]


def _score_dots(
    name: str,
    agents: Sequence[str],
    scores: Sequence[float | None],
    style: Style,
    offset: float,
    *,
    open_symbol: bool,
) -> Trace:
    """Return the scores of one training, one dot per agent."""
    rows = [(i, score) for i, score in enumerate(scores) if score is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plotly_text(name),
        "x": rounded(score for _, score in rows),
        "y": [round(i + offset, 3) for i, _ in rows],
        "marker": {"size": 10, "symbol": "diamond-open" if open_symbol else "circle"},
        "text": [
            f"{plotly_text(agents[i])}, {plotly_text(name)}: {score:.4g}" for i, score in rows
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"series": name, "colour": style.colour},
    }


# -- histories ----------------------------------------------------------------------------------


def subsampled(history: Sequence[Record]) -> list[Record]:
    """Return at most ``MAX_POINTS`` records, evenly spaced, with the first and the last."""
    if len(history) <= MAX_POINTS:
        return list(history)
    indices = np.linspace(0, len(history) - 1, MAX_POINTS).round().astype(int)
    return [history[i] for i in indices]


def _drawn_agents(run: SavedRun) -> list[int]:
    """Return the indices of all agents, or of some if there are too many.

    These are the agents that were farthest from their sets, then those with the lowest scores.
    """
    m = len(run.names)
    if m <= MAX_LINES:
        return list(range(m))
    farthest = np.nanmax([record.infeasibility for record in run.history], axis=0, initial=0.0)
    farthest[farthest <= FEASIBLE] = 0.0
    scores = np.nan_to_num(run.history[-1].test_accuracy, nan=math.inf)
    return sorted(np.lexsort((scores, -farthest))[:MAX_LINES].tolist())


def _objective_line(run: SavedRun) -> Line:
    history = subsampled(run.history)
    return Line([record.round for record in history], [record.objective for record in history])


def _cut_caption(panels: Sequence[Panel]) -> str:
    return CUT_CAPTION if any("range" in panel.layout["yaxis"] for panel in panels) else ""


def _mean_score(record: Record) -> float:
    known = record.test_accuracy[np.isfinite(record.test_accuracy)]
    return float(known.mean()) if known.size else math.nan


def _has_scores(history: Sequence[Record]) -> bool:
    return any(np.isfinite(record.test_accuracy).any() for record in history)


def _is_infeasible(history: Sequence[Record]) -> bool:
    """Return whether a model was outside its set in some round."""
    return any(record.infeasibility.max() > FEASIBLE for record in history)
