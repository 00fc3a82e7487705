"""Sums of updates over agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array
from pcfed.kernels import tree
from pcfed.kernels.compiler import Index, compile_kernel, helper, matrix_type, vector_type

PIECE = Index(1024)
"""Entries of the partial sums that stay in the cache while all rows are added to them."""

_exact = helper()
_plan_merges = _exact(tree.plan_merges)


@_exact
def _add_to(start: Any, end: Any, total: Array, row: Array) -> None:
    for j in range(start, end):
        total[j] += np.float64(row[j])


@_exact
def _store_sum(start: Any, end: Any, total: Array, a: Array, b: Array) -> None:
    for j in range(start, end):
        total[j] = np.float64(a[j]) + np.float64(b[j])


@_exact
def _store(slot: Array, row: Array) -> None:
    for j in range(slot.size):
        slot[j] = np.float64(row[j])


@_exact
def _merge_rows(
    slots: Array,
    rows: Array,
    into: Array,
    left: Array,
    right: Array,
    merges: int,
    tags: Array,
    size: int,
) -> None:
    n = Index(slots.shape[1])
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        for k in range(merges):
            i, a, b = into[k], left[k], right[k]
            if a >= 0 and b >= 0:
                _store_sum(start, end, slots[i], rows[a], rows[b])
            elif a >= 0:
                _store_sum(start, end, slots[i], rows[a], slots[i + 1])
            elif b >= 0:
                _add_to(start, end, slots[i], rows[b])
            else:
                _add_to(start, end, slots[i], slots[i + 1])
    for k in range(size):
        if tags[k] >= 0:
            _store(slots[k], rows[tags[k]])


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
def plan_merges() -> Callable[..., tuple[int, int]]:
    """Return ``tree.plan_merges``, compiled."""
    integers = vector_type(types.intp)
    stack = (vector_type(types.intp, readonly=True), types.intp, integers, integers, types.intp)
    return compile_kernel(_plan_merges, (*stack, integers, integers, integers))


@cache
def merge_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_merge_rows``, compiled for rows of one dtype."""
    rows = matrix_type(numba.from_dtype(dtype), readonly=True)
    integers = vector_type(types.intp)
    merges = (integers, integers, integers, types.intp)
    signature = (matrix_type(types.float64), rows, *merges, integers, types.intp)
    return compile_kernel(_merge_rows, signature)


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
