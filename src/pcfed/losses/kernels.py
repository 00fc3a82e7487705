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
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from pcfed.arrays import Array
from pcfed.compiler import U, entry
from pcfed.losses.compiled import LOGISTIC, SOFTMAX

BLOCK = 2**16
"""Features of a block of samples, which is in the cache for its second use."""

NEAR = 2**14
"""Numbers that stay in a near cache: a piece of four samples and of all rows of W or G."""

_tuple: Any = types.Tuple
_products = numba.njit(fastmath={"reassoc", "contract", "nsz"}, nogil=True, error_model="numpy")
_exact = numba.njit(fastmath=False, nogil=True, error_model="numpy")


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
    t: Array, i: Any, four: Array, W: Array, k: Any, m: Any, first: Any, width: Any
) -> None:
    """Add the products of four samples with a piece of rows k and m of W to their logits."""
    a, b, c, d = U(0), U(1), U(2), U(3)
    zero = W.dtype.type(0)
    ak = bk = ck = dk = am = bm = cm = dm = zero
    for j in range(width):
        v, w = W[k, first + j], W[m, first + j]
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
    G: Array, k: Any, m: Any, first: Any, width: Any, four: Array, R: Array, i: Any
) -> None:
    """Add four samples times their slopes to a piece of rows k and m of G."""
    a, b, c, d = U(0), U(1), U(2), U(3)
    ak, bk, ck, dk = R[k, i], R[k, i + b], R[k, i + c], R[k, i + d]
    if m == k:
        for j in range(width):
            G[k, first + j] = (
                G[k, first + j] + ak * four[a, j] + bk * four[b, j] + ck * four[c, j]
            ) + dk * four[d, j]
        return
    am, bm, cm, dm = R[m, i], R[m, i + b], R[m, i + c], R[m, i + d]
    for j in range(width):
        p, q, r, s = four[a, j], four[b, j], four[c, j], four[d, j]
        G[k, first + j] = G[k, first + j] + ak * p + bk * q + ck * r + dk * s
        G[m, first + j] = G[m, first + j] + am * p + bm * q + cm * r + dm * s


@_exact
def _logits(
    W: Array, features: NDArray[Any], rows: NDArray[np.intp], four: Array, t: Array
) -> None:
    """Write W φ of every sample, (outputs, samples)."""
    outputs, columns = U(W.shape[0]), U(W.shape[1])
    t[:] = 0
    for first in range(U(0), columns, U(four.shape[1])):
        width = min(U(four.shape[1]), columns - first)
        for i in range(U(0), U(rows.size), U(4)):
            _load(four, features, rows, i, first, width)
            for k in range(U(0), outputs, U(2)):
                _add_logits(t, i, four, W, k, min(k + U(1), outputs - U(1)), first, width)


@_exact
def _add_products(
    G: Array, features: NDArray[Any], rows: NDArray[np.intp], four: Array, R: Array
) -> None:
    """Add slopes ⊗ features of every sample to G."""
    outputs, columns = U(G.shape[0]), U(G.shape[1])
    for first in range(U(0), columns, U(four.shape[1])):
        width = min(U(four.shape[1]), columns - first)
        for i in range(U(0), U(rows.size), U(4)):
            _load(four, features, rows, i, first, width)
            for k in range(U(0), outputs, U(2)):
                _add_four(G, k, min(k + U(1), outputs - U(1)), first, width, four, R, i)


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
    """Write the gradient of one agent at x, on its batch of a step; ``room`` is of `room_for`."""
    features, targets, batches, (kind, outputs, intercept, scale, l2) = source
    four, t, R = room
    batch, size = batches[step, agent], outputs * features.shape[1]
    W, G = x[:size].reshape(outputs, -1), g[:size].reshape(outputs, -1)
    share = x.dtype.type(1 / batch.size)
    g[:] = 0
    for start in range(0, batch.size, R.shape[1]):
        rows = batch[start : start + R.shape[1]]
        _logits(W, features, rows, four, R)
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
        R[:, rows.size :] = 0
        _add_products(G, features, rows, four, R)
    if l2 != 0:
        for j in range(size):
            g[j] += l2 * x[j]


@_exact
def room_for(source: Any, like: Array) -> Any:
    """Return the arrays that ``gradient_one`` works in."""
    features, _, batches, (_, outputs, _, _, _) = source
    columns = features.shape[1]
    pieces = -(-columns * (outputs + 4) // NEAR)
    width = min(columns, (columns // pieces + 15) // 16 * 16)
    samples = (min(batches.shape[2], BLOCK // columns) + 3) // 4 * 4
    four, t = np.empty((4, width), like.dtype), np.empty(outputs, like.dtype)
    return four, t, np.empty((outputs, max(samples, 4)), like.dtype)


@_exact
def _gradient_rows(x: Array, source: Any, out: Array) -> None:
    room = room_for(source, out)
    for i in range(x.shape[0]):
        gradient_one(x[i], source, 0, i, room, out[i])


# -- entry points ---------------------------------------------------------------------------------


@cache
def gradient_rows(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_gradient_rows``, compiled for parameters and features of these dtypes."""
    number = numba.from_dtype(dtype)
    x, out = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    return entry(_gradient_rows, (x, source_type(dtype, features), out))


def source_type(dtype: np.dtype[Any], features: np.dtype[Any]) -> Any:
    """Return the type of a ``Source``, as a tuple."""
    number = numba.from_dtype(dtype)
    matrix = types.Array(numba.from_dtype(features), 2, "C", readonly=True)
    targets = types.Array(types.float64, 1, "C", readonly=True)
    rows = types.Array(types.intp, 3, "C", readonly=True)
    facts = _tuple((types.intp, types.intp, types.boolean, number, number))
    return _tuple((matrix, targets, rows, facts))
