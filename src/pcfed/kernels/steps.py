"""The statements of ``steps.py`` as compiled loops over rows: the same bits, one pass of memory.

A row is worked through in pieces that stay in the cache from the first statement to the last; loops
get their ends, because cutting the pieces out of arrays takes as long as working on them. Every
loop writes to one array only, or the compiler would have too many pairs of arrays to tell apart
and make no vector instructions. Nothing may be reordered or contracted.

This module imports numba; ``steps.py`` imports it when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array
from pcfed.kernels.compiler import U, address, entry, part
from pcfed.kernels.gradients import gradient, gradient_at, room_type, source_type
from pcfed.kernels.thresholds import INSIDE, LEFT, TARGETS, project, project_at

PIECE = U(1024)

_tuple: Any = types.Tuple
_exact = part()


@_exact
def _add_scaled_difference(start: Any, end: Any, g: Array, factor: Any, a: Array, b: Array) -> None:
    for j in range(start, end):
        g[j] += factor * (a[j] - b[j])


@_exact
def _add(start: Any, end: Any, g: Array, c: Array) -> None:
    for j in range(start, end):
        g[j] += c[j]


@_exact
def _subtract_scaled(start: Any, end: Any, y: Array, factor: Any, g: Array) -> None:
    for j in range(start, end):
        y[j] -= factor * g[j]


@_exact
def _descend(
    y: Array, g: Array, p: Array, x: Array, c: Array, gamma: Any, rho: Any, prox: Any
) -> None:
    n = U(y.size)
    for start in range(U(0), n, PIECE):
        end = min(start + PIECE, n)
        if rho != 0:
            _add_scaled_difference(start, end, g, rho, y, p)
        if prox != 0:
            _add_scaled_difference(start, end, g, prox, y, x)
        if c.size > 0:
            _add(start, end, g, c)
        _subtract_scaled(start, end, y, gamma, g)


@_exact
def _of(i: int, rows: Array) -> int:
    """Return the place of the row of agent i, or of the one that all share."""
    return 0 if rows.shape[0] == 1 else i


@_exact
def _descend_rows(
    y: Array, g: Array, p: Array, x: Array, c: Array, gamma: Any, rho: Any, prox: Any
) -> None:
    for i in range(y.shape[0]):
        _descend(y[i], g[i], p[i], x[_of(i, x)], c[_of(i, c)], gamma, rho, prox)


@_exact
def _descend_all(
    calls: Any, y: Array, x: Array, c: Array, terms: Any, source: Any, targets: Any, room: Any
) -> bool:
    """Take all steps of all agents, one agent after the other; stop if a point can't be projected.

    What an agent works on stays in the cache from its first step to its last.
    """
    (gradient, project), (gamma, rho, prox), (samples, rows) = calls, terms, room
    batches, (fold, totals, slack, thetas), g, p = source[2], targets, rows[0], rows[1]
    for i in range(y.shape[0]):
        for step in range(batches.shape[0]):
            gradient_at(gradient, y[i], source, step, i, samples, g)
            status = INSIDE
            if rho != 0:
                status, thetas[i] = project_at(project, y[i], fold, totals[i], slack, thetas[i], p)
                if status == LEFT:
                    return False
            near = y[i] if status == INSIDE else p
            _descend(y[i], g, near, x[_of(i, x)], c[_of(i, c)], gamma, rho, prox)
    return True


@_exact
def _place_own(start: Any, end: Any, x: Array, x0: Array, v: Array, u: Array) -> None:
    for j in range(start, end):
        x[j] = x0[j] + (v[j] + u[j])


@_exact
def _place_average(
    start: Any, end: Any, z: Array, z0: Array, v: Array, u: Array, share: Any
) -> None:
    for j in range(start, end):
        z[j] = z0[j] + (v[j] + share * u[j])


@_exact
def _sum(start: Any, end: Any, y: Array, a: Array, b: Array) -> None:
    for j in range(start, end):
        y[j] = a[j] + b[j]


@_exact
def _advance_every(
    start: Any, end: Any, v: Array, g: Array, x: Array, z: Array, facts: Any
) -> None:
    sigma, gamma, _, share = facts
    for j in range(start, end):
        v[j] -= gamma * (share * (g[j] - sigma * (x[j] - z[j])))


@_exact
def _advance_own(start: Any, end: Any, u: Array, p: Array, x: Array, z: Array, facts: Any) -> None:
    sigma, gamma, rho, _ = facts
    for j in range(start, end):
        u[j] -= gamma * (rho * (x[j] - p[j]) + sigma * (x[j] - z[j]))


@_exact
def _advance_every_corrected(
    start: Any, end: Any, v: Array, g: Array, x: Array, z: Array, every: Array, facts: Any
) -> None:
    sigma, gamma, _, share = facts
    for j in range(start, end):
        v[j] -= gamma * (share * (g[j] - sigma * (x[j] - z[j])) + every[j])


@_exact
def _advance_own_corrected(
    start: Any, end: Any, u: Array, p: Array, y: Array, x: Array, z: Array, own: Array, facts: Any
) -> None:
    sigma, gamma, rho, _ = facts
    for j in range(start, end):
        u[j] -= gamma * (rho * (y[j] - p[j]) + sigma * (x[j] - z[j]) - own[j])


@_exact
def _place(i: int, r: int, blocks: Any, fix: Any, k: Any, x: Array, y: Array) -> None:
    """Write the own block of agent i to x, and with corrections the point y that is projected.

    Its z and x0 are in row r.
    """
    v, u, _, x0, _ = blocks
    begin, n = U(0), U(x.size)
    _place_own(begin, n, x, x0[r], v[i], u[i])
    if fix is not None:
        _, _, offset, own_shift, _ = fix
        _subtract_scaled(begin, n, x, k, own_shift[i])
        _sum(begin, n, y, x, offset[i])


@_exact
def _advance(
    i: int,
    r: int,
    blocks: Any,
    fix: Any,
    facts: Any,
    k: Any,
    g: Array,
    x: Array,
    y: Array,
    p: Array,
) -> None:
    """Take the step of agent i, from its gradient, own block, the point y and its projection.

    Its z is in row r.
    """
    v, u, z, z0 = blocks[0][i], blocks[1][i], blocks[2][r], blocks[4]
    sigmas, gamma, rho, share = facts
    own_facts, n = (sigmas[i, 0], gamma, rho, share), U(v.size)
    if fix is not None:
        every, own, mean_shift = fix[0][i], fix[1][i], fix[4]
        taken = k + v.dtype.type(1)
        for start in range(U(0), n, PIECE):
            end = min(start + PIECE, n)
            _advance_every_corrected(start, end, v, g, x, z, every, own_facts)
            _advance_own_corrected(start, end, u, p, y, x, z, own, own_facts)
            _place_average(start, end, z, z0, v, u, share)
            _subtract_scaled(start, end, z, taken, mean_shift)
    else:
        for start in range(U(0), n, PIECE):
            end = min(start + PIECE, n)
            _advance_every(start, end, v, g, x, z, own_facts)
            _advance_own(start, end, u, p, x, z, own_facts)
            _place_average(start, end, z, z0, v, u, share)


@_exact
def _place_rows(blocks: Any, fix: Any, facts: Any, k: Any, x: Array, y: Array) -> None:
    for i in range(x.shape[0]):
        _place(i, i, blocks, fix, k, x[i], y[i])


@_exact
def _advance_rows(
    blocks: Any, fix: Any, facts: Any, k: Any, g: Array, x: Array, y: Array, p: Array
) -> None:
    for i in range(g.shape[0]):
        _advance(i, i, blocks, fix, facts, k, g[i], x[i], y[i], p[i])


@_exact
def _step_rows(
    project: int, blocks: Any, fix: Any, facts: Any, k: Any, g: Array, targets: Any, rows: Array
) -> int:
    """Project and step, row by row; return how many were done before one was left to NumPy."""
    fold, totals, slack, thetas = targets
    x, p = rows[0], rows[1]
    y = rows[2 if fix is not None else 0]
    for i in range(g.shape[0]):
        _place(i, i, blocks, fix, k, x, y)
        status, thetas[i] = project_at(project, y, fold, totals[i], slack, thetas[i], p)
        if status == LEFT:
            return i
        _advance(i, i, blocks, fix, facts, k, g[i], x, y, y if status == INSIDE else p)
    return int(g.shape[0])


@_exact
def _begin(i: int, blocks: Any, center: Array, offset: Array) -> None:
    """Write the blocks of agent i before its first step; its z and x0 are in row 0."""
    v, u, z, x0, z0 = blocks
    for j in range(U(center.size)):
        v[i, j] = u[i, j] = 0
        z[0, j] = z0[j]
        x0[0, j] = center[j] + offset[j]


@_exact
def _advance_all(
    calls: Any, start: Any, fix: Any, facts: Any, source: Any, targets: Any, room: Any
) -> bool:
    """Take all steps of all agents, one agent after the other; stop if a point can't be projected.

    What an agent works on stays in the cache from its first step to its last, and z and x0 are kept
    for one agent only.
    """
    (gradient, project), (v, u, z0, center, offsets), (samples, rows) = calls, start, room
    batches, (fold, totals, slack, thetas) = source[2], targets
    g, x, p = rows[0], rows[1], rows[2]
    y = rows[5 if fix is not None else 1]
    blocks = (v, u, rows[3:4], rows[4:5], z0)
    for i in range(v.shape[0]):
        _begin(i, blocks, center, offsets[i])
        for step in range(batches.shape[0]):
            k = v.dtype.type(step)
            gradient_at(gradient, rows[3], source, step, i, samples, g)
            _place(i, 0, blocks, fix, k, x, y)
            status, thetas[i] = project_at(project, y, fold, totals[i], slack, thetas[i], p)
            if status == LEFT:
                return False
            _advance(i, 0, blocks, fix, facts, k, g, x, y, y if status == INSIDE else p)
    return True


@_exact
def _add_rows(total: Array, rows: Array) -> None:
    n = U(total.size)
    for start in range(U(0), n, PIECE):
        end = min(start + PIECE, n)
        for i in range(rows.shape[0]):
            _add(start, end, total, rows[i])


@_exact
def _add_quotient(rows: Array, update: Array, m: float) -> None:
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[i, j] += np.float64(update[i, j]) / m


# -- entry points ---------------------------------------------------------------------------------
#
# ``fixed`` is whether there are corrections: what only they need is not compiled without them.

_reals = types.Array(types.float64, 1, "C")
_CALLS = _tuple((types.intp, types.intp))


@cache
def descend_rows(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_descend_rows``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    return entry(_descend_rows, (write, write, read, read, read, number, number, number))


@cache
def descend_all(
    dtype: np.dtype[Any], features: np.dtype[Any], *, projects: bool
) -> Callable[..., bool]:
    """Return ``_descend_all``, compiled for parameters and features of these dtypes.

    Without a penalty nothing ``projects``, and no projection need be compiled.
    """
    return partial(_all_descents(dtype, features), _calls(dtype, features, projects=projects))


@cache
def _all_descents(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., bool]:
    number = numba.from_dtype(dtype)
    read, write = types.Array(number, 2, "C", readonly=True), types.Array(number, 2, "C")
    terms, room = _tuple((number, number, number)), _tuple((room_type(number), write))
    data = (source_type(dtype, features), TARGETS, room)
    return entry(_descend_all, (_CALLS, write, read, read, terms, *data))


@cache
def advance_all(
    dtype: np.dtype[Any], features: np.dtype[Any], *, fixed: bool
) -> Callable[..., bool]:
    """Return ``_advance_all``, compiled for parameters and features of these dtypes."""
    rows, number, _, fix, facts = _types(dtype, fixed)
    vector, offsets = types.Array(number, 1, "C"), types.Array(types.float64, 2, "C")
    start, room = (rows, rows, vector, _reals, offsets), (room_type(number), rows)
    data = (source_type(dtype, features), TARGETS, _tuple(room))
    steps = entry(_advance_all, (_CALLS, _tuple(start), fix, facts, *data))
    return partial(steps, _calls(dtype, features, projects=True))


def _calls(dtype: np.dtype[Any], features: np.dtype[Any], *, projects: bool) -> tuple[int, int]:
    """Return the addresses of what a loop calls."""
    return address(gradient(dtype, features)), address(project(dtype)) if projects else 0


@cache
def place_rows(dtype: np.dtype[Any], *, fixed: bool) -> Callable[..., None]:
    """Return ``_place_rows``, compiled for one dtype."""
    rows, number, blocks, fix, facts = _types(dtype, fixed)
    return entry(_place_rows, (blocks, fix, facts, number, rows, rows))


@cache
def advance_rows(dtype: np.dtype[Any], *, fixed: bool) -> Callable[..., None]:
    """Return ``_advance_rows``, compiled for one dtype."""
    rows, number, blocks, fix, facts = _types(dtype, fixed)
    return entry(_advance_rows, (blocks, fix, facts, number, rows, rows, rows, rows))


@cache
def step_rows(dtype: np.dtype[Any], *, fixed: bool) -> Callable[..., int]:
    """Return ``_step_rows``, compiled for one dtype."""
    rows, number, blocks, fix, facts = _types(dtype, fixed)
    steps = entry(_step_rows, (types.intp, blocks, fix, facts, number, rows, TARGETS, rows))
    return partial(steps, address(project(dtype)))


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


def _types(dtype: np.dtype[Any], fixed: bool) -> tuple[Any, ...]:
    """Return the types of rows, numbers, blocks, corrections (or None) and facts."""
    number = numba.from_dtype(dtype)
    rows, vector = types.Array(number, 2, "C"), types.Array(number, 1, "C")
    blocks = _tuple((rows, rows, rows, rows, vector))
    fix = _tuple((rows, rows, rows, rows, vector)) if fixed else types.none
    facts = _tuple((rows, number, number, number))
    return rows, number, blocks, fix, facts
