"""The run directory of a training: its configuration, checkpoints, history and results.

config.json       the configuration with all defaults, its digest, and versions
checkpoint.npz    the last checkpoint, beside it the one before
history.jsonl     one record per line
log.txt           events with times
steps.json        how often the step was halved, if it was (`pcfed.training.step_search`)
local.npz         the checkpoint of the trainings of single agents, of modules only
local_steps.json  how often their step was halved, if it was
outcome.json      the metrics of the result (`pcfed.training.outcome`)
result.npz        the last state and models, written at the end
models.npz        the models to use: feasible, with names, columns and labels
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from pcfed.config.train_file import NOT_IN_DIGEST, Config
from pcfed.errors import one_line
from pcfed.storage.atomic import DRAFT, FileError, remove_drafts
from pcfed.storage.locks import exclusive_lock
from pcfed.storage.reading import open_file
from pcfed.storage.saved import Metadata, SavedJson
from pcfed.training.config_changes import describe_changes
from pcfed.training.outcome import Outcome
from pcfed.training.step_search import StepHalvings


@dataclass(frozen=True)
class RunMetadata(SavedJson):
    """The contents of ``config.json``; the digest identifies the training and its data."""

    file_kind: ClassVar[str] = "description of a training"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "use another run directory."
    max_bytes: ClassVar[int] = 2**28

    digest: str
    config: Mapping[str, Any]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, config: Config, digest: str) -> RunMetadata:
        """Return the description of a training with the versions that are installed."""
        versions = {
            "pcfed": version("pcfed"),
            "Python": platform.python_version(),
            "NumPy": version("numpy"),
            "SciPy": version("scipy"),
        }
        return cls(digest, config.resolved(), versions)

    def _to_json(self) -> Metadata:
        return vars(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> RunMetadata:
        digest, config, versions = (contents[key] for key in ("digest", "config", "versions"))
        if not (isinstance(digest, str) and isinstance(config, dict)):
            raise TypeError
        return cls(digest, config, {name: str(each) for name, each in versions.items()})


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
        run_files = (self.checkpoint, _previous(self.checkpoint), self.history)
        local_files = (self.local, _previous(self.local))
        self.halvings = StepHalvings(path / "steps.json", run_files)
        self.local_halvings = StepHalvings(path / "local_steps.json", local_files)
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
        checkpoints = (self.checkpoint, self.local)
        files = [self.outcome, self.result, self.models, self.history, *checkpoints]
        files += [_previous(each) for each in checkpoints]
        for file in files:
            if file.exists() and not file.is_file():
                raise ValueError(
                    f"train: {file} must be a file of the training, and is something else; move it "
                    "away, or give another directory with --out."
                )
        saved = RunMetadata.load(self.metadata)
        if saved.digest != self._digest:
            changes = describe_changes(saved.config, self._config.resolved())
            raise ValueError(
                one_line(
                    f"train: {self.path} contains another training: {changes}; give another "
                    "directory with --out, or change it back."
                )
            )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the directory and its config.json, and keep other processes out."""
        with exclusive_lock(self.path / "lock"):
            self._check()
            remove_drafts(self.path)
            if not self.metadata.exists():
                self.save_config(self._config)
            else:
                self._update_config()
            yield

    def _update_config(self) -> None:
        """Write the keys that may differ from those of the first start to config.json."""
        saved, asked = RunMetadata.load(self.metadata), self._config.resolved()["training"]
        old = saved.config.get("training")
        if not isinstance(old, dict):
            return
        new = {key: value for key, value in old.items() if key not in NOT_IN_DIGEST}
        new |= {key: value for key, value in asked.items() if key in NOT_IN_DIGEST}
        if (outcome := self.load_outcome()) is not None:
            # A smaller number of rounds does not undo those that are done.
            new["rounds"] = max(asked["rounds"], outcome.rounds)
        if new != old:
            replace(saved, config={**saved.config, "training": new}).save(self.metadata)

    def load_outcome(self) -> Outcome | None:
        """Return the summary of the training; None if there is none, or it is damaged."""
        try:
            return Outcome.load(self.outcome) if self.outcome.exists() else None
        except ValueError:
            return None

    def finished_at(self) -> datetime:
        """Return when the summary of the training was written."""
        return datetime.fromtimestamp(self.outcome.stat().st_mtime).astimezone()

    def save_config(self, config: Config) -> None:
        """Write config.json; the digest stays that of the file, also if "auto" was replaced."""
        RunMetadata.of(config, self._digest).save(self.metadata)

    def found_coupling(self) -> float | None:
        """Return the number that was found for the coupling "auto"; None if there is none yet."""
        asked, saved = self._config.resolved(), RunMetadata.load(self.metadata).config
        names = [("defaults",), *(("agents", name) for name in asked["agents"])]
        for place in names:
            mine, theirs = ((_table_at(tables, place)).get("coupling") for tables in (asked, saved))
            if mine == "auto" and isinstance(theirs, float):
                return theirs
        return None

    def log(self, text: str) -> None:
        """Add a line to the log."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        file = self.path / "log.txt"
        try:
            with open_file(file, "ab") as stream:
                stream.write(f"{now} {text}\n".encode())
        except OSError as error:
            raise FileError(file, error) from None


def _table_at(tables: Mapping[str, Any], place: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a table in tables; an empty one if there is none."""
    for name in place:
        tables = tables.get(name, {})
    return tables


def _previous(checkpoint: Path) -> Path:
    """Return the path of the checkpoint before the last one."""
    return checkpoint.with_name(f"{checkpoint.name}.previous")
