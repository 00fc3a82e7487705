"""The private vectors of a range of agents, one row each."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Vectors
from pcfed.arrays import Array, large_empty
from pcfed.errors import short_repr
from pcfed.storage.saved import PathLike
from pcfed.validation import is_folder

Rows = slice | Sequence[int]
"""Rows of the range, counted from its first agent."""

START_ROWS = 1024
"""Rows that are read together where all of them are needed."""

StateDtype = Literal["float64", "float32"]

STARTED = "started"
"""The name of the numbers of the rows in a snapshot."""


@dataclass(frozen=True)
class Memory:
    r"""How the agents' private state is kept: ``run(..., memory=Memory("float32"))``.

    Parameters
    ----------
    dtype : {"float64", "float32"}
        float32 halves the memory of private state. A vector $w$ of an agent is then rounded in
        every round in which it takes part, by at most $2^{-24} \|w\|$, and differs by so much more
        from the sum of what the agent has sent. The server's state is always float64.
    folder : path, optional
        Keep private state in files in this folder, without names, and only the rows of a round in
        memory. For more agents than fit into memory, of which few take part in a round.

    Examples
    --------
    >>> Memory("float32")
    Memory(dtype='float32', folder=None)
    """

    dtype: StateDtype = "float64"
    folder: PathLike | None = None

    def __post_init__(self) -> None:
        if self.dtype not in get_args(StateDtype):
            raise ValueError(
                f"Memory: dtype must be one of {get_args(StateDtype)}, got "
                f"{short_repr(self.dtype)}; choose one."
            )
        if self.folder is not None:
            is_folder("Memory: folder", self.folder)


IN_MEMORY = Memory()


class PrivateState:
    """The private state of agents, of which some may not have started yet.

    Parameters
    ----------
    layout : mapping of str to Array
        Arrays of any number of rows, for the names and the shapes of rows.
    size : int
        Number of agents.
    memory : Memory
        How it is kept.
    start : callable, optional
        Returns the vectors with which some rows start. If it is given, rows start when `rows` first
        returns them; until then their memory is not used.
    """

    def __init__(
        self,
        layout: Vectors,
        size: int,
        memory: Memory = IN_MEMORY,
        start: Callable[[Rows], Vectors] | None = None,
    ) -> None:
        self._memory, self._size, self._start = memory, size, start
        self._files: list[mmap.mmap] = []
        self._arrays = {name: self._zeros((size, *rows.shape[1:])) for name, rows in layout.items()}
        is_lazy = start is not None and bool(layout)
        self._started: NDArray[np.bool_] | None = np.zeros(size, np.bool_) if is_lazy else None

    @classmethod
    def of(cls, arrays: Vectors, memory: Memory = IN_MEMORY) -> PrivateState:
        """Return the state with these arrays, which change in place if that is possible."""
        size = len(next(iter(arrays.values()))) if arrays else 0
        if memory == IN_MEMORY and all(rows.flags.writeable for rows in arrays.values()):
            state = cls({}, size)
            state._arrays = dict(arrays)
            return state
        state = cls(arrays, size, memory)
        state.write(slice(0, size), arrays)
        return state

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        """Return an array of zeros, whose memory the system provides when it is written."""
        if self._memory.folder is None or 0 in shape:
            return np.zeros(shape, self._memory.dtype)
        with tempfile.TemporaryFile(dir=self._memory.folder) as file:
            file.truncate(int(np.prod(shape)) * np.dtype(self._memory.dtype).itemsize)
            self._files.append(mmap.mmap(file.fileno(), 0))
        return np.frombuffer(self._files[-1], self._memory.dtype).reshape(shape)

    def rows(self, index: Rows) -> dict[str, Array]:
        """Return some rows in float64; a slice gives views if they are kept so."""
        self._start_missing(index)
        return {
            name: vectors[index].astype(np.float64, copy=False)
            for name, vectors in self._arrays.items()
        }

    def write(self, index: Rows, new: Vectors, old: Vectors | None = None) -> None:
        """Replace rows, given what `rows` returned before, which may have changed in place."""
        for name, vectors in new.items():
            kept = self._arrays[name]
            is_view = isinstance(index, slice) and kept.dtype == np.float64
            if old is None or vectors is not old[name] or not is_view:
                kept[index] = vectors

    def end_round(self) -> None:
        """Let the system reclaim the memory of rows that are kept in files."""
        for file in self._files:
            file.madvise(mmap.MADV_DONTNEED)

    def peek(self, index: Rows) -> dict[str, Array]:
        """Return some rows, to be read only; those that have not started do not start."""
        missing = self._missing(index)
        if self._start is None or not missing.size:
            return self.rows(index)
        found: dict[str, Array] = {
            name: vectors[index].astype(np.float64) for name, vectors in self._arrays.items()
        }
        where = np.searchsorted(np.arange(self._size)[index], missing)
        for name, vectors in self._start(missing.tolist()).items():
            found[name][where] = vectors
        return found

    def all_rows(self, index: slice = slice(None)) -> dict[str, Array]:
        """Return many rows in float64; they are views of the state if it is kept so."""
        start, stop, _ = index.indices(self._size)
        is_float64 = all(vectors.dtype == np.float64 for vectors in self._arrays.values())
        if is_float64 and not self._missing(index).size:
            return self.rows(index)
        found: dict[str, Array] = {
            name: large_empty((stop - start, *vectors.shape[1:]), np.float64)
            for name, vectors in self._arrays.items()
        }
        for first in range(start, stop, START_ROWS):
            last = min(first + START_ROWS, stop)
            for name, rows in self.peek(slice(first, last)).items():
                found[name][first - start : last - start] = rows
            self.end_round()
        return found

    def copy(self) -> PrivateState:
        """Return a state that shares no array with this one."""
        other = PrivateState(self._arrays, self._size, self._memory, self._start)
        other.load_started(self.started())
        return other

    def started(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the rows that have started, and their numbers as ``STARTED``."""
        some = np.arange(self._size) if self._started is None else np.flatnonzero(self._started)
        return {STARTED: some, **{name: rows[some] for name, rows in self._arrays.items()}}

    def load_started(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Replace rows by what `started` returned."""
        vectors = dict(snapshot)
        some = vectors.pop(STARTED)
        for name, rows in vectors.items():
            self._arrays[name][some] = rows
        if self._started is not None:
            self._started[:] = False
            self._started[some] = True

    def _missing(self, index: Rows) -> NDArray[np.intp]:
        """Return which of some rows have not started yet."""
        if self._started is None:
            return np.empty(0, np.intp)
        some = np.arange(self._size)[index]
        return some[~self._started[some]]

    def _start_missing(self, index: Rows) -> None:
        """Start the rows that have not started yet."""
        missing = self._missing(index)
        if self._started is None or self._start is None or not missing.size:
            return
        for name, vectors in self._start(missing.tolist()).items():
            self._arrays[name][missing] = vectors
        self._started[missing] = True
