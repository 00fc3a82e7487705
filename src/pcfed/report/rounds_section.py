"""The section on rounds: rounds and bytes until the certified gap is small."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from pcfed.experiments.round_cases import FAMILY, FAMILY_STEPS, Case
from pcfed.experiments.rounds import (
    ACCELERATED,
    FEW_PAIRS,
    GRID,
    OURS,
    PAPER,
    GapRecord,
    RoundsResults,
)
from pcfed.experiments.styles import method_styles
from pcfed.palette import Style
from pcfed.report.charts import Chart, Line, Panel, line_panel
from pcfed.report.comparison_metrics import MEGABYTE
from pcfed.report.page import Block, Cell, ChartGroup, Paragraph, RowGroup, Section, Table

TEXT = (
    "How many rounds and bytes it takes until the models are certainly near the optimum: the "
    "models are made feasible, and their objective is compared with a certified lower bound on the "
    f"optimum. {OURS} runs once, without arguments, {PAPER} with {len(GRID)} pairs of a grid, and "
    "the baselines with a penalty. The most serious competitor is the accelerated projected "
    "gradient method on the joint problem. Its iterations count as two rounds, because they need "
    "the average of the models and then the mean gradient there, of all agents and all data."
)


def rounds_section(rounds: RoundsResults) -> Section:
    """Return the section, with a subsection for every case and one for the family."""
    cases = [_case_section(rounds, case) for case in rounds.cases if case.problem != FAMILY]
    family = [_family_section(rounds)] if rounds.cases_by_agents else []
    return Section("rounds", "Rounds to a certified gap", [Paragraph(TEXT)], [*family, *cases])


# -- one case -----------------------------------------------------------------------------------


def _case_section(rounds: RoundsResults, case: Case) -> Section:
    """Return the charts and the table of one case."""
    styles = method_styles(rounds.names(case))

    records = {name: rounds.best(case, name).records for name in styles}

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
        "optimum, relative to their objective. Where an algorithm has several runs, the one with "
        "the smallest gap is drawn. Models that are never outside their sets have no line in the "
        "last chart."
    )
    title = case.title[:1].upper() + case.title[1:]
    chart = Chart("Distance from the optimum", caption, panels)
    table = Section(
        f"{case.slug}-table",
        "Rounds and bytes to a certified relative gap",
        [_table(rounds, case, styles)],
    )
    return Section(case.slug, title, [ChartGroup(case.slug, [chart], styles)], [table])


def _table(rounds: RoundsResults, case: Case, styles: Mapping[str, Style]) -> Table:
    """Return for every algorithm what it took to reach each gap."""
    targets = [f"{target:g}" for target in case.targets]
    columns = ["algorithm", *targets, "smallest gap", "infeasibility at equal bytes"]
    ours = rounds.first(case, OURS, case.targets[1])
    rows = []
    for name, style in styles.items():
        best, number = rounds.best(case, name), len(rounds.of(case, name))
        cells = []
        for target in case.targets:
            record = rounds.first(case, name, target)
            text = rounds.text(case, name, target)
            sent = f"{_megabytes(record):.3g} MB" if record else ""
            unit = f" round{'s' * (record.round > 1)}" if record else ""
            cells.append(Cell(text + unit, note=sent))
        kind = {PAPER: "pairs", ACCELERATED: "steps"}.get(name, "")
        several = f", best of {number} {kind}" if number > 1 else ""
        cells.append(Cell(f"{best.smallest_gap:.2g}", note=f"{best.status}{several}"))
        same_bytes = best.at(ours.bytes) if ours else None
        cells.append(Cell(f"{same_bytes.infeasibility:.2g}" if same_bytes else "–"))
        rows.append([Cell(name, heading="row", style=style), *cells])
    hint = (
        "Infeasibility at equal bytes: the largest distance of a model from its set when the "
        f"algorithm had sent as many bytes as {OURS} needed for the second gap."
    )
    return Table(
        "Rounds and bytes",
        [Cell(name) for name in columns],
        [RowGroup(rows)],
        "numbers agents",
        hint=hint,
    )


# -- the family ---------------------------------------------------------------------------------


def _family_section(rounds: RoundsResults) -> Section:
    """Return the chart of rounds by number of agents, and the tables of the family."""
    cases = rounds.cases_by_agents
    family = [case for case in rounds.cases if case.problem == FAMILY]
    styles = method_styles(rounds.names(cases[0]))
    caption = (
        f"Both axes are logarithmic. {FAMILY_STEPS} local steps, all agents in every round. A line "
        "has the numbers of agents for which the algorithm reached the gap."
    )
    panels = [_panel_by_agents(rounds, target, styles) for target in cases[0].targets]
    blocks: list[Block] = [
        Paragraph(_family_text(cases)),
        ChartGroup(
            "rounds-family", [Chart("Rounds to a gap by number of agents", caption, panels)], styles
        ),
        _rounds_table(rounds, "Rounds by number of agents", cases, styles),
    ]
    varied = {case.agents for case in family if case not in cases}
    others = [case for case in family if case.agents in varied]
    if others:
        label = "Rounds by local steps H and participation"
        others.sort(key=lambda case: (case.agents, case.local_steps, -case.participation))
        blocks.append(_rounds_table(rounds, label, others, styles))
    return Section("rounds-family", "Number of agents, local steps, participation", blocks)


def _family_text(cases: Sequence[Case]) -> str:
    """Return what the problem is, and with which pairs of its grid PC-FedAvg runs."""
    text = (
        "Least squares with all data in every gradient and l1 budgets, most of which bind. "
        f"{PAPER} and the baselines have fewer rounds where a round takes long, and end as stalled "
        "when their gap hardly falls while the number of rounds is tripled."
    )
    whole = [case for case in cases if not case.few_pairs]
    if 0 < len(whole) < len(cases):
        text += (
            f" From m = {cases[len(whole)].agents:,} on, {PAPER} runs only with the {FEW_PAIRS} "
            f"pairs that were best for m = {whole[-1].agents:,}, if all agents take part."
        )
    return f"{text} The {ACCELERATED} method has no local steps and needs all agents."


def _panel_by_agents(rounds: RoundsResults, target: float, styles: Mapping[str, Style]) -> Panel:
    """Return the rounds to a gap by number of agents."""
    cases = rounds.cases_by_agents
    lines = {}
    for name in styles:
        found = [(case.agents, rounds.first(case, name, target)) for case in cases]
        reached = [(m, record.round) for m, record in found if record]
        if reached:
            lines[name] = Line([m for m, _ in reached], [each for _, each in reached])
    panel = line_panel(
        f"Rounds to a gap of {target:g}",
        lines,
        styles,
        "number of agents m",
        "",
        on_top=OURS,
        log_x=True,
        log_y=True,
    )
    agents = [case.agents for case in cases]
    x_range = [math.log10(agents[0]) - 0.1, math.log10(agents[-1]) + 0.1]
    panel.layout["xaxis"].update(tickmode="array", tickvals=agents, range=x_range)
    # One scale for all gaps, so that the panels can be compared.
    gaps = itertools.product(cases, styles, cases[0].targets)
    numbers = [record.round for key in gaps if (record := rounds.first(*key))]
    low, high = math.log10(min(numbers, default=1)), math.log10(max(numbers, default=1))
    panel.layout["yaxis"]["range"] = [low - 0.1, high + 0.1]
    return panel


def _rounds_table(
    rounds: RoundsResults, label: str, cases: Sequence[Case], styles: Mapping[str, Style]
) -> Table:
    """Return the rounds to each gap, one column per case, of the algorithms that reached any."""
    targets = cases[0].targets
    reached = {
        name
        for name in styles
        if any(rounds.first(case, name, target) for case in cases for target in targets)
    }
    groups = []
    for target in targets:
        rows = [[Cell(f"Gap {target:g}", heading="rowgroup", colspan=1 + len(cases))]]
        for name, style in styles.items():
            if name in reached:
                texts = [
                    rounds.text(case, name, target) if name in rounds.names(case) else "–"
                    for case in cases
                ]
                rows.append([Cell(name, heading="row", style=style), *map(Cell, texts)])
        groups.append(RowGroup(rows))
    titles = [case.title.split(", ") for case in cases]
    shared = set(titles[0]).intersection(*titles)
    columns = ["algorithm", *(_unbroken(each for each in t if each not in shared) for t in titles)]
    missing = [name for name in styles if name not in reached]
    hint = f"Not listed, because they reached none of the gaps: {', '.join(missing)}."
    return Table(
        label,
        [Cell(name) for name in columns],
        groups,
        "numbers agents",
        caption=label,
        hint=hint if missing else "",
    )


def _unbroken(parts: Iterable[str]) -> str:
    """Return parts of a title, with line breaks between them only."""
    return ", ".join(each.replace(" ", "\N{NO-BREAK SPACE}") for each in parts)


def _megabytes(record: GapRecord) -> float:
    return record.bytes / MEGABYTE
