"""Limits on the norms of updates, so that one agent can't ruin a training with a single reply.

An update is refused if one of its vectors has a norm of more than ``factor`` times the usual one.
The usual norm of a vector is the largest median over the rounds so far: updates become shorter as a
training converges, but an agent that was absent for long may send a long one. Each median is that
of the norms greater than zero in the round, the lower one of two, so that no single agent decides
it; a round with fewer than two such norms has none. In the first rounds norms up to a floor are
accepted, whatever the median.

The statistics of an algorithm are sums of single numbers, some of them squares of norms. Each has a
limit of its own, with the squares of the factor and of the floor.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pcfed.algorithms import STATISTICS, Algorithm
from pcfed.arrays import Array
from pcfed.federation.protocol import Message

EARLY_ROUNDS = 10
"""In so many rounds with medians, the floor counts."""

FLOOR = 1e6
"""The smallest limit in the first rounds."""

MIN_NORMS = 2
"""The smallest number of norms of which the lower median is not decided by a single agent that
sends a long vector."""

GROWTH = 1e6
"""A training has diverged if a median is this many times as large as in the first rounds."""


@dataclass(frozen=True)
class Norms:
    """The usual norms of updates in a training.

    Attributes
    ----------
    rounds : int
        Number of rounds with medians.
    early, largest : mapping of str to float
        By vector, the largest median of the first rounds, and of all rounds.
    """

    rounds: int = 0
    early: Mapping[str, float] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)

    def limit(self, name: str, medians: Mapping[str, float], factor: float, floor: float) -> float:
        """Return the limit of a vector in a round, given the medians of that round."""
        limit = factor * max(self.largest.get(name, 0.0), medians.get(name, 0.0))
        return max(limit, floor) if self.rounds < EARLY_ROUNDS or not limit else limit

    def after(self, medians: Mapping[str, float]) -> Norms:
        """Return the norms after a round with these medians."""
        if not medians:
            return self
        early = _larger(self.early, medians) if self.rounds < EARLY_ROUNDS else self.early
        return Norms(self.rounds + 1, early, _larger(self.largest, medians))

    def grown(self, medians: Mapping[str, float]) -> str | None:
        """Return the name of a vector that has grown without bound; None if there is none."""
        if self.rounds < EARLY_ROUNDS:
            return None
        for name, median in medians.items():
            if 0 < GROWTH * self.early.get(name, 0.0) < median:
                return name
        return None


def update_norms(vectors: Mapping[str, Array], algorithm: Algorithm) -> dict[str, float]:
    """Return the norms of an update's vectors, and the absolute values of its statistics."""
    norms: dict[str, float] = {}
    for name, vector in vectors.items():
        if name == STATISTICS:
            values = np.abs(vector).tolist()
            norms |= dict(zip(algorithm.statistics, values, strict=True))
        else:
            norms[name] = vector_norm(vector)
    return norms


def refuse_long(
    updates: Mapping[str, Message],
    norms: Norms,
    algorithm: Algorithm,
    *,
    limit: float,
    factor: float,
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return the norms of the updates within the limits, and why the others are refused.

    Parameters
    ----------
    updates : mapping of str to Message
        The valid updates of a round, by agent.
    norms : Norms
        The usual norms before the round.
    algorithm : Algorithm
        The algorithm, for the names of its statistics.
    limit : float
        A fixed limit on the norms of vectors, beside those from the usual norms.
    factor : float
        How many times the usual norm is accepted.
    """
    found = {agent: update_norms(update.vectors, algorithm) for agent, update in updates.items()}
    medians = lower_medians(found)

    def limit_of(name: str) -> float:
        if name in algorithm.statistics:
            return norms.limit(name, medians, factor**2, FLOOR**2)
        return min(limit, norms.limit(name, medians, factor, FLOOR))

    refused = {}
    for agent, lengths in found.items():
        for name, length in lengths.items():
            if not length <= limit_of(name):
                refused[agent] = (
                    f"the norm of its {name} is {length:.3g}, above the limit {limit_of(name):.3g};"
                    " if it is right, raise rounds.norm_limit or rounds.norm_factor"
                )
    return {agent: found[agent] for agent in found if agent not in refused}, refused


def vector_norm(vector: Array) -> float:
    """Return the Euclidean norm, which must not overflow to infinity in the squares."""
    largest = float(np.abs(vector).max(initial=0.0))
    return largest * float(np.linalg.norm(vector / largest)) if largest else 0.0


def lower_medians(updates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return by vector the lower median of the norms greater than zero, where there are enough."""
    medians = {}
    for name in sorted({name for norms in updates.values() for name in norms}):
        positive = [norms[name] for norms in updates.values() if norms.get(name, 0.0) > 0]
        if len(positive) >= MIN_NORMS:
            medians[name] = statistics.median_low(positive)
    return medians


def _larger(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Return the larger value of each name in two mappings."""
    names = dict.fromkeys([*first, *second])
    return {name: max(first.get(name, 0.0), second.get(name, 0.0)) for name in names}
