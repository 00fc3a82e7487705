r"""The example that ``pcfed init`` writes: a commented train.toml and the data of five clinics.

Patient $j$ of clinic $i$ has features $\varphi_j \sim \mathcal N(\mu_i, I)$, in standard deviations
from the mean of all, and comes back with probability $1 / (1 + e^{-w_i^\top \varphi_j})$.
The clinics agree on most of $w_i = w + \delta_i$; $\mu_i$ and $\delta_i$ are drawn once. It is a
simulation without medical meaning.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import numpy as np
from scipy.special import expit

from pcfed.config.json_schema import schema_text
from pcfed.errors import display_path, join_names
from pcfed.storage.atomic import write_atomically

COLUMNS = ("age", "pressure", "glucose", "smoking", "exercise", "visits")
WEIGHTS = np.array([1.1, 0.6, 0.7, 0.5, -0.8, 0.0])
"""The common weights $w$."""

ROWS = {"harbour": 150, "hillside": 200, "market": 150, "riverside": 200, "university": 300}
SEED = 7


def example_text() -> str:
    """Return the text of the example's train.toml."""
    return files("pcfed.training").joinpath("example.toml").read_text("utf-8")


def write_example(folder: Path) -> list[Path]:
    """Write the example into a folder and return the paths of its files.

    The first is train.toml, the second its JSON schema for editors, the others are data files. If
    one of them exists already, nothing is written.
    """
    contents = {
        folder / "train.toml": example_text(),
        folder / "train.schema.json": schema_text("train"),
    }
    contents |= {folder / "data" / f"{name}.csv": text for name, text in _tables().items()}
    existing = [str(path.relative_to(folder)) for path in contents if os.path.lexists(path)]
    if existing:
        raise ValueError(
            f"init: {display_path(folder)} must not have the files of the example yet, got "
            f"{join_names(existing, 3)}; give another folder, such as pcfed init example."
        )
    for path in reversed(contents):  # train.toml last: if it exists, so do all the others
        write_atomically(path, contents[path].encode())
    return list(contents)


def _tables() -> dict[str, str]:
    """Return the data of every clinic as CSV."""
    rng = np.random.default_rng(SEED)
    w = WEIGHTS
    tables = {}
    for name, rows in ROWS.items():
        center, own = 0.5 * rng.normal(size=w.size), w + 0.1 * rng.normal(size=w.size)
        X = (center + rng.normal(size=(rows, w.size))).round(2)
        returned = rng.random(rows) < expit(X @ own)
        lines = [",".join([*COLUMNS, "returned"])]
        for features, label in zip(X.tolist(), returned.tolist(), strict=True):
            lines.append(",".join([*map(str, features), "yes" if label else "no"]))
        tables[name] = "\n".join(lines) + "\n"
    return tables
