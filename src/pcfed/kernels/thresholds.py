"""The threshold of ``threshold.py`` as compiled loops: the same bits in a fraction of the time.

Letters as there: the numbers a are |x| for the l1 ball (``fold``) and x for the simplex, τ is their
``total``, θ the threshold, m the smallest number above it; b is the largest that is not, and
f(θ) = Σ max(a − θ, 0).

θ is remembered, or guessed from a sample. One pass over x checks it and counts the numbers that are
a little smaller, too: that tells how dense they lie, and where f is τ if it is a parabola. Mostly
one pass more is enough. Where passes are slow and few numbers are above θ, those are copied
together, and the passes that follow see only them. At the end m is tested: f(m) < τ ≤ f(b) holds.
Until then sums are rough: float32 numbers are added in float32, piece by piece, which is twice as
quick. Only sums that decide, and the result, are taken in float64.

The loops have no branches, so that they become vector instructions. For that the compiler may
reorder additions, but not where a bit of the result depends on it: such sums are taken on grids,
where every order gives the same (``order_free_sum``). It may assume nothing about NaN and inf,
so a minimum becomes vector instructions only if numbers are compared by their bits, as integers.
Counts are integers as wide as the numbers, or vectors would be half empty.

This module imports numba; ``compiled.py`` imports it when it is first needed.
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
from pcfed.kernels.compiler import address, calling, entry, intrinsic, part

Pair = tuple[float, float]
DONE, INSIDE, LEFT = 0, 1, 2
"""What became of a point: written to ``out``, in the set, or left to NumPy, which may refuse it."""

EPS, HUGE, ROUNDS = 2.0**-52, 1e100, 60

# By measurement, for 10^3 to 10^7 numbers:
SAMPLE, CHUNK = 4096, 16  # numbers to guess θ from at most, and how many of them lie together
ASIDE = 0.1  # how much smaller than θ the numbers are that tell how dense they lie
SURE = 0.05  # θ is good enough if (numbers between it and the last one)³ is below this × count²
FEW, LARGE = 0.3, 2**21  # copying pays off below this share; of float32 above this many numbers
PIECE = 1024  # numbers whose rough sums are taken in their own precision

_loop = part("reassoc", "nsz")  # additions may be reordered: that makes vector instructions of it
_exact = part()
_tuple: Any = types.Tuple
_reals = types.Array(types.float64, 1, "C")
TARGETS = _tuple((types.boolean, _reals, types.float64, _reals))  # fold, totals, slack, thetas
_twins: Any = {types.float32: types.uint32, types.float64: types.uint64}
_twins |= {integer: number for number, integer in _twins.items()}


# -- passes over the numbers ----------------------------------------------------------------------


@intrinsic
def _integer(_: Any, x: Any) -> Any:
    """Return the type of integers that are as wide as the numbers of x."""
    return types.NumberClass(_twins[x.dtype])(x), lambda context, *_: context.get_dummy_value()


@intrinsic
def _bits(_: Any, v: Any) -> Any:
    """Return the integer that has the bits of a number, or the other way round."""
    twin = _twins[v]
    return twin(v), lambda to, builder, _, args: builder.bitcast(args[0], to.get_value_type(twin))


@_loop
def _survey(x: Array, fold: bool, theta: float, aside: float) -> tuple[float, float, float, float]:
    """Return Σ |x|, f(θ), and how many numbers are at least θ and ``aside``, roughly."""
    kind, whole = x.dtype.type, _integer(x)
    t, u, zero = kind(theta), kind(aside), kind(0.0)
    size = above = count = more = 0.0
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        s = r = zero
        c = d = whole(0)
        for i in range(piece.size):
            v = piece[i]
            a = abs(v) if fold else v
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
def _rough_tail(x: Array, fold: bool, theta: float) -> Pair:
    """Return f(θ), and how many numbers are at least θ, roughly."""
    kind, whole = x.dtype.type, _integer(x)
    t = kind(theta)
    above = count = 0.0
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        r, c = kind(0.0), whole(0)
        for i in range(piece.size):
            v = piece[i]
            a = abs(v) if fold else v
            r += (a if a >= t else t) - t
            c = whole(c + whole(a >= t))
        above += np.float64(r)
        count += np.float64(c)
    return above, count


@_loop
def _tail(x: Array, fold: bool, m: float) -> Pair:
    """Return the sum of the numbers that are at least m, in float64, and how many there are."""
    total, count = 0.0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        a = abs(v) if fold else v
        total += a if a >= m else 0.0
        count += int(a >= m)
    return total, np.float64(count)


@_exact
def _split(r: float, coarse: float, fine: float) -> Pair:
    """Return r as a multiple of the last bit of ``coarse``, and the rest as one of ``fine``."""
    high = (r + coarse) - coarse
    return high, ((r - high) + fine) - fine


@_loop
def _careful_tail(x: Array, fold: bool, m: float, grids: Pair) -> tuple[float, float, float]:
    """Return f(m) in the two parts of ``order_free_sum``, and how many numbers are at least m."""
    (coarse, fine), high, low, count = grids, 0.0, 0.0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        a = abs(v) if fold else v
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
def _gather(x: Array, fold: bool, below: float, work: Array) -> int:
    """Copy the numbers above ``below`` to the front of ``work`` and return how many there are."""
    least = _rounded_down(below, x)  # to compare numbers of one precision takes half of the time
    k = np.uintp(0)
    for i in range(x.size):
        a = abs(x[i]) if fold else x[i]
        work[k] = a  # overwritten by the next one unless k moves on
        k += np.uintp(a > least)
    return int(k)


@_exact
def _ordered(q: int, positive: int) -> int:
    """Return the bits of a number, or undo that, so that they are in the order of the numbers."""
    return q ^ positive if q > positive else q


@_loop
def _neighbours(x: Array, fold: bool, theta: float, below: float) -> Pair:
    """Return the smallest number above θ or else inf, and the largest that is not or ``below``."""
    kind = _integer(x)
    over = under = every = kind(~kind(0))  # how far from θ; beyond it distances wrap around
    positive = kind(every >> kind(1))
    t = kind(_ordered(_bits(_rounded_down(theta, x)), positive))
    for i in range(x.size):
        bits = _bits(x[i])
        q = kind(bits & positive if fold else _ordered(bits, positive))
        over = min(over, kind(q - t - kind(1)))
        under = min(under, kind(t - q))
    m = np.float64(_bits(kind(_ordered(kind(t + over + kind(1)), positive))))
    b = np.float64(_bits(kind(_ordered(kind(t - under), positive))))
    return m if m > theta else np.inf, b if b <= theta else below


@_exact
def _write(x: Array, fold: bool, m: float, t: float, out: Array) -> None:
    """Write (a − m) + t with the sign of x where a ≥ m, and 0 elsewhere."""
    kind = out.dtype.type
    least, shift = kind(m), kind(t)  # m is one of the numbers
    for i in range(x.size):
        v = x[i]
        a = abs(v) if fold else v
        p = (a - least) + shift
        signed = math.copysign(p, v) if fold else p
        out[i] = signed if a >= least else kind(0.0)


# -- the threshold --------------------------------------------------------------------------------


@_exact
def _newton(theta: float, above: float, count: float, total: float, fold: bool) -> float:
    """Return the zero of the linear piece of f − τ at θ; it is never above the threshold."""
    theta += (above - total) / count
    return max(theta, 0.0) if fold else theta


@_exact
def _roughness(x: Array) -> float:
    """Return how far a rough sum may be off, relative to it."""
    return PIECE * (2.0**-24 if x.itemsize == 4 else EPS) + x.size * EPS


@_exact
def _guess(x: Array, fold: bool, total: float) -> float:
    """Return roughly the threshold of a sample, for its share of the total."""
    chunks = min(x.size // 16, SAMPLE) // CHUNK
    chosen = np.empty(chunks * CHUNK, x.dtype)
    for j in range(chunks):
        start = j * (x.size // chunks)
        for i in range(CHUNK):
            chosen[j * CHUNK + i] = x[start + i]
    sample = chosen if chunks > 0 else x
    share = total * (sample.size / x.size)
    theta, count = 0.0 if fold else np.float64(x[0]) - total, 0.0
    for _ in range(8):
        before, theta = count, _rounded_down(theta, x)
        above, count = _rough_tail(sample, fold, theta)
        if count == 0.0:
            break
        theta = _newton(theta, above, count, share, fold)
        if abs(count - before) < count / 16.0:
            break
    return theta


@_exact
def _rest(a: Array, fold: bool, v: float, total: float, grids: Pair) -> Pair:
    """Return τ − f(v), in every order the same, and how many numbers are at least v."""
    if a.itemsize == 4 and v >= 2.0**-29 * grids[0] and a.size <= 2**27:
        # float32 numbers of this size, up to a sum of f(v) + count v, add up without rounding
        high, count = _tail(a, fold, v)
        return total - (high - count * v), count
    high, low, count = _careful_tail(a, fold, v, grids)
    return (total - high) - low, count


@_exact
def _approach(
    x: Array, fold: bool, total: float, seen: tuple[float, float, float, float, float], work: Array
) -> tuple[Array, float, float]:
    """Return numbers, a bound that all others are not above, and a θ that is about right."""
    theta, above, count, last, before = seen  # θ, f(θ), a count, and another θ and its count
    a, below = x, 0.0 if fold else -np.inf
    for _ in range(ROUNDS):
        count = max(count, 1.0)
        error = _roughness(x) * (above / count + abs(theta))
        ahead = least = _newton(theta, above, count, total, fold)
        between, width = abs(count - before), abs(theta - last)
        # f is a parabola if numbers lie as dense everywhere as between θ and the last θ
        slope = count * count - 2.0 * (above - total) * between / width
        if slope > 0.0:
            ahead = max(least, theta + 2.0 * (above - total) / (count + math.sqrt(slope)))
        steps = abs(ahead - theta) / width
        few = (between + 1.0) * steps
        if steps < 2.0 and few * few * few < SURE * count * count:
            return a, below, ahead
        if count < FEW * a.size and (x.itemsize == 8 or x.size > LARGE):
            below = max(below, least - error)
            a = work[: _gather(a, fold, below, work)]
        last, before, theta = theta, count, _rounded_down(ahead, x)
        if theta == last:
            break
        above, count = _rough_tail(a, fold, theta)
        if count == 0.0:  # too far ahead
            theta = _rounded_down(least - error, x)
            above, count = _rough_tail(a, fold, theta)
    return a, below, theta


@_exact
def _decide(a: Array, fold: bool, total: float, theta: float, below: float, grids: Pair) -> Pair:
    """Return m and t, or NaN, from numbers, a bound of all others and a θ that is about right."""
    doubt = 4.0 * EPS * total
    for _ in range(ROUNDS):
        m, b = _neighbours(a, fold, theta, below)
        if m == np.inf:  # θ was rounded to above all numbers
            theta = np.nextafter(b, -np.inf)
            continue
        rest, count = _rest(a, fold, m, total, grids)
        if rest <= 0.0:
            theta = m - rest / count
            continue
        gap = count * (m - b) - rest  # f(b) − τ
        if gap > doubt or (gap > -doubt and _rest(a, fold, b, total, grids)[0] <= 0.0):
            return m, rest / count
        if b == below:
            break
        theta = min(m - rest / count, np.nextafter(b, -np.inf))
    return math.nan, math.nan


@_exact
def _grids(total: float, n: int) -> Pair:
    """Return numbers whose last bits are the units in which n numbers add up to ``total``."""
    e = math.frexp(total)[1]
    return math.ldexp(1.0, e + 1), math.ldexp(1.5, e - 52 + math.frexp(float(n))[1])


@_exact
def _inside(x: Array, fold: bool, total: float, slack: float, size: float, grids: Pair) -> bool:
    """Say whether x is in the set; ``size`` is Σ |x| up to rounding."""
    margin = slack * total
    if abs(size - total) > margin + _roughness(x) * size:
        return fold and size < total
    high, low, positive = _careful_tail(x, fold, 0.0, grids)
    excess = (high - total) + low
    return excess <= margin and (fold or (excess >= -margin and positive == x.size))


@_exact
def project_one(
    x: Array, fold: bool, total: float, slack: float, start: float, out: Array
) -> tuple[int, float]:
    """Project x and return a status and θ.

    ``slack`` is how far from the total, relative to it, a point may be and count as inside;
    ``start`` is any θ or NaN; ``out`` shares no memory with x and is not touched if x is bad.
    """
    theta = start
    for _ in range(2):  # a second time if the start was of no use
        if not abs(theta) < HUGE:
            theta = _guess(x, fold, total)
        theta = _rounded_down(theta, x)
        aside = theta - ASIDE * abs(theta)
        size, above, count, more = _survey(x, fold, theta, aside)
        if count > 0.0 and abs(theta) <= size + total:
            break
        theta = math.nan
    if not size < HUGE:
        return LEFT, start
    grids = _grids(total, x.size)
    if _inside(x, fold, total, slack, size, grids):
        return INSIDE, start
    a, below, theta = _approach(x, fold, total, (theta, above, count, aside, more), out)
    m, t = _decide(a, fold, total, theta, below, grids)
    if math.isnan(m):
        return LEFT, start
    _write(x, fold, m, t, out)
    return DONE, m - t


# -- entry points ---------------------------------------------------------------------------------


def _signature(x: Any, *_: Any) -> Any:
    """Return the signature of ``project_one`` for numbers like those of x."""
    read, write = types.Array(x.dtype, 1, "C", readonly=True), types.Array(x.dtype, 1, "C")
    real = types.float64
    return _tuple((types.intp, real))(read, types.boolean, real, real, real, write)


project_at = calling(_signature)  # for loops that get the address of ``project_one``


@_exact
def _project_rows(project: int, x: Array, targets: Any, out: Array) -> bool:
    """Project every row, update the thetas, and say whether no row was left to NumPy."""
    fold, totals, slack, thetas = targets
    for i in range(x.shape[0]):
        status, thetas[i] = project_at(project, x[i], fold, totals[i], slack, thetas[i], out[i])
        if status == LEFT:
            return False
        for j in range(x.shape[1] if status == INSIDE else 0):
            out[i, j] = x[i, j]
    return True


@cache
def project(dtype: np.dtype[Any]) -> Callable[..., tuple[int, float]]:
    """Return ``project_one``, compiled for one dtype."""
    return entry(project_one, _signature(types.Array(numba.from_dtype(dtype), 1, "C")))


@cache
def project_rows(dtype: np.dtype[Any]) -> Callable[..., bool]:
    """Return ``_project_rows``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    x, out = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    rows = entry(_project_rows, (types.intp, x, TARGETS, out))
    return partial(rows, address(project(dtype)))
