"""The gradient of a linear model on a batch as compiled loops over a few samples at a time.

Four rows of features, converted to the dtype of the products, are in the cache while two outputs at
a time meet them: so few numbers are loaded for each product that arithmetic is what takes the time.
Nothing is cut out of arrays in these loops, because that takes longer than a short loop. Sums of
products may be reordered and contracted, to become vector instructions; all else is done as it is
written.

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
from numpy.typing import NDArray

from pcfed.arrays import Array
from pcfed.kernels.compiler import U, address, calling, entry, part
from pcfed.losses.compiled import LOGISTIC, SOFTMAX

_tuple: Any = types.Tuple
_products = part("reassoc", "contract", "nsz")
_exact = part()


@_exact
def _load(
    four: Array, features: NDArray[Any], rows: NDArray[np.intp], i: Any, first: Any, width: Any
) -> None:
    """Convert a piece of four samples from the i-th on; the last stands in for those missing."""
    for r in range(U(4)):
        row = U(rows[min(i + r, U(rows.size - 1))])
        for j in range(width):
            four[r, j] = features[row, first + j]


@_products
def _add_logits(
    t: Array, i: Any, k: Any, m: Any, four: Array, x: Array, row: Any, other: Any, width: Any
) -> None:
    """Add the products of four samples with two pieces of x to their logits k and m."""
    a, b, c, d = U(0), U(1), U(2), U(3)
    ak = bk = ck = dk = am = bm = cm = dm = x.dtype.type(0)
    for j in range(width):
        v, w = x[row + j], x[other + j]
        ak += four[a, j] * v
        bk += four[b, j] * v
        ck += four[c, j] * v
        dk += four[d, j] * v
        am += four[a, j] * w
        bm += four[b, j] * w
        cm += four[c, j] * w
        dm += four[d, j] * w
    t[k, i] += ak
    t[k, i + b] += bk
    t[k, i + c] += ck
    t[k, i + d] += dk
    if m != k:
        t[m, i] += am
        t[m, i + b] += bm
        t[m, i + c] += cm
        t[m, i + d] += dm


@_products
def _add_four(
    g: Array, row: Any, other: Any, width: Any, four: Array, R: Array, i: Any, k: Any, m: Any
) -> None:
    """Add four samples times their slopes k and m to two pieces of g."""
    a, b, c, d = U(0), U(1), U(2), U(3)
    ak, bk, ck, dk = R[k, i], R[k, i + b], R[k, i + c], R[k, i + d]
    if m == k:
        for j in range(width):
            g[row + j] = (
                g[row + j] + ak * four[a, j] + bk * four[b, j] + ck * four[c, j]
            ) + dk * four[d, j]
        return
    am, bm, cm, dm = R[m, i], R[m, i + b], R[m, i + c], R[m, i + d]
    for j in range(width):
        p, q, r, s = four[a, j], four[b, j], four[c, j], four[d, j]
        g[row + j] = g[row + j] + ak * p + bk * q + ck * r + dk * s
        g[other + j] = g[other + j] + am * p + bm * q + cm * r + dm * s


@_exact
def _multiply(
    forth: bool, x: Array, g: Array, features: NDArray[Any], rows: NDArray[np.intp], room: Any
) -> None:
    """Add W φ of every sample to its logits, where x begins with W; or, back, R φᵀ to g."""
    (four, _, R), columns = room, U(features.shape[1])
    outputs = U(R.shape[0])
    for first in range(U(0), columns, U(four.shape[1])):
        width = min(U(four.shape[1]), columns - first)
        for i in range(U(0), U(rows.size), U(4)):
            _load(four, features, rows, i, first, width)
            for k in range(U(0), outputs, U(2)):
                m = min(k + U(1), outputs - U(1))
                row, other = k * columns + first, m * columns + first
                if forth:
                    _add_logits(R, i, k, m, four, x, row, other, width)
                else:
                    _add_four(g, row, other, width, four, R, i, k, m)


@_exact
def _slopes(kind: int, t: Array, target: float) -> None:
    """Turn the logits of one sample into the derivatives of its loss."""
    one = t.dtype.type(1)
    if kind == SOFTMAX:
        top = t[0]
        for k in range(1, t.size):
            top = max(top, t[k])
        total = t.dtype.type(0)
        for k in range(t.size):
            t[k] = math.exp(t[k] - top)
            total += t[k]
        for k in range(t.size):
            t[k] /= total
        t[int(target)] -= one
    elif kind == LOGISTIC:
        y = t.dtype.type(target)
        t[0] = -y / (one + math.exp(y * t[0]))
    else:
        t[0] -= t.dtype.type(target)


@_exact
def gradient_one(x: Array, source: Any, step: int, agent: int, room: Any, g: Array) -> None:
    """Write the gradient of one agent at x, on its batch of a step; ``room`` is the source's."""
    features, targets, batches, (kind, outputs, intercept, scale, l2) = source
    (_, t, R), batch, size = room, batches[step, agent], outputs * features.shape[1]
    share = x.dtype.type(1 / batch.size)
    for j in range(g.size):
        g[j] = 0
    for start in range(0, batch.size, R.shape[1]):
        rows = batch[start : start + R.shape[1]]
        for k in range(outputs):
            for i in range(R.shape[1]):
                R[k, i] = 0
        for forth in (True, False):  # one call for both, or it would be compiled twice
            _multiply(forth, x, g, features, rows, room)
            if forth:
                for i in range(rows.size):
                    for k in range(outputs):
                        t[k] = R[k, i] * scale
                        if intercept:
                            t[k] += x[size + k]
                    _slopes(kind, t, targets[rows[i]])
                    for k in range(outputs):
                        t[k] *= share
                        if intercept:
                            g[size + k] += t[k]
                        R[k, i] = t[k] * scale
                for k in range(outputs):
                    for i in range(rows.size, R.shape[1]):
                        R[k, i] = 0
    if l2 != 0:
        for j in range(size):
            g[j] += l2 * x[j]


# -- entry points ---------------------------------------------------------------------------------


def _signature(x: Any, source: Any, *_: Any) -> Any:
    """Return the signature of ``gradient_one`` for numbers like those of x, and a source."""
    read, write = types.Array(x.dtype, 1, "C", readonly=True), types.Array(x.dtype, 1, "C")
    return types.void(read, source, types.intp, types.intp, room_type(x.dtype), write)


gradient_at = calling(_signature)
"""``gradient_one`` for compiled loops, which get its address."""


@_exact
def _gradient_rows(gradient: int, x: Array, source: Any, room: Any, out: Array) -> None:
    for i in range(x.shape[0]):
        gradient_at(gradient, x[i], source, 0, i, room, out[i])


@cache
def gradient(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., None]:
    """Return ``gradient_one``, compiled for parameters and features of these dtypes."""
    x = types.Array(numba.from_dtype(dtype), 1, "C")
    return entry(gradient_one, _signature(x, source_type(dtype, features)))


@cache
def gradient_rows(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_gradient_rows``, compiled for parameters and features of these dtypes."""
    number = numba.from_dtype(dtype)
    x, out = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    data = (source_type(dtype, features), room_type(number))
    rows = entry(_gradient_rows, (types.intp, x, *data, out))
    return partial(rows, address(gradient(dtype, features)))


def source_type(dtype: np.dtype[Any], features: np.dtype[Any]) -> Any:
    """Return the type of a ``Source``, as a tuple."""
    number = numba.from_dtype(dtype)
    matrix = types.Array(numba.from_dtype(features), 2, "C", readonly=True)
    targets = types.Array(types.float64, 1, "C", readonly=True)
    rows = types.Array(types.intp, 3, "C", readonly=True)
    facts = _tuple((types.intp, types.intp, types.boolean, number, number))
    return _tuple((matrix, targets, rows, facts))


def room_type(number: Any) -> Any:
    """Return the type of the room of a ``Source``."""
    matrix, vector = types.Array(number, 2, "C"), types.Array(number, 1, "C")
    return _tuple((matrix, vector, matrix))
