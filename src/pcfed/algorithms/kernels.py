"""The statements of ``steps.py`` as compiled loops over rows: the same bits, one pass of memory.

A row is worked through in pieces that stay in the cache from the first statement to the last. Every
loop writes to one array only, or the compiler would have too many pairs of arrays to tell apart
and make no vector instructions. Nothing may be reordered or contracted.

This module imports numba; ``steps.py`` imports it when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array
from pcfed.compiler import entry

PIECE = 1024

_exact = numba.njit(fastmath=False, nogil=True, error_model="numpy")


@_exact
def _add_scaled_difference(g: Array, factor: Any, a: Array, b: Array) -> None:
    for j in range(g.size):
        g[j] += factor * (a[j] - b[j])


@_exact
def _add(g: Array, c: Array) -> None:
    for j in range(g.size):
        g[j] += c[j]


@_exact
def _subtract_scaled(y: Array, factor: Any, g: Array) -> None:
    for j in range(y.size):
        y[j] -= factor * g[j]


@_exact
def _descend(
    y: Array, g: Array, p: Array, x: Array, c: Array, gamma: Any, rho: Any, prox: Any
) -> None:
    n, shared = y.shape[1], x.shape[0] == 1
    for i in range(y.shape[0]):
        begin = x[0 if shared else i]
        for start in range(0, n, PIECE):
            end = min(start + PIECE, n)
            piece = g[i, start:end]
            if rho != 0:
                _add_scaled_difference(piece, rho, y[i, start:end], p[i, start:end])
            if prox != 0:
                _add_scaled_difference(piece, prox, y[i, start:end], begin[start:end])
            if c.shape[0] > 0:
                _add(piece, c[i, start:end])
            _subtract_scaled(y[i, start:end], gamma, piece)


@_exact
def _advance_every(
    v: Array, g: Array, x: Array, z: Array, sigma: Any, gamma: Any, share: Any
) -> None:
    for j in range(v.size):
        v[j] -= gamma * (share * (g[j] - sigma * (x[j] - z[j])))


@_exact
def _advance_own(
    u: Array, p: Array, y: Array, x: Array, z: Array, sigma: Any, gamma: Any, rho: Any
) -> None:
    for j in range(u.size):
        u[j] -= gamma * (rho * (y[j] - p[j]) + sigma * (x[j] - z[j]))


@_exact
def _advance_every_corrected(
    v: Array, g: Array, x: Array, z: Array, every: Array, sigma: Any, gamma: Any, share: Any
) -> None:
    for j in range(v.size):
        v[j] -= gamma * (share * (g[j] - sigma * (x[j] - z[j])) + every[j])


@_exact
def _advance_own_corrected(
    u: Array, p: Array, y: Array, x: Array, z: Array, own: Array, sigma: Any, gamma: Any, rho: Any
) -> None:
    for j in range(u.size):
        u[j] -= gamma * (rho * (y[j] - p[j]) + sigma * (x[j] - z[j]) - own[j])


@_exact
def _place_own(x: Array, x0: Array, v: Array, u: Array) -> None:
    for j in range(x.size):
        x[j] = x0[j] + (v[j] + u[j])


@_exact
def _place_average(z: Array, z0: Array, v: Array, u: Array, share: Any) -> None:
    for j in range(z.size):
        z[j] = z0[j] + (v[j] + share * u[j])


@_exact
def _place_own_corrected(x: Array, x0: Array, v: Array, u: Array, shift: Array, k: Any) -> None:
    for j in range(x.size):
        x[j] = x0[j] + (v[j] + u[j]) - k * shift[j]


@_exact
def _place_average_corrected(
    z: Array, z0: Array, v: Array, u: Array, shift: Array, share: Any, k: Any
) -> None:
    for j in range(z.size):
        z[j] = z0[j] + (v[j] + share * u[j]) - k * shift[j]


@_exact
def _sum(y: Array, a: Array, b: Array) -> None:
    for j in range(y.size):
        y[j] = a[j] + b[j]


@_exact
def _advance(
    v: Array,
    u: Array,
    x: Array,
    z: Array,
    g: Array,
    p: Array,
    x0: Array,
    z0: Array,
    sigma: Array,
    gamma: Any,
    rho: Any,
    share: Any,
) -> None:
    n = v.shape[1]
    for i in range(v.shape[0]):
        for start in range(0, n, PIECE):
            end = min(start + PIECE, n)
            x_, z_ = x[i, start:end], z[i, start:end]
            v_, u_ = v[i, start:end], u[i, start:end]
            _advance_every(v_, g[i, start:end], x_, z_, sigma[i, 0], gamma, share)
            _advance_own(u_, p[i, start:end], x_, x_, z_, sigma[i, 0], gamma, rho)
            _place_own(x_, x0[i, start:end], v_, u_)
            _place_average(z_, z0[start:end], v_, u_, share)


@_exact
def _advance_corrected(
    v: Array,
    u: Array,
    x: Array,
    z: Array,
    g: Array,
    p: Array,
    x0: Array,
    z0: Array,
    sigma: Array,
    gamma: Any,
    rho: Any,
    share: Any,
    y: Array,
    every: Array,
    own: Array,
    offset: Array,
    own_shift: Array,
    mean_shift: Array,
    k: Any,
) -> None:
    n = v.shape[1]
    for i in range(v.shape[0]):
        for start in range(0, n, PIECE):
            end = min(start + PIECE, n)
            x_, z_, y_ = x[i, start:end], z[i, start:end], y[i, start:end]
            v_, u_ = v[i, start:end], u[i, start:end]
            g_, p_ = g[i, start:end], p[i, start:end]
            every_, own_ = every[i, start:end], own[i, start:end]
            _advance_every_corrected(v_, g_, x_, z_, every_, sigma[i, 0], gamma, share)
            _advance_own_corrected(u_, p_, y_, x_, z_, own_, sigma[i, 0], gamma, rho)
            _place_own_corrected(x_, x0[i, start:end], v_, u_, own_shift[i, start:end], k)
            shift = mean_shift[start:end]
            _place_average_corrected(z_, z0[start:end], v_, u_, shift, share, k)
            _sum(y_, x_, offset[i, start:end])


@_exact
def _add_rows(total: Array, rows: Array) -> None:
    n = total.size
    for start in range(0, n, PIECE):
        end = min(start + PIECE, n)
        for i in range(rows.shape[0]):
            _add(total[start:end], rows[i, start:end])


# -- entry points ---------------------------------------------------------------------------------


@cache
def descend(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_descend``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    return entry(_descend, (write, write, read, read, read, number, number, number))


@cache
def advance(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_advance``, compiled for one dtype."""
    return entry(_advance, _signature(dtype))


@cache
def advance_corrected(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_advance_corrected``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    vector = types.Array(number, 1, "C", readonly=True)
    terms = (write, read, read, read, read, vector, number)
    return entry(_advance_corrected, (*_signature(dtype), *terms))


@cache
def add_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_add_rows``, compiled for rows of one dtype."""
    rows = types.Array(numba.from_dtype(dtype), 2, "C", readonly=True)
    return entry(_add_rows, (types.Array(types.float64, 1, "C"), rows))


def _signature(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the types of what plain and corrected steps have in common."""
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    vector = types.Array(number, 1, "C", readonly=True)
    return (write,) * 4 + (read,) * 3 + (vector, read, number, number, number)
