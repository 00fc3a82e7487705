"""The section on personal models: accuracy of the agents' own models, by method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pcfed.experiments import personal_cells
from pcfed.experiments.personal import (
    DITTO,
    EARLIER,
    EARLIER_CENTER,
    METHODS,
    OURS,
    SHARED,
    Interval,
    PersonalResults,
)
from pcfed.experiments.personal_cells import CELLS
from pcfed.experiments.styles import method_styles
from pcfed.palette import Style
from pcfed.report.charts import Chart, Panel, Trace, axes, plotly_text
from pcfed.report.page import Block, Cell, ChartGroup, Paragraph, RowGroup, Section, Table

TEXT = (
    "Every agent has few samples of its own distribution and a limit on its own model. We measure "
    "how accurate its model is on test samples of its own distribution. θ is the part of the loss "
    "that is taken at the own model; the rest is taken at the centre: the average of the models, "
    "or a free shared model. σ, and λ of Ditto, are chosen on validation samples, and test samples "
    "are used once. Intervals are of 95 %, over seeds, which draw the data of all agents again."
)


def personal_section(personal: PersonalResults) -> Section:
    """Return the section, with a subsection for every cell."""
    blocks: list[Block] = [Paragraph(TEXT), _table(personal)]
    if CELLS[0] in personal.cells:
        blocks.append(_earlier_table(personal, CELLS[0]))
    styles = method_styles(METHODS)
    cells = [_cell_section(personal, cell, styles) for cell in personal.cells]
    return Section("personal", "Models that are good for their owners", blocks, cells)


def _table(personal: PersonalResults) -> Table:
    """Return the accuracies of all methods in all cells, and the mean ranks."""
    ranks = personal.mean_ranks()
    rows = []
    for method in METHODS:
        cells = [interval_cell(personal.accuracy(cell, method)) for cell in personal.cells]
        rank = f"{ranks[method]:.1f}" if method in ranks else "–"
        rows.append([Cell(method, heading="row"), *cells, Cell(rank)])
    columns = ["method", *(cell.title for cell in personal.cells), "mean rank"]
    label = "Accuracy of the agents' own models"
    hint = (
        f"{SHARED[:1].upper()}{SHARED[1:]}: its model is outside most sets, so that it has no "
        "rank. Ranks are of the means, 1 is best."
    )
    return Table(
        label, [Cell(name) for name in columns], [RowGroup(rows)], caption=label, hint=hint
    )


def _earlier_table(personal: PersonalResults, cell: personal_cells.Cell) -> Table:
    """Return the accuracies beside those of a first measurement."""
    rows = [
        [
            Cell(method, heading="row"),
            interval_cell(personal.accuracy(cell, method)),
            Cell(f"{EARLIER[method]:.2f}"),
        ]
        for method in METHODS
        if method in EARLIER
    ]
    center = personal.center(cell, OURS)
    if center:
        heading = Cell(f"centre of {OURS}", heading="row")
        rows.append([heading, interval_cell(center), Cell(f"{EARLIER_CENTER:.2f}")])
    label = f"Beside a first measurement: {cell.title}"
    columns = [Cell(name) for name in ("method", "accuracy", "first measurement")]
    return Table(label, columns, [RowGroup(rows)], caption=label)


def _cell_section(
    personal: PersonalResults, cell: personal_cells.Cell, styles: Mapping[str, Style]
) -> Section:
    """Return the chart and the table of one cell."""
    heading = "Accuracy of the own model"
    traces = [_trace(personal.accuracy(cell, each), each, styles[each]) for each in METHODS]
    layout = axes("accuracy", "")
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True}
    means = [f"{each} {personal.accuracy(cell, each).mean:.3f}" for each in METHODS]
    description = f"{heading} of every method, with intervals: {', '.join(means)}."
    seeds = len(personal.of(cell, OURS))
    caption = (
        f"{cell.agents} agents; means over agents and {seeds} seeds, with 95 % intervals of the "
        "mean over seeds."
    )
    if cell.pooling > 1:
        caption += f" Features are the means of {cell.pooling} × {cell.pooling} pixels."
    chart = Chart(heading, caption, [Panel(heading, description, traces, layout)])
    blocks: list[Block] = [
        ChartGroup(cell.slug, [chart], styles, series="methods"),
        _cell_table(personal, cell, styles),
    ]
    return Section(cell.slug, cell.title, blocks)


def _trace(found: Interval, method: str, style: Style) -> Trace:
    """Return a mean as a dot with its interval."""
    width = found.high - found.mean
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plotly_text(method),
        "x": [round(found.mean, 4)],
        "y": [method],
        "marker": {"size": 10},
        "error_x": {"type": "data", "array": [round(width, 4) if math.isfinite(width) else 0]},
        "hovertemplate": "%{x:.3f}",
        "meta": {"series": method, "colour": style.colour},
    }


def _cell_table(
    personal: PersonalResults, cell: personal_cells.Cell, styles: Mapping[str, Style]
) -> Table:
    """Return the own models, the shared models and the chosen σ or λ of every method."""
    columns = ["method", "own models", "shared model", f"minus {OURS}", "chosen σ", "infeasibility"]
    rows = []
    for method in METHODS:
        scores = personal.of(cell, method)
        center = personal.center(cell, method)
        difference = personal.difference(cell, method, OURS)
        chosen = [score.coupling for score in scores if score.coupling is not None]
        rows.append(
            [
                Cell(method, heading="row", style=styles[method]),
                interval_cell(personal.accuracy(cell, method)),
                interval_cell(center) if center else Cell("–"),
                interval_cell(difference, signed=True) if method != OURS else Cell("–"),
                Cell(_values(chosen)),
                Cell(f"{max(score.infeasibility for score in scores):.2g}"),
            ]
        )
    hint = (
        "Shared model: the centre, on the test samples of all agents. "
        f"σ, and λ of {DITTO}: for each seed the best of {_values(cell.couplings)} on validation "
        "data. Infeasibility: the largest distance of a model from its set."
    )
    label = f"Methods: {cell.title}"
    return Table(label, [Cell(name) for name in columns], [RowGroup(rows)], hint=hint)


def interval_cell(found: Interval, *, signed: bool = False) -> Cell:
    """Return a mean, with half the length of its interval below."""
    width = found.high - found.mean
    text = f"{found.mean:+.3f}" if signed else f"{found.mean:.3f}"
    return Cell(text, note=f"± {width:.3f}" if math.isfinite(width) else "")


def _values(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers) or "–"
