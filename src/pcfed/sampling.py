"""Random streams and batches.

Every draw belongs to (seed, purpose, position of the agent in the roster, round): a counter-based
generator starts at that counter, so adding an agent or skipping a round changes nobody else's
numbers, and every engine that runs an agent draws the same batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pcfed.validation import count

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
    HELD_OUT = 5


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


def random_bits(
    seed: int, agents: Sequence[int], index: int, places: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """Return 64 random bits for every agent in one round and for each of its places.

    The numbers of a whole team in a few calls, where a stream each would take longer than the
    gradients. They are a hash of (seed, agent, round, place).

    Parameters
    ----------
    seed, index : int
        Seed of the run and index of the round.
    agents : sequence of int
        Positions in the roster.
    places : array of shape (agents, ...)
        Which numbers of the agent's sequence.

    References
    ----------
    Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014): SplitMix64.
    """
    first, second = _key(seed)
    with np.errstate(over="ignore"):
        start = _mixed(_mixed(first + GOLDEN * np.asarray(agents, np.uint64)) ^ second)
        start = _mixed(start + GOLDEN * np.uint64(index))
        shape = (-1,) + (1,) * (places.ndim - 1)
        return _mixed(start.reshape(shape) + GOLDEN * (places.astype(np.uint64) + np.uint64(1)))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 of every number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


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

    @property
    def even(self) -> bool:
        """Whether all batches have the same size: a last block may be smaller."""
        return self.sampling != "blocks" or self.samples % self.size == 0

    @property
    def many(self) -> bool:
        """Whether there are too many samples to sort random numbers for all of them."""
        return self.samples > FEW

    @cached_property
    def kind(self) -> Hashable:
        """What agents must share whose batches are drawn together; None if they can't be."""
        return (self.size, self.full, self.many) if self.even else None

    def draw(self, seed: int, agent: int, index: int, steps: int) -> Sequence[Rows]:
        """Return the rows of an agent's batches in a round, in the form quickest to read.

        Parameters
        ----------
        seed, agent, index : int
            Seed of the run, position of the agent in the roster, index of the round.
        steps : int
            Number of batches; however many are drawn, the first ones are the same.
        """
        if self.full:
            return [None] * steps
        if self.sampling == "blocks":
            (first,) = self._blocks(seed, [agent], index, steps, np.array([self.samples])).tolist()
            return [slice(i, min(i + self.size, self.samples)) for i in first]
        return list(self.numbers(seed, [agent], index, steps)[0])

    def numbers(
        self,
        seed: int,
        agents: Sequence[int],
        index: int,
        steps: int,
        samples: Sequence[int] | None = None,
    ) -> NDArray[np.intp]:
        """Return what ``draw`` does for several agents, as row numbers, (agents, steps, size).

        Batches must be ``even``, and ``full`` and ``many`` the same for all.

        Parameters
        ----------
        seed, index, steps : int
            As in ``draw``.
        agents : sequence of int
            Positions in the roster.
        samples : sequence of int, optional
            Every agent's number of samples, where it is not that of this one.
        """
        N = np.array([self.samples] * len(agents) if samples is None else samples)
        most, size = int(N.max()), self.size
        if self.full:
            return np.broadcast_to(np.arange(size), (len(agents), steps, size))
        if self.sampling == "blocks":
            return self._blocks(seed, agents, index, steps, N)[..., None] + np.arange(size)
        if self.sampling == "with_replacement":
            places = np.broadcast_to(np.arange(steps * size), (len(agents), steps * size))
            drawn = random_bits(seed, agents, index, places) % N[:, None].astype(np.uint64)
            return drawn.astype(np.intp).reshape(len(agents), steps, size)
        if self.many:
            rngs = (stream(seed, Purpose.BATCHES, agent, index) for agent in agents)
            pairs = list(zip(rngs, N.tolist(), strict=True))
            draws = [[_choice(rng, each, size) for _ in range(steps)] for rng, each in pairs]
            return np.array(draws)
        # The rows with the smallest of N random numbers.
        ordinal, step = np.arange(most), np.arange(steps)[:, None]
        places = N[:, None, None] * step + ordinal
        keys = random_bits(seed, agents, index, places)
        keys[np.broadcast_to(ordinal >= N[:, None, None], keys.shape)] = np.iinfo(np.uint64).max
        return np.argsort(keys, axis=2)[..., :size]

    def _blocks(
        self, seed: int, agents: Sequence[int], index: int, steps: int, N: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Draw the first rows of blocks, each with a probability proportional to its size."""
        places = np.broadcast_to(np.arange(steps), (len(agents), steps))
        drawn = random_bits(seed, agents, index, places) % N[:, None].astype(np.uint64)
        return drawn.astype(np.intp) // self.size * self.size


def _choice(rng: np.random.Generator, samples: int, size: int) -> NDArray[np.intp]:
    return rng.choice(samples, size, replace=False, shuffle=False)


FEW = 256
"""Up to so many samples it is quicker to sort random numbers than to draw without repeats."""


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
