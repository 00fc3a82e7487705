"""Sums of updates over agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array
from pcfed.kernels.compiler import Index, compile_kernel, helper, matrix_type, vector_type

PIECE = Index(1024)
"""Entries of the total that stay in the cache while all rows are added to them."""

_exact = helper()


@_exact
def _add(start: Any, end: Any, total: Array, row: Array) -> None:
    for j in range(start, end):
        total[j] += row[j]


@_exact
def _add_rows(total: Array, rows: Array) -> None:
    n = Index(total.size)
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        for i in range(rows.shape[0]):
            _add(start, end, total, rows[i])


@_exact
def _add_quotient(rows: Array, update: Array, m: float) -> None:
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[i, j] += np.float64(update[i, j]) / m


@_exact
def _add_scaled(rows: Array, update: Array, factor: float) -> None:
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[i, j] += factor * np.float64(update[i, j])


@cache
def add_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_add_rows``, compiled for rows of one dtype."""
    rows = matrix_type(numba.from_dtype(dtype), readonly=True)
    return compile_kernel(_add_rows, (vector_type(types.float64), rows))


@cache
def add_quotient(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_add_quotient``, compiled for updates of one dtype."""
    update = matrix_type(numba.from_dtype(dtype), readonly=True)
    return compile_kernel(_add_quotient, (matrix_type(types.float64), update, types.float64))


@cache
def add_scaled(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_add_scaled``, compiled for updates of one dtype."""
    update = matrix_type(numba.from_dtype(dtype), readonly=True)
    return compile_kernel(_add_scaled, (matrix_type(types.float64), update, types.float64))
