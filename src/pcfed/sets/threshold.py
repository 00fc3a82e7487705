"""The threshold of projections onto simplices, l1 balls and weighted l1 balls, with NumPy.

For numbers a and a total τ > 0 there is one threshold θ with Σ max(a − θ, 0) = τ. Call the numbers
above θ active, their smallest m and their count k. The projected numbers are

    (a − m) + t   where a ≥ m,   t = (τ − Σ (a − m)) / k,   and 0 elsewhere.

This loses no digits when a is much larger than τ, because a − m and t have the size of the result;
a − θ would have the rounding error of θ, which is relative to a.

θ is found by Newton's method (Michelot's algorithm, once below θ) from any start. Its rounding
error is bounded by δ. A number v within δ of θ is active if Σ max(a − v, 0) < τ. This sum, and the
one in t, have the same bits in every order of summation. So every bit of the result is a function
of a and τ: it depends neither on the warm start nor on the compiler, and the compiled twin of this
module, ``pcfed.kernels.thresholds``, computes the same bits.

References: L. Condat, Fast projection onto the simplex and the l1 ball, Math. Program. 158 (2016);
C. Michelot, A finite algorithm for finding the projection of a point onto the canonical simplex of
Rⁿ, J. Optim. Theory Appl. 50 (1986); S. Rump, T. Ogita, S. Oishi, Accurate floating-point summation
I, SIAM J. Sci. Comput. 31 (2008), Algorithm 3.2, for the sums.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets import compiled
from pcfed.sets.base import WarmStart
from pcfed.sets.compiled import ALWAYS_OUTSIDE, MIN_TOTAL, ThresholdSet
from pcfed.sets.rounding import EPS, as_float64, eps_of


def project(
    x: Array, total: float, kind: ThresholdSet, warm_start: WarmStart | None = None
) -> Array:
    """Project one vector onto a simplex or an l1 ball; return ``x`` itself if it is inside.

    ``warm_start.threshold`` is the start value of θ, and is set to the θ that was found.
    """
    p = compiled.project(x, total, kind, None, warm_start)
    if p is not None:
        return p
    y = as_float64(x)
    a = np.abs(y) if kind.is_ball else y
    margin = kind.slack * eps_of(x) * total
    if _is_inside(a, total, margin, kind.is_ball):
        return x
    p = _project_to_simplex(a, total, warm_start, x.dtype)
    if kind.is_ball:
        np.copysign(p, x, where=p != 0, out=p)
    tiny = total < MIN_TOTAL.get(x.dtype, math.inf)
    return _correct_sum(p, total, margin, kind.is_ball) if tiny else p


def project_to_simplex(
    a: Float64Array, total: float, warm_start: WarmStart | None = None
) -> Float64Array:
    """Project onto {p ≥ 0, Σ p = total}."""
    p = compiled.project(a, total, ALWAYS_OUTSIDE, None, warm_start)
    if p is None:
        p = _project_to_simplex(a, total, warm_start, a.dtype)
    return as_float64(p)


def reproducible_sum(r: Float64Array, total: float, n: int) -> tuple[float, float]:
    """Return Σ r as a high and a low part, with the same bits in every order of summation.

    There are n numbers r ≥ 0 with Σ r ≤ 2 total. Each is split into a multiple of a coarse grid, a
    multiple of a fine grid and a remainder that is dropped. Both grids are so coarse that the
    multiples add up without rounding errors, and so in every order to the same sum. The error is
    below 2⁻¹⁰⁴ n² total.
    """
    # Adding and subtracting a constant rounds r to the last digit of the constant, the grid.
    e = min(math.frexp(total)[1], 1000)
    coarse, fine = math.ldexp(1.0, e + 1), math.ldexp(1.5, e - 52 + math.frexp(n)[1])
    high = (r + coarse) - coarse
    low = ((r - high) + fine) - fine
    return float(high.sum()), float(low.sum())


def _is_inside(a: Float64Array, total: float, margin: float, is_ball: bool) -> bool:
    """Return whether Σ a is right up to the margin, and a ≥ 0; NaN counts as inside of the ball."""
    size = float(np.abs(a).sum())
    if math.isinf(size):
        return False
    # The reproducible sum is needed only where the rounding errors of the plain sum could decide.
    if abs(size - total) > margin + a.size * EPS * size:
        return is_ball and size < total
    high, low = reproducible_sum(np.abs(a), total, a.size)
    excess = (high - total) + low
    if is_ball:
        return not excess > margin
    return abs(excess) <= margin and float(a.min()) >= 0.0


def _correct_sum(p: Array, total: float, margin: float, is_ball: bool) -> Array:
    """Return p with the right sum, which it does not have if numbers have underflowed."""
    step = eps_of(p)
    for _ in range(64):
        high, low = reproducible_sum(np.abs(as_float64(p)), total, p.size)
        excess = (high - total) + low
        if not (excess > margin or (not is_ball and excess < -margin)):
            break
        if is_ball:
            p = p * (1.0 - step)
            step = min(1.0, 2.0 * step)
        else:
            p[int(np.argmax(p))] -= excess
    return p


def smallest_active(a: Float64Array, total: float, warm_start: WarmStart | None = None) -> float:
    """Return m, the smallest number of a above the threshold for ``total`` > 0; NaN gives NaN."""
    largest, size = float(a.max()), float(a.sum())
    if not math.isfinite(size):
        return math.nan
    theta = max(largest - total, (size - total) / a.size)  # both are at most θ
    # Σ max(a − θ, 0) is convex in θ, so a Newton step from any start ends at most at θ. A bad warm
    # start is therefore harmless: the larger one of the two starts is taken.
    if warm_start is not None and warm_start.threshold < largest:
        start = warm_start.threshold
        theta = max(theta, _newton_step(a[a > start], start, total))
    active = a[a > theta]
    while active.size:
        theta = max(theta, _newton_step(active, theta, total))
        kept = active[active > theta]
        if kept.size == active.size:
            break
        active = kept
    if warm_start is not None:
        warm_start.threshold = theta
    # θ has a rounding error, which depends on the start; numbers within δ are decided exactly.
    delta = 64.0 * EPS * max(abs(largest), abs(theta))
    above, surely_above = a > theta - delta, a > theta + delta
    if np.count_nonzero(above) == np.count_nonzero(surely_above):
        return float(active.min()) if active.size else largest  # none where τ / n underflows
    undecided = np.unique(a[above & ~surely_above]).tolist()
    first = bisect_left(undecided, True, key=lambda v: _remainder(a, v, total) > 0.0)
    return undecided[first] if first < len(undecided) else float(a[surely_above].min())


def _newton_step(active: Float64Array, theta: float, total: float) -> float:
    """Return the zero of the linear piece of Σ max(a − θ, 0) − τ at θ."""
    return theta + (float((active - theta).sum()) - total) / active.size


def _remainder(a: Float64Array, v: float, total: float) -> float:
    """Return τ − Σ max(a − v, 0), with the same bits in every order of summation."""
    high, low = reproducible_sum(a[a >= v] - v, total, a.size)
    return (total - high) - low


def _project_to_simplex(
    a: Float64Array, total: float, warm_start: WarmStart | None, dtype: np.dtype[Any]
) -> Array:
    """Project numbers that were given in a dtype onto {p ≥ 0, Σ p = total}, in that dtype."""
    p = np.zeros(a.shape, dtype)
    if total == 0.0:
        return p
    m = smallest_active(a, total, warm_start)
    if math.isnan(m):
        return np.full_like(p, math.nan)
    active = a >= m
    t = _remainder(a, m, total) / np.count_nonzero(active)
    p[active] = (a[active].astype(dtype) - dtype.type(m)) + dtype.type(t)
    return p


def project_to_weighted_simplex(a: Float64Array, w: Float64Array, total: float) -> Float64Array:
    """Return max(a − λ w, 0) with Σ w max(a − λ w, 0) = total, by Michelot's algorithm for λ."""
    if not math.isfinite(float(a.sum())):
        return np.full_like(a, math.nan)
    p = np.zeros_like(a)
    index, value = np.flatnonzero(a), a[a > 0.0]
    while total > 0.0 and index.size:
        v = w[index]
        for _ in range(2):  # the second step corrects rounding errors, which are relative to a
            value = value - ((float((v * value).sum()) - total) / float((v * v).sum())) * v
        kept = value > 0.0
        if kept.all():
            p[index] = value
            break
        index, value = index[kept], value[kept]
    return p
