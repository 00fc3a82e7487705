"""The gradient of a linear model on a batch, at one or several points, four samples at a time.

Points are one after the other in a flat vector, and share the pass over the batch. Four rows of
features are converted to the dtype of the products and stay in the cache while they are multiplied
with two outputs at a time, so that arithmetic and not loading takes the time. The loops get start
indices instead of slices, because slicing takes longer than a short loop. LLVM may reorder and
contract sums of products, to use vector instructions; everything else is executed as it is written.
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
from pcfed.kernels.arguments import (
    LOGISTIC,
    SOFTMAX,
    BatchSource,
    GradientScratch,
    LinearModelSpec,
)
from pcfed.kernels.compiler import (
    Index,
    address_of,
    call_by_address,
    compile_kernel,
    helper,
    matrix_type,
    named_tuple_type,
    vector_type,
)

_products = helper("reassoc", "contract", "nsz")
_exact = helper()


@_exact
def _load(
    four: Array, features: NDArray[Any], rows: NDArray[np.intp], i: Any, first: Any, width: Any
) -> None:
    """Convert a piece of four samples from the i-th on, repeating the last if there are fewer."""
    for r in range(Index(4)):
        row = Index(rows[min(i + r, Index(rows.size - 1))])
        for j in range(width):
            four[r, j] = features[row, first + j]


@_products
def _add_logits(
    t: Array, i: Any, k: Any, m: Any, four: Array, x: Array, row: Any, other: Any, width: Any
) -> None:
    """Add the products of four samples with two pieces of x to their logits k and m."""
    a, b, c, d = Index(0), Index(1), Index(2), Index(3)
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
    a, b, c, d = Index(0), Index(1), Index(2), Index(3)
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
    forward: bool,
    x: Array,
    g: Array,
    features: NDArray[Any],
    rows: NDArray[np.intp],
    scratch: GradientScratch,
) -> None:
    """Forward: add W φ of every sample to its logits, where points begin with W. Else R φᵀ to g."""
    four, R, columns = scratch.samples, scratch.slopes, Index(features.shape[1])
    outputs = Index(scratch.logits.size)
    points = Index(R.shape[0]) // outputs
    n = Index(x.size) // points
    for first in range(Index(0), columns, Index(four.shape[1])):
        width = min(Index(four.shape[1]), columns - first)
        for i in range(Index(0), Index(rows.size), Index(4)):
            _load(four, features, rows, i, first, width)
            for point in range(points):
                above, start = point * outputs, point * n + first
                for k in range(Index(0), outputs, Index(2)):
                    m = min(k + Index(1), outputs - Index(1))
                    row, other = start + k * columns, start + m * columns
                    if forward:
                        _add_logits(R, i, above + k, above + m, four, x, row, other, width)
                    else:
                        _add_four(g, row, other, width, four, R, i, above + k, above + m)


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
def gradient_one(
    x: Array, source: BatchSource, step: int, agent: int, scratch: GradientScratch, g: Array
) -> None:
    """Write the gradients of one agent at the points in x, on its batch of a step, to g."""
    features, targets, batch = source.features, source.targets, source.batches[step, agent]
    loss, outputs, intercept, scale, l2 = source.model
    t, R, size = scratch.logits, scratch.slopes, outputs * features.shape[1]
    n = size + (outputs if intercept else 0)
    share = x.dtype.type(1 / batch.size)
    for j in range(g.size):
        g[j] = 0
    for start in range(0, batch.size, R.shape[1]):
        rows = batch[start : start + R.shape[1]]
        for k in range(R.shape[0]):
            for i in range(R.shape[1]):
                R[k, i] = 0
        for forward in (True, False):  # one call for both: two would be compiled twice
            _multiply(forward, x, g, features, rows, scratch)
            if forward:
                for first in range(0, R.shape[0], outputs):  # of the outputs of a point
                    b = first // outputs * n + size  # where its intercept begins
                    for i in range(rows.size):
                        for k in range(outputs):
                            t[k] = R[first + k, i] * scale
                            if intercept:
                                t[k] += x[b + k]
                        _slopes(loss, t, targets[rows[i]])
                        for k in range(outputs):
                            t[k] *= share
                            if intercept:
                                g[b + k] += t[k]
                            R[first + k, i] = t[k] * scale
                for k in range(R.shape[0]):
                    for i in range(rows.size, R.shape[1]):
                        R[k, i] = 0
    if l2 != 0:
        for start in range(0, x.size, n):
            for j in range(start, start + size):
                g[j] += l2 * x[j]


# -- entry points ---------------------------------------------------------------------------------


def _signature(x: Any, source: Any, *_: Any) -> Any:
    """Return the signature of ``gradient_one`` for vectors like x and a source."""
    read, write = vector_type(x.dtype, readonly=True), vector_type(x.dtype)
    return types.void(read, source, types.intp, types.intp, scratch_type(x.dtype), write)


gradient_at = call_by_address(_signature)
"""``gradient_one`` for compiled loops, which get its address."""


@_exact
def _gradient_rows(
    gradient: int, x: Array, source: BatchSource, scratch: GradientScratch, out: Array
) -> None:
    for i in range(x.shape[0]):
        gradient_at(gradient, x[i], source, 0, i, scratch, out[i])


@cache
def gradient(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., None]:
    """Return ``gradient_one``, compiled for parameters and features of these dtypes."""
    x = vector_type(numba.from_dtype(dtype))
    return compile_kernel(gradient_one, _signature(x, source_type(dtype, features)))


@cache
def gradient_rows(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_gradient_rows``, compiled for parameters and features of these dtypes."""
    number = numba.from_dtype(dtype)
    x, out = matrix_type(number, readonly=True), matrix_type(number)
    data = (source_type(dtype, features), scratch_type(number))
    rows = compile_kernel(_gradient_rows, (types.intp, x, *data, out))
    return partial(rows, address_of(gradient(dtype, features)))


def source_type(dtype: np.dtype[Any], features: np.dtype[Any]) -> Any:
    """Return the type of a `BatchSource`."""
    number = numba.from_dtype(dtype)
    return named_tuple_type(
        BatchSource,
        matrix_type(numba.from_dtype(features), readonly=True),
        vector_type(types.float64, readonly=True),
        types.Array(types.intp, 3, "C", readonly=True),
        named_tuple_type(LinearModelSpec, types.intp, types.intp, types.boolean, number, number),
    )


def scratch_type(number: Any) -> Any:
    """Return the type of a `GradientScratch`."""
    matrix = matrix_type(number)
    return named_tuple_type(GradientScratch, matrix, vector_type(number), matrix)
