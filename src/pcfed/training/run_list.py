"""The trainings below a folder, each in a line: what was trained, how far, and how well."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.simulation.history import row_to_record
from pcfed.storage.atomic import FileError
from pcfed.storage.journal import MAX_LINE_BYTES
from pcfed.storage.locks import is_locked
from pcfed.storage.reading import open_file, parse_json
from pcfed.training.directory import RunMetadata
from pcfed.training.outcome import Outcome

RUN_FILES = ("config.json", "checkpoint.npz", "history.jsonl", "outcome.json", "models.npz", "lock")
"""A directory that has one of these is a run directory."""

FEDERATION_FILES = ("status.json", "state.npz")
"""A directory without config.json that has one of these is of a federation's server or agent."""


@dataclass(frozen=True)
class RunSummary:
    """A training in one line; None where something is not known.

    Attributes
    ----------
    path : Path
        The run directory.
    when : datetime
        The end of the training, or its last saved round if it is not finished.
    status : str
        ``"finished"``, ``"running"``, ``"unfinished"``, or what is wrong with the directory.
    model : str
        The kind of model, or the name of the module.
    num_agents, rounds : int or None
        The number of agents, and of rounds that are done.
    relative_gap : float or None
        The certified relative gap to the optimum.
    score_name : str
        What the scores are.
    score, local_score : float or None
        The means of the agents' own models, and of models that they trained alone, on held-out
        rows.
    """

    path: Path
    when: datetime
    status: str
    model: str = ""
    num_agents: int | None = None
    rounds: int | None = None
    relative_gap: float | None = None
    score_name: str = ""
    score: float | None = None
    local_score: float | None = None


def list_runs(folder: Path) -> list[RunSummary]:
    """Return the trainings in and below a folder, the newest first.

    A directory that cannot be read is listed with the reason.
    """
    runs = [_summarize(path) for path in _run_directories(folder)]
    return sorted(runs, key=lambda run: (run.when, str(run.path)), reverse=True)


def _run_directories(folder: Path) -> Iterator[Path]:
    for path, folders, names in os.walk(folder):
        if any(name in names for name in RUN_FILES):
            folders.clear()
            if not set(FEDERATION_FILES) & set(names) or "config.json" in names:
                yield Path(path)


def _summarize(path: Path) -> RunSummary:
    """Return the summary of a run directory, or what is wrong with it."""
    when = _last_change(path)
    try:
        return _read(path, when)
    except (ValueError, FileError) as error:
        return RunSummary(path, when, f"broken: {error}")
    except OSError as error:
        return RunSummary(path, when, f"broken: {error.strerror or error}")
    except (LookupError, TypeError, AttributeError):
        return RunSummary(path, when, "broken: config.json is that of another version")


def _read(path: Path, when: datetime) -> RunSummary:
    """Return the summary of a run directory; may raise whatever its files cause."""
    if not (path / "config.json").is_file():
        if not any((path / name).exists() for name in RUN_FILES[:-1]):
            return RunSummary(path, when, "not started")
        raise ValueError("it has no config.json")
    config = RunMetadata.load(path / "config.json").config
    outcome = Outcome.load(path / "outcome.json") if (path / "outcome.json").exists() else None
    num_agents, rounds = _last_record(path / "history.jsonl")
    if num_agents is None and config["data"].get("agent") is None:
        num_agents = len(config["agents"])
    model: dict[str, Any] = config["model"]
    summary = RunSummary(
        path=path,
        when=when,
        status="running" if is_locked(path / "lock") else "unfinished",
        model=str(model.get("module", model["kind"])),
        num_agents=num_agents,
        rounds=rounds,
    )
    # While a training is continued with more rounds, there is the outcome of fewer.
    if outcome is None or outcome.rounds < rounds:
        return summary
    is_finished = outcome.status == "stopped" or outcome.rounds >= config["training"]["rounds"]
    return RunSummary(
        path=path,
        when=when,
        status="finished" if is_finished else summary.status,
        model=summary.model,
        num_agents=len(outcome.agents),
        rounds=outcome.rounds,
        relative_gap=outcome.relative_gap,
        score_name=outcome.score_name,
        score=_mean([agent.score for agent in outcome.agents]),
        local_score=_mean([agent.local_score for agent in outcome.agents]),
    )


def _last_change(path: Path) -> datetime:
    """Return when the outcome was written, or else the history, the configuration or anything."""
    for name in ("outcome.json", "history.jsonl", "config.json", "."):
        file = path / name
        if file.exists():
            return datetime.fromtimestamp(file.stat().st_mtime).astimezone()
    return datetime.fromtimestamp(0).astimezone()


def _last_record(history: Path) -> tuple[int | None, int]:
    """Return the number of agents and of rounds in the last complete line of a history."""
    if not history.exists():
        return None, 0
    with open_file(history) as file:
        last = deque(iter(lambda: file.readline(MAX_LINE_BYTES), b""), maxlen=2)
    lines = [line for line in last if line.endswith(b"\n")]
    if not lines:
        return None, 0
    try:
        record = row_to_record(parse_json(lines[-1]))
    except (ValueError, TypeError, AttributeError):
        raise ValueError("the last line of history.jsonl is not a record") from None
    return len(record.infeasibility), record.round


def _mean(scores: list[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return float(np.mean(known)) if known else None
