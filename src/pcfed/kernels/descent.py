"""Local steps of FedAvg, FedProx, SCAFFOLD and Local: all steps of a group in one loop.

An agent's vectors stay in the cache from its first step to its last. A row is processed in pieces,
and each of the loops below writes to one array only: with more, LLVM would have too many pairs of
arrays to check for overlap, and would not use vector instructions. Operations are neither reordered
nor contracted, so that the bits are those of the NumPy code in `pcfed.algorithms.local_descent`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from pcfed.arrays import Array
from pcfed.kernels.arguments import BatchSource, Callees, StepScratch, ThresholdSets
from pcfed.kernels.compiler import (
    Index,
    address_of,
    compile_kernel,
    helper,
    matrix_type,
    named_tuple_type,
)
from pcfed.kernels.gradients import gradient, gradient_at, scratch_type, source_type
from pcfed.kernels.thresholds import INSIDE, SETS, UNRESOLVED, project, project_row

PIECE = Index(1024)
"""Entries of a row that are processed by all loops of a step before the next entries."""

CALLEES = named_tuple_type(Callees, types.intp, types.intp)

_exact = helper()


class DescentFactors(NamedTuple):
    """The factors of a step: γ, ρ and FedProx's μ, in the dtype of the steps."""

    step: Any
    penalty: Any
    prox: Any


@_exact
def add_scaled_difference(start: Any, end: Any, g: Array, factor: Any, a: Array, b: Array) -> None:
    """Add ``factor * (a - b)`` to a piece of g."""
    for j in range(start, end):
        g[j] += factor * (a[j] - b[j])


@_exact
def add(start: Any, end: Any, g: Array, c: Array) -> None:
    """Add c to a piece of g."""
    for j in range(start, end):
        g[j] += c[j]


@_exact
def subtract_scaled(start: Any, end: Any, y: Array, factor: Any, g: Array) -> None:
    """Subtract ``factor * g`` from a piece of y."""
    for j in range(start, end):
        y[j] -= factor * g[j]


@_exact
def _step(y: Array, g: Array, p: Array, x: Array, c: Array, factors: DescentFactors) -> None:
    """Take one step from y: gradient g, projection p, start x, correction c (empty for none)."""
    n = Index(y.size)
    for start in range(Index(0), n, PIECE):
        end = min(start + PIECE, n)
        if factors.penalty != 0:
            add_scaled_difference(start, end, g, factors.penalty, y, p)
        if factors.prox != 0:
            add_scaled_difference(start, end, g, factors.prox, y, x)
        if c.size > 0:
            add(start, end, g, c)
        subtract_scaled(start, end, y, factors.step, g)


@_exact
def _row(i: int, rows: Array) -> int:
    """Return the index of agent i's row; a single row belongs to all agents."""
    return 0 if rows.shape[0] == 1 else i


@_exact
def _local_steps(
    callees: Callees,
    y: Array,
    x: Array,
    c: Array,
    factors: DescentFactors,
    source: BatchSource,
    sets: ThresholdSets,
    scratch: StepScratch,
) -> bool:
    """Take all steps of all agents; return False if a projection is unresolved."""
    g, p = scratch.vectors[0], scratch.vectors[1]
    for i in range(y.shape[0]):
        for step in range(source.batches.shape[0]):
            gradient_at(callees.gradient, y[i], source, step, i, scratch.gradient, g)
            status = INSIDE
            if factors.penalty != 0:
                status = project_row(callees.project, y[i], sets, i, p)
                if status == UNRESOLVED:
                    return False
            projection = y[i] if status == INSIDE else p
            _step(y[i], g, projection, x[_row(i, x)], c[_row(i, c)], factors)
    return True


@cache
def local_steps(
    dtype: np.dtype[Any], features: np.dtype[Any], *, projects: bool
) -> Callable[..., bool]:
    """Return ``_local_steps``, compiled for parameters and features of these dtypes.

    Parameters
    ----------
    dtype, features : dtype
        Of parameters and of features.
    projects : bool
        Whether there is a penalty; without one no projection needs to be compiled.
    """
    return partial(_compiled_steps(dtype, features), callees(dtype, features, projects=projects))


@cache
def _compiled_steps(dtype: np.dtype[Any], features: np.dtype[Any]) -> Callable[..., bool]:
    number = numba.from_dtype(dtype)
    read, write = matrix_type(number, readonly=True), matrix_type(number)
    factors = named_tuple_type(DescentFactors, number, number, number)
    data = (source_type(dtype, features), SETS, step_scratch_type(number))
    return compile_kernel(_local_steps, (CALLEES, write, read, read, factors, *data))


def callees(dtype: np.dtype[Any], features: np.dtype[Any], *, projects: bool) -> Callees:
    """Return the addresses of the gradient and the projection that a loop calls."""
    return Callees(
        gradient=address_of(gradient(dtype, features)),
        project=address_of(project(dtype)) if projects else 0,
    )


def step_scratch_type(number: Any) -> Any:
    """Return the type of a `StepScratch`."""
    return named_tuple_type(StepScratch, scratch_type(number), matrix_type(number))
