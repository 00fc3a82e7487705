"""Projections onto l1 balls and simplices: the same bits as `pcfed.sets.threshold`, but faster.

Letters as there: the numbers a are |x| for an l1 ball and x for a simplex, τ is their ``total``, θ
the threshold, m the smallest number above it, b the largest that is not above it, and
f(θ) = Σ max(a − θ, 0).

θ starts from its last value, or from the threshold of a sample. One pass over x evaluates f there
and also counts the numbers that are a little smaller than θ: that gives their density, and with it
the parabola through f whose zero of f − τ is the next θ. Mostly one more pass is enough. Where
passes are slow and few numbers are above θ, those are gathered, and later passes see only them. At
the end m is tested: f(m) < τ ≤ f(b) holds. Until then sums are rough: float32 numbers are added in
float32, piece by piece, which is twice as fast. Only the sums that decide, and the result, are
computed in float64.

The loops have no branches, so that LLVM can use vector instructions. For that it may reorder
additions, except where a bit of the result depends on it: such sums are taken on grids, where every
order gives the same result (``reproducible_sum``). It may assume nothing about NaN and inf, so a
minimum is vectorised only if numbers are compared by their bits, as integers. Counts are integers
as wide as the numbers, or vectors would be half empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array
from pcfed.kernels.arguments import ThresholdSets
from pcfed.kernels.compiler import (
    address_of,
    bits,
    call_by_address,
    compile_kernel,
    helper,
    matrix_type,
    named_tuple_type,
    unsigned_type,
    vector_type,
)

Pair = tuple[float, float]
PROJECTED, INSIDE, UNRESOLVED = 0, 1, 2
"""The status of a point: its projection was written, it is in the set, or NumPy must handle it."""

EPS, HUGE, ROUNDS = 2.0**-52, 1e100, 60

# By measurement, for 10^3 to 10^7 numbers:
SAMPLE, CHUNK = 4096, 16  # numbers to guess θ from at most, and how many of them lie together
ASIDE = 0.1  # the density is that of the numbers between (1 − ASIDE) θ and θ
SURE = 0.05  # θ is good enough if (numbers between it and the last one)³ is below this × count²
FEW, LARGE = 0.3, 2**21  # gathering pays below this share, and for float32 above this length
PIECE = 1024  # how many numbers are added in their own precision

_loop = helper("reassoc", "nsz")  # additions may be reordered, to use vector instructions
_exact = helper()
_tuple: Any = types.Tuple
_reals = vector_type(types.float64)
SETS = named_tuple_type(ThresholdSets, types.boolean, _reals, types.float64, _reals)
"""The type of a `ThresholdSets`."""


# -- passes over the numbers ----------------------------------------------------------------------


@_loop
def _survey(
    x: Array, is_ball: bool, theta: float, aside: float
) -> tuple[float, float, float, float]:
    """Return Σ |x|, f(θ), and how many numbers are at least θ and ``aside``, roughly."""
    kind, whole = x.dtype.type, unsigned_type(x)
    t, u, zero = kind(theta), kind(aside), kind(0.0)
    size = above = count = more = 0.0
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        s = r = zero
        c = d = whole(0)
        for i in range(piece.size):
            v = piece[i]
            a = abs(v) if is_ball else v
            s += abs(v)
            r += a if a >= t else zero
            c = whole(c + whole(a >= t))
            d = whole(d + whole(a >= u))
        size += np.float64(s)
        above += np.float64(r)
        count += np.float64(c)
        more += np.float64(d)
    return size, above - count * np.float64(t), count, more


@_loop
def _rough_tail(x: Array, is_ball: bool, theta: float) -> Pair:
    """Return f(θ), and how many numbers are at least θ, roughly."""
    kind, whole = x.dtype.type, unsigned_type(x)
    t = kind(theta)
    above = count = 0.0
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        r, c = kind(0.0), whole(0)
        for i in range(piece.size):
            v = piece[i]
            a = abs(v) if is_ball else v
            r += (a if a >= t else t) - t
            c = whole(c + whole(a >= t))
        above += np.float64(r)
        count += np.float64(c)
    return above, count


@_loop
def _tail(x: Array, is_ball: bool, m: float) -> Pair:
    """Return the sum of the numbers that are at least m, in float64, and how many there are."""
    total, count = 0.0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        a = abs(v) if is_ball else v
        total += a if a >= m else 0.0
        count += int(a >= m)
    return total, np.float64(count)


@_exact
def _split(r: float, coarse: float, fine: float) -> Pair:
    """Return r as a multiple of the last bit of ``coarse``, and the rest as one of ``fine``."""
    high = (r + coarse) - coarse
    return high, ((r - high) + fine) - fine


@_loop
def _careful_tail(x: Array, is_ball: bool, m: float, grids: Pair) -> tuple[float, float, float]:
    """Return f(m) in the two parts of ``reproducible_sum``, and how many numbers are at least m."""
    (coarse, fine), high, low, count = grids, 0.0, 0.0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        a = abs(v) if is_ball else v
        upper, lower = _split((a if a >= m else m) - m, coarse, fine)
        high += upper
        low += lower
        count += int(a >= m)
    return high, low, np.float64(count)


@_exact
def _rounded_down(v: float, x: Array) -> Any:
    """Return the largest number of the precision of x that is not above v."""
    kind = x.dtype.type
    r = kind(v)
    return (np.nextafter(r, kind(-np.inf)) if r > v else r) + kind(0.0)  # 0 and not -0


@_exact
def _gather(x: Array, is_ball: bool, below: float, work: Array) -> int:
    """Copy the numbers above ``below`` to the front of ``work`` and return their number."""
    least = _rounded_down(below, x)  # comparing numbers of one precision takes half the time
    k = np.uintp(0)
    for i in range(x.size):
        a = abs(x[i]) if is_ball else x[i]
        work[k] = a  # the next one overwrites it unless k is incremented
        k += np.uintp(a > least)
    return int(k)


@_exact
def _ordered(q: int, positive: int) -> int:
    """Map the bits of a float to an integer of the same order as the floats; its own inverse."""
    return q ^ positive if q > positive else q


@_loop
def _neighbours(x: Array, is_ball: bool, theta: float, below: float) -> Pair:
    """Return the smallest number > θ, else inf, and the largest that is ≤ θ, else ``below``."""
    kind = unsigned_type(x)
    over = under = every = kind(~kind(0))  # distances from θ; on its other side they wrap around
    positive = kind(every >> kind(1))
    t = kind(_ordered(bits(_rounded_down(theta, x)), positive))
    for i in range(x.size):
        raw = bits(x[i])
        q = kind(raw & positive if is_ball else _ordered(raw, positive))
        over = min(over, kind(q - t - kind(1)))
        under = min(under, kind(t - q))
    m = np.float64(bits(kind(_ordered(kind(t + over + kind(1)), positive))))
    b = np.float64(bits(kind(_ordered(kind(t - under), positive))))
    return m if m > theta else np.inf, b if b <= theta else below


@_exact
def _write(x: Array, is_ball: bool, m: float, t: float, out: Array) -> None:
    """Write (a − m) + t with the sign of x where a ≥ m, and 0 elsewhere."""
    kind = out.dtype.type
    least, shift = kind(m), kind(t)  # m is one of the numbers
    for i in range(x.size):
        v = x[i]
        a = abs(v) if is_ball else v
        p = (a - least) + shift
        signed = math.copysign(p, v) if is_ball else p
        out[i] = signed if a >= least else kind(0.0)


# -- the threshold --------------------------------------------------------------------------------


@_exact
def _newton(theta: float, above: float, count: float, total: float, is_ball: bool) -> float:
    """Return the zero of the linear piece of f − τ at θ; it is never above the threshold."""
    theta += (above - total) / count
    return max(theta, 0.0) if is_ball else theta


@_exact
def _roughness(x: Array) -> float:
    """Return the relative error of a rough sum, at most."""
    return PIECE * (2.0**-24 if x.itemsize == 4 else EPS) + x.size * EPS


@_exact
def _guess(x: Array, is_ball: bool, total: float) -> float:
    """Return the rough threshold of a sample of x, for the sample's share of the total."""
    chunks = min(x.size // 16, SAMPLE) // CHUNK
    chosen = np.empty(chunks * CHUNK, x.dtype)
    for j in range(chunks):
        start = j * (x.size // chunks)
        for i in range(CHUNK):
            chosen[j * CHUNK + i] = x[start + i]
    sample = chosen if chunks > 0 else x
    share = total * (sample.size / x.size)
    theta, count = 0.0 if is_ball else np.float64(x[0]) - total, 0.0
    for _ in range(8):
        before, theta = count, _rounded_down(theta, x)
        above, count = _rough_tail(sample, is_ball, theta)
        if count == 0.0:
            break
        theta = _newton(theta, above, count, share, is_ball)
        if abs(count - before) < count / 16.0:
            break
    return theta


@_exact
def _rest(a: Array, is_ball: bool, v: float, total: float, grids: Pair) -> Pair:
    """Return τ − f(v), in every order the same, and how many numbers are at least v."""
    if a.itemsize == 4 and v >= 2.0**-29 * grids[0] and a.size <= 2**27:
        # float32 numbers of this size, up to a sum of f(v) + count v, add up without rounding
        high, count = _tail(a, is_ball, v)
        return total - (high - count * v), count
    high, low, count = _careful_tail(a, is_ball, v, grids)
    return (total - high) - low, count


@_exact
def _approach(
    x: Array,
    is_ball: bool,
    total: float,
    seen: tuple[float, float, float, float, float],
    work: Array,
) -> tuple[Array, float, float]:
    """Return candidates, an upper bound of all other numbers, and a θ close to the threshold."""
    theta, above, count, last, before = seen  # θ, f(θ), its count, an earlier θ and its count
    a, below = x, 0.0 if is_ball else -np.inf
    for _ in range(ROUNDS):
        count = max(count, 1.0)
        error = _roughness(x) * (above / count + abs(theta))
        ahead = least = _newton(theta, above, count, total, is_ball)
        between, width = abs(count - before), abs(theta - last)
        # f is a parabola if the density is everywhere that between θ and the last θ
        slope = count * count - 2.0 * (above - total) * between / width
        if slope > 0.0:
            ahead = max(least, theta + 2.0 * (above - total) / (count + math.sqrt(slope)))
        steps = abs(ahead - theta) / width
        few = (between + 1.0) * steps
        if steps < 2.0 and few * few * few < SURE * count * count:
            return a, below, ahead
        if count < FEW * a.size and (x.itemsize == 8 or x.size > LARGE):
            below = max(below, least - error)
            a = work[: _gather(a, is_ball, below, work)]
        last, before, theta = theta, count, _rounded_down(ahead, x)
        if theta == last:
            break
        above, count = _rough_tail(a, is_ball, theta)
        if count == 0.0:  # too far ahead
            theta = _rounded_down(least - error, x)
            above, count = _rough_tail(a, is_ball, theta)
    return a, below, theta


@_exact
def _decide(a: Array, is_ball: bool, total: float, theta: float, below: float, grids: Pair) -> Pair:
    """Return m and t = m − threshold, or NaN, from what ``_approach`` returned."""
    doubt = 4.0 * EPS * total
    for _ in range(ROUNDS):
        m, b = _neighbours(a, is_ball, theta, below)
        if m == np.inf:  # θ was rounded to above all numbers
            theta = np.nextafter(b, -np.inf)
            continue
        rest, count = _rest(a, is_ball, m, total, grids)
        if rest <= 0.0:
            theta = m - rest / count
            continue
        gap = count * (m - b) - rest  # f(b) − τ
        if gap > doubt or (gap > -doubt and _rest(a, is_ball, b, total, grids)[0] <= 0.0):
            return m, rest / count
        if b == below:
            break
        theta = min(m - rest / count, np.nextafter(b, -np.inf))
    return math.nan, math.nan


@_exact
def _grids(total: float, n: int) -> Pair:
    """Return floats whose last bits are units in which n numbers add up to ``total`` exactly."""
    e = math.frexp(total)[1]
    return math.ldexp(1.0, e + 1), math.ldexp(1.5, e - 52 + math.frexp(float(n))[1])


@_exact
def _inside(x: Array, is_ball: bool, total: float, slack: float, size: float, grids: Pair) -> bool:
    """Return whether x is in the set; ``size`` is Σ |x| up to rounding."""
    margin = slack * total
    if abs(size - total) > margin + _roughness(x) * size:
        return is_ball and size < total
    high, low, positive = _careful_tail(x, is_ball, 0.0, grids)
    excess = (high - total) + low
    return excess <= margin and (is_ball or (excess >= -margin and positive == x.size))


@_exact
def project_one(
    x: Array, is_ball: bool, total: float, slack: float, start: float, out: Array
) -> tuple[int, float]:
    """Project x onto a ball or a simplex, and return a status and θ.

    ``slack`` is how far from the total, relative to it, a point may be and still count as inside;
    ``start`` is any θ or NaN; ``out`` shares no memory with x, and is not written if x is invalid.
    """
    theta = start
    for _ in range(2):  # a second time if ``start`` was useless
        if not abs(theta) < HUGE:
            theta = _guess(x, is_ball, total)
        theta = _rounded_down(theta, x)
        aside = theta - ASIDE * abs(theta)
        size, above, count, more = _survey(x, is_ball, theta, aside)
        if count > 0.0 and abs(theta) <= size + total:
            break
        theta = math.nan
    if not size < HUGE:
        return UNRESOLVED, start
    grids = _grids(total, x.size)
    if _inside(x, is_ball, total, slack, size, grids):
        return INSIDE, start
    a, below, theta = _approach(x, is_ball, total, (theta, above, count, aside, more), out)
    m, t = _decide(a, is_ball, total, theta, below, grids)
    if math.isnan(m):
        return UNRESOLVED, start
    _write(x, is_ball, m, t, out)
    return PROJECTED, m - t


# -- entry points ---------------------------------------------------------------------------------


def _signature(x: Any, *_: Any) -> Any:
    """Return the signature of ``project_one`` for vectors like x."""
    read, write = vector_type(x.dtype, readonly=True), vector_type(x.dtype)
    real = types.float64
    return _tuple((types.intp, real))(read, types.boolean, real, real, real, write)


_project_at = call_by_address(_signature)


@_exact
def project_row(project: int, x: Array, sets: ThresholdSets, i: int, out: Array) -> int:
    """Project x onto the i-th set by the kernel at an address; return its status."""
    start = sets.thresholds[i]
    status, sets.thresholds[i] = _project_at(
        project, x, sets.is_ball, sets.totals[i], sets.slack, start, out
    )
    return int(status)


@_exact
def _project_rows(project: int, x: Array, sets: ThresholdSets, out: Array) -> bool:
    """Project every row onto its own set; return False if one is unresolved."""
    for i in range(x.shape[0]):
        status = project_row(project, x[i], sets, i, out[i])
        if status == UNRESOLVED:
            return False
        for j in range(x.shape[1] if status == INSIDE else 0):
            out[i, j] = x[i, j]
    return True


@cache
def project(dtype: np.dtype[Any]) -> Callable[..., tuple[int, float]]:
    """Return ``project_one``, compiled for one dtype."""
    return compile_kernel(project_one, _signature(vector_type(numba.from_dtype(dtype))))


@cache
def project_rows(dtype: np.dtype[Any]) -> Callable[..., bool]:
    """Return ``_project_rows``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    x, out = matrix_type(number, readonly=True), matrix_type(number)
    rows = compile_kernel(_project_rows, (types.intp, x, SETS, out))
    return partial(rows, address_of(project(dtype)))
