"""Local steps of PC-FedAvg: all steps of a group in one loop.

As in `pcfed.kernels.descent`, an agent's vectors stay in the cache from its first step to its last,
each loop writes to one array only, and the bits are those of the NumPy code in
`pcfed.algorithms.pcfedavg_steps`, where the letters are explained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import BatchSource, Callees, StepScratch, ThresholdSets
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

VECTORS = 6
"""Vectors in the scratch memory of a group: gradients at x and at z, x, z, p and x0."""

_exact = helper()


class Start(NamedTuple):
    """Where the blocks of a group start, and the updates that the kernel writes."""

    v: Array
    u: Array
    mean: Array
    """C + w̄, in the dtype of the steps."""
    center: Float64Array
    """C."""
    offsets: Float64Array
    """The agents' w."""


class Points(NamedTuple):
    """The vectors of one step, one row per agent; p is the projection of x."""

    v: Array
    u: Array
    z: Array
    g: Array
    x: Array
    p: Array


class Factors(NamedTuple):
    """The factors of a step, in its dtype."""

    couplings: Array
    """σ of every agent, (agents, 1)."""
    personalization: Array
    """θ of every agent, (agents, 1)."""
    step: Any
    penalty: Any
    share: Any
    """1/m."""


class _AgentFactors(NamedTuple):
    """The factors of one agent."""

    coupling: Any
    personalization: Any
    step: Any
    penalty: Any
    share: Any


@_exact
def _agent_factors(factors: Factors, i: int) -> _AgentFactors:
    return _AgentFactors(
        factors.couplings[i, 0],
        factors.personalization[i, 0],
        factors.step,
        factors.penalty,
        factors.share,
    )


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
def _step_every(start: Any, end: Any, v: Array, g: Array, x: Array, z: Array, factors: Any) -> None:
    sigma, gamma, share = factors.coupling, factors.step, factors.share
    for j in range(start, end):
        v[j] -= gamma * (share * (g[j] - sigma * (x[j] - z[j])))


@_exact
def _step_own(start: Any, end: Any, u: Array, p: Array, x: Array, z: Array, factors: Any) -> None:
    sigma, gamma, rho = factors.coupling, factors.step, factors.penalty
    for j in range(start, end):
        u[j] -= gamma * (rho * (x[j] - p[j]) + sigma * (x[j] - z[j]))


@_exact
def _step_every_personal(
    start: Any, end: Any, v: Array, g: Array, x: Array, z: Array, factors: Any
) -> None:
    sigma, gamma, share = factors.coupling, factors.step, factors.share
    rest = g.dtype.type(1) - factors.personalization
    for j in range(start, end):
        v[j] -= gamma * (share * (rest * g[j] - sigma * (x[j] - z[j])))


@_exact
def _step_own_personal(
    start: Any, end: Any, u: Array, p: Array, x: Array, z: Array, g: Array, factors: Any
) -> None:
    sigma, gamma, rho = factors.coupling, factors.step, factors.penalty
    theta = factors.personalization
    for j in range(start, end):
        u[j] -= gamma * ((rho * (x[j] - p[j]) + sigma * (x[j] - z[j])) + theta * g[j])


@_exact
def _step_every_own(start: Any, end: Any, v: Array, x: Array, z: Array, factors: Any) -> None:
    sigma, gamma, share = factors.coupling, factors.step, factors.share
    for j in range(start, end):
        v[j] -= gamma * (share * -(sigma * (x[j] - z[j])))


@_exact
def _personal_step(
    v: Array, u: Array, z0: Array, factors: Any, gradients: Array, x: Array, p: Array, z: Array
) -> None:
    """Take a step of an agent with θ > 0, from its gradients at x and at z."""
    n = Index(x.size)
    g_x, g_z = gradients[:n], gradients[n:]
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        if factors.personalization == 1:
            _step_every_own(start, end, v, x, z, factors)
        else:
            _step_every_personal(start, end, v, g_z, x, z, factors)
        _step_own_personal(start, end, u, p, x, z, g_x, factors)
        _place_average(start, end, z, z0, v, u, factors.share)


@_exact
def _step(
    v: Array, u: Array, z0: Array, factors: Any, g: Array, x: Array, p: Array, z: Array
) -> None:
    """Take a step of one agent, from its gradient g, its own block x and the projection p of x."""
    n = Index(x.size)
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        _step_every(start, end, v, g, x, z, factors)
        _step_own(start, end, u, p, x, z, factors)
        _place_average(start, end, z, z0, v, u, factors.share)


@_exact
def _begin(i: int, blocks: Start, v: Array, u: Array, z: Array, x0: Array) -> None:
    """Write the blocks of agent i before its first step."""
    center, offset = blocks.center, blocks.offsets[i]
    for j in range(Index(center.size)):
        v[j] = u[j] = 0
        z[j] = blocks.mean[j]
        x0[j] = center[j] + offset[j]


@_exact
def _local_steps(
    callees: Callees,
    blocks: Start,
    factors: Factors,
    source: BatchSource,
    sets: ThresholdSets,
    scratch: StepScratch,
) -> bool:
    """Take all steps of all agents; return False if a projection is unresolved."""
    vectors, zero, n = scratch.vectors, Index(0), Index(blocks.center.size)
    # x and z, and the gradients there, are neighbours, so that both are one argument.
    gradients, points = vectors[0:2].reshape(-1), vectors[2:4].reshape(-1)
    x, z, p, x0 = vectors[2], vectors[3], vectors[4], vectors[5]
    for i in range(blocks.v.shape[0]):
        own_factors = _agent_factors(factors, i)
        theta = own_factors.personalization
        first, last = (n if theta == 0 else zero), (n if theta == 1 else 2 * n)
        at, g = points[first:last], gradients[first:last]
        v, u = blocks.v[i], blocks.u[i]
        _begin(i, blocks, v, u, z, x0)
        for step in range(source.batches.shape[0]):
            _place_own(zero, n, x, x0, v, u)
            gradient_at(callees.gradient, at, source, step, i, scratch.gradient, g)
            status = project_row(callees.project, x, sets, i, p)
            if status == UNRESOLVED:
                return False
            projection = x if status == INSIDE else p
            if theta == 0:
                _step(v, u, blocks.mean, own_factors, g, x, projection, z)
            else:
                _personal_step(v, u, blocks.mean, own_factors, gradients, x, projection, z)
    return True


@_exact
def _single_step(points: Points, z0: Array, factors: Factors) -> None:
    """Take one step of all agents, from their gradients and projections."""
    v, u, z, g, x, p = points
    for i in range(v.shape[0]):
        _step(v[i], u[i], z0, _agent_factors(factors, i), g[i], x[i], p[i], z[i])


@cache
def local_steps(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., bool]:
    """Return ``_local_steps``, compiled for parameters and features of these dtypes."""
    number = numba.from_dtype(dtype)
    rows, vector = matrix_type(number), vector_type(number)
    center = vector_type(types.float64, readonly=True)
    offsets = matrix_type(types.float64, readonly=True)
    blocks = named_tuple_type(Start, rows, rows, vector, center, offsets)
    data = (source_type(dtype, features), SETS, step_scratch_type(number))
    steps = compile_kernel(_local_steps, (CALLEES, blocks, _factors_type(number), *data))
    return partial(steps, callees(dtype, features, projects=True))


@cache
def single_step(dtype: np.dtype[Any]) -> Callable[..., None]:
    """Return ``_single_step``, compiled for one dtype."""
    number = numba.from_dtype(dtype)
    points = named_tuple_type(Points, *[matrix_type(number)] * 6)
    return compile_kernel(_single_step, (points, vector_type(number), _factors_type(number)))


def _factors_type(number: Any) -> Any:
    """Return the type of the factors."""
    column = matrix_type(number)
    return named_tuple_type(Factors, column, column, number, number, number)
