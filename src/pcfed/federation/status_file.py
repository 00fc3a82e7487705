"""The status of a training, in a small file that other processes may read at any time."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pcfed.storage.reading import open_file
from pcfed.storage.saved import Metadata, SavedJson

StatusCallback = Callable[..., None]
"""Takes new values of some attributes of `Status`, by name."""


@dataclass(frozen=True)
class Status(SavedJson):
    """The status of a training at the server.

    Attributes
    ----------
    training : str
        Name of the training.
    rounds : int
        Number of rounds at most.
    stage : str
        ``starting``, ``training``, ``certificate``, ``finish``, ``audit``, ``done`` or ``failed``.
    started_at, updated_at, round_started_at : float
        Times, in seconds since the epoch: of this command, of this status, and of the round.
    first_round, round : int
        Number of rounds that were completed when this command started, and that are by now.
    attempt : int
        How often the current round has been tried, this time included.
    roster, present, answered, waiting, late : list of str
        Names of agents: all of them, those that are connected, and of the last message those that
        have answered, those that may still answer, and those that did not answer in time.
    refused : mapping of str to str
        For each agent whose last reply was refused, the reason.
    note : str
        A remark of the server, for example why the gap could not be certified.
    warning : str
        That the training gets worse, if it does.
    error : str
        Why the training failed.
    """

    file_kind: ClassVar[str] = "status of a training"
    format: ClassVar[int] = 1

    training: str
    rounds: int
    stage: str = "starting"
    started_at: float = 0.0
    updated_at: float = 0.0
    round_started_at: float = 0.0
    first_round: int = 0
    round: int = 0
    attempt: int = 1
    roster: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    warning: str = ""
    error: str = ""

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls(**contents)


class StatusFile:
    """Keeps the file of a status up to date; a context manager that records errors of its block."""

    def __init__(self, path: Path, training: str, rounds: int) -> None:
        self._path = path
        now = time.time()
        self._status = Status(training, rounds, started_at=now, round_started_at=now)

    def update(self, **changes: Any) -> None:
        """Change some attributes of the status, and write it; times are set by themselves."""
        now = time.time()
        if changes.get("round", self._status.round) != self._status.round:
            changes["round_started_at"] = now
        self._status = replace(self._status, **changes, updated_at=now)
        self._status.save(self._path)

    def __enter__(self) -> StatusFile:
        self.update()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.update(stage="done")
        else:
            self.update(stage="failed", error=str(error) or type(error).__name__)


def read_history(path: Path, max_rounds: int) -> list[dict[str, Any]]:
    """Return the last entries of a history file; a line that is not complete yet is skipped."""
    try:
        with open_file(path) as file:
            lines = deque((line for line in file if line.endswith(b"\n")), max_rounds)
    except OSError:
        return []
    return [json.loads(line) for line in lines]
