"""Projections onto simplices and l1 balls in compiled code, where numba is installed.

The functions return None if it is not installed, or if the kernels cannot handle x: then
``threshold.py`` checks x and computes the same bits with NumPy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pcfed import kernels
from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import ThresholdSets
from pcfed.sets.base import Hint


class Target(NamedTuple):
    """A kind of set that a threshold projects onto."""

    fold: bool
    """Whether it is the l1 ball Σ |x| ≤ total, and not the simplex x ≥ 0, Σ x = total."""
    slack: float
    """How far, in units of ε total, a sum may be from the total and count as right.

    It is more than the rounding errors of a projection, about 2: so a projected point is inside.
    """


L1_BALL = Target(fold=True, slack=3.0)
SIMPLEX = Target(fold=False, slack=8.0)
ALWAYS_OUTSIDE = Target(fold=False, slack=-math.inf)
"""The simplex for those who know that x is outside."""

HUGE = 1e100
EPS = {np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-52}
SMALLEST = {np.dtype(np.float32): 1e-30, np.dtype(np.float64): 1e-290}
"""Of smaller totals the shares underflow, and sums are not right by themselves."""


def project(
    x: Array, total: float, target: Target, out: Array | None, hint: Hint | None
) -> Array | None:
    """Do as ``threshold.project`` for a vector or rows.

    Returns
    -------
    array or None
        ``x`` itself if it is one vector that is inside; else ``out`` or, if there is none or it
        shares memory with x, a new array. None if x was left to NumPy, be it because it has NaN in
        it; then x is as it was, and rows of ``out`` may be written to.
    """
    if x.ndim == 2:
        return project_rows(x, np.full(x.shape[0], total), target, out, hint)
    compiled = kernels.load("thresholds")
    if compiled is None or x.ndim != 1 or not _fits(x, out):
        return None
    if not SMALLEST[x.dtype] <= total < HUGE:
        return None
    p = _separate(x, out)
    start = math.nan if hint is None else hint.threshold
    kernel = compiled.project(x.dtype)
    status, theta = kernel(x, target.fold, total, target.slack * EPS[x.dtype], start, p)
    if status == compiled.UNRESOLVED:
        return None
    if hint is not None:
        hint.threshold = theta
    return x if status == compiled.INSIDE else p


def project_rows(
    x: Array, totals: Float64Array, target: Target, out: Array | None, hint: Hint | None
) -> Array | None:
    """Project every row for a total of its own."""
    compiled = kernels.load("thresholds")
    if compiled is None or x.ndim != 2 or totals.shape != x.shape[:1] or not _fits(x, out):
        return None
    if not in_range(totals, x.dtype):
        return None
    thetas = np.full(x.shape[0], math.nan)
    if hint is not None:
        if hint.thresholds.shape == thetas.shape:
            thetas = hint.thresholds
        hint.thresholds = thetas
    p = _separate(x, out)
    totals = np.require(totals, requirements=("C", "W"))
    sets = ThresholdSets(target.fold, totals, target.slack * EPS[x.dtype], thetas)
    return p if compiled.project_rows(x.dtype)(x, sets, p) else None


def in_range(totals: Float64Array, dtype: np.dtype[Any]) -> bool:
    """Return whether totals are neither too small nor too large for the kernels."""
    return bool(totals.min() >= SMALLEST[dtype] and totals.max() < HUGE)


def _separate(x: Array, out: Array | None) -> Array:
    """Return ``out``, or a new array if there is none or it shares memory with x."""
    return np.empty_like(x) if out is None or np.may_share_memory(x, out) else out


def _fits(x: Array, out: Array | None) -> bool:
    """Return whether the kernels can read x and write to ``out``."""
    if x.dtype not in EPS or x.size == 0 or not (x.flags.c_contiguous and x.flags.aligned):
        return False
    return out is None or (out.shape == x.shape and out.dtype == x.dtype and bool(out.flags.carray))
