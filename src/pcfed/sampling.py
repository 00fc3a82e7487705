"""Random streams and batches.

Every draw belongs to (seed, purpose, position of the agent in the roster, round): a counter-based
generator starts at that counter, so adding an agent or skipping a round changes nobody else's
numbers, and every engine that runs an agent draws the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import count

Sampling = Literal["without_replacement", "with_replacement", "blocks"]
Rows = slice | NDArray[np.intp] | None
"""Which samples a gradient sees: a slice, an index array, or all of them."""


class Purpose(IntEnum):
    """What a random stream is for; streams of different purposes never meet."""

    BATCHES = 0
    PARTICIPATION = 1
    START = 2
    BLOCKS = 3
    OUTPUT = 4


@lru_cache(maxsize=64)
def _key(seed: int) -> NDArray[np.uint64]:
    return np.random.SeedSequence(seed).generate_state(2, np.uint64).astype(np.uint64)


def stream(seed: int, purpose: Purpose, agent: int = 0, index: int = 0) -> np.random.Generator:
    """Return the random stream of one agent in one round.

    Parameters
    ----------
    seed : int
        The seed of the run, at least 0.
    purpose : Purpose
        What the numbers are for.
    agent, index : int
        Position in the roster and index of the round, both from 0.
    """
    counter = np.array([0, purpose, agent, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=_key(seed), counter=counter))


@dataclass(frozen=True)
class Batches:
    """The batches of one agent: which of its ``samples`` a stochastic gradient sees.

    The mean over a batch is an unbiased estimate of the mean over all samples, whichever way the
    batch is drawn: ``"without_replacement"`` and ``"with_replacement"`` draw rows uniformly;
    ``"blocks"`` cuts the data into consecutive blocks and draws one with a probability
    proportional to its size, so that a last, smaller block does no harm. Every step draws afresh.

    Parameters
    ----------
    samples : int
        Number of samples that the agent has.
    size : int
        Number of samples in a batch, at most ``samples``.
    sampling : {"without_replacement", "with_replacement", "blocks"}
        How a batch is drawn.
    """

    samples: int
    size: int
    sampling: Sampling = "without_replacement"

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise ValueError(
                f"run: sampling must be one of {', '.join(get_args(Sampling))}, "
                f"got {self.sampling!r}; choose one of them."
            )

    @property
    def full(self) -> bool:
        """Whether every batch is all of the data."""
        return self.size == self.samples and self.sampling != "with_replacement"

    def draw(self, rng: np.random.Generator) -> Rows:
        """Return the rows of one batch."""
        if self.full:
            return None
        if self.sampling == "with_replacement":
            return rng.integers(self.samples, size=self.size)
        if self.sampling == "without_replacement":
            return rng.choice(self.samples, self.size, replace=False, shuffle=False)
        first = int(rng.integers(self.samples)) // self.size * self.size
        return slice(first, min(first + self.size, self.samples))


def batch_size(batch: float | int, samples: int, *, agent: str) -> int:
    """Return the batch size that ``batch`` means for an agent with ``samples`` samples.

    Parameters
    ----------
    batch : float or int
        A fraction of the data as a float in (0, 1], or a number of samples as an int.
    samples : int
        Number of samples that the agent has.
    agent : str
        The agent's name, for the message.
    """
    if isinstance(batch, (float, np.floating)):
        if not 0 < batch <= 1:
            raise ValueError(
                f"run: batch must be a fraction in (0, 1] or a size ≥ 1, got {batch!r}; "
                "give 0.1 for a tenth of the data or 32 for 32 samples."
            )
        return max(1, round(float(batch) * samples))
    size = count("run: batch", batch)
    if size > samples:
        raise ValueError(
            f"run: batch must be at most the data of every agent, got {size} but {agent} has "
            f"{samples} samples; give a smaller size or a fraction such as 0.1."
        )
    return size
