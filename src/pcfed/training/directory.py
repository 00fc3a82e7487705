"""The folder of a training: what it trains, how far it is, and what came out.

config.json       the configuration with all defaults, its digest, and versions
checkpoint.npz    the last round that was saved, beside it the one before
history.jsonl     one record a line
log.txt           what happened, with times
steps.json        how often the step was halved, if it was (`pcfed.training.step_search`)
local.npz         the agents' own trainings, each alone, as a checkpoint
outcome.json      what came of it, in figures (`pcfed.training.outcome`)
result.npz        the state and the models, once it has ended
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
from pcfed.training.step_search import StepHalvings

FORMAT = 1
"""Version of the folder."""


class RunDirectory:
    """The folder of a training, new or of the same one; nothing is written before `open`.

    Parameters
    ----------
    path : Path
        The folder.
    config : Config
        What is trained.

    Raises
    ------
    ValueError
        If the folder holds something else, or another training.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._config, self._digest = config, config.digest()
        self.facts = path / "config.json"
        self.checkpoint = path / "checkpoint.npz"
        self.history = path / "history.jsonl"
        self.result = path / "result.npz"
        self.local = path / "local.npz"
        self.outcome = path / "outcome.json"
        saved = (self.checkpoint, self.local)
        before = (file.with_name(f"{file.name}.previous") for file in saved)
        self.halvings = StepHalvings(path / "steps.json", (*saved, *before, self.history))
        self.models = path / "models.npz"
        if path.exists():
            self._check()

    def _check(self) -> None:
        """Refuse a folder that is not of this training."""
        known_files = ("lock", f"*{DRAFT}")  # all that is there if it was killed at once
        if not self.path.is_dir() or not (
            self.facts.exists()
            or all(any(each.match(name) for name in known_files) for each in self.path.iterdir())
        ):
            raise ValueError(
                f"train: {self.path} must be a folder of a training, or new, and is neither; give "
                "another one with --out."
            )
        if not self.facts.exists():
            return
        try:
            known: Any = json.loads(self.facts.read_text("utf-8"))
            digest, form = known["digest"], known["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"train: {self.facts} must say what is trained here, and is damaged; give another "
                "folder with --out."
            ) from None
        if form != FORMAT:
            raise ValueError(
                f"train: {self.path} has format {form!r}, and this version knows {FORMAT}; give "
                "another folder with --out."
            )
        if digest != self._digest:
            raise ValueError(
                f"train: {self.path} holds another training: the configuration or the data have "
                "changed since; give another folder with --out, or change them back."
            )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the folder, say in it what is trained, and keep other processes out."""
        with sole_user(self.path / "lock"):
            self._check()
            remove_drafts(self.path)
            if not self.facts.exists():
                facts = {
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
                write_atomically(self.facts, json.dumps(facts, indent=1).encode())
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
