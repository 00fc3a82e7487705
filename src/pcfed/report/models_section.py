"""The section on the models of a training: coefficients and their limits, and agents in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.report.charts import Chart, Panel, Trace, rounded, row_height, row_layout
from pcfed.report.page import (
    Block,
    Cell,
    ChartGroup,
    Paragraph,
    RowGroup,
    Section,
    Table,
    format_number,
)
from pcfed.report.verdict_section import MAX_UNFOLDED
from pcfed.sets import Box, ConvexSet, Intersection, L1Ball, L2Ball, LinfBall, NonNegative, Simplex
from pcfed.training.outcome import Outcome
from pcfed.training.saved_run import SavedRun
from pcfed.training.trained_models import AVERAGE, TrainedModels

MAX_AGENTS = 200
"""Largest number of rows in the table of agents."""
MAX_MODELS = 12
"""Largest number of models in the charts and in the table of coefficients."""
MAX_COEFFICIENTS = 16
"""Largest number of coefficients of a model in the charts and in the table."""
QUANTILE = 0.9
"""Coefficients beyond this quantile of the absolute values get the full colour."""
MAX_BOUND_FACTOR = 3.0
"""Bounds farther away than this many times the largest coefficient are beyond the axis."""

CAPTION = (
    "Dots are coefficients, and pale bars their bounds. Where the limit is a budget for all "
    "coefficients together, bars are their contributions to it in percent of the budget: orange of "
    "positive and blue of negative coefficients."
)


def models_section(place: str, run: SavedRun) -> Section:
    """Return the coefficients within their limits, then the models and the agents as tables."""
    blocks: list[Block] = []
    if run.models is not None:
        if run.models.kind.is_linear:
            blocks.append(ChartGroup(f"{place}-limits", [_limits_chart(run, run.models)]))
        blocks.append(_coefficient_table(run.models))
    blocks += _agent_blocks(run)
    title = "Agents" if run.models is None else "Models"
    return Section(f"{place}-models", title, blocks)


# -- coefficients and their limits --------------------------------------------------------------


def _limits_chart(run: SavedRun, trained: TrainedModels) -> Chart:
    """Return a panel per agent with its largest coefficients."""
    num_coefficients = math.prod(trained.shape)
    agents = trained.names[:MAX_MODELS]
    models = np.array([trained.model(name)[:num_coefficients] for name in agents])
    entries = _largest(models.T)
    labels = [trained.parameter_name(i) for i in entries]
    panels = []
    for name, model in zip(agents, models, strict=True):
        constraint = run.config.agent(name).constraint
        shares = contributions(constraint, model)
        if shares is not None:
            traces, layout = _budget_bars(labels, model[entries], shares[entries])
        else:
            low, high = (end[entries] for end in bounds(constraint, model.size))
            traces, layout = _dots_in_bounds(labels, model[entries], low, high)
        values = zip(labels, model[entries].tolist(), strict=True)
        described = ", ".join(f"{label} {format_number(value)}" for label, value in values)
        description = f"Coefficients of {name}, {constraint.spec}: {described}."
        heading = f"{name}: {_shortened(constraint.spec)}"
        height = row_height(len(entries), 1.4)
        panels.append(Panel(heading, description, traces, layout, height))
    caption = CAPTION
    if len(entries) < num_coefficients:
        caption += f" The {len(entries)} largest of {num_coefficients} coefficients are drawn."
    if len(agents) < len(trained.names):
        caption += f" Only the first {len(agents)} of {len(trained.names)} agents are drawn."
    return Chart("Coefficients within their limits", caption, panels)


def bounds(constraint: ConvexSet, n: int) -> tuple[Float64Array, Float64Array]:
    """Return the lower and the upper bounds of coefficients; infinite ones if there are none."""
    if isinstance(constraint, Box):
        ends = constraint.lower, constraint.upper
    elif isinstance(constraint, NonNegative):
        ends = 0.0, math.inf
    elif isinstance(constraint, LinfBall):
        center = 0.0 if constraint.center is None else constraint.center
        ends = center - constraint.radius, center + constraint.radius
    elif isinstance(constraint, Intersection):
        members = [bounds(each, n) for each in constraint.sets]
        lows, highs = zip(*members, strict=True)
        ends = np.max(lows, axis=0), np.min(highs, axis=0)
    else:
        ends = -math.inf, math.inf
    low, high = (np.broadcast_to(np.asarray(end, np.float64), n) for end in ends)
    return low, high


def contributions(constraint: ConvexSet, x: Float64Array) -> Float64Array | None:
    r"""Return the share of the budget that each coefficient uses; None if there is no budget.

    The shares are $w_j |x_j - c_j| / \tau$ in an l1 ball, $(x_j - c_j)^2 / \tau^2$ in an l2 ball
    and $x_j / \tau$ in a simplex. In an intersection, the first such set is taken.
    """
    if isinstance(constraint, Intersection):
        found = (contributions(each, x) for each in constraint.sets)
        return next((shares for shares in found if shares is not None), None)
    if isinstance(constraint, Simplex) and constraint.total > 0:
        return x / constraint.total
    if isinstance(constraint, L1Ball | L2Ball) and constraint.radius > 0:
        y = np.abs(x if constraint.center is None else x - constraint.center)
        if isinstance(constraint, L2Ball):
            return np.asarray((y / constraint.radius) ** 2)
        weights = 1.0 if constraint.weights is None else constraint.weights
        return np.asarray(weights * y / constraint.radius)
    return None


def _budget_bars(
    labels: Sequence[str], values: Float64Array, shares: Float64Array
) -> tuple[list[Trace], dict[str, object]]:
    """Return bars of the contributions to a budget, in the colour of the coefficient's sign."""
    traces: list[Trace] = []
    for series, colour, drawn in (
        ("positive", "series-0", values >= 0),
        ("negative", "series-1", values < 0),
    ):
        rows = np.flatnonzero(drawn).tolist()
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": series,
                "x": rounded(100 * shares[rows]),
                "y": rows,
                "text": [f"coefficient {values[i]:.4g}" for i in rows],
                "textposition": "none",
                "hovertemplate": "%{x:.3g} % of the budget, %{text}<extra></extra>",
                "meta": {"series": series, "colour": colour},
            }
        )
    layout = row_layout(labels, "percent of the budget")
    layout["xaxis"]["rangemode"] = "tozero"
    layout["barmode"] = "overlay"
    return traces, layout


def _dots_in_bounds(
    labels: Sequence[str], values: Float64Array, low: Float64Array, high: Float64Array
) -> tuple[list[Trace], dict[str, object]]:
    """Return the coefficients as dots on bars from their lower to their upper bounds."""
    size = float(np.abs(values).max()) or 1.0
    ends = np.concatenate([low, high])
    near = ends[np.abs(ends) <= MAX_BOUND_FACTOR * size]
    left, right = min(0.0, *values, *near), max(0.0, *values, *near)
    margin = 0.06 * (right - left) or 1.0
    limits = [left - margin, right + margin]
    rows = np.flatnonzero(np.isfinite(low) | np.isfinite(high)).tolist()
    starts, stops = (np.clip(end, *limits)[rows] for end in (low, high))
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "bounds",
        "base": rounded(starts),
        "x": rounded(stops - starts),
        "y": rows,
        "hoverinfo": "skip",
        "meta": {"series": "bounds", "colour": "limit"},
    }
    dots: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "coefficients",
        "x": rounded(values.tolist()),
        "y": list(range(len(labels))),
        "marker": {"size": 9},
        "text": [
            f"{value:.4g} in [{a:g}, {b:g}]" for value, a, b in zip(values, low, high, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"series": "coefficients", "colour": "text"},
    }
    layout = row_layout(labels, "coefficient")
    layout["xaxis"] |= {"range": limits, "zeroline": True}
    return [bars, dots], layout


# -- tables -------------------------------------------------------------------------------------


def _coefficient_table(trained: TrainedModels) -> Table:
    """Return the largest coefficients of linear models, or the norms of the parts of modules."""
    models = [*trained.names[:MAX_MODELS], AVERAGE]
    parts = [trained.parts(name) for name in models]
    linear = trained.kind.is_linear
    if linear:
        names = [trained.parameter_name(i) for i in range(trained.average.size)]
        matrix = np.array([np.concatenate([p.ravel() for p in each.values()]) for each in parts]).T
        coefficients = _largest(matrix[: math.prod(trained.shape)])
    else:
        names = [f"{name} ({shape_text(shape)})" for name, shape in trained.layout.items()]
        matrix = np.array([[np.linalg.norm(p) for p in each.values()] for each in parts]).T
        coefficients = list(range(len(names)))
    intercepts = range(math.prod(trained.shape), len(names)) if linear else range(0)
    scale = _colour_scale(matrix[coefficients])
    rows = []
    for i in (*coefficients, *intercepts):
        # The intercept has other units than the coefficients, so it has no colour.
        tints = [None] * len(models) if i in intercepts else np.clip(matrix[i] / scale, -1, 1)
        pairs = zip(matrix[i].tolist(), tints, strict=True)
        cells = [Cell(format_number(x), tint=_rounded_tint(tint)) for x, tint in pairs]
        rows.append([Cell(names[i], heading="row"), *cells])
    return Table(
        "Models",
        [Cell("column" if linear else "part"), *map(Cell, models)],
        [RowGroup(rows)],
        "numbers named coefficients",
        hint=" ".join(_table_hints(trained, len(coefficients))),
        signed_colours=linear,
    )


def _table_hints(trained: TrainedModels, num_rows: int) -> Iterator[str]:
    """Yield what the table of coefficients holds, and what it leaves out."""
    num_coefficients = math.prod(trained.shape)
    if not trained.kind.is_linear:
        yield "The Euclidean norm of every part."
    elif num_rows < num_coefficients:
        yield f"The {num_rows} largest of {num_coefficients} coefficients, in the data's units."
    else:
        yield "All coefficients, largest first, in the units of the data."
    if len(trained.names) > MAX_MODELS:
        yield f"{len(trained.names) - MAX_MODELS} more agents are in models.npz."


def _largest(matrix: Float64Array) -> list[int]:
    """Return the rows with the largest entries, the largest first."""
    order = np.argsort(-np.abs(matrix).max(axis=1), kind="stable")
    return [int(i) for i in order[:MAX_COEFFICIENTS]]


def _colour_scale(values: Float64Array) -> float:
    """Return the size from which on a coefficient has the full colour."""
    sizes = np.abs(values)
    return float(np.quantile(sizes[sizes > 0], QUANTILE)) if sizes.any() else 1.0


def _rounded_tint(tint: float | None) -> float | None:
    return None if tint is None else round(float(tint), 3)


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as people write it.

    Examples
    --------
    >>> shape_text((3, 4)), shape_text(()), shape_text((5,))
    ('3 × 4', '1', '5')
    """
    return " × ".join(map(str, shape)) or "1"


def _agent_blocks(run: SavedRun) -> Iterator[Block]:
    """Yield the table of agents, without empty columns and without rows beyond the limit."""
    if not run.names:
        return
    rows = _outcome_rows(run.outcome) if run.outcome is not None else _history_rows(run)
    names = [name for name in rows[0] if any(row[name] not in ("", "0") for row in rows)]
    classes = {name: "text" if name in ("set", "limit") else "" for name in names}
    headings = {name: "row" if name == "agent" else "" for name in names}
    columns = [Cell(name, css_class=classes[name]) for name in names]
    cells = [
        [Cell(row[name], headings[name], css_class=classes[name]) for name in names]
        for row in rows[:MAX_AGENTS]
    ]
    folded = f"All {len(cells)} agents in numbers" if len(cells) > MAX_UNFOLDED else ""
    caption = "" if folded else "Agents"
    rows_of_agents = [RowGroup(cells)]
    yield Table("Agents", columns, rows_of_agents, "numbers named", caption, folded=folded)
    if len(rows) > MAX_AGENTS:
        text = (
            f"The first {MAX_AGENTS} of {len(rows)} agents; outcome.json in the run directory "
            "has all of them."
        )
        yield Paragraph(text, css_class="hint")


def _outcome_rows(outcome: Outcome) -> list[dict[str, str]]:
    """Return the table of agents of a finished training."""
    return [
        {
            "agent": agent.agent,
            "set": agent.constraint,
            "infeasibility": format_number(agent.infeasibility),
            "distance from shared": format_number(agent.distance),
            f"{outcome.score_name}: own": format_number(agent.score),
            "shared": format_number(agent.average_score),
            "alone": format_number(agent.local_score),
        }
        for agent in outcome.agents
    ]


def _history_rows(run: SavedRun) -> list[dict[str, str]]:
    """Return the table of agents of an unfinished training, from its last evaluated round."""
    last = run.history[-1] if run.history else None
    return [
        {
            "agent": name,
            "set": run.config.agent(name).constraint.spec,
            "infeasibility": format_number(float(last.infeasibility[i])) if last else "",
            "distance from shared": format_number(float(last.distance[i])) if last else "",
            "score": format_number(float(last.test_accuracy[i])) if last else "",
        }
        for i, name in enumerate(run.names)
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
