"""The largest eigenvalue of ΦᵀΦ/N, from which the smoothness of every linear model follows."""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from pcfed.arrays import Float64Array
from pcfed.losses.features import Features, Matrix, is_sparse

SMALL = 64  # up to this many rows or columns the Gram matrix is the quicker way, and exact
TOLERANCE = 1e-4
EVERY = slice(None)


def largest_eigenvalue(features: Features, *, intercept: bool) -> float:
    r"""Return an upper value of $\lambda_{\max}(\Phi^\top\Phi/N)$, a column of ones included.

    Lanczos comes from below, with a relative error of `TOLERANCE` at most, so its result is
    raised by ten times that. If it fails, the trace bounds every eigenvalue.
    """
    size, columns = features.shape
    with np.errstate(all="ignore"):
        if min(size, columns + intercept) <= SMALL:
            gram = _gram(features, intercept)
            return (
                float(np.linalg.eigvalsh(gram)[-1]) / size if np.isfinite(gram).all() else math.inf
            )
        n = columns + intercept
        # Not a vector of ones: that can be orthogonal to the eigenvector that is looked for.
        start = np.random.default_rng(0).standard_normal(n)
        image = _normal_product(features, start, intercept)
        if not image.any():
            return 0.0
        if not np.isfinite(image).all():
            return math.inf
        operator = LinearOperator(
            (n, n),
            matvec=lambda v: _normal_product(features, v.ravel(), intercept),
            dtype=np.float64,
        )
        try:
            (top,) = eigsh(
                operator, k=1, which="LA", v0=start, tol=TOLERANCE, return_eigenvectors=False
            )
        except ArpackError:
            return trace(features, intercept) / size
    return float(top) * (1 + 10 * TOLERANCE) / size


def _normal_product(features: Features, v: Float64Array, intercept: bool) -> Float64Array:
    """Return ΦᵀΦ v in one pass over the data."""
    columns, scale = features.shape[1], features.scale
    w = np.zeros(len(v))
    inner = (scale * v[:columns]).astype(features.dtype)
    for block, _ in features.blocks(EVERY):
        t = block @ inner
        if intercept:
            t += features.dtype.type(v[columns])
            w[columns] += t.sum(dtype=np.float64)
        w[:columns] += t @ block
    w[:columns] *= scale
    return w


def _gram(features: Features, intercept: bool) -> Float64Array:
    """Return the lower triangle of ΦᵀΦ, or of ΦΦᵀ if that is smaller, in float64."""
    size, columns = features.shape
    scale = features.scale
    if size < columns + intercept:
        (block,) = (block.astype(np.float64) for block, _ in features.blocks(EVERY))
        return scale**2 * _dense(block @ block.T) + float(intercept)
    gram = np.zeros((columns + intercept, columns + intercept))
    for raw, _ in features.blocks(EVERY):
        block = raw.astype(np.float64)
        gram[:columns, :columns] += scale**2 * _dense(block.T @ block)
        if intercept:
            gram[columns, :columns] += scale * np.asarray(block.sum(axis=0)).ravel()
            gram[columns, columns] += block.shape[0]
    return gram


def trace(features: Features, intercept: bool) -> float:
    """Return the trace of ΦᵀΦ, the sum of all ‖φ‖²."""
    blocks = (block.astype(np.float64) for block, _ in features.blocks(EVERY))
    squares = sum(float((block * block).sum()) for block in blocks)
    return features.scale**2 * squares + features.shape[0] * float(intercept)


def largest_row(features: Features, intercept: bool) -> float:
    """Return the largest ‖φ‖² of a sample."""
    blocks = (block.astype(np.float64) for block, _ in features.blocks(EVERY))
    top = max(float((block * block).sum(axis=1).max()) for block in blocks)
    return features.scale**2 * top + float(intercept)


def _dense(matrix: Matrix) -> Float64Array:
    """Return a product of two blocks as an array."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix)
