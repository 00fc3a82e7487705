"""The section on exact PC-FedAvg: rounds and bytes until the certified gap is small."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pcfed.experiments.exact import OURS, PAPER, Case, ExactResults, GapRecord
from pcfed.report.charts import Chart, Line, Panel, Style, line_panel, series_styles
from pcfed.report.comparison_metrics import MEGABYTE
from pcfed.report.page import Cell, ChartGroup, Paragraph, RowGroup, Section, Table

Quantity = Callable[[GapRecord], float]


def exact_section(exact: ExactResults) -> Section:
    """Return the section, with a subsection for every case."""
    text = (
        "How many rounds and bytes it takes until the models are certainly near the optimum: in "
        "some rounds the models are made feasible, and the certificate bounds their distance from "
        "the optimum. Exact PC-FedAvg runs with step and penalty “auto”, PC-FedAvg with every pair "
        "of a grid, and the baselines with a penalty."
    )
    cases = [_case_section(exact, case) for case in exact.cases]
    return Section("exact", "Exact PC-FedAvg", [Paragraph(text)], cases)


def _case_section(exact: ExactResults, case: Case) -> Section:
    """Return the charts and the table of one case."""
    styles = series_styles(exact.names(case), emphasized=OURS)

    def panel(heading: str, x_title: str, quantity: Quantity, over: Quantity) -> Panel:
        return _panel(exact, case, styles, heading, x_title, quantity, over)

    panels = (
        panel("Certified gap by round", "round", _gap, _round),
        panel("Certified gap by megabytes", "megabytes", _gap, _megabytes),
        panel("Objective of the feasible models", "round", _objective, _round),
        panel("Infeasibility", "megabytes", _infeasibility, _megabytes),
    )
    caption = (
        "Both axes are logarithmic. The gap bounds the distance of the feasible models from the "
        "optimum, relative to their objective. For PC-FedAvg, the pair of the grid with the "
        "smallest gap is drawn."
    )
    title = case.title[:1].upper() + case.title[1:]
    chart = Chart("Distance from the optimum", caption, panels)
    table = Section(
        f"{case.slug}-table",
        "Rounds and bytes to a certified relative gap",
        [_table(exact, case, styles)],
    )
    return Section(case.slug, title, [ChartGroup(case.slug, [chart], styles)], [table])


def _table(exact: ExactResults, case: Case, styles: Mapping[str, Style]) -> Table:
    """Return for every algorithm what it took to reach each gap."""
    targets = [f"{target:g}" for target in case.targets]
    columns = ["algorithm", *targets, "smallest gap", "infeasibility at equal bytes"]
    ours = exact.first(case, OURS, case.targets[1])
    rows = []
    for name, style in styles.items():
        best = exact.best(case, name)
        rounds = case.rounds if name == OURS else case.baseline_rounds
        reached = [exact.first(case, name, target) for target in case.targets]
        cells = [
            Cell(f"{record.round} rounds", note=f"{_megabytes(record):.3g} MB")
            if record
            else Cell(f"not in {rounds}")
            for record in reached
        ]
        pairs = f", best of {len(exact.of(case, name))} pairs" if name == PAPER else ""
        cells.append(Cell(f"{best.smallest_gap:.2g}", note=f"{best.status}{pairs}"))
        same_bytes = best.at(ours.bytes) if ours else None
        cells.append(Cell(f"{same_bytes.infeasibility:.2g}" if same_bytes else "–"))
        rows.append([Cell(name, heading="row", style=style), *cells])
    hint = (
        "Infeasibility at equal bytes: the largest distance of a model from its set when the "
        "algorithm had sent as many bytes as exact PC-FedAvg needed for the second gap."
    )
    return Table(
        "Rounds and bytes",
        [Cell(name) for name in columns],
        [RowGroup(rows)],
        "numbers agents",
        hint=hint,
    )


def _panel(
    exact: ExactResults,
    case: Case,
    styles: Mapping[str, Style],
    heading: str,
    x_title: str,
    quantity: Quantity,
    over: Quantity,
) -> Panel:
    """Return a quantity of the best run of every algorithm, over rounds or megabytes."""
    lines = {}
    for name in styles:
        records = exact.best(case, name).records
        lines[name] = Line([over(r) for r in records], [quantity(r) for r in records])
    return line_panel(heading, lines, styles, x_title, "", on_top=OURS, log_x=True, log_y=True)


def _gap(record: GapRecord) -> float:
    return record.gap


def _objective(record: GapRecord) -> float:
    return record.objective


def _infeasibility(record: GapRecord) -> float:
    return record.infeasibility


def _round(record: GapRecord) -> float:
    return float(record.round)


def _megabytes(record: GapRecord) -> float:
    return record.bytes / MEGABYTE
