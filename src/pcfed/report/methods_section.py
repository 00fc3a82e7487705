"""The section on the leaderboard: own models of all methods under personal constraints."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pcfed.experiments import personal_cells
from pcfed.experiments.leaderboard import TARGET, TRIALS, MethodResults
from pcfed.experiments.styles import method_styles
from pcfed.palette import Style
from pcfed.report.charts import Chart, Panel, Trace, axes, plotly_text, row_height
from pcfed.report.methods_findings import method_findings
from pcfed.report.page import (
    Block,
    BulletList,
    Cell,
    ChartGroup,
    Paragraph,
    RowGroup,
    Section,
    Table,
)
from pcfed.report.personal_section import interval_cell

TEXT = (
    "Every agent has samples of its own distribution and a limit on its own model. We measure how "
    "accurate its model, inside its set, is on test samples of its own distribution. Every method "
    f"has the same number of rounds and local steps, and {TRIALS} trials of its parameters in "
    "every cell, on validation samples of the first seed, with as many rounds; no test sample is "
    "among the samples of this search. Methods without a search, or for networks only, have no "
    "rank."
)


def methods_section(methods: MethodResults) -> Section:
    """Return the section, with a subsection for every cell."""
    styles = method_styles(methods.methods)
    blocks: list[Block] = [
        Paragraph(TEXT),
        BulletList(method_findings(methods)),
        _rank_chart(methods, styles),
        _table(methods, styles),
    ]
    cells = [
        Section(f"methods-{cell.slug}", cell.title, [_cell_table(methods, cell, styles)])
        for cell in methods.cells
    ]
    return Section("methods", "Which method should I take?", blocks, cells)


def _rank_chart(methods: MethodResults, styles: Mapping[str, Style]) -> ChartGroup:
    """Return the mean ranks with half the critical difference to both sides."""
    heading, ranks, difference = "Mean rank", methods.mean_ranks(), methods.critical_difference
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plotly_text(method),
            "x": [round(rank, 2)],
            "y": [method],
            "marker": {"size": 10},
            "error_x": {"type": "data", "array": [round(difference / 2, 2)]},
            "hovertemplate": "%{x:.2f}",
            "meta": {"series": method, "colour": styles[method].colour},
        }
        for method, rank in ranks.items()
    ]
    layout = axes("mean rank, 1 is best", "")
    layout["xaxis"] |= {"tick0": 1, "dtick": 2}
    names = {"type": "category", "autorange": "reversed", "automargin": True, "dtick": 1}
    layout["yaxis"] |= names
    listed = ", ".join(f"{method} {rank:.1f}" for method, rank in ranks.items())
    caption = (
        f"Over {len(methods.cells)} cells. The bars are half the critical difference, "
        f"{difference:.1f}, of Nemenyi's test to both sides: methods whose bars overlap are not "
        "distinguished."
    )
    without = [name for name in methods.methods if name not in ranks]
    if without:
        caption += f" Without a rank: {'; '.join(without)}."
    description = f"{heading} of every method: {listed}."
    panel = Panel(heading, description, traces, layout, row_height(len(ranks), 1.6))
    chart = Chart(heading, caption, [panel])
    shown = {name: styles[name] for name in ranks}
    return ChartGroup("method-ranks", [chart], shown, series="methods")


def _table(methods: MethodResults, styles: Mapping[str, Style]) -> Table:
    """Return the accuracies of all methods in all cells, and the mean ranks."""
    ranks = methods.mean_ranks()
    rows = [
        [
            Cell(method, heading="row", style=styles[method]),
            Cell(f"{ranks[method]:.1f}" if method in ranks else "–"),
            *(
                interval_cell(methods.accuracy(cell, method))
                if method in methods.methods_in(cell)
                else Cell("–")
                for cell in methods.cells
            ),
        ]
        for method in methods.methods
    ]
    columns = ["method", "mean rank", *(cell.title for cell in methods.cells)]
    label = "Accuracy of the agents' own models, inside their sets"
    headings = [Cell(name) for name in columns]
    return Table(label, headings, [RowGroup(rows)], "numbers named", caption=label)


def _cell_table(
    methods: MethodResults, cell: personal_cells.Cell, styles: Mapping[str, Style]
) -> Table:
    """Return all that was measured in a cell."""
    columns = ["method", "own models", "worst agent", "outside before", "outside after"]
    columns += ["rounds", "kB", "seconds"]
    rows = [
        [
            Cell(method, heading="row", style=styles[method]),
            interval_cell(methods.accuracy(cell, method)),
            Cell(f"{methods.worst(cell, method):.3f}"),
            Cell(f"{methods.infeasibility(cell, method):.2g}"),
            Cell(f"{methods.infeasibility_after(cell, method):.2g}"),
            Cell(_number(methods.rounds(cell, method))),
            Cell(_number(methods.bytes_to_target(cell, method) / 1000)),
            Cell(f"{methods.seconds(cell, method):.1f}"),
            Cell(methods.of(cell, method).trial, css_class="text"),
        ]
        for method in methods.methods_in(cell)
    ]
    hint = (
        "Rounds, and what an agent has sent and received: until the accuracy first reaches "
        f"{100 * TARGET:g} % of the best; it may fall later. Outside: the largest distance of a "
        "model from its set, before and after it was projected for its score. Seconds: of one "
        "core, for all rounds."
    )
    label = f"Methods: {cell.title}"
    headings = [*map(Cell, columns), Cell("parameters", css_class="text")]
    return Table(label, headings, [RowGroup(rows)], "numbers named", hint=hint)


def _number(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "–"
