"""The threshold behind the simplex and every l1 projection.

For numbers a and a total τ > 0 there is one θ with Σ max(a − θ, 0) = τ. With m the smallest of the
numbers above θ, the active ones, and k their count, the projected numbers are

    (a − m) + t   where a ≥ m,   t = (τ − Σ (a − m)) / k,   and 0 elsewhere:

no digits are lost when a is much larger than τ, because a − m and t are of the size of the result.

θ is found by Newton's method (Michelot's, once below θ), from any start. Its rounding error is
bounded by δ; of the numbers v within δ of it those are active for which Σ max(a − v, 0) < τ. This
sum, and that in t, is computed in a way that gives the same in every order. So every bit of the
result is a function of a and τ: no start, no compiler and no other engine (``kernels.py``) changes
one.

References: L. Condat, Fast projection onto the simplex and the l1 ball, Math. Program. 158 (2016);
S. Rump, T. Ogita, S. Oishi, Accurate floating-point summation I, SIAM J. Sci. Comput. 31 (2008),
Algorithm 3.2, for the sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets import compiled
from pcfed.sets.base import Hint, eps_of
from pcfed.sets.compiled import ALWAYS_OUTSIDE, SMALLEST, Target

EPS = float(np.finfo(np.float64).eps)


def project(x: Array, total: float, target: Target, hint: Hint | None = None) -> Array:
    """Project one vector onto a simplex or an l1 ball; return ``x`` itself if it is inside.

    Parameters
    ----------
    x : array of shape (n,)
        float32 or float64.
    total : float
        τ ≥ 0.
    target : Target
        ``L1_BALL`` or ``SIMPLEX``.
    hint : Hint, optional
        Where θ is remembered.
    """
    p = compiled.project(x, total, target, None, hint)
    if p is not None:
        return p
    y = x.astype(np.float64, copy=False)
    a = np.abs(y) if target.fold else y
    margin = target.slack * eps_of(x) * total
    if _inside(a, total, margin, target.fold):
        return x
    p = _shrink(a, total, hint, x.dtype)
    if target.fold:
        np.copysign(p, x, where=p != 0, out=p)
    tiny = total < SMALLEST.get(x.dtype, math.inf)
    return _corrected(p, total, margin, target.fold) if tiny else p


def shrink(a: Float64Array, total: float, hint: Hint | None = None) -> Float64Array:
    """Project onto {p ≥ 0, Σ p = total}."""
    p = compiled.project(a, total, ALWAYS_OUTSIDE, None, hint)
    return (_shrink(a, total, hint, a.dtype) if p is None else p).astype(np.float64, copy=False)


def order_free_sum(r: Float64Array, total: float, n: int) -> tuple[float, float]:
    """Return Σ r in two parts that are the same in every order, for n numbers ≥ 0, Σ r ≤ 2 total.

    The numbers are rounded to a grid so coarse that they add up without rounding, and what that cut
    off to a finer one. What is lost then is below 2⁻¹⁰⁴ n² total.
    """
    e = min(math.frexp(total)[1], 1000)
    coarse, fine = math.ldexp(1.0, e + 1), math.ldexp(1.5, e - 52 + math.frexp(n)[1])
    high = (r + coarse) - coarse
    low = ((r - high) + fine) - fine
    return float(high.sum()), float(low.sum())


def _inside(a: Float64Array, total: float, margin: float, fold: bool) -> bool:
    """Say whether Σ a is right, and for the simplex a ≥ 0; NaN is inside of the ball."""
    size = float(np.abs(a).sum())
    if math.isinf(size):
        return False
    if abs(size - total) > margin + a.size * EPS * size:
        return fold and size < total
    high, low = order_free_sum(np.abs(a), total, a.size)
    excess = (high - total) + low
    if fold:
        return not excess > margin
    return abs(excess) <= margin and float(a.min()) >= 0.0


def _corrected(p: Array, total: float, margin: float, fold: bool) -> Array:
    """Return p with the right sum, where that is wrong because numbers underflow."""
    step = eps_of(p)
    for _ in range(64):
        high, low = order_free_sum(np.abs(p.astype(np.float64, copy=False)), total, p.size)
        excess = (high - total) + low
        if not (excess > margin or (not fold and excess < -margin)):
            break
        if fold:
            p = p * (1.0 - step)
            step = min(1.0, 2.0 * step)
        else:
            p[int(np.argmax(p))] -= excess
    return p


def active_minimum(a: Float64Array, total: float, hint: Hint | None = None) -> float:
    """Return m, the smallest number of a above the threshold for ``total`` > 0; NaN gives NaN."""
    top, size = float(a.max()), float(a.sum())
    if not math.isfinite(size):
        return math.nan
    theta = max(top - total, (size - total) / a.size)
    if hint is not None and hint.threshold < top:  # Newton from any point lands below θ
        theta = max(theta, _newton(a[a > hint.threshold], hint.threshold, total))
    active = a[a > theta]
    while active.size:
        theta = max(theta, _newton(active, theta, total))
        kept = active[active > theta]
        if kept.size == active.size:
            break
        active = kept
    if hint is not None:
        hint.threshold = theta
    delta = 64.0 * EPS * max(abs(top), abs(theta))
    above, sure = a > theta - delta, a > theta + delta
    if np.count_nonzero(above) == np.count_nonzero(sure):
        return float(active.min())
    return _careful_minimum(a, np.unique(a[above & ~sure]), a[sure], total)


def _newton(active: Float64Array, theta: float, total: float) -> float:
    """Return the zero of the linear piece of Σ max(a − θ, 0) − τ at θ."""
    return theta + (float((active - theta).sum()) - total) / active.size


def _careful_minimum(
    a: Float64Array, doubtful: Float64Array, sure: Float64Array, total: float
) -> float:
    """Return the smallest active number when ``doubtful`` ones, sorted, are too close to tell."""
    low, high = 0, doubtful.size
    while low < high:
        middle = (low + high) // 2
        if _rest(a, float(doubtful[middle]), total) > 0.0:
            high = middle
        else:
            low = middle + 1
    return float(doubtful[low]) if low < doubtful.size else float(sure.min())


def _rest(a: Float64Array, v: float, total: float) -> float:
    """Return τ − Σ max(a − v, 0), in every order the same."""
    high, low = order_free_sum(a[a >= v] - v, total, a.size)
    return (total - high) - low


def _shrink(a: Float64Array, total: float, hint: Hint | None, dtype: np.dtype[Any]) -> Array:
    """Project onto {p ≥ 0, Σ p = total} with NumPy, for numbers of a dtype and in it."""
    p = np.zeros(a.shape, dtype)
    if total == 0.0:
        return p
    m = active_minimum(a, total, hint)
    if math.isnan(m):
        return np.full_like(p, math.nan)
    active = a >= m
    t = _rest(a, m, total) / np.count_nonzero(active)
    p[active] = (a[active].astype(dtype) - dtype.type(m)) + dtype.type(t)
    return p


def weighted_shrink(a: Float64Array, w: Float64Array, total: float) -> Float64Array:
    """Return max(a − λ w, 0) with Σ w max(a − λ w, 0) = total, by Michelot's method on λ."""
    if not math.isfinite(float(a.sum())):
        return np.full_like(a, math.nan)
    p = np.zeros_like(a)
    index, value = np.flatnonzero(a), a[a > 0.0]
    while total > 0.0 and index.size:
        v = w[index]
        for _ in range(2):  # the second time corrects rounding errors that are relative to a
            value = value - ((float((v * value).sum()) - total) / float((v * v).sum())) * v
        kept = value > 0.0
        if kept.all():
            p[index] = value
            break
        index, value = index[kept], value[kept]
    return p
