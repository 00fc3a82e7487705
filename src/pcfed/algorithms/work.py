"""What an agent brings to a round: gradients of its own data, projections onto its own set."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pcfed.arrays import Array
from pcfed.problem import Agent
from pcfed.sampling import Batches, Purpose, stream
from pcfed.sets import Hint


@dataclass(frozen=True, eq=False)
class Work:
    """One agent in one round.

    Attributes
    ----------
    agent : Agent
        Whose data, set and coupling.
    steps : int
        Number of local steps in this round.
    batches : Batches
        How batches are drawn.
    seed, position, index : int
        Seed of the run, position of the agent in the roster, index of the round: together they
        name the agent's random stream.
    hint : Hint
        What the set remembers from one projection to the next.
    """

    agent: Agent
    steps: int
    batches: Batches
    seed: int
    position: int
    index: int
    hint: Hint = field(default_factory=Hint)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The random stream of this agent and round, made when first drawn from."""
        return stream(self.seed, Purpose.BATCHES, self.position, self.index)

    @property
    def coupling(self) -> float:
        """The agent's pull towards the average."""
        return self.agent.coupling

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the local steps: that of the data."""
        return self.agent.loss.dtype

    def gradient(self, x: Array, out: Array) -> Array:
        """Write the gradient of the loss on the next batch to ``out`` and return it."""
        rows = None if self.batches.full else self.batches.draw(self.rng)
        return self.agent.loss.gradient(x, rows, out=out)

    def excess(self, x: Array, out: Array) -> Array:
        """Write ``x − Π[x]``, what sticks out of the agent's set, to ``out`` and return it."""
        self.agent.feasible_set.project_unchecked(x, out, self.hint)
        return np.subtract(x, out, out=out)
