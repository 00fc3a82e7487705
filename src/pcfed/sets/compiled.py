"""Projections onto simplices and l1 balls by compiled code, if numba is installed.

The functions return None if numba is not installed or if the kernels do not support x. Then NumPy
checks x and computes the same bits in ``threshold.py``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pcfed import kernels
from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import ThresholdSets

if TYPE_CHECKING:
    from pcfed.sets.base import WarmStart


class ThresholdSet(NamedTuple):
    """A kind of set onto which a threshold projects: l1 balls or simplices."""

    is_ball: bool
    """Whether it is the l1 ball Σ |x| ≤ total, and not the simplex x ≥ 0, Σ x = total."""
    slack: float
    """The allowed error of the sum in units of ε · total.

    It exceeds the rounding error of a projection, about 2, so that projected points are inside.
    """


L1_BALL = ThresholdSet(is_ball=True, slack=3.0)
SIMPLEX = ThresholdSet(is_ball=False, slack=8.0)
ALWAYS_OUTSIDE = ThresholdSet(is_ball=False, slack=-math.inf)
"""The simplex, for points that are known to be outside."""

MAX_TOTAL = 1e100
EPS = {np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-52}
MIN_TOTAL = {np.dtype(np.float32): 1e-30, np.dtype(np.float64): 1e-290}
"""With smaller totals numbers underflow, so that sums need a correction (``threshold.py``)."""


def project(
    x: Array, total: float, kind: ThresholdSet, out: Array | None, warm_start: WarmStart | None
) -> Array | None:
    """Project a vector or rows, with the same bits as ``threshold.project``.

    Return ``x`` itself if it is one vector that is inside; else ``out`` or, if there is none or it
    shares memory with x, a new array. Return None if NumPy must project x, for example because it
    contains NaN; then x is unchanged, and rows of ``out`` may have been overwritten.
    """
    if x.ndim == 2:
        return project_rows(x, np.full(x.shape[0], total), kind, out, warm_start)
    compiled = kernels.load("thresholds")
    if compiled is None or x.ndim != 1 or not _is_supported(x, out):
        return None
    if not MIN_TOTAL[x.dtype] <= total < MAX_TOTAL:
        return None
    p = _output_buffer(x, out)
    start = math.nan if warm_start is None else warm_start.threshold
    kernel = compiled.project(x.dtype)
    status, theta = kernel(x, kind.is_ball, total, kind.slack * EPS[x.dtype], start, p)
    if status == compiled.UNRESOLVED:
        return None
    if warm_start is not None:
        warm_start.threshold = theta
    return x if status == compiled.INSIDE else p


def project_rows(
    x: Array,
    totals: Float64Array,
    kind: ThresholdSet,
    out: Array | None,
    warm_start: WarmStart | None,
) -> Array | None:
    """Project every row onto the set with its own total."""
    compiled = kernels.load("thresholds")
    if compiled is None or x.ndim != 2 or totals.shape != x.shape[:1] or not _is_supported(x, out):
        return None
    if not totals_in_range(totals, x.dtype):
        return None
    thetas = np.full(x.shape[0], math.nan)
    if warm_start is not None:
        if warm_start.thresholds.shape == thetas.shape:
            thetas = warm_start.thresholds
        warm_start.thresholds = thetas
    p = _output_buffer(x, out)
    totals = np.require(totals, requirements=("C", "W"))
    sets = ThresholdSets(kind.is_ball, totals, kind.slack * EPS[x.dtype], thetas)
    return p if compiled.project_rows(x.dtype)(x, sets, p) else None


def totals_in_range(totals: Float64Array, dtype: np.dtype[Any]) -> bool:
    """Return whether the kernels support these totals."""
    return bool(totals.min() >= MIN_TOTAL[dtype] and totals.max() < MAX_TOTAL)


def _output_buffer(x: Array, out: Array | None) -> Array:
    """Return ``out``, or a new array if there is none or it shares memory with x."""
    return np.empty_like(x) if out is None or np.may_share_memory(x, out) else out


def _is_supported(x: Array, out: Array | None) -> bool:
    """Return whether the kernels can read x and write to ``out``."""
    if x.dtype not in EPS or x.size == 0 or not (x.flags.c_contiguous and x.flags.aligned):
        return False
    return out is None or (out.shape == x.shape and out.dtype == x.dtype and bool(out.flags.carray))
