"""The arguments of kernels, as named tuples; numba reads their fields by name.

This module does not import numba, so that callers can be imported without it. Kernels are compiled
for exact types: arrays that a kernel only reads go through `read_only`, whatever their flags were.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Array, Float64Array, aligned_empty

SOFTMAX, LOGISTIC, SQUARES, OTHER = range(4)
"""The losses whose derivatives the kernels know, and all others."""

# By measurement (see `pcfed.losses.compiled`):
BLOCK_FEATURES = 2**16  # features of a block of samples, so that its second use finds it cached
NEAR_FEATURES = 2**14  # four samples and all rows of coefficients together, in the nearest cache


# Of PCFedSplit, for its kernel and for the same steps in NumPy:
MIN_ROOT = 2.5
"""√q is at least this over the number of steps: truncated acceleration overshoots, and the
relaxation multiplies that."""

MAX_ATTEMPTS = 60
"""How often the steps of a round are taken, at most."""

EXCESS = 0.15
"""Steps are too long if the measured curvature exceeds L by this share of 1/η_z.

Accelerated steps become unstable from ηL = 4/3 on.
"""

RAISE = 1.25
"""Factors on curvatures are raised by powers of this number."""


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array that cannot be written to."""
    view = array.view()
    view.setflags(write=False)
    return view


class LinearModelSpec(NamedTuple):
    """A linear model, as far as its gradient depends on it."""

    loss: int
    """``SOFTMAX``, ``LOGISTIC`` or ``SQUARES``."""
    outputs: int
    intercept: bool
    scale: Any
    """The factor on the features, in the dtype of the parameters; so is ``l2``."""
    l2: Any


class GradientScratch(NamedTuple):
    """Memory in which a gradient is computed."""

    samples: Array
    """A piece of four samples, (4, columns)."""
    logits: Array
    """Of one sample at one point, (outputs,)."""
    slopes: Array
    """Derivatives of a block of samples, (points × outputs, samples)."""


class BatchSource(NamedTuple):
    """The data of some agents, and their batches in all local steps of a round."""

    features: NDArray[Any]
    """Of all agents, one after the other, in C order."""
    targets: Float64Array
    batches: NDArray[np.intp]
    """The rows of ``features`` in every batch, (steps, agents, batch)."""
    model: LinearModelSpec

    @property
    def dtypes(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """The dtypes of parameters and features, for which kernels are compiled."""
        return self.model.l2.dtype, self.features.dtype

    def scratch(self, points: int = 1) -> GradientScratch:
        """Return memory for gradients of these batches, at some points at once."""
        outputs, columns, dtype = self.model.outputs, self.features.shape[1], self.dtypes[0]
        pieces = -(-columns * (points * outputs + 4) // NEAR_FEATURES)
        width = min(columns, -(-(columns // pieces) // 16) * 16)
        samples = -(-min(self.batches.shape[2], BLOCK_FEATURES // columns) // 4) * 4
        return GradientScratch(
            samples=aligned_empty((4, width), dtype),
            logits=aligned_empty((outputs,), dtype),
            slopes=aligned_empty((points * outputs, max(samples, 4)), dtype),
        )


class ThresholdSets(NamedTuple):
    """The sets of some agents, all of them l1 balls or all of them simplices."""

    is_ball: bool
    """Whether they are l1 balls Σ |x| ≤ total, not simplices x ≥ 0, Σ x = total."""
    totals: Float64Array
    slack: float
    """How far from the total, relative to it, a point may be and still count as inside."""
    thresholds: Float64Array
    """Where each projection starts; the kernel writes where it ended."""

    def take(self, rows: slice) -> ThresholdSets:
        """Return views of some rows."""
        return self._replace(totals=self.totals[rows], thresholds=self.thresholds[rows])


class Callees(NamedTuple):
    """The addresses of compiled functions that a loop calls; 0 for one that it does not call."""

    gradient: int
    project: int


class StepScratch(NamedTuple):
    """Memory in which local steps are computed."""

    gradient: GradientScratch
    vectors: Array
    """Vectors of length n, as many as the algorithm needs."""
