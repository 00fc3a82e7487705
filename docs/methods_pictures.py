"""Draw methods.png and write the tables and all sentences with numbers of which-method.md.

    python docs/methods_pictures.py

The scores are in methods_results.json, a copy of ``methods.json`` in the directory of a run of
``pcfed reproduce methods``. Sentences are written again from new scores; where one is no longer
true, the script says so.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pcfed.experiments.figures import mean_ranks
from pcfed.experiments.leaderboard import (
    ALONE,
    DEFAULTS,
    EVALUATED,
    LEVEL,
    OURS,
    PROXAL,
    MethodResults,
)
from pcfed.experiments.personal import Interval
from pcfed.experiments.personal_cells import Cell
from pcfed.report.methods_findings import INSIDE, method_findings, quoted

HERE = Path(__file__).parent
PAGE = HERE / "which-method.md"
SHOWN = 8
"""Methods in the table of cells: those with the best ranks."""

ROUNDS = (1, 2, 5, 8, 12, 20)
"""Columns of the table of rounds; the network trains for so many, and the others for more."""


def overall_table(results: MethodResults) -> str:
    """Return one row per method: means over all cells that it is in."""
    rows = [
        "| method | mean rank | accuracy | worst agent | better than alone | outside before | "
        "after |",
        "|---|---|---|---|---|---|---|",
    ]
    ranks = results.mean_ranks()
    for method in results.methods:
        cells = [cell for cell in results.cells if method in results.methods_in(cell)]
        means = [results.accuracy(cell, method).mean for cell in cells]
        row = [
            method,
            f"{ranks[method]:.1f}" if method in ranks else "–",
            f"{100 * np.mean(means):.1f}",
            f"{100 * np.mean([results.worst(cell, method) for cell in cells]):.1f}",
            "–" if method == ALONE else f"{results.wins(method, ALONE)} of {len(cells)}",
            f"{max(results.infeasibility(cell, method) for cell in cells):.2g}",
            f"{max(results.infeasibility_after(cell, method) for cell in cells):.2g}",
        ]
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def costs_table(results: MethodResults) -> str:
    """Return one row per method: rounds and kB to the target, and seconds."""
    rows = ["| method | reached in | rounds | kB | seconds |", "|---|---|---|---|---|"]
    for method in results.methods:
        cells = [cell for cell in results.cells if method in results.methods_in(cell)]
        reached = [results.rounds(cell, method) for cell in cells]
        finite = [each for each in reached if math.isfinite(each)]
        sent = [results.bytes_to_target(cell, method) for cell in cells]
        sent = [each for each in sent if math.isfinite(each)]
        row = [
            method,
            f"{len(finite)} of {len(cells)}",
            f"{np.median(finite):g}" if finite else "–",
            f"{np.median(sent) / 1000:,.0f}" if sent else "–",
            f"{np.mean([results.seconds(cell, method) for cell in cells]):.1f}",
        ]
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def cell_table(results: MethodResults) -> str:
    """Return one row per cell: the accuracy of the best methods, the best of them in bold."""
    ranked = [method for method in results.mean_ranks() if method != ALONE][:SHOWN]
    methods = [ALONE, *ranked]
    rows = [f"| | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    rows += [_cell_row(results, cell, methods) for cell in results.cells]
    return "\n".join(rows)


def _cell_row(results: MethodResults, cell: Cell, methods: list[str]) -> str:
    found = {method: results.accuracy(cell, method).mean for method in methods}
    best = max(found.values())
    texts = [
        f"**{100 * value:.1f}**" if value == best else f"{100 * value:.1f}"
        for value in found.values()
    ]
    return f"| {cell.title} | {' | '.join(texts)} |"


def kinds_table(results: MethodResults) -> str:
    """Return one row per method: the mean accuracy over the cells of a kind, the best in bold."""
    kinds = {
        "labels differ": _cells(results, split=("dirichlet", "classes")),
        "i.i.d.": _cells(results, split=("iid",)),
        "Swissmetro": _cells(results, data=("swissmetro",)),
        "Electricity": _cells(results, data=("electricity",)),
    }
    headings = [f"{name} ({len(cells)})" for name, cells in kinds.items()]
    methods = _everywhere(results)
    means = np.array(
        [
            [
                np.mean([results.accuracy(cell, method).mean for cell in cells])
                for cells in kinds.values()
            ]
            for method in methods
        ]
    )
    rows = [f"| cells | {' | '.join(headings)} |", "|---" * (len(kinds) + 1) + "|"]
    for method, row in zip(methods, means, strict=True):
        texts = [f"{100 * each:.1f}" for each in row]
        bold = [
            f"**{text}**" if each == best else text
            for text, each, best in zip(texts, row, means.max(axis=0), strict=True)
        ]
        rows.append(f"| {method} | {' | '.join(bold)} |")
    return "\n".join(rows)


def _everywhere(results: MethodResults) -> list[str]:
    """Return the methods that are in all cells."""
    return [
        method
        for method in results.methods
        if all(method in results.methods_in(cell) for cell in results.cells)
    ]


def rounds_table(results: MethodResults) -> str:
    """Return one row per method: the mean accuracy over all cells after some rounds."""
    rows = [f"| rounds | {' | '.join(map(str, ROUNDS))} | all |", "|---" * (len(ROUNDS) + 2) + "|"]
    for method in _everywhere(results):
        means = [np.mean(_after(results, method, done)) for done in (*ROUNDS, None)]
        rows.append(f"| {method} | {' | '.join(f'{100 * each:.1f}' for each in means)} |")
    return "\n".join(rows)


def _after(results: MethodResults, method: str, done: int | None) -> list[float]:
    """Return the accuracy in every cell after some rounds, or after all."""
    runs = [results.of(cell, method) for cell in results.cells]
    return [
        float(
            np.mean([s.accuracy if done is None else dict(s.course).get(done, 0.0) for s in each])
        )
        for each in (run.scores for run in runs)
    ]


def ends_table(results: MethodResults) -> str:
    """Return one row per parameter: how often the ends of its grid were taken."""
    rows = ["| parameter | values | smallest taken in | largest taken in |", "|---|---|---|---|"]
    for method in results.mean_ranks():
        for name, (values, smallest, largest, cells) in results.grid_ends(method).items():
            counts = f"{values} | {smallest} of {cells} | {largest} of {cells}"
            rows.append(f"| {method}: `{name}` | {counts} |")
    return "\n".join(rows)


# -- sentences ------------------------------------------------------------------------------------

OWN = (OURS, "Ditto", "Per-FedAvg", "pFedMe")
SHARED = ("FedAvg", "FedProx", "SCAFFOLD", "PC-FedAvg", "FedDualAvg", "FedMiD", PROXAL)


def _cells(
    results: MethodResults, *, split: Sequence[str] = (), data: Sequence[str] = ()
) -> list[Cell]:
    return [cell for cell in results.cells if cell.split in split or cell.data in data]


def _of(results: MethodResults, cell: Cell, method: str) -> float:
    """Return the accuracy of a method in a cell, in percent."""
    return 100 * results.accuracy(cell, method).mean


def _mean(results: MethodResults, cells: Sequence[Cell], method: str) -> float:
    return float(np.mean([_of(results, cell, method) for cell in cells]))


def _text(found: Interval, unit: str = "") -> str:
    text = f"{found.mean:.1f}{unit} (95 %: {found.low:.1f} to {found.high:.1f})"
    return text.replace("-", "−")


def _seed_lead(results: MethodResults, cell: Cell, first: str, second: str) -> Interval:
    """Return by how many points a method is ahead of another in a cell, over seeds."""
    pairs = zip(results.of(cell, first).scores, results.of(cell, second).scores, strict=True)
    return Interval.of([100 * (a.accuracy - b.accuracy) for a, b in pairs])


def _lead(results: MethodResults, cells: Sequence[Cell], first: str, second: str) -> Interval:
    """Return by how many points a method is ahead of another, over cells."""
    return Interval.of([_of(results, cell, first) - _of(results, cell, second) for cell in cells])


def _and(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _true(condition: bool, text: str) -> str:
    """Return a sentence, or raise an error if the scores no longer bear it out."""
    if not condition:
        raise ValueError(f"which-method.md: no longer true, write it again: {text}")
    return text


def _best_first(results: MethodResults, cells: Sequence[Cell], methods: Sequence[str]) -> list[str]:
    return sorted(methods, key=lambda method: -_mean(results, cells, method))


def guide_table(results: MethodResults) -> str:
    """Return the table of cases, and of the methods that they suggest."""
    alike = _cells(results, split=("iid",))
    p = results.holm(OURS)
    order = _best_first(results, alike, ["pFedHN", *SHARED, OURS])
    means = _and([f"{each} {_mean(results, alike, each):.1f}" for each in order])
    default = _text(_lead(results, results.cells, DEFAULTS, ALONE), " points")
    wins = f"{results.wins(DEFAULTS, ALONE)} of {len(results.cells)}"
    first, *_, last = _clear_leads(results)
    rows = [
        (
            "agents have different labels, and each has a limit of its own",
            "a method with own models: `Ditto`, `PerFedAvg` or [`PCFedSplit`](pcfedsplit.md), "
            + _true(p["Ditto"] > LEVEL and p["Per-FedAvg"] > LEVEL, "which the cells do not ")
            + "distinguish. PCFedSplit has no step to choose, and its models come with a "
            "[certificate](guarantees.md)",
        ),
        (
            "there are no rows for a search of parameters",
            "`PCFedSplit` with the defaults of files (θ = ½, free centre, coupling 0.1): "
            f"{default} more accurate than training alone, better in {wins} cells",
        ),
        (
            "agents' data are alike",
            "one shared model, projected, or `PFedHN`. Means over the two i.i.d. cells: "
            f"{means} %. Two cells do not order them, so compare them on validation rows",
        ),
        (
            "an agent is a person with six or eight rows",
            "it depends on the persons: for the customers of Electricity one shared model is the "
            "best and training alone the last; for the travellers of Swissmetro training alone has "
            + _true(
                _is_near(results, ALONE, *_cells(results, split=("travellers",))),
                "the highest mean, but three draws of travellers distinguish it from few others",
            ),
        ),
        (
            f"you want to stop after {_words(first)} to {_words(last)} rounds",
            "`PCFedSplit`, which then has the highest mean over all cells; only the lead over the "
            "next method is clear, [see below](#what-the-numbers-say)",
        ),
        (
            "everybody must use one and the same model, inside all sets",
            "`ProxAL` is made for it, but needs more than the 100 rounds of this comparison: [see "
            "below](#what-the-numbers-say)",
        ),
        ("the model is a network", "not decided here: there is one cell, with six agents"),
    ]
    lines = ["| your case | take |", "|---|---|"]
    return "\n".join(lines + [f"| {case} | {text} |" for case, text in rows])


def _is_near(results: MethodResults, method: str, cell: Cell) -> bool:
    """Return whether over seeds most other methods in a cell are not clearly worse."""
    others = [each for each in results.methods_in(cell) if each != method]
    near = [each for each in others if _seed_lead(results, cell, method, each).low <= 0]
    return 2 * len(near) > len(others)


def _words(number: int) -> str:
    names = {2: "two", 3: "three", 5: "five", 8: "eight", 12: "twelve", 20: "twenty"}
    return names.get(number, str(number))


def _leads(results: MethodResults) -> dict[int, dict[str, Interval]]:
    """Return PCFedSplit's leads over others after some rounds, in points; the smallest first."""
    found, last = {}, min(cell.rounds for cell in results.cells)
    for done in (each for each in EVALUATED if each <= last):
        ours = np.array(_after(results, OURS, done))
        leads = {
            other: Interval.of((100 * (ours - _after(results, other, done))).tolist())
            for other in results.mean_ranks()
            if other != OURS
        }
        found[done] = dict(sorted(leads.items(), key=lambda item: item[1].mean))
    return found


def _clear_leads(results: MethodResults) -> dict[int, tuple[str, Interval]]:
    """Return the leads over the next method whose intervals are above 0."""
    nexts = {done: next(iter(leads.items())) for done, leads in _leads(results).items()}
    return {done: (other, lead) for done, (other, lead) in nexts.items() if lead.low > 0}


def kind_sentences(results: MethodResults) -> list[str]:
    """Return what the scores say about kinds of cells."""
    return [
        _different_labels(results),
        _equal_labels(results),
        _natural(results),
        _defaults(results),
        _one_model(results),
        _few_rounds(results),
        _shared_inside(results),
        _network(results),
    ]


def _different_labels(results: MethodResults) -> str:
    cells = _cells(results, split=("dirichlet", "classes"))
    found = [[_of(results, cell, each) for each in OWN] for cell in cells]
    spread = max(max(row) - min(row) for row in found)
    gaps = [
        min(row) - max(_of(results, cell, each) for each in SHARED)
        for cell, row in zip(cells, found, strict=True)
    ]
    hyper = [
        min(row) - _of(results, cell, "pFedHN") for cell, row in zip(cells, found, strict=True)
    ]
    gains = [
        f"{quoted(each)} {_text(_lead(results, cells, each, ALONE))}"
        for each in (*_best_first(results, cells, OWN), DEFAULTS)
    ]
    return (
        "**With different labels, own models win.** "
        + _true(min(gaps) > 0 and min(hyper) > 0, f"In each of the {len(cells)} cells ")
        + f"{_and(OWN)} are within {spread:.1f} points of each other, and the worst of them is "
        f"better than the best method with one shared model, by {min(gaps):.1f} to {max(gaps):.1f} "
        f"points, and better than pFedHN, by {min(hyper):.1f} to {max(hyper):.1f}. What they gain "
        "over training alone is small, in points: "
        f"{'; '.join(gains)}."
    )


def _equal_labels(results: MethodResults) -> str:
    mnist, digits = _cells(results, split=("iid",))
    last = all(results.methods_in(cell)[-1] == ALONE for cell in (mnist, digits))
    first = [f"{each} {_of(results, mnist, each):.1f}" for each in results.methods_in(mnist)[:3]]
    behind = _of(results, mnist, results.methods_in(mnist)[0]) - _of(results, mnist, OURS)
    best = results.methods_in(digits)[0] == OURS and results.methods_in(mnist)[0] not in OWN
    shared = [_of(results, mnist, each) for each in SHARED if each != "FedMiD"]
    own = [f"{each} {_of(results, mnist, each):.1f}" for each in ("pFedMe", "Ditto", OURS)]
    paper = all("personalization 0," in results.of(c, OURS).trial for c in (mnist, digits))
    return (
        _true(best, "**With equal labels, models that share more are ahead on MNIST, and ")
        + "PCFedSplit on the digits.** "
        + _true(last, "Training alone is the last method in both i.i.d. cells. ")
        + f"On MNIST the first are {_and(first)} %; the methods with one shared model except "
        f"FedMiD have {min(shared):.1f} to {max(shared):.1f}, {_and(own)}, the last of them "
        f"{behind:.1f} points behind the first. "
        f"On the digits PCFedSplit has {_of(results, digits, OURS):.1f} %. "
        + _true(paper, "In both, the search chose the paper's problem (θ = 0) for it.")
    )


def _natural(results: MethodResults) -> str:
    electricity = _cells(results, data=("electricity",))
    alone = [_of(results, cell, ALONE) for cell in electricity]
    best = [_of(results, cell, results.methods_in(cell)[0]) for cell in electricity]
    is_last = all(results.methods_in(cell)[-1] == ALONE for cell in electricity)
    is_shared = all(results.methods_in(cell)[0] in SHARED for cell in electricity)
    (travellers,) = _cells(results, split=("travellers",))
    first, second = results.methods_in(travellers)[:2]
    lead = _text(_seed_lead(results, travellers, first, second), " points")
    shared = next(each for each in results.methods_in(travellers) if each in SHARED)
    above = _seed_lead(results, travellers, first, shared)
    fairness, groups = _cells(results, split=("relations",))
    near = [
        each
        for each in results.methods_in(groups)
        if _of(results, groups, results.methods_in(groups)[0]) - _of(results, groups, each) < 1
    ]
    outside = max(results.infeasibility(fairness, each) for each in SHARED)
    fair = [
        f"{quoted(each)} {_of(results, fairness, each):.1f}"
        for each in results.methods_in(fairness)[:3]
    ]
    return (
        "**Natural splits differ.** "
        + _true(is_last and is_shared, "In both cells of Electricity training alone is the last ")
        + f"method ({_and([f'{each:.1f}' for each in alone])} %), and one shared model is the "
        f"first ({_and([f'{each:.1f}' for each in best])} %). "
        + _true(first == ALONE, "Between the travellers of Swissmetro training alone is the first ")
        + f"({_of(results, travellers, ALONE):.1f} %), {lead} ahead of the next one, "
        f"{quoted(second)}. {shared}, the first with one shared model, is "
        f"{_text(above, ' points')} behind. "
        f"Between the relations with fairness halfspaces the first are {_and(fair)} %, and "
        f"training alone has {_of(results, fairness, ALONE):.1f}; there, shared models are up to "
        f"{outside:.1f} outside the limits before they are projected. With group budgets, "
        f"{len(near)} of {len(results.methods_in(groups))} methods are within one point of the "
        "first."
    )


def _defaults(results: MethodResults) -> str:
    cells = _cells(results, split=("dirichlet", "classes"))
    paper = [c for c in results.cells if "personalization 0," in results.of(c, OURS).trial]
    changes = [
        f"{_of(results, cell, DEFAULTS) - _of(results, cell, OURS):+.1f} ({cell.title})"
        for cell in paper
    ]
    means = [_mean(results, cells, each) for each in (DEFAULTS, OURS)]
    return (
        "**Defaults or a search**: where the search chose the paper's problem "
        f"({len(paper)} cells), the defaults change the accuracy by {_and(changes)} points. In the "
        f"{len(cells)} cells with different labels the means are {means[0]:.1f} % with the "
        f"defaults and {means[1]:.1f} % with the search."
    ).replace("-", "−")


def _one_model(results: MethodResults) -> str:
    means = [_mean(results, results.cells, each) for each in ("FedAvg", ALONE)]
    better = [c for c in results.cells if _of(results, c, "FedAvg") > _of(results, c, ALONE)]
    kinds = all(c.split in ("iid", "customers") or c.limit == "fairness" for c in better)
    return (
        _true(means[0] < means[1], "**One shared model, projected, is worse than training alone ")
        + f"on average** (FedAvg {means[0]:.1f} %, alone {means[1]:.1f} %), and better in "
        f"{len(better)} of {len(results.cells)} cells"
        + _true(kinds, ": those of equal labels, of Electricity, and of fairness halfspaces.")
    )


def _few_rounds(results: MethodResults) -> str:
    leads, clear = _leads(results), _clear_leads(results)
    later = list(leads)[1:]
    ahead = all(lead.mean > 0 for done in later for lead in leads[done].values())
    not_clear = any(lead.low <= 0 for done in clear for lead in leads[done].values())
    texts = [
        f"{done} rounds, {_text(lead, ' points')} over {other}"
        for done, (other, lead) in clear.items()
    ]
    first = [
        100 * float(np.mean(_after(results, each, 1))) for each in (OURS, next(iter(leads[1])))
    ]
    return (
        "**Few rounds**: "
        + _true(
            ahead, f"from {later[0]} to {later[-1]} rounds PCFedSplit has the highest mean over "
        )
        + "all cells. The interval of its lead over the next method is above 0 after "
        + "; ".join(texts)
        + _true(
            not_clear, ". Intervals of its leads over some others contain 0 even then, because "
        )
        + "these leads differ more between cells. In the first round it only starts "
        f"({first[0]:.1f} %), and {next(iter(leads[1]))} has {first[1]:.1f}."
    )


def _shared_inside(results: MethodResults) -> str:
    inside = [
        cell.title
        for cell in results.cells
        if all(
            each.shared is not None and each.shared.infeasibility <= INSIDE
            for each in results.of(cell, PROXAL).scores
        )
    ]
    text = f"except that of {_and(inside)}" if inside else "without exception"
    return (
        f"**ProxAL's shared model is outside some set after all rounds** in all cells {text}. Its "
        "accuracy here is that of projected models."
    )


def _network(results: MethodResults) -> str:
    (cell,) = (each for each in results.cells if each.model == "network")
    found = [results.accuracy(cell, each) for each in results.methods_in(cell)]
    width = 100 * max(each.high - each.mean for each in found)
    shown = [
        f"{quoted(each)} {_of(results, cell, each):.1f}"
        for each in results.methods_in(cell)
        if each in (*OWN, DEFAULTS, "FedRep", ALONE, "FedAvg")
    ]
    apart = [
        each
        for each in (*OWN, DEFAULTS, "FedRep")
        if not (lead := _seed_lead(results, cell, each, ALONE)).low <= 0 <= lead.high
    ]
    return (
        f"**The network** says little: accuracies have intervals of up to ±{width:.0f} points over "
        f"three seeds. In percent: {_and(shown)}"
        + _true(not apart, "; no method with own models is distinguished from training alone. ")
        + "PCFedSplit promises nothing there, because the loss is not convex."
    )


def origin(results: MethodResults) -> str:
    """Return the command and the versions that computed the results, as a sentence."""
    versions = ", ".join(f"{name} {each}" for name, each in results.versions.items())
    return f"The numbers are those of `{results.command}` with {versions}."


def with_tables(page: str, tables: dict[str, str]) -> str:
    """Return the page with its tables replaced."""
    for name, table in tables.items():
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        page = re.sub(pattern, f"<!-- {name} -->\n{table}\n<!-- end -->", page, flags=re.DOTALL)
    return page


def tables(results: MethodResults) -> dict[str, str]:
    """Return the tables of the page by name."""
    return {
        "methods": overall_table(results),
        "costs": costs_table(results),
        "cells": cell_table(results),
        "kinds": kinds_table(results),
        "rounds": rounds_table(results),
        "guide": guide_table(results),
        "ends": ends_table(results),
        "by kind": "\n".join(f"- {each}" for each in kind_sentences(results)),
        "findings": "\n".join(f"- {each}" for each in method_findings(results)),
        "origin": origin(results),
    }


def main() -> None:
    """Draw the picture and write the tables."""
    results = MethodResults.load(HERE / "methods_results.json")
    mean_ranks(results).savefig(HERE / "methods.png", dpi=150, bbox_inches="tight")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), tables(results)), "utf-8")


if __name__ == "__main__":
    main()
