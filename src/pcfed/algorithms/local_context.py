"""What the agents of a group compute a round with: their gradients, their projections, memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pcfed.arrays import Array, Workspace
from pcfed.kernels.arguments import BatchSource
from pcfed.losses.stack import Stack, own_source
from pcfed.privacy import PrivateGradients
from pcfed.problem import Agent
from pcfed.sampling import BatchSampler, Rows
from pcfed.sets import SetRows, WarmStart

MAX_LISTED_ROWS = 2**20
"""Kernels read the row numbers of all batches of a round; above this number, NumPy is used."""


LossPoints = Literal["center", "own", "both"]
"""Where an agent's loss is taken: at the centre, at its own model, or at both."""


def loss_points(agent: Agent) -> LossPoints:
    """Return where the loss of an agent is taken."""
    if agent.personalization == 0:
        return "center"
    return "own" if agent.personalization == 1 else "both"


class LocalContext:
    """One agent in a round, or a group of agents that take the same number of local steps.

    Arrays have one row per agent, (agents, n). An agent's rows have the same bits alone and in any
    group.

    Parameters
    ----------
    agents : sequence of Agent
        The agents, whose losses all have the same dtype and are taken at the same points.
    positions : sequence of int
        Their positions in the roster.
    steps : int
        Number of local steps in this round.
    batches : sequence of BatchSampler
        How each agent draws its batches.
    seed, index : int
        Seed of the run and index of the round; with the position they select the random stream.
    warm_starts : sequence of WarmStart, optional
        Where each agent's projections start.
    stack : Stack, optional
        Losses that are stacked, to compute gradients of several agents in one call.
    stack_rows : sequence of int, optional
        Where the agents are in the stack; by default at their positions.
    workspace : Workspace, optional
        Where arrays come from.
    private : sequence of PrivateGradients, optional
        Where the gradients of agents with a privacy budget come from; all agents of a group have
        one, or none has. Such agents are seen without their records (`Agent.public_view`).
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        positions: Sequence[int],
        steps: int,
        batches: Sequence[BatchSampler],
        *,
        seed: int,
        index: int,
        warm_starts: Sequence[WarmStart] | None = None,
        stack: Stack | None = None,
        stack_rows: Sequence[int] | None = None,
        workspace: Workspace | None = None,
        private: Sequence[PrivateGradients] = (),
    ) -> None:
        self.agents = tuple(agent.public_view for agent in agents)
        self._losses = tuple(agent.loss for agent in agents)
        self._private = tuple(private)
        if len(self._private) != sum(agent.privacy is not None for agent in agents):
            raise ValueError(
                "LocalContext: private must have one entry for each agent with a privacy budget, "
                f"got {len(self._private)} for {len(self.agents)} agents; give a group of agents "
                "that all have a budget, or none."
            )
        self.positions = np.asarray(positions, np.intp)
        self.steps = steps
        self.batches = tuple(batches)
        self._seed, self._index = seed, index
        self.sets = SetRows([agent.feasible_set for agent in self.agents], warm_starts)
        self._stack = stack
        rows = positions if stack_rows is None else stack_rows
        self._stack_rows = np.asarray(rows, np.intp)
        self._workspace = Workspace() if workspace is None else workspace

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the local steps: that of the data."""
        return self.agents[0].loss.dtype

    @cached_property
    def noisy(self) -> NDArray[np.bool_]:
        """Whether each agent's gradients have noise, of batches or for privacy."""
        private = bool(self._private)
        return np.array([private or not batches.is_full_batch for batches in self.batches])

    @property
    def is_private(self) -> bool:
        """Whether the agents have privacy budgets."""
        return bool(self._private)

    @cached_property
    def coupling(self) -> Array:
        """The agents' couplings, (agents, 1), in the dtype of the steps."""
        return np.array([[agent.coupling] for agent in self.agents], self.dtype)

    @cached_property
    def personalization(self) -> Array:
        """The agents' personalization θ, (agents, 1), in the dtype of the steps."""
        return np.array([[agent.personalization] for agent in self.agents], self.dtype)

    @cached_property
    def loss_points(self) -> LossPoints:
        """Where the losses are taken, which is the same for all agents of a group."""
        return loss_points(self.agents[0])

    def with_steps(self, steps: int) -> LocalContext:
        """Return the same agents with another number of batches, of which the first are the same.

        For algorithms that need more than one batch for a local step.
        """
        other = copy.copy(self)
        other.steps = steps
        other.__dict__.pop("_parts", None)  # the batches that have been drawn
        return other

    def empty(self, dtype: DTypeLike | None = None, points: int = 1) -> Array:
        """Return an uninitialised array with one row per agent, or one per agent and point."""
        rows, n = len(self.agents), self.agents[0].loss.n
        shape = (rows, n) if points == 1 else (rows, points, n)
        return self._workspace.empty(shape, self.dtype if dtype is None else dtype)

    def vectors(self, number: int) -> Array:
        """Return an uninitialised array of some vectors of length n, as scratch memory."""
        return self._workspace.empty((number, self.agents[0].loss.n), self.dtype)

    def rows(self, vectors: Array, dtype: DTypeLike | None = None) -> Array:
        """Return a converted copy of a shared vector, or of rows, with one row per agent."""
        rows = self.empty(dtype)
        rows[...] = vectors
        return rows

    def release(self, *arrays: Array) -> None:
        """Return arrays to the workspace that are no longer read."""
        self._workspace.release(*arrays)

    def gradient(self, x: Array, step: int, out: Array) -> Array:
        """Write every agent's gradient on its batch of a local step to its row of ``out``.

        With ``x`` of shape (agents, points, n), like ``out``, the points of an agent share the pass
        over its batch. Every gradient of an agent with a privacy budget has a batch of its own,
        whatever the step is.
        """
        if self._private:
            for i, private in enumerate(self._private):
                private.write(self._losses[i], x[i], out[i])
            return out
        for part, rows in self._parts:
            if self._stack is not None and isinstance(rows, np.ndarray):
                self._stack.gradient(self._stack_rows[part], x[part], rows[step], out=out[part])
            elif x.ndim == 3:
                i = part.start
                self.agents[i].loss.gradients(x[i], rows[step], out=out[i])
            else:
                i = part.start
                self.agents[i].loss.gradient(x[i], rows[step], out=out[i])
        return out

    def project(self, x: Array, out: Array) -> Array:
        """Write every row's projection onto the agent's own set to ``out``; return it."""
        return self.sets.project(x, out)

    def batch_sources(self) -> list[tuple[slice, BatchSource]]:
        """Return the data and batches of all local steps as kernels read them.

        Each entry is for some neighbours in the group. The list is empty if kernels cannot compute
        the gradients of all agents.
        """
        sources: list[tuple[slice, BatchSource]] = []
        if self._private:
            return sources  # kernels would add no noise
        for part, rows in self._parts:
            if self._stack is not None and isinstance(rows, np.ndarray):
                source = self._stack.source(self._stack_rows[part], rows)
            elif self.steps * self.batches[part.start].batch_size > MAX_LISTED_ROWS:
                return []
            else:
                source = own_source(self.agents[part.start].loss, rows)
            if source is None:
                return []
            sources.append((part, source))
        return sources

    @cached_property
    def _parts(self) -> list[tuple[slice, Sequence[Rows] | NDArray[np.intp]]]:
        """Neighbours whose gradients are one call, with the batches of every step."""
        parts: list[tuple[slice, Sequence[Rows] | NDArray[np.intp]]] = []
        for stacked, group in groupby(range(len(self.agents)), lambda i: self.batches[i].group_key):
            some = list(group)
            size = self.batches[some[0]].batch_size
            width = self._stack.max_agents(size) if self._stack is not None and stacked else 1
            for first in range(some[0], some[-1] + 1, width):
                part = slice(first, min(first + width, some[-1] + 1))
                parts.append((part, self._row_numbers(part) if width > 1 else self.draw(first)))
        return parts

    def draw(self, i: int) -> Sequence[Rows]:
        """Draw the batches of one agent of the group, one per step."""
        key = (self._seed, int(self.positions[i]), self._index)
        return self.batches[i].draw(*key, self.steps)

    def _row_numbers(self, part: slice) -> NDArray[np.intp]:
        """Draw the batches of some agents as row numbers, (steps, agents, batch)."""
        batches, positions = self.batches[part], self.positions[part].tolist()
        samples = [each.num_samples for each in batches]
        drawn = batches[0].draw_group(self._seed, positions, self._index, self.steps, samples)
        return drawn.transpose(1, 0, 2)
