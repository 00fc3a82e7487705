r"""The local steps of PC-FedAvg, in the compact form.

An agent's own block is $x = C + w + v + u$, and $z = C + \bar w + v + u/m$ is the average of its m
blocks. A step is

$$ v \leftarrow v - \gamma \big( (1 - \theta) g_z - s \big)/m, \qquad
   u \leftarrow u - \gamma \big( \rho (x - \Pi_X[x]) + s + \theta g_x \big), \qquad
   s = \sigma (x - z), $$

where $g_x = \nabla f(x)$ and $g_z = \nabla f(z)$ on one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pcfed import kernels
from pcfed.algorithms.base import RoundInfo
from pcfed.algorithms.local_context import LocalContext
from pcfed.arrays import Array
from pcfed.kernels.arguments import StepScratch, read_only


@dataclass(frozen=True, eq=False)
class Blocks:
    r"""Where the blocks of a group of agents are before the round.

    Attributes
    ----------
    center : array of shape (n,)
        C, in float64.
    offsets : array of shape (agents, n)
        Their w, in float64.
    mean : array of shape (n,)
        $C + \bar w$, in the dtype of the steps.
    """

    center: Array
    offsets: Array
    mean: Array


def local_steps(
    context: LocalContext, blocks: Blocks, round_info: RoundInfo
) -> tuple[Array, Array]:
    """Take all local steps of a round.

    Parameters
    ----------
    context : LocalContext
        The agents' data, sets and couplings.
    blocks : Blocks
        Where they start.
    round_info : RoundInfo
        The step γ, the penalty ρ and the number m of agents.

    Returns
    -------
    v, u : arrays of shape (agents, n)
        What is added to all blocks, and what is added to the own block only.
    """
    v, u = context.empty(), context.empty()
    if not _steps_compiled(context, blocks, round_info, v, u):
        _single_steps(context, blocks, round_info, v, u)
    return v, u


def _single_steps(
    context: LocalContext, blocks: Blocks, round_info: RoundInfo, v: Array, u: Array
) -> None:
    """Take one step after the other, with gradients and projections of any kind."""
    x0 = np.add(blocks.center, blocks.offsets, context.empty(), casting="same_kind")
    both, p = context.loss_points == "both", context.empty()
    pairs = [context.empty(points=2) for _ in range(2)]
    # With 0 < θ < 1 the gradients at x and z share one pass, so both are in one array.
    at, g = pairs if both else (None, context.empty())
    x, z = (at[:, 0], at[:, 1]) if at is not None else (context.empty(), context.empty())
    g_x, g_z = (g[:, 0], g[:, 1]) if both else (g, g)
    z[...] = blocks.mean
    v[...] = u[...] = 0
    for k in range(context.steps):
        np.add(x0, v + u, out=x)
        if at is not None:
            context.gradient(at, k, out=g)
        else:
            context.gradient(z if context.loss_points == "center" else x, k, out=g)
        context.project(np.ascontiguousarray(x), out=p)
        _step(context, blocks, round_info, _Points(v, u, z, g_x, g_z, x, p))
    context.release(x0, p, g, *pairs)


class _Points(NamedTuple):
    """The vectors of a step, one row per agent."""

    v: Array
    u: Array
    z: Array
    g_x: Array
    g_z: Array
    x: Array
    p: Array  # the projection of x


def _step(context: LocalContext, blocks: Blocks, round_info: RoundInfo, points: _Points) -> None:
    """Take a step: change v, u and z; gradients and p may be overwritten."""
    v, u, z, g_x, g_z, x, p = points
    dtype = v.dtype.type
    gamma, rho = dtype(round_info.step), dtype(round_info.penalty)
    share = dtype(1 / round_info.m)
    if context.loss_points == "center" and (pcfedavg := kernels.load("pcfedavg")) is not None:
        factors = _factors(pcfedavg, context, slice(None), round_info)
        vectors = pcfedavg.Points(v, u, z, g_z, x, p)
        pcfedavg.single_step(v.dtype)(vectors, blocks.mean, factors)
        return
    theta, s = context.personalization, context.coupling * (x - z)
    np.subtract(x, p, out=p)
    p *= rho
    p += s
    if context.loss_points != "center":
        p += theta * g_x
    g: Array = -s
    if context.loss_points != "own":
        g = (1 - theta) * g_z - s if context.loss_points == "both" else np.subtract(g_z, s, out=g_z)
    g *= share
    v -= gamma * g
    u -= gamma * p
    np.add(blocks.mean, v + share * u, out=z)


def _steps_compiled(
    context: LocalContext, blocks: Blocks, round_info: RoundInfo, v: Array, u: Array
) -> bool:
    """Take all steps in one compiled loop, to the same bits as one after the other.

    Returns False if kernels do not support the losses, the sets or a point; v and u are then
    undefined.
    """
    pcfedavg, sources = kernels.load("pcfedavg"), context.batch_sources()
    sets = context.sets.threshold_sets(v.dtype)
    if pcfedavg is None or sets is None or not sources:
        return False
    center, offsets = (
        read_only(np.ascontiguousarray(each, np.float64))
        for each in (blocks.center, blocks.offsets)
    )
    vectors = context.vectors(pcfedavg.VECTORS)
    for part, source in sources:
        start = pcfedavg.Start(v[part], u[part], blocks.mean, center, offsets[part])
        factors = _factors(pcfedavg, context, part, round_info)
        steps = pcfedavg.local_steps(*source.dtypes)
        points = 2 if context.loss_points == "both" else 1
        scratch = StepScratch(source.scratch(points), vectors)
        if not steps(start, factors, source, sets.take(part), scratch):
            return False
    context.release(vectors)
    context.sets.store_thresholds(sets.thresholds)
    return True


def _factors(kernel: Any, context: LocalContext, part: slice, round_info: RoundInfo) -> Any:
    """Return the factors of a step as the kernel reads them."""
    dtype = context.dtype.type
    return kernel.Factors(
        context.coupling[part],
        context.personalization[part],
        dtype(round_info.step),
        dtype(round_info.penalty),
        dtype(1 / round_info.m),
    )
