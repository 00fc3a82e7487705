"""Charts as plain Plotly figures: data and layout, without colours, which the page's theme gives.

Every trace names its method and its style in ``meta``; the page colours it, hides it when its
method is switched off, and adds what all charts share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pcfed.algorithms import PCFedAvg
from pcfed.arrays import Float64Array
from pcfed.experiments.claims import FEASIBLE, PC
from pcfed.experiments.summary import Comparison, Curve
from pcfed.report.measures import MEGABYTE, MethodMeasures, infeasibility_of
from pcfed.simulation.result import Record

Trace = dict[str, Any]


@dataclass(frozen=True)
class Style:
    """How a method is drawn: the name of a colour of the theme, a dash pattern and a width."""

    colour: str
    dash: str
    width: float


@dataclass(frozen=True)
class Panel:
    """One Plotly figure: heading, description for those who can't see it, traces and layout."""

    heading: str
    description: str
    data: Sequence[Trace]
    layout: Mapping[str, Any]


@dataclass(frozen=True)
class Chart:
    """A titled group of panels that are read together."""

    title: str
    caption: str
    panels: Sequence[Panel]


BASELINES = (
    Style("method-1", "solid", 2.5),
    Style("method-2", "6px,5px", 1.75),
    Style("method-3", "2px,3px", 2.25),
    Style("method-4", "8px,3px,2px,3px", 1.75),
)
STEPS = 5
"""Colours of the ordered scale for variants of one method."""


def styles(comparison: Comparison) -> dict[str, Style]:
    """Return how each method is drawn: PC-FedAvg stands out, its variants are an ordered scale."""
    kinds = {method.name: method.algorithm for method in comparison.setting.runs}
    names = list(comparison.results)
    if len(names) > 1 and all(isinstance(kinds.get(name), PCFedAvg) for name in names):
        last = max(len(names) - 1, 1)
        return {
            name: Style(f"step-{round(i * (STEPS - 1) / last)}", "solid", 2)
            for i, name in enumerate(names)
        }
    others = [name for name in names if name != PC]
    found = {name: BASELINES[i % len(BASELINES)] for i, name in enumerate(others)}
    return {name: found.get(name, Style("method-pc", "solid", 3.25)) for name in names}


def charts(comparison: Comparison, measured: Sequence[MethodMeasures]) -> list[Chart]:
    """Return the charts of a comparison.

    Parameters
    ----------
    comparison : Comparison
        The finished setting.
    measured : sequence of MethodMeasures
        Its measures.
    """
    found = [_losses(comparison), _infeasibility(comparison)]
    if all(budget is not None for budget in comparison.setting.budgets):
        found.append(_budgets(comparison, measured))
    return found


def _losses(c: Comparison) -> Chart:
    """Return the loss over rounds, and over what it cost: bytes, or local steps if they differ."""
    ends = {name: c.last(name, lambda r: r.loss) for name in c.results}
    said = ", ".join(f"{name} {value:.3f}" for name, value in ends.items())
    panels = [
        Panel(
            "Loss by round",
            f"Line chart of the loss over rounds. At the end: {said}.",
            list(_lines(c, lambda r: r.loss)),
            layout_of("round", "loss"),
        )
    ]
    steps = {method.name: method.local_steps for method in c.setting.runs}
    if len(set(steps.values())) > 1:
        panels.append(
            Panel(
                "Loss by local steps done",
                "Line chart of the loss over the local steps that each agent has done.",
                list(
                    _lines(c, lambda r: r.loss, over=lambda name: lambda r: r.round * steps[name])
                ),
                layout_of("local steps of an agent", "loss"),
            )
        )
        caption = "Left, what a round buys; right, what the same amount of local work buys."
    else:
        megabytes = {
            name: c.last(name, lambda r: r.bytes_up + r.bytes_down) / MEGABYTE for name in c.results
        }
        sent = ", ".join(f"{name} {value:.1f} MB" for name, value in megabytes.items())
        panels.append(
            Panel(
                "Loss by bytes sent",
                f"Line chart of the loss over bytes sent. In all rounds: {sent}.",
                list(_lines(c, lambda r: r.loss, over=_sent_megabytes)),
                layout_of("megabytes sent, up and down", "loss"),
            )
        )
        caption = f"Sent by all agents and the server together: {sent}."
    return Chart("Loss at the population average", caption + _spread(c), panels)


def _sent_megabytes(_: str) -> Callable[[Record], float]:
    return lambda record: (record.bytes_up + record.bytes_down) / MEGABYTE


def _infeasibility(c: Comparison) -> Chart:
    """Return the distance of each agent's model from its set, one panel an agent, one scale."""
    title = "Infeasibility: distance of each agent's model from its set"
    top = max(c.worst_infeasibility(name) for name in c.results)
    if top <= FEASIBLE:
        said = "Nothing to draw: no method left any agent's set in any evaluated round."
        return Chart(title, said, [])
    layout = layout_of("round", "distance")
    layout["yaxis"] |= {"range": [-0.04 * top, 1.06 * top]}
    panels = []
    for i, budget in enumerate(c.setting.budgets):
        ends = {name: c.last(name, infeasibility_of(i)) for name in c.results}
        said = ", ".join(f"{name} {value:.3g}" for name, value in ends.items())
        rule = c.setting.constraints[i] if budget is None else f"‖W‖₁ ≤ {budget:g}"
        panels.append(
            Panel(
                f"Agent {i + 1}: {rule}",
                f"Line chart of agent {i + 1}'s infeasibility over rounds. At the end: {said}.",
                list(_lines(c, infeasibility_of(i))),
                layout,
            )
        )
    inside = [name for name in c.results if c.worst_infeasibility(name) <= FEASIBLE]
    caption = "Zero is feasible; all panels have one scale."
    if inside:
        caption += f" At zero for every agent throughout: {', '.join(inside)}."
    return Chart(title, caption, panels)


def _budgets(c: Comparison, measured: Sequence[MethodMeasures]) -> Chart:
    """Return the l1 norm of each agent's model as a share of its budget, as bars."""
    looks = styles(c)
    limits = [budget for budget in c.setting.budgets if budget is not None]
    agents = [f"agent {i + 1}<br>τ = {budget:g}" for i, budget in enumerate(limits)]
    data: list[Trace] = []
    for method in measured:
        shares = [100 * a.norm / t for a, t in zip(method.agents, limits, strict=True)]
        data.append(
            {
                "type": "bar",
                "name": escape(method.name),
                "x": agents,
                "y": [round(share, 2) for share in shares],
                "customdata": [
                    [round(a.norm, 2), t] for a, t in zip(method.agents, limits, strict=True)
                ],
                "hovertemplate": "%{y:.1f} %: %{customdata[0]:.1f} of %{customdata[1]:g}",
                "meta": {"method": method.name, "colour": looks[method.name].colour},
            }
        )
    layout = layout_of("", "% of budget")
    layout["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100, "name": "budget"}
    ]
    layout["yaxis"] |= {"rangemode": "tozero", "ticksuffix": " %", "title": {"text": ""}}
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    over = [
        f"{method.name} for {sum(a.norm > t for a, t in zip(method.agents, limits, strict=True))}"
        for method in measured
    ]
    description = (
        f"Bar chart of ‖W‖₁ as a share of the budget. Number of agents over it: {', '.join(over)}."
    )
    panel = Panel("‖W‖₁ as a share of the agent's budget", description, data, layout)
    caption = (
        "The line at 100 % is the budget: above it the model is infeasible, far below it the "
        "budget is not used."
    )
    return Chart("Budgets: ‖W‖₁ of each agent's model, as a share of its budget", caption, [panel])


def _lines(
    c: Comparison,
    quantity: Callable[[Record], float],
    *,
    over: Callable[[str], Callable[[Record], float]] = lambda name: lambda record: record.round,
) -> Iterator[Trace]:
    """Yield per method the mean over seeds as a line, below it the band from least to most.

    Parameters
    ----------
    c : Comparison
        The finished setting.
    quantity : callable
        What is drawn, of a record.
    over : callable
        What it is drawn over: for a method's name, a function of a record.
    """
    looks = styles(c)
    order = sorted(c.results, key=lambda name: name == PC)  # the emphasised one on top
    for name in order:
        style = looks[name]
        curve = c.curve(name, quantity)
        x = short(c.curve(name, over(name)).mean)
        if len(c.results[name]) > 1:
            yield from _band(name, style, x, curve)
        trace: Trace = {
            "type": "scatter",
            "mode": "lines",
            "name": escape(name),
            "x": x,
            "y": short(curve.mean),
            "line": {"dash": style.dash, "width": style.width},
            "hovertemplate": "%{y:.4g}",
            "meta": {"method": name, "colour": style.colour},
        }
        if len(c.results[name]) > 1:
            spread = zip(short(curve.low), short(curve.high), strict=True)
            trace["customdata"] = [list(pair) for pair in spread]
            trace["hovertemplate"] += " (%{customdata[0]:.4g} to %{customdata[1]:.4g})"
        yield trace


def _band(name: str, style: Style, x: list[float], curve: Curve) -> Iterator[Trace]:
    """Yield the two traces between which the band of a curve is filled."""
    for edge, fill in ((curve.low, "none"), (curve.high, "tonexty")):
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": short(edge),
            "fill": fill,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "meta": {"method": name, "colour": style.colour, "band": True},
        }


def _spread(c: Comparison) -> str:
    """Return a sentence on what the bands are, if there are any."""
    seeds = max(len(runs) for runs in c.results.values())
    return f" Lines are means over {seeds} seeds, bands reach from the least to the most." * (
        seeds > 1
    )


def short(values: Float64Array) -> list[float]:
    """Return values with five significant digits, which is more than a screen shows."""
    return [float(f"{value:.5g}") for value in values]


def layout_of(x: str, y: str) -> dict[str, Any]:
    """Return titled axes; what is hovered over is named like the x axis."""
    hover = {"unifiedhovertitle": {"text": f"{x}: %{{x}}"}} if x else {}
    return {"xaxis": {"title": {"text": x}, **hover}, "yaxis": {"title": {"text": y}}}
