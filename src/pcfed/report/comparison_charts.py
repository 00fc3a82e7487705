"""Charts of a comparison of algorithms: loss, infeasibility, use of the agents' budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from pcfed.experiments.claims import FEASIBLE, PC
from pcfed.experiments.styles import comparison_styles
from pcfed.experiments.summary import Comparison, infeasibility_of
from pcfed.report.charts import Chart, Line, Panel, Trace, axes, line_panel, plotly_text
from pcfed.report.comparison_metrics import MEGABYTE, AlgorithmMetrics
from pcfed.simulation.result import Record


def comparison_charts(comparison: Comparison, metrics: Sequence[AlgorithmMetrics]) -> list[Chart]:
    """Return the charts of a comparison."""
    charts = [_loss_chart(comparison), _infeasibility_chart(comparison)]
    if all(budget is not None for budget in comparison.setting.budgets):
        charts.append(_budget_chart(comparison, metrics))
    return charts


def _loss_chart(c: Comparison) -> Chart:
    """Return the loss by round, and by bytes sent, or by local steps if their numbers differ."""
    steps = {run.name: run.local_steps for run in c.setting.runs}
    panel = partial(_panel, c, y_title="loss", quantity=attrgetter("loss"))
    by_round = panel("Loss by round", "round")
    if len(set(steps.values())) > 1:
        second = panel(
            "Loss by local steps",
            "local steps of an agent",
            over=lambda name: lambda record: record.round * steps[name],
        )
        caption = "Left: the loss by round. Right: the loss by the number of local steps."
    else:
        x_title = "megabytes sent, up and down"
        second = panel("Loss by bytes sent", x_title, over=lambda name: _megabytes)
        sent = ", ".join(f"{name} {c.last(name, _megabytes):.1f} MB" for name in c.results)
        caption = f"Sent by all agents and the server together: {sent}."
    seeds = max(len(runs) for runs in c.results.values())
    if seeds > 1:
        caption += f" Lines are means over {seeds} seeds; bands show the smallest and the largest."
    return Chart("Loss at the shared model", caption, [by_round, second])


def _infeasibility_chart(c: Comparison) -> Chart:
    """Return the distance of each agent's model from its set, one panel per agent."""
    title = "Infeasibility: distance of each agent's model from its set"
    largest = max(c.worst_infeasibility(name) for name in c.results)
    if largest <= FEASIBLE:
        return Chart(title, "All models were feasible in every evaluated round.", [])
    panels = []
    for i, budget in enumerate(c.setting.budgets):
        constraint = c.setting.constraints[i] if budget is None else f"‖W‖₁ ≤ {budget:g}"
        heading = f"Agent {i + 1}: {constraint}"
        panel = _panel(c, heading, "round", "distance", infeasibility_of(i))
        # One scale for all agents, so that the panels can be compared.
        panel.layout["yaxis"]["range"] = [-0.04 * largest, 1.06 * largest]
        panels.append(panel)
    feasible = [name for name in c.results if c.worst_infeasibility(name) <= FEASIBLE]
    caption = "Zero is feasible. All panels have the same scale."
    if feasible:
        caption += f" Zero for every agent in every evaluated round: {', '.join(feasible)}."
    return Chart(title, caption, panels)


def _budget_chart(c: Comparison, metrics: Sequence[AlgorithmMetrics]) -> Chart:
    """Return the l1 norm of each agent's model in percent of its budget, as bars."""
    styles = comparison_styles(c)
    budgets = [budget for budget in c.setting.budgets if budget is not None]
    labels = [f"agent {i + 1}<br>τ = {budget:g}" for i, budget in enumerate(budgets)]
    traces: list[Trace] = []
    exceeded = []
    for algorithm in metrics:
        norms = [agent.norm for agent in algorithm.agents]
        pairs = list(zip(norms, budgets, strict=True))
        exceeded.append(f"{algorithm.name} {sum(norm > budget for norm, budget in pairs)}")
        traces.append(
            {
                "type": "bar",
                "name": plotly_text(algorithm.name),
                "x": labels,
                "y": [round(100 * norm / budget, 2) for norm, budget in pairs],
                "customdata": [[round(norm, 2), budget] for norm, budget in pairs],
                "hovertemplate": "%{y:.1f} %: %{customdata[0]:.1f} of %{customdata[1]:g}",
                "meta": {"series": algorithm.name, "colour": styles[algorithm.name].colour},
            }
        )
    layout = axes("", "")
    limit = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100}
    layout["shapes"] = [limit | {"name": "budget"}]
    layout["yaxis"] |= {"rangemode": "tozero", "ticksuffix": " %"}
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    description = (
        "Bar chart of ‖W‖₁ in percent of the agent's budget. "
        f"Number of agents above their budget: {', '.join(exceeded)}."
    )
    caption = "The line at 100 % is the budget: a model above it is infeasible."
    title = "‖W‖₁ of each agent's model, in percent of its budget"
    return Chart(title, caption, [Panel(title, description, traces, layout)])


def _panel(
    c: Comparison,
    heading: str,
    x_title: str,
    y_title: str,
    quantity: Callable[[Record], float],
    *,
    over: Callable[[str], Callable[[Record], float]] = lambda name: lambda record: record.round,
) -> Panel:
    """Return the mean over seeds of each algorithm as a line, with the band of all seeds.

    ``over`` maps the name of an algorithm to a function from a record to the value on the x axis.
    """
    lines = {}
    for name, runs in c.results.items():
        curve = c.curve(name, quantity)
        x = c.curve(name, over(name)).mean.tolist()
        band = (curve.low.tolist(), curve.high.tolist()) if len(runs) > 1 else None
        lines[name] = Line(x, curve.mean.tolist(), band)
    return line_panel(heading, lines, comparison_styles(c), x_title, y_title, on_top=PC)


def _megabytes(record: Record) -> float:
    return (record.bytes_up + record.bytes_down) / MEGABYTE
