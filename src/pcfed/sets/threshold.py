"""The threshold behind the simplex and every l1 projection.

For numbers a and a total τ > 0 there is one θ with Σ max(a − θ, 0) = τ. With m the smallest of the
numbers above θ, the active ones, and k their count, the projected numbers are

    (a − m) + t   where a ≥ m,   t = (τ − Σ (a − m)) / k,   and 0 elsewhere:

no digits are lost when a is much larger than τ, because a − m and t are of the size of the result.

θ is found by Newton's method (Michelot's, once below θ), from any start. Its rounding error is
bounded by δ; numbers within δ of it are decided by an exact sum. So m, and with it every bit of the
result, depends on a and τ alone and not on the start.

Reference: L. Condat, Fast projection onto the simplex and the l1 ball, Math. Program. 158 (2016).
"""

from __future__ import annotations

import math

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets.base import Hint


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
    delta = 64.0 * float(np.finfo(np.float64).eps) * max(abs(top), abs(theta))
    above, sure = a > theta - delta, a > theta + delta
    if np.count_nonzero(above) == np.count_nonzero(sure):
        return float(active.min())
    return _exact_minimum(a, np.unique(a[above & ~sure]), a[sure], total)


def _newton(active: Float64Array, theta: float, total: float) -> float:
    """Return the zero of the linear piece of Σ max(a − θ, 0) − τ at θ."""
    return theta + (float((active - theta).sum()) - total) / active.size


def _exact_minimum(
    a: Float64Array, doubtful: Float64Array, sure: Float64Array, total: float
) -> float:
    """Return the smallest active number when ``doubtful`` ones, sorted, are too close to tell."""
    low, high = 0, doubtful.size
    while low < high:
        middle = (low + high) // 2
        v = float(doubtful[middle])
        larger = a[a > v].tolist()
        if math.fsum([*larger, *([-v] * len(larger)), -total]) < 0.0:  # v > θ, its sign is exact
            high = middle
        else:
            low = middle + 1
    return float(doubtful[low]) if low < doubtful.size else float(sure.min())


def shrink(a: Float64Array, total: float, hint: Hint | None = None) -> Float64Array:
    """Project onto {p ≥ 0, Σ p = total}."""
    if total == 0.0:
        return np.zeros_like(a)
    m = active_minimum(a, total, hint)
    if math.isnan(m):
        return np.full_like(a, math.nan)
    mask = a >= m
    rest = a[mask] - m
    p = np.zeros_like(a)
    p[mask] = rest + max(0.0, (total - float(rest.sum())) / rest.size)
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
