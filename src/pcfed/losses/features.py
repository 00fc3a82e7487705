"""The feature matrix Φ = scale · X of a linear model, read in blocks of rows.

X stays in the form in which it is cheap to keep: float32 or float64, uint8 pixels, or sparse
rows. Only blocks are converted, and the scale goes into the small matrices of a product.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

from pcfed.validation import positive

Matrix = Any
"""Dense (numpy.ndarray) or sparse (scipy.sparse.csr_array) rows of features."""

Index = slice | NDArray[np.intp]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
PIXELS = np.dtype(np.uint8)
BLOCK_ROWS = 4096  # bounds the memory for logits
BLOCK_BYTES = 2**21  # a copied block stays in the cache between its two products


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of features: ``scale * matrix``, with products in ``dtype``."""

    matrix: Matrix
    dtype: np.dtype[Any]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        rows, columns = self.matrix.shape
        return int(rows), int(columns)

    def permuted(self, order: NDArray[np.intp]) -> Features:
        """Return a copy with the rows in the given order."""
        return Features(_locked(self.matrix[order]), self.dtype, self.scale)

    def double(self) -> Features:
        """Return the same features with products in float64; dense data are not copied."""
        matrix = self.matrix.astype(np.float64) if is_sparse(self.matrix) else self.matrix
        return Features(_locked(matrix), np.dtype(np.float64), self.scale)

    def blocks(self, index: Index) -> Iterator[tuple[Matrix, Index]]:
        """Yield the rows ``index`` without the scale, block by block, each with its own index.

        A block may be a view on the data, or a buffer that the next one in this thread overwrites.
        """
        matrix, gather = self.matrix, not isinstance(index, slice)
        copied = (matrix.dtype != self.dtype or gather) and not is_sparse(matrix)
        step = BLOCK_ROWS
        if copied:
            step = min(step, max(64, BLOCK_BYTES // (self.dtype.itemsize * matrix.shape[1])))
        for part in parts(index, len_of(index, matrix.shape[0]), matrix.shape[0], step):
            if isinstance(part, slice) or is_sparse(matrix):
                yield self._converted(matrix[part]), part
            else:
                yield self.gathered(part), part

    def gathered(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return some rows of dense features, without the scale, in a buffer of this thread."""
        block = _buffer("gathered", (len(rows), self.matrix.shape[1]), self.matrix.dtype)
        np.take(self.matrix, rows, axis=0, out=block, mode="wrap")  # "raise" would copy once more
        converted: NDArray[Any] = self._converted(block)
        return converted

    def _converted(self, block: Matrix) -> Matrix:
        """Return a block in the dtype of products, in a buffer of this thread if it has another."""
        if block.dtype == self.dtype:
            return block
        converted = _buffer("converted", block.shape, self.dtype)
        np.copyto(converted, block)
        return converted


_kept = threading.local()


def _buffer(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return this thread's array for a purpose: fresh memory costs more than what is written."""
    size = math.prod(shape) * dtype.itemsize
    kept: NDArray[np.uint8] = getattr(_kept, name, np.empty(0, np.uint8))
    if kept.size < size:
        kept = np.empty(size, np.uint8)
        setattr(_kept, name, kept)
    return kept[:size].view(dtype).reshape(shape)


def is_sparse(matrix: Matrix) -> bool:
    """Return whether features are a scipy.sparse matrix or array."""
    return bool(sparse.issparse(matrix))


def len_of(index: Index, size: int) -> int:
    """Return how many of ``size`` rows an index selects."""
    return len(range(*index.indices(size))) if isinstance(index, slice) else len(index)


def parts(index: Index, length: int, size: int, step: int) -> Iterator[Index]:
    """Cut an index into indices of at most ``step`` rows."""
    if length <= step:
        yield index
    elif isinstance(index, slice):
        every = range(*index.indices(size))
        for start in range(0, length, step):
            part = every[start : start + step]
            yield slice(part.start, None if part.stop < 0 else part.stop, part.step)
    else:
        for start in range(0, length, step):
            yield index[start : start + step]


def read_features(
    where: str, X: Matrix, *, scale: float | None, dtype: DTypeLike | None
) -> Features:
    """Check ``X`` and wrap it without a copy where its form allows it."""
    if scale is not None:
        scale = positive(f"{where}: scale", scale)
    matrix: Matrix = X if is_sparse(X) else _array(X)
    if matrix.dtype.kind not in "fiub":
        raise ValueError(
            f"{where}: X must be real numbers in a rectangular array, got "
            f"{type(X).__name__} of {matrix.dtype}; give a float, uint8 or sparse matrix."
        )
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(
            f"{where}: X must be a matrix of samples × features, both at least 1, "
            f"got shape {matrix.shape}; give one row per sample, for images "
            "X.reshape(len(X), -1)."
        )
    given = matrix.dtype
    if scale is None:
        scale = 1 / 255 if given == PIXELS else 1.0
    kind = _float_dtype(where, dtype, given)
    if is_sparse(matrix):
        with np.errstate(over="ignore"):
            matrix = sparse.csr_array(matrix, dtype=kind)
        _check_finite(where, matrix.data, "among its stored entries")
    elif given != PIXELS:
        with np.errstate(over="ignore"):
            matrix = matrix.astype(kind, copy=False)
        _check_finite(where, matrix, "")
    if not is_sparse(matrix) and matrix.strides[1] != matrix.itemsize:
        matrix = np.ascontiguousarray(matrix)
    return Features(_locked(matrix), kind, scale)


def _array(X: ArrayLike) -> NDArray[Any]:
    """Return ``X`` as a plain array, of text if it holds no numbers."""
    try:
        array = np.asarray(X)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        array = np.asarray("no numbers")
    return array


def _float_dtype(where: str, dtype: DTypeLike | None, given: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype asked for, or else the one that suits features of the ``given`` dtype."""
    if dtype is None:
        small = given.kind == "f" and given.itemsize <= 4
        return FLOATS[0] if small or given == PIXELS else FLOATS[1]
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind not in FLOATS:
        raise ValueError(
            f"{where}: dtype must be float32 or float64, got {dtype!r}; "
            "leave it out to take that of X."
        )
    return kind


def _check_finite(where: str, array: NDArray[Any], place: str) -> None:
    """Refuse NaN and inf, looking at a block of rows at a time."""
    for start in range(0, len(array), BLOCK_ROWS):
        finite = np.isfinite(array[start : start + BLOCK_ROWS])
        if not finite.all():
            at = np.argwhere(~finite)[0]
            at[0] += start
            place = place or f"at row {at[0]}, column {at[-1]}"
            raise ValueError(
                f"{where}: X must be finite in {array.dtype}, got {array[tuple(at)]} {place}; "
                "remove or replace such samples."
            )


def _locked(matrix: Matrix) -> Matrix:
    """Return a view that cannot be written through; the caller's array stays as it is."""
    if is_sparse(matrix):
        parts = tuple(_locked(part) for part in (matrix.data, matrix.indices, matrix.indptr))
        return sparse.csr_array(parts, shape=matrix.shape)
    view = matrix.view()
    view.setflags(write=False)
    return view
