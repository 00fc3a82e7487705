"""The local problems of PCFedSplit: all steps of a group in one loop.

As in `pcfed.kernels.descent`, an agent's vectors stay in the cache from its first step to its last,
each loop writes to one array only, and the bits are those of the NumPy code in
`pcfed.algorithms.pcfedsplit_steps`, where the letters are explained. Only norms, which decide
whether a step was too long, are summed in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import (
    EXCESS,
    MAX_ATTEMPTS,
    MIN_ROOT,
    RAISE,
    BatchSource,
    Callees,
    StepScratch,
    ThresholdSets,
)
from pcfed.kernels.compiler import (
    Index,
    compile_kernel,
    helper,
    matrix_type,
    named_tuple_type,
    vector_type,
)
from pcfed.kernels.descent import CALLEES, PIECE, callees, step_scratch_type
from pcfed.kernels.gradients import gradient_at, source_type
from pcfed.kernels.thresholds import INSIDE, SETS, UNRESOLVED, project_row

VECTORS = 15
"""Vectors in the scratch memory of a group."""

AT_CENTER, AT_OWN, AT_BOTH = range(3)
"""Where an agent's loss is taken."""

_exact = helper()
_sums = helper("reassoc", "contract")


class Start(NamedTuple):
    """The results that the kernel writes, and where the agents start."""

    x: Array
    dx: Array
    dz: Array
    model: Float64Array
    W: Float64Array
    U: Float64Array
    shift: Float64Array
    """z − P."""
    Y: Float64Array
    shared: Array
    """z, in the dtype of the steps; so is ``y_mean``."""
    y_mean: Array


class Numbers(NamedTuple):
    """The numbers of the local problems."""

    couplings: Array
    """σ of every agent, (agents, 1), in the dtype of the steps; so is ``personalization``."""
    personalization: Array
    expected: Float64Array
    """The curvature that every loss expects, (agents, 1)."""
    factors: Float64Array
    """The factors on these curvatures, (agents, 1); the kernel raises them."""
    prox: float
    ratio: float
    relaxation: Any
    longest: float
    """The curvature is measured if the last step is at least this multiple of the first."""
    trust: float


class _Factors(NamedTuple):
    """The factors of one agent's steps."""

    x_own: Any
    x_other: Any
    x_step: Any
    x_share: Any
    x_slope: Any
    z_own: Any
    z_other: Any
    z_step: Any
    z_share: Any
    z_slope: Any
    momentum: Any


@_exact
def _place_point(start: Any, end: Any, s: Array, W: Array, shift: Array) -> None:
    for j in range(start, end):
        s[j] = W[j] + shift[j]


@_exact
def _place_x_constant(
    start: Any, end: Any, e: Array, y_mean: Array, s: Array, factors: Any
) -> None:
    step, share = factors.x_step, factors.x_share
    for j in range(start, end):
        e[j] = step * y_mean[j] + share * s[j]


@_exact
def _place_z_constant(
    start: Any, end: Any, e: Array, z: Array, U: Array, Y: Array, factors: Any
) -> None:
    step, share = factors.z_step, factors.z_share
    for j in range(start, end):
        e[j] = share * z[j] - step * e.dtype.type(U[j] - Y[j])


@_exact
def _place_own(start: Any, end: Any, p: Array, x: Array, z: Array, e: Array, factors: Any) -> None:
    own, other = factors.x_own, factors.x_other
    for j in range(start, end):
        p[j] = (own * x[j] + other * z[j]) + e[j]


@_exact
def _place_shared(
    start: Any, end: Any, q: Array, z: Array, x: Array, e: Array, factors: Any
) -> None:
    own, other = factors.z_own, factors.z_other
    for j in range(start, end):
        q[j] = (own * z[j] + other * x[j]) + e[j]


@_exact
def _descend(start: Any, end: Any, q: Array, slope: Any, g: Array) -> None:
    for j in range(start, end):
        q[j] -= slope * g[j]


@_exact
def _extrapolate(start: Any, end: Any, y: Array, new: Array, old: Array, momentum: Any) -> None:
    for j in range(start, end):
        y[j] = new[j] + momentum * (new[j] - old[j])


@_exact
def _scaled_difference(start: Any, end: Any, d: Array, factor: Any, a: Array, b: Array) -> None:
    for j in range(start, end):
        d[j] = factor * (a[j] - b[j])


@_exact
def _copy(start: Any, end: Any, to: Array, source: Array) -> None:
    for j in range(start, end):
        to[j] = source[j]


@_sums
def _squared_distance(start: Any, end: Any, a: Array, b: Array) -> float:
    total = 0.0
    for j in range(start, end):
        difference = np.float64(a[j] - b[j])
        total += difference * difference
    return total


@_sums
def _norm(a: Array) -> float:
    total = 0.0
    for j in range(Index(a.size)):
        total += np.float64(a[j]) * np.float64(a[j])
    return math.sqrt(total)


@_exact
def _step_shared(
    points: Any,
    measures: bool,
    extrapolates: bool,
    factors: _Factors,
    z_next: Array,
    x_next: Array,
    x: Array,
    z: Array,
    x_hat: Array,
    z_hat: Array,
    e: Array,
    g: Array,
) -> float:
    """Take the step of z after that of x, and extrapolate both.

    Return how far the points at which the loss is taken move, squared, if that is to be measured.
    """
    n, squared = Index(x.size), 0.0
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        _place_shared(start, end, z_next, z_hat, x_hat, e, factors)
        if points != AT_OWN:
            _descend(start, end, z_next, factors.z_slope, g)
        if measures and points != AT_CENTER:
            squared += _squared_distance(start, end, x_next, x_hat)
        if measures and points != AT_OWN:
            squared += _squared_distance(start, end, z_next, z_hat)
        if extrapolates:
            _extrapolate(start, end, x_hat, x_next, x, factors.momentum)
            _extrapolate(start, end, z_hat, z_next, z, factors.momentum)
    return squared


@_exact
def _measure(
    callees: Callees,
    i: int,
    source: BatchSource,
    scratch: StepScratch,
    longest: float,
    last: float,
    moved: Array,
    g: Array,
    again: Array,
    trust: float,
) -> float:
    """Return the curvature along the last step; 0 if it is short, NaN if steps overflow."""
    if last < longest or not math.isfinite(longest):
        return 0.0
    if not math.isfinite(last):
        return math.nan
    gradient_at(
        callees.gradient, moved, source, source.batches.shape[0] - 1, i, scratch.gradient, again
    )
    change = math.sqrt(_squared_distance(Index(0), Index(g.size), again, g))
    if last <= trust * _norm(moved) or change <= trust * _norm(again):
        return 0.0
    return change / last


@_exact
def _begin(i: int, blocks: Start, factors: _Factors, vectors: Array) -> None:
    """Write s, the constants of the steps, and the points at which they start."""
    n = Index(blocks.shared.size)
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        _place_point(start, end, vectors[0], blocks.W[i], blocks.shift)
        _place_x_constant(start, end, vectors[1], blocks.y_mean, vectors[0], factors)
        _place_z_constant(start, end, vectors[2], blocks.shared, blocks.U[i], blocks.Y, factors)
        _copy(start, end, vectors[6], blocks.model[i])
        _copy(start, end, vectors[8], blocks.model[i])
        _copy(start, end, vectors[9], blocks.shared)


@_exact
def _moved(vectors: Array, x: Array, z: Array) -> Array:
    """Return where the last step ended, x and z as one vector."""
    n = Index(x.size)
    _copy(Index(0), n, vectors[10], x)
    _copy(Index(0), n, vectors[11], z)
    return vectors[10:12].reshape(-1)


@_exact
def _write_updates(i: int, blocks: Start, numbers: Numbers, x: Array, s: Array, z: Array) -> None:
    """Write the own model of agent i and its updates."""
    n = Index(x.size)
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        _copy(start, end, blocks.x[i], x)
        if not math.isinf(numbers.ratio):
            _scaled_difference(start, end, blocks.dx[i], numbers.relaxation, x, s)
        _scaled_difference(start, end, blocks.dz[i], numbers.relaxation, z, blocks.shared)


@_exact
def _take_steps(
    callees: Callees,
    i: int,
    blocks: Start,
    factors: _Factors,
    source: BatchSource,
    sets: ThresholdSets,
    scratch: StepScratch,
    numbers: Numbers,
) -> tuple[bool, float]:
    """Take the steps of agent i, and write its results.

    Return False if a projection is unresolved, and the measured curvature.
    """
    vectors, zero, n = scratch.vectors, Index(0), Index(blocks.shared.size)
    s, e_x, e_z, p, q = vectors[0], vectors[1], vectors[2], vectors[3], vectors[4]
    # x and z are neighbours in memory, so that both are one argument of the gradient.
    hats, gradients = vectors[8:10].reshape(-1), vectors[12:14].reshape(-1)
    theta = numbers.personalization[i, 0]
    points = AT_CENTER if theta == 0 else AT_OWN if theta == 1 else AT_BOTH
    begin, end = (n if points == AT_CENTER else zero), (n if points == AT_OWN else 2 * n)
    at, g, g_x, g_z = hats[begin:end], gradients[begin:end], gradients[:n], gradients[n:]
    _begin(i, blocks, factors, vectors)
    x, z, z_next = vectors[6], blocks.shared, vectors[7]
    x_hat, z_hat = vectors[8], vectors[9]
    steps = source.batches.shape[0]
    first = last = 0.0
    for k in range(steps):
        gradient_at(callees.gradient, at, source, k, i, scratch.gradient, g)
        _place_own(zero, n, p, x_hat, z_hat, e_x, factors)
        if points != AT_CENTER:
            _descend(zero, n, p, factors.x_slope, g_x)
        status = project_row(callees.project, p, sets, i, q)
        if status == UNRESOLVED:
            return not math.isfinite(_norm(p)), math.nan
        if status == INSIDE:
            p, q = q, p
        moved = _step_shared(
            *(points, k in (0, steps - 1), k < steps - 1, factors),
            *(z_next, q, x, z, x_hat, z_hat, e_z, g_z),
        )
        if k in (0, steps - 1):
            last = math.sqrt(moved)
            first = last if k == 0 else first
        if k == steps - 1 or not math.isfinite(first):
            break
        x, q = q, x
        z, z_next = z_next, (vectors[5] if k == 0 else z)
    measured = 0.0 if math.isfinite(last) or not math.isfinite(first) else math.nan
    longest = numbers.longest * first
    if last >= longest:
        moved_to = _moved(vectors, q, z_next)[begin:end]
        measured = _measure(
            callees, i, source, scratch, longest, last, moved_to, g, at, numbers.trust
        )
    _write_updates(i, blocks, numbers, q, s, z_next)
    return True, measured


@_exact
def _step_factors(theta: float, sigma: float, L: float, numbers: Numbers, steps: int) -> Any:
    """Return the factors of an agent's steps, in float64."""
    x_pull, z_pull = 1 / (numbers.ratio * numbers.prox), 1 / numbers.prox
    x_curvature, z_curvature = theta * L + 2 * sigma + x_pull, (1 - theta) * L + 2 * sigma + z_pull
    x_step, z_step = (1 / x_curvature if x_curvature > 0 else 0.0), 1 / z_curvature
    a, b = x_step * sigma + x_step * x_pull, z_step * sigma + z_step * z_pull
    product = x_step * sigma * (z_step * z_pull) + x_step * x_pull * (z_step * sigma)
    product += x_step * x_pull * (z_step * z_pull)
    half = (a - b) / 2
    largest = (a + b) / 2 + math.sqrt(half * half + x_step * sigma * (z_step * sigma))
    root = min(1.0, max(math.sqrt(product / largest), MIN_ROOT / steps))
    return (
        *(1 - x_step * sigma - x_step * x_pull, x_step * sigma),
        *(x_step, x_step * x_pull, x_step * theta),
        *(1 - z_step * sigma - z_step * z_pull, z_step * sigma),
        *(z_step, z_step * z_pull, z_step * (1 - theta)),
        (1 - root) / (1 + root),
    )


@_exact
def _solve(
    callees: Callees,
    blocks: Start,
    numbers: Numbers,
    source: BatchSource,
    sets: ThresholdSets,
    scratch: StepScratch,
) -> bool:
    """Solve the problems of all agents; return False if a projection is unresolved."""
    dtype, steps = blocks.x.dtype.type, source.batches.shape[0]
    for i in range(blocks.x.shape[0]):
        sigma = np.float64(numbers.couplings[i, 0])
        theta = np.float64(numbers.personalization[i, 0])
        tau = numbers.prox if theta == 0 else numbers.ratio * numbers.prox
        for _ in range(MAX_ATTEMPTS):
            L = numbers.factors[i, 0] * numbers.expected[i, 0]
            f = _step_factors(theta, sigma, L, numbers, steps)
            factors = _Factors(
                *(dtype(f[0]), dtype(f[1]), dtype(f[2]), dtype(f[3]), dtype(f[4])),
                *(dtype(f[5]), dtype(f[6]), dtype(f[7]), dtype(f[8]), dtype(f[9])),
                dtype(f[10]),
            )
            resolved, measured = _take_steps(
                callees, i, blocks, factors, source, sets, scratch, numbers
            )
            if not resolved:
                return False
            if measured <= (1 + EXCESS) * L + EXCESS * (2 * sigma + 1 / tau):
                break
            if not 0 < measured < math.inf or not L > 0:
                numbers.factors[i, 0] *= 4
            else:
                while measured > L:
                    numbers.factors[i, 0], L = RAISE * numbers.factors[i, 0], RAISE * L
    return True


@cache
def solve(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., bool]:
    """Return ``_solve``, compiled for parameters and features of these dtypes."""
    number = numba.from_dtype(dtype)
    rows, vector = matrix_type(number), vector_type(number)
    totals = matrix_type(types.float64, readonly=True)
    server = vector_type(types.float64, readonly=True)
    start = named_tuple_type(
        Start, rows, rows, rows, totals, totals, totals, server, server, vector, vector
    )
    column = matrix_type(types.float64)
    real = types.float64
    numbers = named_tuple_type(Numbers, rows, rows, column, column, real, real, number, real, real)
    data = (source_type(dtype, features), SETS, step_scratch_type(number))
    kernel = compile_kernel(_solve, (CALLEES, start, numbers, *data))
    return partial(kernel, callees(dtype, features, projects=True))
