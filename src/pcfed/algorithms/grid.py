r"""Updates as integers modulo $2^{64}$, so that sums of them are exact and can be masked.

A vector of an update is rounded to multiples of a public power of two, the *step* of the grid. A
single number whose size nobody knows in advance, such as a statistic or a summand of a certificate,
is *wide*: three integers, which are multiples of $2^{20}$, $2^{-32}$ and $2^{-84}$, so that about
as many digits are kept as float64 has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms.base import STATISTICS, Update, Vectors
from pcfed.arrays import Array, Float64Array
from pcfed.validation import positive

Integers = NDArray[np.uint64]
"""Integers modulo 2⁶⁴."""

DEFAULT_STEP = 2.0**-32

WIDE_STEPS = (2.0**20, 2.0**-32, 2.0**-84)
"""The steps of the three integers of a wide number, from coarse to fine."""

SUM_BITS = 62
"""Sums of integers stay below two to this power."""

MAX_AGENTS = 2**11
"""With more agents, sums of the finer integers of wide numbers could become too large."""


class OutsideGrid(ValueError):
    """A number that is too large for the grid."""


@dataclass(frozen=True)
class Grid:
    """The multiples of a power of two.

    Parameters
    ----------
    step : float
        The distance of two neighbours.
    m : int
        Number of agents whose integers are summed, at most 2,048.

    Examples
    --------
    >>> grid = Grid(0.25, m=3)
    >>> grid.decode("delta", grid.encode("delta", np.array([1.3, -0.6])))
    array([ 1.25, -0.5 ])
    """

    step: float
    m: int

    def __post_init__(self) -> None:
        check_step("Grid: step", self.step)
        if not 1 <= self.m <= MAX_AGENTS:
            raise ValueError(
                f"Grid: m must be from 1 to {MAX_AGENTS:,} agents, got {self.m:,}; train with "
                "fewer agents, or without a grid."
            )

    @property
    def limit(self) -> float:
        """The largest absolute value of a number in a vector."""
        return self.step * self._largest

    @property
    def _largest(self) -> float:
        return 2.0 ** (SUM_BITS - math.ceil(math.log2(self.m)))

    def encode(self, name: str, rows: Array) -> Integers:
        """Return a vector of an update as integers, or rows of them.

        Statistics are wide. Raises OutsideGrid if a number is too large or not finite.
        """
        if name == STATISTICS:
            return self.encode_wide(name, rows)
        return self._integers(name, np.divide(rows, self.step, dtype=np.float64), self.limit)

    def decode(self, name: str, integers: Integers) -> Float64Array:
        """Return a vector, or a sum of vectors, from its integers."""
        if name == STATISTICS:
            return self.decode_wide(integers)
        return np.asarray(integers.view(np.int64) * self.step, np.float64)

    def encode_wide(self, name: str, rows: Array) -> Integers:
        """Return wide numbers: three integers for each, all coarse ones first."""
        rest, parts = np.array(rows, np.float64), []
        for step in WIDE_STEPS:
            parts.append(self._integers(name, rest / step, self._largest * WIDE_STEPS[0]))
            rest -= parts[-1].view(np.int64) * step  # exact
        return np.concatenate(parts, axis=-1)

    def decode_wide(self, integers: Integers) -> Float64Array:
        """Return wide numbers, or sums of them, from their integers."""
        coarse, middle, fine = np.split(integers.view(np.int64), 3, axis=-1)
        first, second, third = WIDE_STEPS
        return np.asarray((fine * third + middle * second) + coarse * first, np.float64)

    def width(self, name: str, size: int) -> int:
        """Return the number of integers of a vector with so many numbers."""
        return len(WIDE_STEPS) * size if name == STATISTICS else size

    def rounded(self, update: Update) -> Update:
        """Return an update on the grid; an agent commits exactly what it sends.

        What is pending under the name of a sent vector becomes that vector.
        """
        sent = {
            name: self.decode(name, self.encode(name, rows)) for name, rows in update.sent.items()
        }
        pending = {name: sent.get(name, rows) for name, rows in update.pending.items()}
        return Update(sent, pending)

    def _integers(self, name: str, multiples: Float64Array, limit: float) -> Integers:
        """Return the nearest integers."""
        if not (np.abs(multiples) <= self._largest).all():
            raise OutsideGrid(
                f"the numbers of {name} must be within ±{limit:.3g}, the range of the grid, got "
                "larger ones; choose a coarser grid, or look for very large numbers in the data."
            )
        integers: NDArray[np.int64] = np.rint(multiples).astype(np.int64)
        return integers.view(np.uint64)


def add_integers(totals: dict[str, Integers], more: Mapping[str, Integers]) -> None:
    """Add vectors of integers to totals by name, modulo 2⁶⁴; rows are added up."""
    for name, integers in more.items():
        row = np.atleast_2d(integers).sum(axis=0, dtype=np.uint64)
        totals[name] = totals[name] + row if name in totals else row


def encode_all(grid: Grid, vectors: Vectors) -> dict[str, Integers]:
    """Return all vectors of an update as integers."""
    return {name: grid.encode(name, rows) for name, rows in vectors.items()}


def joined_integers(vectors: Mapping[str, Integers]) -> Integers:
    """Return all vectors as one, in the alphabetical order of their names."""
    return np.concatenate([vectors[name] for name in sorted(vectors)])


def split_integers(joined: Integers, sizes: Mapping[str, int]) -> dict[str, Integers]:
    """Return the vectors in a joined one, given their sizes by name."""
    names = sorted(sizes)
    ends = np.cumsum([sizes[name] for name in names])
    return dict(zip(names, np.split(joined, ends[:-1]), strict=True))


def integers_in(arrays: Mapping[str, NDArray[Any]], group: str) -> dict[str, Integers]:
    """Return the vectors of integers whose names begin with ``group/``, without that prefix."""
    prefix = f"{group}/"
    return {
        name.removeprefix(prefix): np.asarray(array, np.uint64)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def check_step(where: str, value: float) -> float:
    """Return the step of a grid, or explain that it must be a power of two."""
    step = positive(where, value)
    nearest = 2.0 ** min(100, max(-200, round(math.log2(step))))
    if step != nearest:
        raise ValueError(
            f"{where} must be a power of two from 2**-200 to 2**100, got {value!r}; give one such "
            f"as {nearest!r}."
        )
    return step
