"""Figures of the experiments as PNG and PDF files, with their data as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.resources import as_file, files
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pcfed.experiments.claims import PC, budgets
from pcfed.experiments.leaderboard import MethodResults
from pcfed.experiments.personal import METHODS, PersonalResults
from pcfed.experiments.rates import Rates
from pcfed.experiments.round_cases import Case
from pcfed.experiments.rounds import RoundsResults
from pcfed.experiments.styles import BOUND, comparison_styles, matplotlib_style, method_styles
from pcfed.experiments.summary import Comparison, csv_rows, infeasibility_of
from pcfed.simulation.result import Record
from pcfed.storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGAINST_AGENTS = "rounds-against-agents"
"""The name of the figure of rounds over the number of agents, and of its data."""

PERSONAL_ACCURACY = "personal-accuracy"
"""The name of the figure of the accuracies of own models, and of its data."""


METHOD_RANKS = "method-ranks"
"""The name of the figure of the ranks of all methods, and of its data."""


def write_figures(
    comparisons: Sequence[Comparison],
    out: Path,
    rates: Rates | None = None,
    rounds: RoundsResults | None = None,
    personal: PersonalResults | None = None,
    methods: MethodResults | None = None,
) -> list[Path]:
    """Write all figures and their data to a directory; return the PNG files."""
    from matplotlib import pyplot

    written = []
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in _tables(comparisons, rates, rounds, personal, methods):
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        write_atomically(out / f"{name}.csv", text.getvalue().encode())
    pyplot.switch_backend("agg")
    style = files("pcfed.experiments").joinpath("figures.mplstyle")
    with as_file(style) as path, pyplot.style.context(path):
        for name, figure in _figures(comparisons, rates, rounds, personal, methods):
            for kind in ("png", "pdf"):
                content = io.BytesIO()
                figure.savefig(content, format=kind)
                write_atomically(out / f"{name}.{kind}", content.getvalue())
            pyplot.close(figure)
            written.append(out / f"{name}.png")
    return written


def _tables(
    comparisons: Sequence[Comparison],
    rates: Rates | None,
    rounds: RoundsResults | None,
    personal: PersonalResults | None,
    methods: MethodResults | None,
) -> Iterator[tuple[str, list[Sequence[object]]]]:
    """Yield the name of every CSV file, and its rows."""
    for each in comparisons:
        yield each.slug, list(csv_rows(each))
    if rates:
        points = [asdict(point) for point in rates.points]
        yield "rates", [tuple(points[0]), *(tuple(point.values()) for point in points)]
    if rounds:
        header = ("case", "name", "algorithm", "round", "bytes", "gap", "objective")
        rows = [
            (run.case.title, run.name, run.algorithm, *asdict(record).values())
            for run in rounds.runs
            for record in run.records
        ]
        yield "rounds", [(*header, "infeasibility"), *rows]
        by_agents = [
            (name, target, case.agents, rounds.first(case, name, target))
            for case in rounds.cases_by_agents
            for name in rounds.names(case)
            for target in case.targets
        ]
        yield (
            AGAINST_AGENTS,
            [
                ("name", "gap", "agents", "round", "bytes"),
                *((*key, each.round, each.bytes) for *key, each in by_agents if each),
            ],
        )
    if personal:
        quantities: tuple[str, ...] = ("accuracy", "center", "coupling", "infeasibility")
        yield (
            PERSONAL_ACCURACY,
            [
                ("cell", "seed", "method", *quantities),
                *(
                    (run.cell.title, run.seed, score.method, *attrgetter(*quantities)(score))
                    for run in personal.runs
                    for score in run.scores
                ),
            ],
        )
    if methods:
        quantities = ("accuracy", "worst", "infeasibility", "bytes_per_round", "seconds")
        yield (
            METHOD_RANKS,
            [
                ("cell", "method", "parameters", "seed", *quantities),
                *(
                    (run.cell.title, run.method, run.trial, k, *attrgetter(*quantities)(score))
                    for run in methods.runs
                    for k, score in enumerate(run.scores)
                ),
            ],
        )


def _figures(
    comparisons: Sequence[Comparison],
    rates: Rates | None,
    rounds: RoundsResults | None,
    personal: PersonalResults | None,
    methods: MethodResults | None,
) -> Iterator[tuple[str, Figure]]:
    """Yield the name of every figure, and the figure."""
    if rounds:
        for case in rounds.cases:
            yield case.slug, certified_gap(rounds, case)
        if rounds.cases_by_agents:
            yield AGAINST_AGENTS, rounds_by_agents(rounds)
    if personal:
        yield PERSONAL_ACCURACY, own_accuracy(personal)
    if methods:
        yield METHOD_RANKS, mean_ranks(methods)
    if rates:
        yield "rates", measured_rates(rates)
    for each in comparisons:
        if each.preset.name == "local-steps":
            yield f"{each.slug}-loss", loss(each)
            continue
        yield f"{each.slug}-infeasibility", infeasibility(each)
        yield f"{each.slug}-loss", loss(each)
        if each.preset.name == "binding":
            yield f"{each.slug}-norms", norms(each)


def _subplots(*shape: int, **options: Any) -> tuple[Figure, Any]:
    """Return a figure and its panels."""
    from matplotlib import pyplot  # takes a while to import

    return pyplot.subplots(*shape, **options)


def infeasibility(comparison: Comparison) -> Figure:
    """Plot the infeasibility of each agent over rounds, one panel per agent."""
    limits = budgets(comparison)
    agents = range(len(limits))
    figure, axes = _subplots(
        1, len(agents), figsize=(2.1 * len(agents), 2.4), sharey=True, squeeze=False
    )
    for i, panel in zip(agents, axes[0], strict=True):
        _lines(panel, comparison, infeasibility_of(i))
        panel.set(title=f"agent {i + 1}, ‖W‖₁ ≤ {limits[i]:g}", xlabel="round")
    axes[0][0].set_ylabel("distance from its set")
    _legend(figure, axes[0][0])
    figure.suptitle(f"Infeasibility: {comparison.title}")
    return figure


def loss(comparison: Comparison) -> Figure:
    """Plot the average loss at the population average over rounds."""
    figure, panel = _subplots(figsize=(4.2, 3.0))
    _lines(panel, comparison, lambda record: record.loss)
    panel.set(title=comparison.title, xlabel="round", ylabel="global loss")
    _legend(figure, panel)
    return figure


def measured_rates(rates: Rates) -> Figure:
    """Plot measured suboptimality and infeasibility over the number of rounds, and the bounds."""
    figure, axes = _subplots(1, 2, figsize=(7.0, 3.0))
    x = [point.rounds for point in rates.points]
    dots = matplotlib_style(method_styles([PC])[PC])
    for panel, title, quantity, bound in (
        (axes[0], "|f − f*|", attrgetter("suboptimality"), "upper"),
        (axes[1], "squared infeasibility", attrgetter("infeasibility"), "infeasibility_bound"),
    ):
        measured = [abs(quantity(point)) for point in rates.points]
        limits = [getattr(point, bound) for point in rates.points]
        panel.loglog(x, measured, "o", ms=3, color=dots["color"], label="measured")
        panel.loglog(x, limits, label="bound of the theorem", **matplotlib_style(BOUND))
        panel.set_title(f"{title}, slope {rates.fit(quantity)}", fontsize=8)
        panel.set_xlabel("rounds R")
    _legend(figure, axes[0])
    return figure


def certified_gap(rounds: RoundsResults, case: Case) -> Figure:
    """Plot the certified gap over rounds and bytes, and the infeasibility over bytes."""
    figure, axes = _subplots(1, 3, figsize=(9.0, 3.0))
    styles = method_styles(rounds.names(case))
    for name in reversed(rounds.names(case)):
        records = rounds.best(case, name).records
        x = [each.round for each in records]
        megabytes = [each.bytes / 1e6 for each in records]
        gaps = [each.gap for each in records]
        outside = [max(each.infeasibility, 1e-17) for each in records]
        curves = ((x, gaps), (megabytes, gaps), (megabytes, outside))
        for panel, curve in zip(axes, curves, strict=True):
            panel.loglog(*curve, label=name, **matplotlib_style(styles[name]))
    for panel, x_label in zip(axes, ("round", "megabytes", "megabytes"), strict=True):
        panel.set_xlabel(x_label)
    axes[0].set_ylabel("certified relative gap")
    axes[2].set_ylabel("largest infeasibility")
    _legend(figure, axes[0])
    figure.suptitle(case.title)
    return figure


def rounds_by_agents(rounds: RoundsResults) -> Figure:
    """Plot the number of rounds to each gap over the number of agents, where it was reached."""
    cases = rounds.cases_by_agents
    targets = cases[0].targets
    styles = method_styles(rounds.names(cases[0]))
    figure, axes = _subplots(1, len(targets), figsize=(3 * len(targets), 3.0), sharey=True)
    for panel, target in zip(axes, targets, strict=True):
        for name in reversed(rounds.names(cases[0])):
            found = [(case.agents, rounds.first(case, name, target)) for case in cases]
            x, y = [m for m, each in found if each], [each.round for _, each in found if each]
            panel.loglog(x, y, marker="o", ms=3, label=name, **matplotlib_style(styles[name]))
        panel.set(title=f"gap {target:g}", xlabel="number of agents m")
        panel.set_xticks([case.agents for case in cases], [f"{case.agents:,}" for case in cases])
        panel.xaxis.set_minor_formatter("")
    axes[0].set_ylabel("rounds")
    _legend(figure, axes[0])
    return figure


def own_accuracy(personal: PersonalResults) -> Figure:
    """Plot the accuracy of the agents' own models by method, with intervals, a panel per cell."""
    columns = min(2, len(personal.cells))
    rows = -(-len(personal.cells) // columns)
    size = (4.2 * columns, 2.3 * rows)
    figure, axes = _subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    for panel in axes.flat[len(personal.cells) :]:
        panel.set_visible(False)
    heights = np.arange(len(METHODS))[::-1]
    styles = method_styles(METHODS)
    for panel, cell in zip(axes.flat, personal.cells, strict=False):
        for height, method in zip(heights, METHODS, strict=True):
            found = personal.accuracy(cell, method)
            color = matplotlib_style(styles[method])["color"]
            width = found.high - found.mean if np.isfinite(found.high) else 0.0
            panel.errorbar(found.mean, height, xerr=width, fmt="o", ms=4, capsize=2, color=color)
        panel.set_title(cell.title, fontsize=8)
        low, high = panel.get_xlim()
        panel.set_xlim(max(low, 0.0), min(high, 1.02))  # few seeds have long intervals
    axes[0][0].set_yticks(heights, METHODS)
    for panel in axes[-1]:
        panel.set_xlabel("accuracy of the own model")
    return figure


def mean_ranks(methods: MethodResults) -> Figure:
    """Plot the mean rank of every method, with half the critical difference to both sides.

    Two methods whose bars overlap are not distinguished by Nemenyi's test.
    """
    ranks, half = methods.mean_ranks(), methods.critical_difference / 2
    figure, panel = _subplots(figsize=(5.2, 0.6 + 0.28 * len(ranks)))
    heights = np.arange(len(ranks))[::-1]
    styles = method_styles(ranks)
    for height, (method, rank) in zip(heights, ranks.items(), strict=True):
        color = matplotlib_style(styles[method])["color"]
        panel.errorbar(rank, height, xerr=half, fmt="o", ms=4, capsize=2, color=color)
    panel.set_yticks(heights, list(ranks))
    panel.set_xlabel(f"mean rank over {len(methods.cells)} cells, 1 is best")
    panel.grid(visible=False, axis="y")
    return figure


def norms(comparison: Comparison) -> Figure:
    """Plot the l1 norm of every agent's model and its budget."""
    figure, panel = _subplots(figsize=(5.2, 3.0))
    limits = budgets(comparison)
    positions = np.arange(len(limits))
    width = 0.8 / len(comparison.results)
    styles = comparison_styles(comparison)
    for k, name in enumerate(comparison.results):
        centers = positions + (k - (len(comparison.results) - 1) / 2) * width
        color = matplotlib_style(styles[name])["color"]
        panel.bar(centers, comparison.norms(name), width, color=color, label=name)
    for position, limit in zip(positions, limits, strict=True):
        label = "budget" if position == 0 else "_nolegend_"
        panel.hlines(limit, position - 0.45, position + 0.45, color="black", label=label)
    panel.set_yscale("log")
    panel.set_xticks(positions, [f"agent {i + 1}" for i in positions])
    panel.set_ylabel("‖W‖₁ of the agent's model")
    panel.set_title(comparison.title)
    panel.grid(visible=False, axis="x")
    panel.set_yticks(sorted(set(limits)), [f"{limit:g}" for limit in sorted(set(limits))])
    panel.yaxis.set_minor_formatter("")
    _legend(figure, panel)
    return figure


def _legend(figure: Figure, panel: Axes) -> None:
    """Add one legend below the panels, in the order of the preset."""
    handles, labels = panel.get_legend_handles_labels()
    if panel.lines:  # lines were drawn from last to first
        handles, labels = handles[::-1], labels[::-1]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)


def _lines(panel: Axes, comparison: Comparison, quantity: Callable[[Record], float]) -> None:
    """Plot a quantity of every run with its spread over seeds; PC-FedAvg is on top, and thick."""
    styles = comparison_styles(comparison)
    for name in reversed(list(comparison.results)):
        curve, style = comparison.curve(name, quantity), matplotlib_style(styles[name])
        panel.plot(curve.rounds, curve.mean, label=name, **style)
        panel.fill_between(
            curve.rounds, curve.low, curve.high, color=style["color"], alpha=0.2, lw=0
        )
