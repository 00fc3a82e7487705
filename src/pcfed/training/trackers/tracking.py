"""Trackers get every evaluated round once, also of a training that was stopped and goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from pcfed.errors import one_line
from pcfed.simulation.result import Record
from pcfed.simulation.run import Evaluation
from pcfed.storage.journal import read_journal
from pcfed.training.train import Job

MOST_AGENTS = 20
"""Agents whose figures are tracked one by one."""


class Tracker(Protocol):
    """Where records go."""

    def begin(self, earlier: Sequence[Record]) -> None:
        """Take the records of the rounds so far, some or all of which it may have already."""

    def add(self, record: Record) -> None:
        """Take the record of a round."""

    def end(self, status: str) -> None:
        """Finish, with how the training ended."""


@dataclass(frozen=True)
class Story:
    """What a tracker should know of a training.

    Attributes
    ----------
    name, digest : str
        Its folder and its digest.
    agents : tuple of str
        Their names.
    settings : mapping
        The configuration with all defaults.
    """

    name: str
    digest: str
    agents: tuple[str, ...]
    settings: dict[str, Any]

    def scalars(self, record: Record) -> dict[str, float]:
        """Return the figures of a record by name; of few agents each, of many the extremes."""
        found = {"objective": record.objective, "loss": record.loss, "seconds": record.seconds}
        found |= {"bytes_up": record.bytes_up, "bytes_down": record.bytes_down}
        for name in ("infeasibility", "test_loss", "test_accuracy"):
            values = getattr(record, name)
            known = values[np.isfinite(values)]
            if known.size:
                found |= {f"{name}/mean": float(known.mean()), f"{name}/max": float(known.max())}
            if len(self.agents) <= MOST_AGENTS:
                plain = [re.sub(r"[^\w .-]", "_", agent) for agent in self.agents]
                pairs = zip(plain, values.tolist(), strict=True)
                found |= {f"{name}/{agent}": value for agent, value in pairs}
        return {name: value for name, value in found.items() if np.isfinite(value)}


class Tracking:
    """Trackers of one training; use it as a context manager around the run.

    A tracker that fails is left out from then on, with a sentence: the training goes on.

    Parameters
    ----------
    trackers : mapping of str to Tracker
        What messages call them, and where records go.
    journal : Path
        The history of the training, with the rounds that were done before.
    """

    def __init__(self, trackers: dict[str, Tracker], journal: Path) -> None:
        self._trackers, self._journal = dict(trackers), journal
        self._last = 0
        self.status = "interrupted"
        self.tell: Callable[[str], object] = lambda text: None

    def watch(self, seen: Evaluation) -> None:
        """Hand on an evaluated round, and what was there already before the first of them.

        So it is where a training begins again, with a smaller step.
        """
        if seen.record.round <= self._last:
            self._each(lambda tracker: tracker.end("interrupted"))
            self._last = 0
        if not self._last:
            self._begin(seen.record.round)
        self._last = seen.record.round
        self._each(lambda tracker: tracker.add(seen.record))

    def _begin(self, before: float) -> None:
        earlier = read_journal(self._journal) if self._trackers and self._journal.exists() else ()
        known = [record for record in earlier if record.round < before]
        self._last = known[-1].round if known else 0
        self._each(lambda tracker: tracker.begin(known))

    def _each(self, do: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as error:  # disks, networks and packages fail in ways of their own
                del self._trackers[name]
                reason = f"{type(error).__name__}: {error}"
                self.tell(one_line(f"{name} gets no more records ({reason})", 300))

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and not self._last:  # there was nothing left to do
            self._begin(np.inf)
        self._each(lambda tracker: tracker.end(self.status))


def open_trackers(
    job: Job, *, csv: Path | None = None, tensorboard: Path | None = None, mlflow: bool = False
) -> Tracking:
    """Return the trackers that are asked for, checked and with nothing written yet.

    Parameters
    ----------
    job : Job
        The training.
    csv : Path, optional
        A file with one row a record.
    tensorboard : Path, optional
        A folder of event files (needs tensorboardX).
    mlflow : bool
        Whether to make a run of MLflow, where ``MLFLOW_TRACKING_URI`` says (needs mlflow-skinny).

    Raises
    ------
    ValueError
        If the file is something else.
    ImportError
        If a package is missing.
    """
    names = job.made.problem.names
    facts = job.config.resolved()
    story = Story(str(job.folder.path), job.made.digest, names, facts)
    found: dict[str, Tracker] = {}
    for name, where in (("csv", csv), ("tensorboard", tensorboard), ("mlflow", mlflow or None)):
        if where is not None:
            module = import_module(f"pcfed.training.trackers.{name}")
            found[name] = module.open_tracker(story, where)
    return Tracking(found, job.folder.history)
