"""What agents bring to a round: gradients of their own data, projections onto their own sets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pcfed.arrays import Array, empty
from pcfed.losses.compiled import Source
from pcfed.losses.stack import Stack
from pcfed.problem import Agent
from pcfed.sampling import Batches, Rows
from pcfed.sets import SetRows, WarmStart

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""


class Workspace:
    """Arrays that are used again: fresh memory costs more time than what is written to it.

    It takes back only what it gave, and keeps only what the round before could use, so that its
    memory does not grow with the rounds.

    Examples
    --------
    >>> import numpy as np
    >>> pool = Workspace()
    >>> first = pool.empty((2, 3), np.float64)
    >>> pool.release(first, np.ones((2, 3)))
    >>> pool.empty((2, 3), np.float64) is first
    True
    """

    def __init__(self) -> None:
        self._free: dict[Kind, list[Array]] = {}
        self._lent: dict[int, Array] = {}
        self._used: set[Kind] = set()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an array with anything in it."""
        kind = shape, np.dtype(dtype)
        self._used.add(kind)
        try:
            array = self._free[kind].pop()
        except (KeyError, IndexError):
            array = empty(shape, dtype)
        self._lent[id(array)] = array
        return array

    def release(self, *arrays: Array) -> None:
        """Take arrays back that nobody reads any more; those of others are left alone."""
        for array in arrays:
            if self._lent.pop(id(array), None) is not None:
                self._free.setdefault((array.shape, array.dtype), []).append(array)

    def new_round(self) -> None:
        """Let go what did not come back, and what the last round had no use for."""
        self._free = {kind: self._free[kind] for kind in self._used & self._free.keys()}
        self._lent.clear()
        self._used.clear()

    def clear(self) -> None:
        """Let all memory go."""
        self._free.clear()
        self._lent.clear()


class LocalContext:
    """One agent in a round, or a team of them that take as many local steps: a row each.

    Arrays have one row an agent, (agents, n). An agent's rows are the same bits alone and in any
    team.

    Parameters
    ----------
    agents : sequence of Agent
        Whose data, sets and couplings; all losses of one dtype.
    positions : sequence of int
        Their positions in the roster.
    steps : int
        Number of local steps in this round.
    batches : sequence of Batches
        How each draws its batches.
    seed, index : int
        Seed of the run and index of the round: with an agent's position they name its stream.
    warm_starts : sequence of WarmStart, optional
        What each set remembers from one projection to the next.
    stack : Stack, optional
        The losses of the whole roster, for gradients of neighbours with batches of one size.
    pool : Workspace, optional
        Where arrays come from.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        positions: Sequence[int],
        steps: int,
        batches: Sequence[Batches],
        *,
        seed: int,
        index: int,
        warm_starts: Sequence[WarmStart] | None = None,
        stack: Stack | None = None,
        pool: Workspace | None = None,
    ) -> None:
        self.agents = tuple(agents)
        self.positions = np.asarray(positions, np.intp)
        self.steps = steps
        self.batches = tuple(batches)
        self._seed, self._index = seed, index
        self.sets = SetRows([agent.feasible_set for agent in self.agents], warm_starts)
        self._stack = stack
        self._pool = Workspace() if pool is None else pool
        self._taken = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the local steps: that of the data."""
        return self.agents[0].loss.dtype

    @cached_property
    def coupling(self) -> Array:
        """The agents' pulls towards the average, (agents, 1), in the dtype of the steps."""
        return np.array([[agent.coupling] for agent in self.agents], self.dtype)

    def empty(self, dtype: DTypeLike | None = None) -> Array:
        """Return an array with a row for each agent and anything in it."""
        shape = (len(self.agents), self.agents[0].loss.n)
        return self._pool.empty(shape, self.dtype if dtype is None else dtype)

    def room(self, vectors: int) -> Array:
        """Return an array of some vectors, for no agent in particular, with anything in it."""
        return self._pool.empty((vectors, self.agents[0].loss.n), self.dtype)

    def rows(self, vectors: Array, dtype: DTypeLike | None = None) -> Array:
        """Return a row for each agent, converted, of a shared vector or of rows."""
        rows = self.empty(dtype)
        rows[...] = vectors
        return rows

    def release(self, *arrays: Array) -> None:
        """Give back arrays that nobody reads any more."""
        self._pool.release(*arrays)

    def gradient(self, x: Array, out: Array) -> Array:
        """Write every agent's gradient on its next batch to its row of ``out``; return it."""
        step, self._taken = self._taken, self._taken + 1
        for run, rows in self._runs:
            if self._stack is not None and isinstance(rows, np.ndarray):
                self._stack.gradient(self.positions[run], x[run], rows[step], out=out[run])
            else:
                i = run.start
                self.agents[i].loss.gradient(x[i], rows[step], out=out[i])
        return out

    def sources(self) -> list[tuple[slice, Source]]:
        """Return what compiled loops read for all local steps, or nothing if they can't take all.

        Each part is for some neighbours in the team.
        """
        sources: list[tuple[slice, Source]] = []
        for run, rows in self._runs:
            if self._stack is None or not isinstance(rows, np.ndarray):
                return []
            if (source := self._stack.source(self.positions[run], rows)) is None:
                return []
            sources.append((run, source))
        return sources

    def project(self, x: Array, out: Array, first: int = 0) -> Array:
        """Write every row's projection onto the agent's own set to ``out`` and return it.

        The rows may be those of the agents from the ``first`` on.
        """
        return self.sets.since(first).project(x, out)

    @cached_property
    def _runs(self) -> list[tuple[slice, Sequence[Rows] | NDArray[np.intp]]]:
        """Neighbours whose gradients are one call, with the batches of every step."""
        runs: list[tuple[slice, Sequence[Rows] | NDArray[np.intp]]] = []
        for stacked, group in groupby(range(len(self.agents)), lambda i: self.batches[i].kind):
            some = list(group)
            size = self.batches[some[0]].size
            most = self._stack.most(size) if self._stack is not None and stacked else 1
            for first in range(some[0], some[-1] + 1, most):
                run = slice(first, min(first + most, some[-1] + 1))
                runs.append((run, self._numbers(run) if most > 1 else self.draw(first)))
        return runs

    def draw(self, i: int) -> Sequence[Rows]:
        """Draw the batches of one agent of the team, one a step."""
        where = (self._seed, int(self.positions[i]), self._index)
        return self.batches[i].draw(*where, self.steps)

    def _numbers(self, run: slice) -> NDArray[np.intp]:
        """Draw the batches of some agents as row numbers, (steps, agents, batch)."""
        some, who = self.batches[run], self.positions[run].tolist()
        samples = [batches.samples for batches in some]
        drawn = some[0].numbers(self._seed, who, self._index, self.steps, samples)
        return drawn.transpose(1, 0, 2)
