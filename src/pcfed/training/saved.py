"""A training that is on the disk, finished or not: what it trains, its history, its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcfed.config.train_file import Config, read_config
from pcfed.data.readers import read_bytes
from pcfed.errors import display_path, one_line, short_repr
from pcfed.simulation import read_journal
from pcfed.simulation.result import Record
from pcfed.training.modules import load_module
from pcfed.training.outcome import Outcome
from pcfed.training.trained_models import TrainedModels

MOST_BYTES = 2**28
"""Bytes of ``config.json`` at most."""


@dataclass(frozen=True, eq=False)
class SavedRun:
    """What the folder of a training holds.

    Attributes
    ----------
    path : Path
        The folder.
    config : Config
        What is trained; its data are not read.
    versions : mapping of str to str
        What it was begun with.
    history : tuple of Record
        The evaluated rounds.
    outcome : Outcome or None
        What came of it, once it is finished.
    models : TrainedModels or None
        What it hands out, once it is finished.
    log : str
        What happened, with times.
    """

    path: Path
    config: Config
    versions: Mapping[str, str]
    history: tuple[Record, ...]
    outcome: Outcome | None
    models: TrainedModels | None
    log: str

    @property
    def names(self) -> tuple[str, ...]:
        """The agents, by position if the folder does not say their names yet."""
        if self.models is not None:
            return self.models.names
        if self.outcome is not None:
            return tuple(each.agent for each in self.outcome.agents)
        if self.config.data.agent is None:
            return tuple(agent.name for agent in self.config.agents)
        number = len(self.history[-1].infeasibility) if self.history else 0
        return tuple(f"agent {i + 1}" for i in range(number))


def open_run(path: Path) -> SavedRun:
    """Read the folder of a training.

    Parameters
    ----------
    path : Path
        The folder.

    Raises
    ------
    ValueError
        If it is no such folder, or damaged: one sentence.
    """
    facts = _facts(path)
    outcome, models, history = (
        path / name for name in ("outcome.json", "models.npz", "history.jsonl")
    )
    return _checked(
        SavedRun(
            path=path,
            config=read_config(facts["config"], path / "config.json"),
            versions={str(name): str(value) for name, value in facts["versions"].items()},
            history=read_journal(history) if history.exists() else (),
            outcome=Outcome.load(outcome) if outcome.exists() else None,
            models=TrainedModels.load(models) if models.exists() else None,
            log=_log(path / "log.txt"),
        )
    )


def open_models(path: Path) -> TrainedModels:
    """Return the models of a training, from its folder or from the file ``models.npz`` itself.

    Raises
    ------
    ValueError
        If there are none: one sentence.
    """
    if path.is_file():
        return TrainedModels.load(path)
    _facts(path)
    if not (path / "models.npz").exists():
        raise ValueError(
            f"{display_path(path)}: the training must be finished, got one without models.npz; let "
            "pcfed train come to its end."
        )
    return TrainedModels.load(path / "models.npz")


def open_module(path: Path, folder: Path) -> Any:
    """Return the PyTorch module of a training, by running its file in a folder.

    Parameters
    ----------
    path : Path
        The folder of the training.
    folder : Path
        Where the file is that ``model.module`` names: that of the configuration.
    """
    config = read_config(_facts(path)["config"], folder / "config.json")
    return load_module(config, allow_import=True)


def _facts(path: Path) -> dict[str, Any]:
    """Return what the folder says of itself."""
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(
            f"{display_path(path)} must be the folder of a training, got none; give the one that "
            "pcfed train named, such as runs/train."
        )
    content = read_bytes(display_path(file), file, MOST_BYTES)
    try:
        facts: Any = json.loads(content)
        if facts["format"] != 1 or not isinstance(facts["config"], dict):
            raise TypeError
        facts["versions"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{display_path(file)} must say what is trained, and does not; give another folder."
        ) from None
    return dict(facts)


def _log(file: Path) -> str:
    """Return the end of the log."""
    if not file.exists():
        return ""
    return read_bytes(display_path(file), file)[-100_000:].decode("utf-8", "replace")


def _checked(run: SavedRun) -> SavedRun:
    """Return a run if its files speak of the same agents."""
    numbers = {len(record.infeasibility) for record in run.history}
    numbers |= {len(run.outcome.agents)} if run.outcome else set()
    numbers |= {len(run.models.names)} if run.models else set()
    if len(numbers) > 1:
        raise ValueError(
            one_line(
                f"{display_path(run.path)}: all files must be of the same agents, got {short_repr(numbers)} "
                "of them; train again in another folder."
            )
        )
    return run
