"""The report on experiments: claims first, then a section per experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pcfed import data
from pcfed.data import Dataset
from pcfed.experiments.claims import PC, Claim, Verdict, claims
from pcfed.experiments.leaderboard import MethodResults
from pcfed.experiments.personal import PersonalResults
from pcfed.experiments.rates import Rates
from pcfed.experiments.rounds import RoundsResults
from pcfed.experiments.styles import comparison_styles
from pcfed.experiments.summary import Comparison
from pcfed.palette import Style
from pcfed.report.comparison_charts import comparison_charts
from pcfed.report.comparison_findings import differences, findings, summary
from pcfed.report.comparison_metrics import (
    NONZERO,
    AgentMetrics,
    AlgorithmMetrics,
    comparison_metrics,
)
from pcfed.report.methods_section import methods_section
from pcfed.report.page import (
    Badge,
    Badges,
    Block,
    BulletList,
    Cell,
    ChartGroup,
    Definitions,
    Details,
    Page,
    Paragraph,
    RowGroup,
    Section,
    Table,
    provenance_table,
    write_page,
)
from pcfed.report.personal_section import personal_section
from pcfed.report.rates_section import rates_section
from pcfed.report.rounds_section import rounds_section
from pcfed.report.weight_images import QUANTILE, weight_table

BADGES: Mapping[Verdict, Badge] = {
    "holds": Badge("holds", "✓", "holds"),
    "holds, but": Badge("holds, but", "!", "holds-but"),
    "does not hold": Badge("does not hold", "✗", "does-not-hold"),
}
SOURCES: Mapping[str, str] = {
    "the paper": "Claims of the paper, in its setting",
    "the paper's, other shards": "The same claims with other partitions of the data",
    "ours": "Our claims: budgets that bind and differ",
    "rounds": "Our claims: PCFedSplit needs the fewest rounds, for any number of agents",
    "personal": "Our claims: models that are good for their owners",
    "the theorem": "The theorem, with the corrections of our notes on the paper",
}
PARTITIONS: Mapping[str, str] = {
    "label_sorted": "sorted by label: each agent has few classes",
    "iid": "i.i.d.: each agent has all classes",
    "dirichlet": "fractions of the classes drawn from a Dirichlet distribution",
}
LEAD = (
    "PC-FedAvg trains federated models in which every agent keeps its own model in its own private "
    "constraint set. The paper “On Performance Guarantees for Federated Learning with Personalized "
    "Constraints” compares it with FedAvg, FedProx and SCAFFOLD, which share one model and get the "
    "constraints as a penalty. We repeated these comparisons and added some that the paper does "
    "not have. Verdicts, sentences, charts and tables on this page are computed from the runs."
)
GLOSSARY: Mapping[str, str] = {
    "loss": "the mean over agents of their loss at the average model, which all algorithms "
    "minimise, without penalty and coupling.",
    "infeasibility": "the Euclidean distance of an agent's own model from its own set. Algorithms "
    "with one shared model have one model, with a distance for every agent.",
    "‖W‖₁, budget": "the sum of the absolute values of all weights, and its upper limit in the "
    "agent's constraint.",
    "test accuracy": "of the agent's own model on the whole test set, including classes that the "
    "agent has no data of.",
    "non-zero": f"the fraction of weights above {100 * NONZERO:g} % of the largest weight of the "
    "same model.",
    "certified gap": "the objective of the models, projected onto their sets, minus a proven lower "
    "bound on the optimum; relative to this objective.",
    "MB": "millions of bytes in all rounds, all agents together; up is to the server, down is "
    "from it.",
    "weights as images": f"of the first seed; full colour is the {100 * QUANTILE:g} % quantile of "
    "the absolute values of all non-zero weights of the comparison.",
}


def write_report(
    comparisons: Sequence[Comparison],
    path: str | os.PathLike[str],
    *,
    data_dir: Path | None = None,
    provenance: Mapping[str, str] | None = None,
    rates: Rates | None = None,
    rounds: RoundsResults | None = None,
    personal: PersonalResults | None = None,
    methods: MethodResults | None = None,
) -> None:
    """Write the report on experiments: one HTML file that loads nothing from elsewhere.

    Parameters
    ----------
    comparisons : sequence of Comparison
        The finished settings, in the order of the page.
    path : path
        The file to write; an existing file is replaced.
    data_dir : Path, optional
        Directory with data sets of the user; accuracies are computed on their test parts.
    provenance : mapping of str to str, optional
        How the results were produced (versions, machine, date), shown at the end.
    rates : Rates, optional
        The measurements for the theorem.
    rounds : RoundsResults, optional
        The rounds of PCFedSplit and of other algorithms to certified gaps.
    personal : PersonalResults, optional
        The accuracies of the agents' own models.
    methods : MethodResults, optional
        The scores of all methods under personal constraints.

    Raises
    ------
    ValueError
        If there is nothing to report.
    ImportError
        If a package of the ``experiments`` extra is missing.
    DataError
        If a data set is not available.
    """
    if not comparisons and not any((rates, rounds, personal, methods)):
        raise ValueError("write_report: comparisons must not be empty, got none; run some first.")
    load = lru_cache(maxsize=None)(lambda name: data.load(name, data_dir=data_dir))
    datasets = [load(comparison.setting.data) for comparison in comparisons]
    metrics = [comparison_metrics(*pair) for pair in zip(comparisons, datasets, strict=True)]
    sections = [_claims_section(claims(comparisons, rates, rounds, personal))]
    if comparisons:
        sections.append(_summary_section(comparisons, metrics))
    sections += _experiment_sections(comparisons, datasets, metrics)
    if rounds:
        sections.append(rounds_section(rounds))
    if personal:
        sections.append(personal_section(personal))
    if methods:
        sections.append(methods_section(methods))
    if rates:
        sections.append(rates_section(rates))
    tables: list[Block] = []
    if provenance:
        tables.append(provenance_table("Software and machine", provenance))
    if methods:
        label = "How the comparison of methods was computed"
        tables.append(replace(provenance_table(label, methods.provenance), caption=label))
    if tables:
        sections.append(Section("provenance", "How the results were produced", tables))
    heading = "PC-FedAvg: the paper's claims and our measurements"
    notes = list(_size_note(comparisons))
    # The other terms are those of comparisons and measurements of the paper's experiments.
    own_models_only = not comparisons and not rates and not rounds
    terms = {"infeasibility": GLOSSARY["infeasibility"]} if own_models_only else GLOSSARY
    write_page(
        Page("PC-FedAvg: claims and measurements", heading, LEAD, sections, terms, notes), path
    )


def _size_note(comparisons: Sequence[Comparison]) -> Iterator[Paragraph]:
    """Yield a note if some settings are not those of the packaged experiments."""
    reduced = [(each, changes) for each in comparisons if (changes := differences(each))]
    if reduced:
        first, changes = reduced[0]
        text = (
            f"{len(reduced)} of {len(comparisons)} comparisons below differ from the experiments "
            f"of the same name, for instance {first.title}: {'; '.join(changes)}. "
            "The verdicts are about these runs."
        )
        yield Paragraph(text, "Not at full size.", "note")


def _claims_section(found: Sequence[Claim]) -> Section:
    """Return the verdicts on all claims: a table per source, a group of rows per claim."""
    if not found:
        text = "None of the experiments below tests a claim of the paper."
        return Section("claims", "Claims", [Paragraph(text)])
    counts = [
        (badge, sum(claim.verdict == verdict for claim in found))
        for verdict, badge in BADGES.items()
    ]
    sources: dict[str, dict[str, list[list[Cell]]]] = {}
    for claim in found:
        rows = sources.setdefault(claim.source, {}).setdefault(
            claim.claim, [[Cell(_sentence(claim.claim), heading="rowgroup", colspan=3)]]
        )
        verdict = Cell(badge=BADGES[claim.verdict])
        rows.append([Cell(claim.where), Cell(claim.measured), verdict])
    columns = [Cell("setting"), Cell("measured"), Cell("verdict")]
    tables = [
        Table(
            SOURCES.get(source, source),
            columns,
            [RowGroup(rows) for rows in groups.values()],
            css_class="claims",
            caption=SOURCES.get(source, source),
            stacked=True,
        )
        for source, groups in sources.items()
    ]
    return Section("claims", "Claims", [Badges(counts), *tables])


def _summary_section(
    comparisons: Sequence[Comparison], metrics: Sequence[Sequence[AlgorithmMetrics]]
) -> Section:
    """Return the most important findings of every comparison."""
    items = {each.title: summary(each, m) for each, m in zip(comparisons, metrics, strict=True)}
    links = {each.title: each.slug for each in comparisons}
    return Section("summary", "Summary", [Definitions(items, links=links)])


def _experiment_sections(
    comparisons: Sequence[Comparison],
    datasets: Sequence[Dataset],
    metrics: Sequence[Sequence[AlgorithmMetrics]],
) -> Iterator[Section]:
    """Yield a section per experiment, with a subsection per comparison."""
    experiments: dict[str, list[Section]] = {}
    for comparison, dataset, values in zip(comparisons, datasets, metrics, strict=True):
        section = _comparison_section(comparison, dataset, values)
        experiments.setdefault(comparison.preset.title, []).append(section)
    for title, sections in experiments.items():
        yield Section(f"{sections[0].id}-experiment", title, [], sections)


def _comparison_section(
    comparison: Comparison, dataset: Dataset, metrics: Sequence[AlgorithmMetrics]
) -> Section:
    """Return findings, settings, charts, table and images of one comparison."""
    styles = comparison_styles(comparison)
    changes = differences(comparison)
    blocks: list[Block] = []
    if changes:
        text = f"Differs from the experiment of the same name: {'; '.join(changes)}."
        blocks.append(Paragraph(text, css_class="note"))
    for name, results in comparison.results.items():
        for seed, result in enumerate(results):
            if result.status != "finished" or result.refusals:
                text = f"{name}, seed {seed}: {result.status}. {result.message}"
                blocks.append(Paragraph(text, "Unfinished run.", "note"))
    place = comparison.slug
    charts = comparison_charts(comparison, metrics)
    blocks += [
        BulletList(findings(comparison, metrics)),
        Details("Settings", dict(_settings(comparison, dataset))),
        ChartGroup(place, charts, styles),
    ]
    sections = [
        Section(f"{place}-metrics", "Metrics at the end", [_metrics_table(metrics, styles)])
    ]
    images = weight_table(comparison, dataset)
    if images is not None:
        sections.append(Section(f"{place}-weights", "Weights as images", [images]))
    return Section(place, _sentence(comparison.setting.name), blocks, sections)


def _settings(comparison: Comparison, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield the settings of a comparison as names and values."""
    setting = comparison.setting
    images = len(dataset.train_images)
    used = min(setting.samples or images, images)
    yield "data", f"{setting.data}, {used:,} training images"
    yield "partition", PARTITIONS.get(setting.partition, setting.partition)
    yield "constraints", ", ".join(setting.constraints)
    yield "coupling σ", ", ".join(f"{value:g}" for value in setting.couplings)
    yield "rounds", str(setting.rounds)
    yield "batch", f"{100 * setting.batch:g} % of an agent's data"
    yield "seeds", str(max(len(runs) for runs in comparison.results.values()))
    for run in setting.runs:
        if run.name in comparison.results:
            text = f"{run.algorithm!r}, {run.local_steps} local steps"
            if run.participation != 1.0:
                text += f", participation {run.participation}"
            yield run.name, text


def _metrics_table(metrics: Sequence[AlgorithmMetrics], styles: Mapping[str, Style]) -> Table:
    """Return the metrics of every algorithm and agent."""
    names = ["algorithm", "loss", "agent", "infeasibility", "‖W‖₁", "budget", "test accuracy"]
    names += ["non-zero", "MB up", "MB down", "seconds"]
    groups = []
    for algorithm in metrics:
        agents = algorithm.rows
        span = len(agents)
        low, high = (f"{loss:.3f}" for loss in algorithm.loss_range)
        spread = f"{low}–{high}" if low != high else ""
        style = styles[algorithm.name]
        first = [
            Cell(algorithm.name, heading="rowgroup", rowspan=span, style=style),
            Cell(f"{algorithm.loss:.3f}", rowspan=span, note=spread),
        ]
        values = (algorithm.megabytes_up, algorithm.megabytes_down, algorithm.seconds)
        last = [Cell(f"{value:.1f}", rowspan=span) for value in values]
        rows = [_agent_cells(label, agent) for label, agent in agents]
        # Cells of the algorithm are in the first row and span the rows of all agents.
        rows[0] = [*first, *rows[0], *last]
        groups.append(RowGroup(rows, "own" if algorithm.name == PC else ""))
    return Table("Metrics at the end", [Cell(name) for name in names], groups)


def _agent_cells(label: str, agent: AgentMetrics) -> list[Cell]:
    texts = [
        f"{agent.infeasibility:.4f}" if agent.infeasibility else "0",
        f"{agent.norm:.1f}",
        "–" if agent.budget is None else f"{agent.budget:g}",
        "–" if agent.accuracy is None else f"{100 * agent.accuracy:.1f} %",
        f"{100 * agent.nonzero:.1f} %",
    ]
    return [Cell(label, heading="row"), *map(Cell, texts)]


def _sentence(text: str) -> str:
    """Return text with a capital first letter, except for names such as "i.i.d."."""
    return text if text[1:2] == "." else text[:1].upper() + text[1:]
