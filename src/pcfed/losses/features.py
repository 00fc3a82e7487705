"""The feature matrix Φ = scale · X of a linear model, read in blocks of rows.

X is kept in the dtype and form in which it needs the least memory: float32 or float64, uint8
pixels, or sparse rows. Only blocks are converted, and products apply the scale to their small
factor.
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

from pcfed.losses.base import RowIndex, split_index
from pcfed.validation import positive

Matrix = Any
"""Dense (numpy.ndarray) or sparse (scipy.sparse.csr_array) rows of features."""

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
UINT8 = np.dtype(np.uint8)
MAX_BLOCK_ROWS = 4096  # bounds the memory for logits
MAX_BLOCK_BYTES = 2**21  # a copied block stays in the cache between its two products


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of features: ``scale * matrix``, with products in ``dtype``."""

    matrix: Matrix
    dtype: np.dtype[Any]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and number of features."""
        rows, columns = self.matrix.shape
        return int(rows), int(columns)

    def permute_rows(self, order: NDArray[np.intp]) -> Features:
        """Return a copy with the rows in the given order."""
        return Features(_read_only_view(self.matrix[order]), self.dtype, self.scale)

    def to_float64(self) -> Features:
        """Return the same features with products in float64; dense data are not copied."""
        matrix = self.matrix.astype(np.float64) if is_sparse(self.matrix) else self.matrix
        return Features(_read_only_view(matrix), FLOAT64, self.scale)

    def blocks(self, index: RowIndex) -> Iterator[tuple[Matrix, RowIndex]]:
        """Yield the rows ``index``, not scaled, in blocks, each with its own index.

        A block is a view on the data, or a buffer that the next block of this thread overwrites.
        """
        matrix = self.matrix
        is_copied = matrix.dtype != self.dtype or not isinstance(index, slice)
        max_rows = MAX_BLOCK_ROWS
        if is_copied and not is_sparse(matrix):
            row_bytes = self.dtype.itemsize * matrix.shape[1]
            max_rows = min(max_rows, max(64, MAX_BLOCK_BYTES // row_bytes))
        for part in split_index(index, matrix.shape[0], max_rows):
            if isinstance(part, slice) or is_sparse(matrix):
                yield self._convert(matrix[part]), part
            else:
                yield self.gather(part), part

    def gather(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return some rows of dense features, not scaled, in a buffer of this thread."""
        block = _thread_buffer("gathered", (len(rows), self.matrix.shape[1]), self.matrix.dtype)
        # With mode="raise", NumPy would copy into another buffer first.
        np.take(self.matrix, rows, axis=0, out=block, mode="wrap")
        converted: NDArray[Any] = self._convert(block)
        return converted

    def _convert(self, block: Matrix) -> Matrix:
        """Return a block in the dtype of products, if necessary in a buffer of this thread."""
        if block.dtype == self.dtype:
            return block
        converted = _thread_buffer("converted", block.shape, self.dtype)
        np.copyto(converted, block)
        return converted


_thread_buffers = threading.local()


def _thread_buffer(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array in memory that this thread reuses for ``name``.

    Allocating new memory takes longer than writing a block.
    """
    size = math.prod(shape) * dtype.itemsize
    buffer: NDArray[np.uint8] = getattr(_thread_buffers, name, np.empty(0, np.uint8))
    if buffer.size < size:
        buffer = np.empty(size, np.uint8)
        setattr(_thread_buffers, name, buffer)
    return buffer[:size].view(dtype).reshape(shape)


def is_sparse(matrix: Matrix) -> bool:
    """Return whether features are a scipy.sparse matrix or array."""
    return bool(sparse.issparse(matrix))


def read_features(
    where: str, X: Matrix, *, scale: float | None, dtype: DTypeLike | None
) -> Features:
    """Check what the user gave and wrap ``X``, without a copy if its form allows it."""
    if scale is not None:
        scale = positive(f"{where}: scale", scale)
    matrix: Matrix = X if is_sparse(X) else as_number_array(X)
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
    if scale is None:
        scale = 1 / 255 if matrix.dtype == UINT8 else 1.0
    product_dtype = _product_dtype(where, dtype, matrix.dtype)
    matrix = _convert_matrix(where, matrix, product_dtype)
    return Features(_read_only_view(matrix), product_dtype, scale)


def _convert_matrix(where: str, matrix: Matrix, dtype: np.dtype[Any]) -> Matrix:
    """Return finite features in ``dtype``, as sparse or contiguous rows; dense uint8 stay."""
    with np.errstate(over="ignore"):  # numbers too large for float32 are reported below
        if is_sparse(matrix):
            matrix = sparse.csr_array(matrix, dtype=dtype)
            _check_finite(where, matrix.data, "among its stored entries")
            return matrix
        if matrix.dtype != UINT8:
            matrix = matrix.astype(dtype, copy=False)
            _check_finite(where, matrix, "")
    return matrix if matrix.strides[1] == matrix.itemsize else np.ascontiguousarray(matrix)


def as_number_array(values: ArrayLike) -> NDArray[Any]:
    """Return values as a numeric array, or a text array (for error messages) if they are none."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        array = np.asarray("no numbers")
    return array


def _product_dtype(where: str, dtype: DTypeLike | None, given: np.dtype[Any]) -> np.dtype[Any]:
    """Return the requested dtype, or the default for features of the ``given`` dtype."""
    if dtype is None:
        is_small = given.kind == "f" and given.itemsize <= 4
        return FLOAT32 if is_small or given == UINT8 else FLOAT64
    try:
        requested = np.dtype(dtype)
    except TypeError:
        requested = np.dtype(object)
    if requested not in (FLOAT32, FLOAT64):
        raise ValueError(
            f"{where}: dtype must be float32 or float64, got {dtype!r}; "
            "leave it out to take that of X."
        )
    return requested


def _check_finite(where: str, array: NDArray[Any], place: str) -> None:
    """Raise if there is NaN or inf, with one block of rows in memory at a time."""
    for start in range(0, len(array), MAX_BLOCK_ROWS):
        finite = np.isfinite(array[start : start + MAX_BLOCK_ROWS])
        if not finite.all():
            at = np.argwhere(~finite)[0]
            at[0] += start
            place = place or f"at row {at[0]}, column {at[-1]}"
            raise ValueError(
                f"{where}: X must be finite in {array.dtype}, got {array[tuple(at)]} {place}; "
                "remove or replace such samples."
            )


def _read_only_view(matrix: Matrix) -> Matrix:
    """Return a read-only view; the caller's own array stays writeable."""
    if is_sparse(matrix):
        arrays = (matrix.data, matrix.indices, matrix.indptr)
        return sparse.csr_array(tuple(map(_read_only_view, arrays)), shape=matrix.shape)
    view = matrix.view()
    view.setflags(write=False)
    return view
