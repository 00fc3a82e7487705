"""Checkpoints: a run between two rounds, in a file from which it resumes to the same bits.

Random streams belong to (seed, agent, round), so no generator has a state to save. The last two
checkpoints are kept: if the newer one is damaged, the older one is used.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.losses.probe import probe_point
from pcfed.problem import Problem
from pcfed.sets import ProjectionError
from pcfed.simulation.result import (
    Layout,
    Record,
    Refusal,
    State,
    Status,
    arrays_in,
    check_arrays,
    read_count,
    read_records,
    read_refusals,
    read_state,
    records_layout,
    state_arrays,
    state_metadata,
)
from pcfed.storage.atomic import FileError, remove_drafts, sync_directory
from pcfed.storage.journal import Extent
from pcfed.storage.locks import exclusive_lock
from pcfed.storage.saved import InvalidFile, Metadata, PathLike, SavedArchive
from pcfed.validation import boolean, count, is_path

LAZY_PROBES = 16
"""Agents, of those that are made on demand, by which a checkpoint recognises its problem."""


@dataclass(frozen=True)
class Checkpointing:
    """Where and how often a run is saved: ``run(..., checkpoint=Checkpointing("run.ckpt"))``.

    Parameters
    ----------
    path : path
        The file; the checkpoint before the last is kept beside it.
    every : int
        Save after every k-th round.
    resume : bool
        Continue from the checkpoint if there is one. Without it, an existing file is an error.

    Examples
    --------
    >>> Checkpointing("run.ckpt", resume=True)
    Checkpointing(path='run.ckpt', every=10, resume=True)
    """

    path: PathLike
    every: int = 10
    resume: bool = False

    def __post_init__(self) -> None:
        is_path("Checkpointing: path", self.path)
        count("Checkpointing: every", self.every)
        boolean("Checkpointing: resume", self.resume)


@dataclass(frozen=True, eq=False)
class Checkpoint(SavedArchive):
    """Everything that the rest of a run depends on, and what it has measured so far.

    Attributes
    ----------
    run : mapping of str to str
        The arguments that a resumed run must share.
    probe : Array
        Identifies the problem (`probe_of`).
    state : State
        Server and agents.
    start : Record
        The record before the first round.
    history : tuple of Record
        The records of evaluated rounds; with a journal only the last.
    refusals : tuple of Refusal
        Updates that were not accepted.
    bytes_up, bytes_down : int
        Traffic since the start.
    seconds : float
        Time since the start, without interruptions.
    journal : Extent or None
        The part of the journal that belongs to these rounds.
    output, stop : mapping of str to Array
        The states of the output iterate and of the stop rule.
    status : Status or None
        How the run ended; None if it has not.
    """

    file_kind: ClassVar[str] = "checkpoint"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "use the checkpoint before it, or another path to start anew."

    run: Mapping[str, str]
    probe: Float64Array
    state: State
    start: Record
    history: tuple[Record, ...]
    refusals: tuple[Refusal, ...]
    bytes_up: int
    bytes_down: int
    seconds: float
    journal: Extent | None
    output: Mapping[str, Array]
    stop: Mapping[str, Array]
    status: Status | None

    def _to_archive(self) -> tuple[Metadata, Mapping[str, Any]]:
        metadata = {
            "run": dict(self.run),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "journal": self.journal,
            "status": self.status,
            **state_metadata(self.state, self.refusals),
        }
        arrays: dict[str, Any] = state_arrays(self.state, (self.start, *self.history))
        arrays["probe"] = self.probe
        for group, vectors in (("output", self.output), ("stop", self.stop)):
            arrays |= {f"{group}/{name}": vector for name, vector in vectors.items()}
        return metadata, arrays

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, Any]) -> Checkpoint:
        state, m = read_state(metadata, arrays), len(arrays["probe"])
        stop, output = arrays_in(arrays, "stop"), arrays_in(arrays, "output")
        check_arrays(
            {name: array for name, array in arrays.items() if not name.startswith("stop/")},
            {
                "probe": ((m, 4), np.float64),
                **state.layout(m),
                **records_layout(arrays, m),
                **_output_layout(output, m),
            },
        )
        start, *history = read_records(arrays, state.round)
        if not (
            isinstance(metadata["seconds"], float)
            and 0 <= metadata["seconds"] < math.inf
            and metadata["status"] in (None, *get_args(Status))
            and (history or metadata["status"] != "stopped")
            and all(isinstance(text, str) for text in {**metadata["run"]}.values())
            and all(array.dtype == np.float64 for array in stop.values())
            and 0 <= output.get("rounds", 0) <= state.round
        ):
            raise TypeError
        return cls(
            run=metadata["run"],
            probe=arrays["probe"],
            state=state,
            start=start,
            history=tuple(history),
            refusals=read_refusals(metadata, m),
            bytes_up=read_count(metadata, "bytes_up"),
            bytes_down=read_count(metadata, "bytes_down"),
            seconds=metadata["seconds"],
            journal=_read_extent(metadata["journal"]),
            output=output,
            stop=stop,
            status=metadata["status"],
        )

    def check(self, run: Mapping[str, str], probe: Float64Array, fresh: State) -> None:
        """Raise a ValueError, whose text is a clause, if the checkpoint is of another run."""
        for name in {**run, **self.run}:
            if self.run.get(name) != run.get(name):
                theirs = " ".join(str(self.run.get(name)).split())[:200]
                raise ValueError(
                    f"it is of a run with {name} {theirs}, and this one has {run.get(name)}"
                )
        same_shape = self.probe.shape == probe.shape
        if not (same_shape and np.allclose(self.probe, probe, rtol=1e-4, equal_nan=True)):
            raise ValueError("it is of another problem")
        m, state = len(probe), self.state
        if (state.algorithm, state.layout(m)) != (fresh.algorithm, fresh.layout(m)):
            raise ValueError(f"its state is not one of {fresh.algorithm} for this problem")
        if not state.finite:
            raise ValueError("its state is not finite")


def _output_layout(output: Mapping[str, Array], m: int) -> Layout:
    """Return the layout of the output iterate's state."""
    if not output:
        return {}
    n = output["taken"].shape[-1:]
    return {"output/taken": ((m, *n), np.float64), "output/rounds": ((), np.float64)}


def _read_extent(value: Any) -> Extent | None:
    """Return the extent of the journal in a file."""
    if value is None:
        return None
    length, checksum = value
    if type(length) is not int or length < 0 or not isinstance(checksum, str):
        raise TypeError
    return Extent(length, checksum)


class CheckpointFiles:
    """The last two checkpoints of a run: ``path``, and beside it the one before.

    As a context manager it keeps other processes from using the same files.

    Parameters
    ----------
    path : Path
        The file of the newest.
    run, probe : mapping, array
        What a resumed run must share with the one that wrote them.
    fresh : State
        The state in which the algorithm starts with a single agent: states must have its arrays.
    """

    def __init__(
        self, path: Path, run: Mapping[str, str], probe: Float64Array, fresh: State
    ) -> None:
        self.path, self.run, self.probe, self._fresh = path, run, probe, fresh
        self.previous = path.with_name(path.name + ".previous")
        self._newest_is_valid = False
        self._lock = exclusive_lock(path.with_name(path.name + ".lock"))

    def __enter__(self) -> CheckpointFiles:
        self._lock.__enter__()
        remove_drafts(self.path.parent, f"{self.path.name}.new")
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; at every moment one of the last two is valid."""
        new = self.path.with_name(self.path.name + ".new")
        checkpoint.save(new)
        try:
            # A damaged newest file must not replace the valid one before it.
            if self._newest_is_valid:
                os.replace(self.path, self.previous)
            os.replace(new, self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise FileError(self.path, error) from None
        self._newest_is_valid = True

    def load(self, *, resume: bool) -> Checkpoint | None:
        """Return the newest valid checkpoint of this run, or None if there are no files.

        Parameters
        ----------
        resume : bool
            Whether to continue from it: if not, existing files are an error.

        Raises
        ------
        ValueError
            If there are files, but none to resume from.
        """
        paths = [path for path in (self.path, self.previous) if path.exists()]
        if paths and not resume:
            raise ValueError(
                f"run: checkpoint {paths[0]} exists already and would be overwritten; give "
                "resume=True to continue from it, or another path."
            )
        refused = []
        for path in paths:
            try:
                found = Checkpoint.load(path)
                found.check(self.run, self.probe, self._fresh)
            except ValueError as error:
                reason = error.reason if isinstance(error, InvalidFile) else error
                refused.append(f"{path} can't be used: {reason}")
                continue
            if refused:
                warnings.warn(f"run: {refused[0]}; the one before it is used.", stacklevel=3)
            self._newest_is_valid = path == self.path
            return found
        if refused:
            raise ValueError(
                f"run: checkpoint {'; '.join(refused)}; give the arguments of the run that wrote "
                "it, or another path to start anew."
            )
        return None


def probe_of(problem: Problem) -> Float64Array:
    """Return numbers that identify a problem: values of losses and distances from sets.

    One row per agent, at a fixed random vector. Rounding, which may depend on the number of
    threads, changes only their last digits. Of agents that are made on demand, a few are probed.
    """
    x = probe_point(problem.n)
    rows = np.full((problem.m, 4), np.nan)
    step = max(1, problem.m // LAZY_PROBES) if problem.is_lazy else 1
    for i in range(0, problem.m, step):
        agent = problem.agents[i]
        try:
            distance = agent.feasible_set.distance(10 * x)
        except (ProjectionError, ValueError):
            distance = float("nan")
        rows[i] = agent.loss.value(x), distance, agent.coupling, agent.loss.size
    return rows
