"""The run directory of a training: its configuration, checkpoints, history and results.

config.json       the configuration with all defaults, its digest, and versions
checkpoint.npz    the last checkpoint, beside it the one before
history.jsonl     one record per line
log.txt           events with times
steps.json        how often the step was halved, if it was (`pcfed.training.step_search`)
local.npz         the checkpoint of the trainings of single agents
outcome.json      the metrics of the result (`pcfed.training.outcome`)
result.npz        the last state and models, written at the end
models.npz        the models to use: feasible, with names, columns and labels
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pcfed.config.train_file import Config
from pcfed.storage.atomic import DRAFT, FileError, remove_drafts, sole_user, write_atomically
from pcfed.training.step_search import Halvings

FORMAT = 1
"""Version of the directory's layout."""


class RunDirectory:
    """A run directory, new or of the same training; nothing is written before `open`.

    Parameters
    ----------
    path : Path
        The directory.
    config : Config
        The training.
    digest : str
        The digest of the training and its data, by which it is recognised.

    Raises
    ------
    ValueError
        If the directory contains something else, or another training.
    """

    def __init__(self, path: Path, config: Config, digest: str) -> None:
        self.path = path
        self._config, self._digest = config, digest
        self.metadata = path / "config.json"
        self.checkpoint = path / "checkpoint.npz"
        self.history = path / "history.jsonl"
        self.result = path / "result.npz"
        self.local = path / "local.npz"
        self.outcome = path / "outcome.json"
        checkpoints = (self.checkpoint, self.local)
        previous = (file.with_name(f"{file.name}.previous") for file in checkpoints)
        self.halvings = Halvings(path / "steps.json", (*checkpoints, *previous, self.history))
        self.models = path / "models.npz"
        if path.exists():
            self._check()

    def _check(self) -> None:
        """Refuse a directory of something else or of another training."""
        # A process that was killed at once has left only these.
        known_files = ("lock", f"*{DRAFT}")
        if not self.path.is_dir() or not (
            self.metadata.exists()
            or all(any(each.match(name) for name in known_files) for each in self.path.iterdir())
        ):
            raise ValueError(
                f"train: {self.path} must be a new directory or one of a training, and is neither; "
                "give another one with --out."
            )
        if not self.metadata.exists():
            return
        try:
            metadata: Any = json.loads(self.metadata.read_text("utf-8"))
            digest, version_found = metadata["digest"], metadata["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"train: {self.metadata} must be the configuration of a training, and is damaged; "
                "give another directory with --out."
            ) from None
        if version_found != FORMAT:
            raise ValueError(
                f"train: {self.path} has format {version_found!r}, and this version of pcfed reads "
                f"{FORMAT}; give another directory with --out."
            )
        if digest != self._digest:
            raise ValueError(
                f"train: {self.path} contains another training: the configuration or the data have "
                "changed since; give another directory with --out, or change them back."
            )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the directory and its config.json, and keep other processes out."""
        with sole_user(self.path / "lock"):
            self._check()
            remove_drafts(self.path)
            if not self.metadata.exists():
                metadata = {
                    "format": FORMAT,
                    "digest": self._digest,
                    "config": self._config.resolved(),
                    "versions": {
                        "pcfed": version("pcfed"),
                        "Python": platform.python_version(),
                        "NumPy": version("numpy"),
                        "SciPy": version("scipy"),
                    },
                }
                write_atomically(self.metadata, json.dumps(metadata, indent=1).encode())
            yield

    def log(self, text: str) -> None:
        """Add a line to the log."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        file = self.path / "log.txt"
        try:
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"{now} {text}\n")
        except OSError as error:
            raise FileError(file, error) from None
