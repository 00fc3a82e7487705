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
from pcfed.sets.kernels import INSIDE, LEFT, project_one

PIECE = 1024

_tuple: Any = types.Tuple
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
def _advance_every(
    v: Array, g: Array, x: Array, z: Array, sigma: Any, gamma: Any, share: Any
) -> None:
    for j in range(v.size):
        v[j] -= gamma * (share * (g[j] - sigma * (x[j] - z[j])))


@_exact
def _advance_own(u: Array, p: Array, x: Array, z: Array, sigma: Any, gamma: Any, rho: Any) -> None:
    for j in range(u.size):
        u[j] -= gamma * (rho * (x[j] - p[j]) + sigma * (x[j] - z[j]))


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
def _place(i: int, blocks: Any, fix: Any, k: Any, x: Array, y: Array) -> None:
    """Write the own block of row i to x, and with corrections the point y that is projected."""
    v, u, _, x0, _ = blocks
    _place_own(x, x0[i], v[i], u[i])
    if fix[0].shape[0] > 0:
        _, _, offset, own_shift, _ = fix
        _subtract_scaled(x, k, own_shift[i])
        _sum(y, x, offset[i])


@_exact
def _advance(
    i: int, blocks: Any, fix: Any, facts: Any, k: Any, g: Array, x: Array, y: Array, p: Array
) -> None:
    """Take the step of row i, from its gradient, its own block, the point y and its projection."""
    v, u, z, _, z0 = blocks
    sigmas, gamma, rho, share = facts
    sigma, n = sigmas[i, 0], v.shape[1]
    for start in range(0, n, PIECE):
        end = min(start + PIECE, n)
        v_, u_, z_ = v[i, start:end], u[i, start:end], z[i, start:end]
        g_, x_, p_ = g[i, start:end], x[start:end], p[start:end]
        if fix[0].shape[0] > 0:
            every, own, _, _, mean_shift = fix
            y_, every_, own_ = y[start:end], every[i, start:end], own[i, start:end]
            _advance_every_corrected(v_, g_, x_, z_, every_, sigma, gamma, share)
            _advance_own_corrected(u_, p_, y_, x_, z_, own_, sigma, gamma, rho)
            _place_average(z_, z0[start:end], v_, u_, share)
            _subtract_scaled(z_, k + v.dtype.type(1), mean_shift[start:end])
        else:
            _advance_every(v_, g_, x_, z_, sigma, gamma, share)
            _advance_own(u_, p_, x_, z_, sigma, gamma, rho)
            _place_average(z_, z0[start:end], v_, u_, share)


@_exact
def _place_rows(blocks: Any, fix: Any, facts: Any, k: Any, x: Array, y: Array) -> None:
    for i in range(x.shape[0]):
        _place(i, blocks, fix, k, x[i], y[i])


@_exact
def _advance_rows(
    blocks: Any, fix: Any, facts: Any, k: Any, g: Array, x: Array, y: Array, p: Array
) -> None:
    for i in range(g.shape[0]):
        _advance(i, blocks, fix, facts, k, g, x[i], y[i], p[i])


@_exact
def _step_rows(
    blocks: Any, fix: Any, facts: Any, k: Any, g: Array, targets: Any, room: Array
) -> int:
    """Project and step, row by row; return how many were done before one was left to NumPy."""
    fold, totals, slack, thetas = targets
    x, p = room[0], room[1]
    y = room[room.shape[0] - 1 if fix[0].shape[0] > 0 else 0]
    for i in range(g.shape[0]):
        _place(i, blocks, fix, k, x, y)
        status, thetas[i] = project_one(y, fold, totals[i], slack, thetas[i], p)
        if status == LEFT:
            return i
        _advance(i, blocks, fix, facts, k, g, x, y, y if status == INSIDE else p)
    return int(g.shape[0])


@_exact
def _add_rows(total: Array, rows: Array) -> None:
    n = total.size
    for start in range(0, n, PIECE):
        end = min(start + PIECE, n)
        for i in range(rows.shape[0]):
            _add(total[start:end], rows[i, start:end])


@_exact
def _add_quotient(rows: Array, update: Array, m: float) -> None:
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[i, j] += np.float64(update[i, j]) / m


# -- entry points ---------------------------------------------------------------------------------


@cache
def descend(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_descend``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    return entry(_descend, (write, write, read, read, read, number, number, number))


@cache
def place_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_place_rows``, compiled for one dtype."""
    rows, number, blocks, fix, facts = _types(dtype)
    return entry(_place_rows, (blocks, fix, facts, number, rows, rows))


@cache
def advance_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_advance_rows``, compiled for one dtype."""
    rows, number, blocks, fix, facts = _types(dtype)
    return entry(_advance_rows, (blocks, fix, facts, number, rows, rows, rows, rows))


@cache
def step_rows(dtype: np.dtype[Any]) -> Callable[..., int]:
    """Return ``_step_rows``, compiled for one dtype."""
    rows, number, blocks, fix, facts = _types(dtype)
    real = types.float64
    reals = types.Array(real, 1, "C")
    targets = _tuple((types.boolean, reals, real, reals))
    return entry(_step_rows, (blocks, fix, facts, number, rows, targets, rows))


@cache
def add_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_add_rows``, compiled for rows of one dtype."""
    rows = types.Array(numba.from_dtype(dtype), 2, "C", readonly=True)
    return entry(_add_rows, (types.Array(types.float64, 1, "C"), rows))


@cache
def add_quotient(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_add_quotient``, compiled for updates of one dtype."""
    update = types.Array(numba.from_dtype(dtype), 2, "C", readonly=True)
    return entry(_add_quotient, (types.Array(types.float64, 2, "C"), update, types.float64))


def _types(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the types of rows, numbers, blocks, corrections and facts."""
    number = numba.from_dtype(dtype)
    rows, vector = types.Array(number, 2, "C"), types.Array(number, 1, "C")
    blocks = _tuple((rows, rows, rows, rows, vector))
    fix = _tuple((rows, rows, rows, rows, vector))
    facts = _tuple((rows, number, number, number))
    return rows, number, blocks, fix, facts
