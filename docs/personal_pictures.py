"""Draw personal.png from personal_results.json: python docs/personal_pictures.py.

After ``pcfed reproduce personal``, ``python docs/personal_pictures.py results`` collects the scores
of the run in the directory ``results`` in personal_results.json first. Cells of which seeds are
missing are left out, and named in that file.
"""

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from pcfed.experiments.personal import METHODS, OURS, SEEDS, SHARED, CellScores, PersonalResults
from pcfed.experiments.personal_cells import CELLS

HERE = Path(__file__).parent
SCORES = HERE / "personal_results.json"
COMMAND = "pcfed reproduce personal"


def collect(out: Path) -> None:
    """Write the scores of a run to one file, with the versions of the software."""
    files = {
        cell: [out / "runs" / f"{cell.slug}-seed{seed}.json" for seed in range(SEEDS)]
        for cell in CELLS
    }
    missing = [cell for cell, paths in files.items() if not all(path.exists() for path in paths)]
    runs = [
        json.loads(path.read_text())
        for cell, paths in files.items()
        if cell not in missing
        for path in paths
    ]
    for score in (score for run in runs for score in run["scores"]):
        score["accuracies"] = [round(each, 4) for each in score["accuracies"]]
    software = {name: version(name) for name in ("pcfed", "numpy", "scipy", "numba")}
    contents = {
        "command": COMMAND,
        "versions": {"python": platform.python_version(), **software},
        "missing": [cell.title for cell in missing],
        "runs": runs,
    }
    SCORES.write_text(json.dumps(contents, separators=(",", ":"), ensure_ascii=False) + "\n")


def load() -> PersonalResults:
    """Return the collected scores."""
    runs = json.loads(SCORES.read_text())["runs"]
    return PersonalResults(tuple(CellScores._from_json(each) for each in runs))


def main() -> None:
    """Draw the accuracy of own models by method, one panel per cell."""
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    results = load()
    # One column, so that the labels stay legible on a phone.
    figure, axes = pyplot.subplots(
        len(results.cells), figsize=(5.4, 2.35 * len(results.cells)), layout="constrained"
    )
    heights = np.arange(len(METHODS))[::-1]
    for axis, cell in zip(axes, results.cells, strict=True):
        for height, method in zip(heights, METHODS, strict=True):
            found = results.accuracy(cell, method)
            color = {OURS: "#d94701", SHARED: "0.6"}.get(method, "#2171b5")
            axis.errorbar(
                found.mean,
                height,
                xerr=found.high - found.mean,
                fmt="o",
                ms=6,
                capsize=3,
                color=color,
            )
        axis.set_title(cell.title, fontsize=12, loc="right")
        axis.set_yticks(heights, METHODS, fontsize=11)
        axis.tick_params(axis="x", labelsize=11)
        axis.grid(axis="x", alpha=0.4)
        axis.set_ylim(-0.7, len(METHODS) - 0.3)
    axes[-1].set_xlabel("accuracy of the agents' own models", fontsize=12)
    figure.savefig(HERE / "personal.png", dpi=110)


if __name__ == "__main__":
    main()
