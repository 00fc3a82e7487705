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
def _subtract(g: Array, c: Array) -> None:
    for j in range(g.size):
        g[j] -= c[j]


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
def _pull(s: Array, sigma: Any, x: Array, z: Array) -> None:
    for j in range(s.size):
        s[j] = sigma * (x[j] - z[j])


@_exact
def _own(p: Array, rho: Any, y: Array, s: Array) -> None:
    for j in range(p.size):
        p[j] = rho * (y[j] - p[j]) + s[j]


@_exact
def _every(g: Array, s: Array, share: Any) -> None:
    for j in range(g.size):
        g[j] = share * (g[j] - s[j])


@_exact
def _place_own(x: Array, x0: Array, v: Array, u: Array) -> None:
    for j in range(x.size):
        x[j] = x0[j] + (v[j] + u[j])


@_exact
def _place_average(z: Array, z0: Array, v: Array, u: Array, share: Any) -> None:
    for j in range(z.size):
        z[j] = z0[j] + (v[j] + share * u[j])


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
    y: Array,
    g: Array,
    p: Array,
    x0: Array,
    z0: Array,
    sigma: Array,
    gamma: Any,
    rho: Any,
    share: Any,
    every: Array,
    own: Array,
    offset: Array,
    own_shift: Array,
    mean_shift: Array,
    k: Any,
) -> None:
    n = v.shape[1]
    exact = every.shape[0] > 0
    buffer = np.empty(PIECE, v.dtype)
    for i in range(v.shape[0]):
        for start in range(0, n, PIECE):
            end = min(start + PIECE, n)
            s = buffer[: end - start]
            x_, z_, y_ = x[i, start:end], z[i, start:end], y[i, start:end]
            v_, u_ = v[i, start:end], u[i, start:end]
            g_, p_ = g[i, start:end], p[i, start:end]
            _pull(s, sigma[i, 0], x_, z_)
            _every(g_, s, share)
            _own(p_, rho, y_, s)
            if exact:
                _add(g_, every[i, start:end])
                _subtract(p_, own[i, start:end])
            _subtract_scaled(v_, gamma, g_)
            _subtract_scaled(u_, gamma, p_)
            _place_own(x_, x0[i, start:end], v_, u_)
            _place_average(z_, z0[start:end], v_, u_, share)
            if exact:
                _subtract_scaled(x_, k, own_shift[i, start:end])
                _subtract_scaled(z_, k, mean_shift[start:end])
                _sum(y_, x_, offset[i, start:end])


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
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    vector = types.Array(number, 1, "C", readonly=True)
    state = (write,) * 7
    constants = (read, vector, read, number, number, number)
    corrections = (read, read, read, read, vector, number)
    return entry(_advance, (*state, *constants, *corrections))
