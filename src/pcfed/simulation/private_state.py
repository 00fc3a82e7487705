"""The private vectors of a range of agents, one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Vectors
from pcfed.arrays import Array

Rows = slice | Sequence[int]
"""Rows of the range, counted from its first agent."""

START_ROWS = 1024
"""Rows that are started together where all of them are needed."""


class PrivateState:
    """The private state of agents, of which some may not have started yet.

    Parameters
    ----------
    arrays : mapping of str to Array
        The vectors by name, one row per agent.
    start : callable, optional
        Returns the vectors with which some rows start. If it is given, rows start when they are
        first read; until then their memory is not used.
    """

    def __init__(
        self, arrays: dict[str, Array], start: Callable[[Rows], Vectors] | None = None
    ) -> None:
        self._arrays, self._start = arrays, start
        size = len(next(iter(arrays.values()))) if arrays else 0
        self._started: NDArray[np.bool_] | None = np.zeros(size, np.bool_) if start else None

    @classmethod
    def start(
        cls, layout: Vectors, size: int, start: Callable[[Rows], Vectors], *, lazy: bool
    ) -> PrivateState:
        """Return the state in which agents start.

        Parameters
        ----------
        layout : Vectors
            Vectors with one row, for their names and shapes.
        size : int
            Number of agents.
        start : callable
            Returns the vectors with which some rows start.
        lazy : bool
            Whether rows start when they are first read.
        """
        # The system provides pages of zeros when they are first written.
        arrays = {name: np.zeros((size, *row.shape[1:])) for name, row in layout.items()}
        state = cls(arrays, start if arrays and lazy else None)
        if arrays and not lazy:
            for name, rows in start(slice(0, size)).items():
                arrays[name][...] = rows
        return state

    def rows(self, index: Rows) -> dict[str, Array]:
        """Return some rows; a slice gives views."""
        self._start_missing(index)
        return {name: vectors[index] for name, vectors in self._arrays.items()}

    def write(self, index: Rows, new: Vectors, old: Vectors) -> None:
        """Replace rows by new ones, given what `rows` returned, which may have changed in place."""
        for name, vectors in new.items():
            if vectors is not old[name] or not isinstance(index, slice):
                self._arrays[name][index] = vectors

    def all_rows(self) -> dict[str, Array]:
        """Return the arrays themselves."""
        if self._started is not None:
            for first in range(0, len(self._started), START_ROWS):
                self._start_missing(slice(first, min(first + START_ROWS, len(self._started))))
        return self._arrays

    def copy(self) -> PrivateState:
        """Return a state that shares no array with this one."""
        other = PrivateState({name: each.copy() for name, each in self._arrays.items()})
        other._start = self._start
        other._started = None if self._started is None else self._started.copy()
        return other

    def _start_missing(self, index: Rows) -> None:
        """Start the rows that have not started yet."""
        if self._started is None or self._start is None:
            return
        missing = np.arange(len(self._started))[index]
        missing = missing[~self._started[missing]]
        if missing.size:
            for name, vectors in self._start(missing.tolist()).items():
                self._arrays[name][missing] = vectors
            self._started[missing] = True
