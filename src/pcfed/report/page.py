"""The page: claims first, then a section per experiment, then how it was made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pcfed import data
from pcfed.data import Dataset
from pcfed.experiments.claims import PC, Claim, Verdict, claims
from pcfed.experiments.exact import ExactResults
from pcfed.experiments.rates import Rates
from pcfed.experiments.summary import Comparison
from pcfed.report.certified import Certified, certified
from pcfed.report.charts import Chart, Style, charts, styles
from pcfed.report.findings import differences, findings, in_short
from pcfed.report.measures import NONZERO, MethodMeasures, measure
from pcfed.report.render import render
from pcfed.report.theorem import Theorem, theorem
from pcfed.report.weights import QUANTILE, Pictures, pictures
from pcfed.storage.atomic import write_atomically

MARKS: Mapping[Verdict, str] = {"holds": "✓", "holds, but": "!", "does not hold": "✗"}
SOURCES: Mapping[str, str] = {
    "the paper": "Claims of the paper, in its setting",
    "the paper's, other shards": "The same claims, with the data shared out in another way",
    "ours": "Our claims: budgets that bind and differ",
    "exact": "Our claims: exact PC-FedAvg converges where the paper's method stalls",
    "the theorem": "The theorem, with the corrections of our notes on the paper",
}
SHARDS: Mapping[str, str] = {
    "label_sorted": "sorted by label: each agent sees few classes",
    "iid": "i.i.d.: each agent sees all classes",
    "dirichlet": "class shares drawn from a Dirichlet distribution",
}


@dataclass(frozen=True)
class Section:
    """All that the page says of one comparison."""

    id: str
    comparison: Comparison
    dataset: Dataset
    in_short: str
    findings: Sequence[str]
    differences: Sequence[str]
    styles: Mapping[str, Style]
    charts: Sequence[Chart]
    methods: Sequence[MethodMeasures]
    pictures: Pictures | None

    @property
    def setup(self) -> Iterator[tuple[str, str]]:
        """How it was run, as names and values."""
        setting = self.comparison.setting
        images = len(self.dataset.train_images)
        used = min(setting.samples or images, images)
        yield "data", f"{setting.data}, {used:,} training images"
        yield "shards", SHARDS.get(setting.partition, setting.partition)
        yield "constraints", ", ".join(setting.constraints)
        yield "coupling σ", ", ".join(f"{value:g}" for value in setting.couplings)
        yield "rounds", str(setting.rounds)
        yield "batch", f"{100 * setting.batch:g} % of an agent's data"
        yield "seeds", str(max(len(runs) for runs in self.comparison.results.values()))
        for method in setting.runs:
            if method.name in self.comparison.results:
                share = f", participation {method.participation}"
                yield (
                    method.name,
                    f"{method.algorithm!r}, {method.local_steps} local steps"
                    + share * (method.participation != 1.0),
                )

    @property
    def troubles(self) -> Iterator[str]:
        """What to know of runs that did not finish as planned."""
        for name, results in self.comparison.results.items():
            for seed, result in enumerate(results):
                if result.status != "finished" or result.refusals:
                    yield f"{name}, seed {seed}: {result.status}. {result.message}"


def write_report(
    comparisons: Sequence[Comparison],
    path: str | os.PathLike[str],
    *,
    data_dir: Path | None = None,
    facts: Mapping[str, str] | None = None,
    rates: Rates | None = None,
    race: ExactResults | None = None,
) -> None:
    """Write the report of experiments: one HTML file that needs nothing else, on line or off.

    Parameters
    ----------
    comparisons : sequence of Comparison
        The finished settings, in the order of the page.
    path : path
        The file to write; an older one is replaced.
    data_dir : Path, optional
        Where the user keeps data sets; their test parts give the accuracies.
    facts : mapping of str to str, optional
        How it was made (versions, machine, date), shown at the end.
    rates : Rates, optional
        The theorem, measured.
    race : ExactResults, optional
        Exact PC-FedAvg and others, measured.

    Raises
    ------
    ValueError
        If there is nothing to report.
    ImportError
        If a package of the ``experiments`` extra is missing.
    DataError
        If a data set can't be had.
    """
    if not comparisons and rates is None and race is None:
        raise ValueError("write_report: comparisons must not be empty, got none; run some first.")
    load = lru_cache(maxsize=None)(lambda name: data.load(name, data_dir=data_dir))
    sections = [_section(each.slug, each, load(each.setting.data)) for each in comparisons]
    found = claims(comparisons, rates, race)
    page = _render(sections, found, facts or {}, rates, race)
    write_atomically(Path(path), page)


def _section(place: str, comparison: Comparison, dataset: Dataset) -> Section:
    measured = measure(comparison, dataset)
    return Section(
        id=place,
        comparison=comparison,
        dataset=dataset,
        in_short=in_short(comparison, measured),
        findings=findings(comparison, measured),
        differences=differences(comparison),
        styles=styles(comparison),
        charts=charts(comparison, measured),
        methods=measured,
        pictures=pictures(comparison, dataset),
    )


def _render(
    sections: Sequence[Section],
    found: Sequence[Claim],
    facts: Mapping[str, str],
    rates: Rates | None,
    race: ExactResults | None,
) -> bytes:
    """Fill the template."""
    proved = theorem(rates) if rates else None
    near = certified(race) if race else []
    drawn: list[Section | Theorem | Certified] = [*sections, *near]
    if proved:
        drawn.append(proved)
    return render(
        "template.html",
        drawn,
        sections=sections,
        experiments=_by_experiment(sections),
        claims=_by_source_and_claim(found),
        verdicts={verdict: sum(c.verdict == verdict for c in found) for verdict in MARKS},
        marks=MARKS,
        sources=SOURCES,
        facts=facts,
        pc=PC,
        nonzero=NONZERO,
        quantile=QUANTILE,
        theorem=proved,
        certified=near,
    )


def _by_experiment(sections: Sequence[Section]) -> dict[str, list[Section]]:
    """Return the sections by the title of their experiment."""
    grouped: dict[str, list[Section]] = {}
    for section in sections:
        grouped.setdefault(section.comparison.preset.title, []).append(section)
    return grouped


def _by_source_and_claim(found: Sequence[Claim]) -> dict[str, dict[str, list[Claim]]]:
    """Return claims by whose they are, then by what they say; one entry a place."""
    grouped: dict[str, dict[str, list[Claim]]] = {}
    for claim in found:
        grouped.setdefault(claim.source, {}).setdefault(claim.claim, []).append(claim)
    return grouped
