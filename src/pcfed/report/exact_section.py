"""The section on exact PC-FedAvg: rounds and bytes until the certified gap is small."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from pcfed.experiments.exact import OURS, PAPER, Case, ExactResults, GapRecord
from pcfed.report.charts import Chart, Line, Panel, Style, line_panel, series_styles
from pcfed.report.comparison_metrics import MEGABYTE
from pcfed.report.page import Cell, ChartGroup, Paragraph, RowGroup, Section, Table


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

    records = {name: exact.best(case, name).records for name in styles}

    def panel(heading: str, x_title: str, quantity: str) -> Panel:
        over = _megabytes if x_title == "megabytes" else attrgetter("round")
        lines = {
            name: Line([over(r) for r in each], [getattr(r, quantity) for r in each])
            for name, each in records.items()
        }
        return line_panel(heading, lines, styles, x_title, "", on_top=OURS, log_x=True, log_y=True)

    panels = (
        panel("Certified gap by round", "round", "gap"),
        panel("Certified gap by megabytes", "megabytes", "gap"),
        panel("Objective of the feasible models", "round", "objective"),
        panel("Infeasibility", "megabytes", "infeasibility"),
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


def _megabytes(record: GapRecord) -> float:
    return record.bytes / MEGABYTE
