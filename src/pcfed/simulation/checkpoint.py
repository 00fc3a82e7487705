"""A run between two rounds, in a file: from there it goes on as if it had never stopped.

Random streams belong to (seed, agent, round), so no generator has a state to keep. The last two
checkpoints are kept: should the newer one be damaged, the older one is used.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.problem import Problem
from pcfed.sets import ProjectionError
from pcfed.simulation.result import (
    Layout,
    Record,
    Refusal,
    State,
    Status,
    arrays_of,
    check_arrays,
    check_format,
    facts_of,
    group_of,
    records_layout,
    records_of,
    refusals_of,
    state_of,
    whole_number,
)
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.storage.atomic import FileError, bring_to_disk, remove_drafts, sole_user
from pcfed.storage.journal import Extent

FORMAT = 1
"""Version of the file."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the rest of a run depends on, and what it has found so far.

    Attributes
    ----------
    run : mapping of str to str
        What must be the same for the run that goes on from here.
    probe : Array
        What tells its problem from others (`probe_of`).
    state : State
        Server and agents.
    start : Record
        The figures before the first round.
    history : tuple of Record
        Those of evaluated rounds; with a journal only the last.
    refusals : tuple of Refusal
        Updates that were not counted.
    bytes_up, bytes_down : int
        Traffic since the start.
    seconds : float
        Time since the start, pauses aside.
    journal : Extent or None
        What of the journal belongs to these rounds.
    output, stop : mapping of str to Array
        What the choice of models to return, and the rule when to stop, remember.
    status : Status or None
        How the run ended, if it did.
    """

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

    def save(self, path: Path) -> None:
        """Write everything to one file, whole or not at all."""
        about = {
            "what": "a checkpoint of pcfed",
            "format": FORMAT,
            "run": dict(self.run),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "journal": self.journal,
            "status": self.status,
            **facts_of(self.state, self.refusals),
        }
        arrays: dict[str, Any] = arrays_of(self.state, (self.start, *self.history))
        arrays["probe"] = self.probe
        for group, vectors in (("output", self.output), ("stop", self.stop)):
            arrays |= {f"{group}/{name}": vector for name, vector in vectors.items()}
        save_arrays(path, about, arrays)

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """Read what ``save`` wrote, or raise a ValueError with half a sentence that says why."""
        about, arrays = load_arrays(path)
        try:
            check_format(about, FORMAT)
            state, m = state_of(about, arrays), len(arrays["probe"])
            stop, output = group_of(arrays, "stop"), group_of(arrays, "output")
            check_arrays(
                {name: array for name, array in arrays.items() if not name.startswith("stop/")},
                {
                    "probe": ((m, 4), np.float64),
                    **state.layout(m),
                    **records_layout(arrays, m),
                    **_output_layout(output, m),
                },
            )
            start, *history = records_of(arrays, state.round)
            if not (
                isinstance(about["seconds"], float)
                and 0 <= about["seconds"] < math.inf
                and about["status"] in (None, *get_args(Status))
                and (history or about["status"] != "stopped")
                and all(isinstance(words, str) for words in {**about["run"]}.values())
                and all(memory.dtype == np.float64 for memory in stop.values())
                and 0 <= output.get("rounds", 0) <= state.round
            ):
                raise TypeError
            return Checkpoint(
                run=about["run"],
                probe=arrays["probe"],
                state=state,
                start=start,
                history=tuple(history),
                refusals=refusals_of(about, m),
                bytes_up=whole_number(about, "bytes_up"),
                bytes_down=whole_number(about, "bytes_down"),
                seconds=about["seconds"],
                journal=_extent(about["journal"]),
                output=output,
                stop=stop,
                status=about["status"],
            )
        except (KeyError, TypeError):
            raise ValueError("it is not a checkpoint") from None

    def check(self, run: Mapping[str, str], probe: Float64Array, fresh: State) -> None:
        """Refuse to serve another run, with a half sentence that says how it differs."""
        for name in run:
            if self.run.get(name) != run[name]:
                theirs = " ".join(str(self.run.get(name)).split())[:200]
                raise ValueError(
                    f"it is of a run with {name} {theirs}, and this one has {run[name]}"
                )
        same = self.probe.shape == probe.shape
        if not (same and np.allclose(self.probe, probe, rtol=1e-4, equal_nan=True)):
            raise ValueError("it is of another problem")
        m, state = len(probe), self.state
        if (state.algorithm, state.layout(m)) != (fresh.algorithm, fresh.layout(m)):
            raise ValueError(f"its state is not one of {fresh.algorithm} for this problem")
        if not state.finite:
            raise ValueError("its state is not finite")


def _output_layout(output: Mapping[str, Array], m: int) -> Layout:
    """Return the layout of what the choice of models remembers, if anything."""
    if not output:
        return {}
    n = output["taken"].shape[-1:]
    return {"output/taken": ((m, *n), np.float64), "output/rounds": ((), np.float64)}


class Checkpoints:
    """The last two checkpoints of a run: ``path``, and beside it the one before.

    As a context manager it keeps other processes from using the same files.

    Parameters
    ----------
    path : Path
        The file of the newest.
    run, probe : mapping, array
        What a run that goes on must have in common with the one that wrote them.
    fresh : State
        Where the method begins with a single agent: states must have the same arrays.
    """

    def __init__(
        self, path: Path, run: Mapping[str, str], probe: Float64Array, fresh: State
    ) -> None:
        self.path, self.run, self.probe, self._fresh = path, run, probe, fresh
        self.previous = path.with_name(path.name + ".previous")
        self._whole = False
        self._alone = sole_user(path.with_name(path.name + ".lock"))

    def __enter__(self) -> Checkpoints:
        self._alone.__enter__()
        remove_drafts(self.path.parent, f"{self.path.name}.new")
        return self

    def __exit__(self, *error: Any) -> None:
        self._alone.__exit__(*error)

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; whatever happens meanwhile, one of the last two is whole."""
        fresh = self.path.with_name(self.path.name + ".new")
        checkpoint.save(fresh)
        try:
            if self._whole:
                os.replace(self.path, self.previous)
            os.replace(fresh, self.path)
            bring_to_disk(self.path.parent)
        except OSError as error:
            raise FileError(self.path, error) from None
        self._whole = True

    def load(self, *, resume: bool) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and of this run, None if there are none.

        Parameters
        ----------
        resume : bool
            Whether to go on from it: else nothing may be there that would be overwritten.

        Raises
        ------
        ValueError
            If there are some, but none to go on from: a sentence that says why.
        """
        there = [path for path in (self.path, self.previous) if path.exists()]
        if there and not resume:
            raise ValueError(
                f"run: checkpoint {there[0]} is there already, and would be overwritten; give "
                "resume=True to go on from it, or another path."
            )
        refused = []
        for path in there:
            try:
                found = Checkpoint.load(path)
                found.check(self.run, self.probe, self._fresh)
            except ValueError as error:
                refused.append(f"{path} can't be used: {error}")
                continue
            if refused:
                warnings.warn(f"run: {refused[0]}; the one before it is used.", stacklevel=3)
            self._whole = path == self.path
            return found
        if refused:
            raise ValueError(
                f"run: checkpoint {'; '.join(refused)}; give the arguments of the run that wrote "
                "it, or another path to begin anew."
            )
        return None


def _extent(value: Any) -> Extent | None:
    """Return what a file says of the journal."""
    if value is None:
        return None
    length, checksum = value
    if type(length) is not int or length < 0 or not isinstance(checksum, str):
        raise TypeError
    return Extent(length, checksum)


def probe_of(problem: Problem) -> Float64Array:
    """Return numbers that tell a problem from others: values of losses, distances from sets.

    One row an agent; at a vector that is drawn once and for all. Rounding, which may depend on the
    number of threads, changes their last digits only.
    """
    x = np.random.RandomState(0).standard_normal(problem.n) / np.sqrt(problem.n)
    rows = []
    for agent in problem.agents:
        try:
            distance = agent.feasible_set.distance(10 * x)
        except (ProjectionError, ValueError):
            distance = float("nan")
        rows.append([agent.loss.value(x), distance, agent.coupling, agent.loss.size])
    return np.array(rows, np.float64)
