"""Trackers log every evaluated round once, also of a training that is interrupted and resumed."""

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
from pcfed.simulation import Evaluation, read_journal
from pcfed.simulation.result import Record
from pcfed.training.trainer import Trainer

MAX_AGENTS = 20
"""With more agents, only the mean and the maximum of their metrics are tracked."""


class Tracker(Protocol):
    """A program or file to which records are logged."""

    def start(self, earlier: Sequence[Record]) -> None:
        """Log the records of the rounds so far; the tracker may have some of them already."""

    def log(self, record: Record) -> None:
        """Log the record of a round."""

    def finish(self, status: str) -> None:
        """Close the tracker, with the status of the training."""


@dataclass(frozen=True)
class TrackedRun:
    """The description of a training that trackers get.

    Attributes
    ----------
    name, digest : str
        The path of the run directory and the digest of the training.
    agents : tuple of str
        The names of the agents.
    settings : mapping
        The configuration with all defaults.
    """

    name: str
    digest: str
    agents: tuple[str, ...]
    settings: dict[str, Any]

    def scalars(self, record: Record) -> dict[str, float]:
        """Return the finite metrics of a record by name."""
        metrics = {"objective": record.objective, "loss": record.loss, "seconds": record.seconds}
        metrics |= {"bytes_up": record.bytes_up, "bytes_down": record.bytes_down}
        # Slashes and other special characters have a meaning in TensorBoard and MLflow.
        safe_names = [re.sub(r"[^\w .-]", "_", agent) for agent in self.agents]
        for name in ("infeasibility", "test_loss", "test_accuracy"):
            values = getattr(record, name)
            finite = values[np.isfinite(values)]
            if finite.size:
                metrics[f"{name}/mean"] = float(finite.mean())
                metrics[f"{name}/max"] = float(finite.max())
            if len(self.agents) <= MAX_AGENTS:
                pairs = zip(safe_names, values.tolist(), strict=True)
                metrics |= {f"{name}/{agent}": value for agent, value in pairs}
        return {name: value for name, value in metrics.items() if np.isfinite(value)}


class TrackerGroup:
    """The trackers of one training; use it as a context manager around the run.

    A tracker that fails is dropped with a message, and the training continues.

    Parameters
    ----------
    trackers : mapping of str to Tracker
        The trackers, by the names that messages use.
    journal : Path
        The history of the training, with the rounds before it was resumed.

    Attributes
    ----------
    status : str
        The status of the training, to be set before the context ends.
    notify : callable
        Called with messages for the user.
    """

    def __init__(self, trackers: dict[str, Tracker], journal: Path) -> None:
        self._trackers, self._journal = dict(trackers), journal
        self._last_round = 0
        self.status = "interrupted"
        self.notify: Callable[[str], object] = lambda text: None

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluated round; a callback of `Trainer.run`.

        Before the first round, the trackers get all earlier ones. They start again if rounds are
        repeated, as in a training that restarts with a smaller step.
        """
        record = evaluation.record
        if record.round <= self._last_round:
            self._for_each(lambda tracker: tracker.finish("interrupted"))
            self._last_round = 0
        if not self._last_round:
            self._start(record.round)
        self._last_round = record.round
        self._for_each(lambda tracker: tracker.log(record))

    def _start(self, next_round: float) -> None:
        """Start all trackers with the records of the rounds before ``next_round``."""
        has_history = self._trackers and self._journal.exists()
        records = read_journal(self._journal) if has_history else ()
        earlier = [record for record in records if record.round < next_round]
        self._last_round = earlier[-1].round if earlier else 0
        self._for_each(lambda tracker: tracker.start(earlier))

    def _for_each(self, action: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                action(tracker)
            except Exception as error:  # disks, networks and packages may raise anything
                del self._trackers[name]
                reason = f"{type(error).__name__}: {error}"
                self.notify(one_line(f"{name} gets no more records ({reason})", 300))

    def __enter__(self) -> TrackerGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and not self._last_round:  # all rounds had been done before
            self._start(np.inf)
        self._for_each(lambda tracker: tracker.finish(self.status))


def open_trackers(
    trainer: Trainer,
    *,
    csv: Path | None = None,
    tensorboard: Path | None = None,
    mlflow: bool = False,
) -> TrackerGroup:
    """Return trackers for a training; nothing is written before its first evaluated round.

    Parameters
    ----------
    trainer : Trainer
        The training.
    csv : Path, optional
        A file with one row a record.
    tensorboard : Path, optional
        A folder of event files (needs tensorboardX).
    mlflow : bool
        Whether to log to MLflow, at ``MLFLOW_TRACKING_URI`` (needs mlflow-skinny).

    Raises
    ------
    ValueError
        If the path is that of something else, or MLflow would get what is computed from the records
        of an agent with a privacy budget.
    ImportError
        If a package is missing.
    """
    if mlflow and trainer.setup.problem.is_private:
        raise ValueError(
            "train: --mlflow must be left out where an agent has a privacy budget, because it "
            "sends the secret seed and losses that are computed from the rows; leave it out, or "
            "write them to a file of this machine with --csv."
        )
    run = TrackedRun(
        name=str(trainer.directory.path),
        digest=trainer.setup.digest,
        agents=trainer.setup.problem.names,
        settings=trainer.config.resolved(),
    )
    trackers: dict[str, Tracker] = {}
    targets = {"csv": csv, "tensorboard": tensorboard, "mlflow": mlflow or None}
    for name, target in targets.items():
        if target is not None:
            # Each module imports an optional package.
            module = import_module(f"pcfed.training.trackers.{name}")
            trackers[name] = module.open_tracker(run, target)
    return TrackerGroup(trackers, trainer.directory.history)
