"""Random streams and batches.

Every draw belongs to (seed, purpose, position of the agent in the roster, round): a counter-based
generator starts at that counter. Adding an agent or skipping a round therefore changes no other
agent's numbers, and every engine that runs an agent draws the same batches.
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
"""The samples of a batch: a slice, an array of row numbers, or None for all of them."""

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The increment of SplitMix64: 2⁶⁴ divided by the golden ratio, rounded to an odd number."""

MAX_SORTED_SAMPLES = 256
"""Up to this many samples, sorting random numbers is faster than `Generator.choice`."""


class Purpose(IntEnum):
    """What a random stream is used for; streams of different purposes never overlap."""

    BATCHES = 0
    PARTICIPATION = 1
    START = 2
    BLOCKS = 3
    OUTPUT = 4
    HELD_OUT = 5
    FOLDS = 6


@lru_cache(maxsize=64)
def _key(seed: int) -> NDArray[np.uint64]:
    """Return the 128-bit key of the generators of a run."""
    return np.random.SeedSequence(seed).generate_state(2, np.uint64).astype(np.uint64)


def random_stream(
    seed: int, purpose: Purpose, agent: int = 0, round_index: int = 0
) -> np.random.Generator:
    """Return the random generator of one agent (position in the roster, from 0) in one round."""
    counter = np.array([0, purpose, agent, round_index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=_key(seed), counter=counter))


def split_rows(
    held_out: float, rows: int, seed: int, agent: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return an agent's rows for training and a share of them for testing, both in order."""
    num_test = min(round(held_out * rows), rows - 1)
    order = random_stream(seed, Purpose.HELD_OUT, agent).permutation(rows).astype(np.intp)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def random_bits(
    seed: int, agents: Sequence[int], round_index: int, positions: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """Return 64 random bits for every agent in one round and each position in its sequence.

    They are a hash of (seed, agent, round, position); ``positions`` has the shape (agents, ...).
    One call serves a whole group of agents, because creating a `random_stream` for each can take
    longer than the gradients.

    References
    ----------
    Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014): SplitMix64.
    """
    first, second = _key(seed)
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is intended
        start = _mix(_mix(first + GOLDEN_GAMMA * np.asarray(agents, np.uint64)) ^ second)
        start = _mix(start + GOLDEN_GAMMA * np.uint64(round_index))
        start = start.reshape((-1,) + (1,) * (positions.ndim - 1))
        return _mix(start + GOLDEN_GAMMA * (positions.astype(np.uint64) + np.uint64(1)))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 of every number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class BatchSampler:
    """Draws the batches of one agent: the samples that a stochastic gradient uses.

    The mean over a batch is an unbiased estimate of the mean over all samples with every
    ``sampling``: ``"without_replacement"`` and ``"with_replacement"`` draw rows uniformly;
    ``"blocks"`` cuts the data into consecutive blocks and draws one with a probability
    proportional to its size, so that a smaller last block causes no bias. Batches of different
    steps are independent.

    Parameters
    ----------
    num_samples : int
        Number of samples that the agent has.
    batch_size : int
        Number of samples in a batch, at most ``num_samples``.
    sampling : {"without_replacement", "with_replacement", "blocks"}
        How a batch is drawn.

    Examples
    --------
    >>> BatchSampler(10, 4, "blocks").draw(seed=0, agent=0, round_index=0, steps=3)
    [slice(8, 10, None), slice(4, 8, None), slice(4, 8, None)]
    """

    num_samples: int
    batch_size: int
    sampling: Sampling = "without_replacement"

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise ValueError(
                f"run: sampling must be one of {', '.join(get_args(Sampling))}, "
                f"got {self.sampling!r}; choose one of them."
            )

    @property
    def is_full_batch(self) -> bool:
        """Whether every batch consists of all samples."""
        return self.batch_size == self.num_samples and self.sampling != "with_replacement"

    @cached_property
    def group_key(self) -> Hashable:
        """A key that is equal for agents whose batches `draw_group` can draw in one call.

        None if the batches differ in size, as those of ``"blocks"`` do with a smaller last block.
        """
        if self.sampling == "blocks" and self.num_samples % self.batch_size != 0:
            return None
        return self.batch_size, self.is_full_batch, self._sorts

    @property
    def _sorts(self) -> bool:
        """Whether rows without replacement are drawn by sorting random numbers."""
        return self.num_samples <= MAX_SORTED_SAMPLES

    def draw(self, seed: int, agent: int, round_index: int, steps: int) -> Sequence[Rows]:
        """Return the rows of an agent's batches in a round, in the form that is fastest to read.

        The first batches do not depend on the number of ``steps``.
        """
        if self.is_full_batch:
            return [None] * steps
        rows = self.draw_group(seed, [agent], round_index, steps)[0]
        if self.sampling != "blocks":
            return list(rows)
        return [slice(i, min(i + self.batch_size, self.num_samples)) for i in rows[:, 0].tolist()]

    def draw_group(
        self,
        seed: int,
        agents: Sequence[int],
        round_index: int,
        steps: int,
        num_samples: Sequence[int] | None = None,
    ) -> NDArray[np.intp]:
        """Return what ``draw`` returns for several agents: row numbers (agents, steps, batch_size).

        All agents must have the ``group_key`` of this one, which must not be None. ``num_samples``
        are the agents' numbers of samples; by default all have the number of this one.
        """
        size, shape = self.batch_size, (len(agents), steps, self.batch_size)
        if self.is_full_batch:
            return np.broadcast_to(np.arange(size), shape)
        N = np.array([self.num_samples] * len(agents) if num_samples is None else num_samples)
        if self.sampling == "with_replacement":
            return _draw_uniformly(seed, agents, round_index, steps * size, N).reshape(shape)
        if self.sampling == "blocks":
            # The block of a uniformly drawn row has a probability proportional to its size.
            drawn = _draw_uniformly(seed, agents, round_index, steps, N)
            return (drawn // size * size)[..., None] + np.arange(size)
        if self._sorts:
            return self._draw_by_sorting(seed, agents, round_index, steps, N)
        streams = (random_stream(seed, Purpose.BATCHES, agent, round_index) for agent in agents)
        batches = [
            [rng.choice(samples, size, replace=False, shuffle=False) for _ in range(steps)]
            for rng, samples in zip(streams, N.tolist(), strict=True)
        ]
        return np.array(batches).reshape(shape)

    def _draw_by_sorting(
        self, seed: int, agents: Sequence[int], round_index: int, steps: int, N: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Return the rows that have the smallest of N random numbers, without repeats."""
        N = N[:, None, None]
        row, step = np.arange(int(N.max())), np.arange(steps)[:, None]
        keys = random_bits(seed, agents, round_index, N * step + row)
        # Rows that an agent with fewer samples does not have are sorted last.
        keys[np.broadcast_to(row >= N, keys.shape)] = np.iinfo(np.uint64).max
        return np.argsort(keys, axis=2)[..., : self.batch_size]


def _draw_uniformly(
    seed: int, agents: Sequence[int], round_index: int, draws: int, N: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return uniformly drawn rows, with repeats, of shape (agents, draws)."""
    positions = np.broadcast_to(np.arange(draws), (len(agents), draws))
    # The remainder has a bias of N / 2⁶⁴, which no run can notice.
    drawn = random_bits(seed, agents, round_index, positions) % N[:, None].astype(np.uint64)
    return drawn.astype(np.intp)


def resolve_batch_size(batch: float | int, num_samples: int, *, agent: str) -> int:
    """Return the number of samples that ``batch`` means for an agent with ``num_samples``.

    ``batch`` is a fraction of the data as a float in (0, 1], or a number of samples as an int.

    Examples
    --------
    >>> resolve_batch_size(0.1, 50, agent="north"), resolve_batch_size(32, 50, agent="north")
    (5, 32)
    """
    if isinstance(batch, (float, np.floating)):
        if not 0 < batch <= 1:
            raise ValueError(
                f"run: batch must be a fraction in (0, 1] or a size ≥ 1, got {batch!r}; "
                "give 0.1 for a tenth of the data or 32 for 32 samples."
            )
        return max(1, round(float(batch) * num_samples))
    size = count("run: batch", batch)
    if size > num_samples:
        raise ValueError(
            f"run: batch must be at most the data of every agent, got {size} but {agent} has "
            f"{num_samples} samples; give a smaller size or a fraction such as 0.1."
        )
    return size
