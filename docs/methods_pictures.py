"""Draw methods.png and write the tables and findings of which-method.md.

    python docs/methods_pictures.py

The scores are in methods_results.json, a copy of ``methods.json`` in the directory of a run of
``pcfed reproduce methods``.
"""

import math
import re
from pathlib import Path

import numpy as np

from pcfed.experiments.figures import mean_ranks
from pcfed.experiments.leaderboard import ALONE, MethodResults
from pcfed.experiments.personal_cells import Cell
from pcfed.report.methods_findings import method_findings

HERE = Path(__file__).parent
PAGE = HERE / "which-method.md"
SHOWN = 8
"""Methods in the table of cells: those with the best ranks."""

ROUNDS = (1, 2, 5, 20)
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
        "labels differ": [c for c in results.cells if c.split in ("dirichlet", "classes")],
        "i.i.d.": [c for c in results.cells if c.split == "iid"],
        "Swissmetro": [c for c in results.cells if c.data == "swissmetro"],
        "Electricity": [c for c in results.cells if c.data == "electricity"],
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
        runs = [each for each in results.runs if each.method == method]
        means = [
            np.mean([dict(score.course).get(done, 0.0) for each in runs for score in each.scores])
            for done in ROUNDS
        ]
        means.append(np.mean([score.accuracy for each in runs for score in each.scores]))
        rows.append(f"| {method} | {' | '.join(f'{100 * each:.1f}' for each in means)} |")
    return "\n".join(rows)


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
