"""Norms, tolerances and repeated projections: what is inside a set up to rounding errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pcfed.arrays import Array, Float64Array

EPS = float(np.finfo(np.float64).eps)

MAX_ENTRY = 1e150
"""Larger entries are refused because their squares would overflow."""


def as_float64(x: Array) -> Float64Array:
    """Return x in float64: x itself if it is."""
    return x.astype(np.float64, copy=False)


def eps_of(x: Array) -> float:
    """Return the machine epsilon of the dtype of x."""
    return float(np.finfo(x.dtype).eps)


def norm(x: Array) -> float:
    """Return the Euclidean norm, computed in float64 and without underflow."""
    wide = as_float64(x)
    length = math.sqrt(float(wide @ wide))
    if length < 1e-140 and wide.any():
        top = float(np.abs(wide).max())
        return top * norm(wide / top)
    return length


def tolerance(x: Float64Array, eps: float, scale: float) -> float:
    """Return the distance up to which a point outside counts as inside."""
    return 64.0 * eps * math.sqrt(x.size) * max(scale, norm(x))


def repeat_until_settled(step: Callable[[Array], Array], x: Array, scale: float) -> Array:
    """Repeat ``step`` until it moves x by rounding errors only, and return that x.

    This is for sets whose boundary may contain no floating-point vector, such as hyperplanes. The
    result is a fixed point: projecting it again gives the same bits. The repetition also corrects
    the rounding errors of the first step, which are relative to x and not to its projection.
    """
    for _ in range(8):  # two or three steps are usual
        p = step(x)
        if p is x or norm(as_float64(p) - as_float64(x)) <= 8.0 * eps_of(x) * max(scale, norm(x)):
            return x
        x = p
    return x


def repeat_until_contained(
    nearest: Callable[[Float64Array], Float64Array],
    x: Array,
    contains: Callable[[Float64Array, float], bool],
) -> tuple[Array, bool]:
    """Repeat an approximate projection until its result is in the set, at most four times.

    The first result has errors relative to a far x; those of the second are relative to itself.
    ``contains`` gets a part of ε as long as possible, so that the result is well inside the
    tolerance of ``ConvexSet.contains``. Return the point and whether it is in the set.
    """
    eps = eps_of(x)
    p = as_float64(x)
    if contains(p, eps / 16.0):
        return x, True
    for _ in range(4):
        p = nearest(p)
        rounded: Array = p.astype(x.dtype, copy=False)
        if contains(as_float64(rounded), eps / 4.0):
            return rounded, True
    # At the apex of a cone the projection is 0, and the relative error of its rounding errors is
    # never small.
    zero = np.zeros_like(x)
    if norm(p) <= eps * norm(x) and contains(as_float64(zero), eps / 4.0):
        return zero, True
    return rounded, contains(as_float64(rounded), eps)


def project_translated(
    project: Callable[[Float64Array], Array], x: Array, offset: Float64Array, scale: float
) -> Array:
    """Project onto a set that is translated by ``offset``."""

    def step(x: Array) -> Array:
        y = as_float64(x) - offset
        p = project(y)
        return x if p is y else (p + offset).astype(x.dtype, copy=False)

    return repeat_until_settled(step, x, scale)
