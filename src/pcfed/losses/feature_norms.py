"""Norms of the feature matrix Φ, from which the smoothness of every linear model follows.

An intercept counts as a further column of ones.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from pcfed.arrays import Float64Array
from pcfed.losses.base import ALL_ROWS
from pcfed.losses.features import Features, Matrix, is_sparse

MAX_GRAM_SIZE = 64  # up to this many rows or columns the Gram matrix is faster, and exact
TOLERANCE = 1e-4


def largest_eigenvalue(features: Features, *, intercept: bool) -> float:
    r"""Return an upper bound on $\lambda_{\max}(\Phi^\top\Phi/N)$, close to it.

    The result is exact up to rounding if Φ has few rows or columns. Otherwise Lanczos
    approximates the eigenvalue from below with a relative error of at most `TOLERANCE`; the
    result is increased by ten times that. If Lanczos fails, the result is the trace, which is
    the sum of all eigenvalues.
    """
    size, columns = features.shape
    n = columns + intercept
    # Very large features may overflow: the smoothness is then infinite, without a warning.
    with np.errstate(all="ignore"):
        if min(size, n) <= MAX_GRAM_SIZE:
            gram = _gram_matrix(features, intercept)
            finite = np.isfinite(gram).all()
            return float(np.linalg.eigvalsh(gram)[-1]) / size if finite else math.inf
        # Not a vector of ones, which can be orthogonal to the eigenvector.
        start = np.random.default_rng(0).standard_normal(n)
        image = _gram_product(features, start, intercept)
        if not image.any():
            return 0.0
        if not np.isfinite(image).all():
            return math.inf
        operator = LinearOperator(
            (n, n),
            matvec=lambda v: _gram_product(features, v.ravel(), intercept),
            dtype=np.float64,
        )
        try:
            (top,) = eigsh(
                operator, k=1, which="LA", v0=start, tol=TOLERANCE, return_eigenvectors=False
            )
        except ArpackError:
            return squared_frobenius_norm(features, intercept=intercept) / size
    return float(top) * (1 + 10 * TOLERANCE) / size


def squared_frobenius_norm(features: Features, *, intercept: bool) -> float:
    """Return the sum of ‖φ‖² over all samples, which is the trace of ΦᵀΦ."""
    blocks = (block.astype(np.float64) for block, _ in features.blocks(ALL_ROWS))
    squares = sum(float((block * block).sum()) for block in blocks)
    return features.scale**2 * squares + features.shape[0] * float(intercept)


def max_squared_row_norm(features: Features, *, intercept: bool) -> float:
    """Return the largest ‖φ‖² of all samples."""
    blocks = (block.astype(np.float64) for block, _ in features.blocks(ALL_ROWS))
    largest = max(float((block * block).sum(axis=1).max()) for block in blocks)
    return features.scale**2 * largest + float(intercept)


def row_norms(features: Features) -> Float64Array:
    """Return the norm of every row, without an intercept."""
    norms = np.empty(features.shape[0])
    for block, part in features.blocks(ALL_ROWS):
        wide = block.astype(np.float64)
        norms[part] = np.sqrt(np.asarray((wide * wide).sum(axis=1)).ravel())
    norms *= features.scale
    return norms


def _gram_product(features: Features, v: Float64Array, intercept: bool) -> Float64Array:
    """Return ΦᵀΦ v in one pass over the data, with sums over blocks in float64."""
    columns, scale = features.shape[1], features.scale
    product = np.zeros(len(v))
    scaled = (scale * v[:columns]).astype(features.dtype)
    for block, _ in features.blocks(ALL_ROWS):
        t = block @ scaled
        if intercept:
            t += features.dtype.type(v[columns])
            product[columns] += t.sum(dtype=np.float64)
        product[:columns] += t @ block
    product[:columns] *= scale
    return product


def _gram_matrix(features: Features, intercept: bool) -> Float64Array:
    """Return the lower triangle of ΦᵀΦ, or of ΦΦᵀ if that is smaller, in float64.

    Both have the same largest eigenvalue.
    """
    size, columns = features.shape
    scale = features.scale
    if size < columns + intercept:
        # At most MAX_GRAM_SIZE rows, so they are one block.
        (block,) = (block.astype(np.float64) for block, _ in features.blocks(ALL_ROWS))
        return scale**2 * _to_dense(block @ block.T) + float(intercept)
    gram = np.zeros((columns + intercept, columns + intercept))
    for raw, _ in features.blocks(ALL_ROWS):
        block = raw.astype(np.float64)
        gram[:columns, :columns] += scale**2 * _to_dense(block.T @ block)
        if intercept:
            gram[columns, :columns] += scale * np.asarray(block.sum(axis=0)).ravel()
            gram[columns, columns] += block.shape[0]
    return gram


def _to_dense(matrix: Matrix) -> Float64Array:
    """Return a product of two blocks as an array."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix)
