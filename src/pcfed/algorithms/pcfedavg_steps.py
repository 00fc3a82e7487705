r"""The local steps of PC-FedAvg, in the compact form.

An agent's own block is $x = C + w + v + u$, and $z = C + \bar w + v + u/m$ is the average of its m
blocks. A step is

$$ v \leftarrow v - \gamma (g - s)/m, \qquad
   u \leftarrow u - \gamma \big( \rho (x - \Pi_X[x]) + s \big), \qquad s = \sigma (x - z), $$

where $g = \nabla f(z)$ on a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    z, g, x, p = context.rows(blocks.mean), context.empty(), context.empty(), context.empty()
    v[...] = u[...] = 0
    for k in range(context.steps):
        context.gradient(z, k, out=g)
        np.add(x0, v + u, out=x)
        context.project(x, out=p)
        _step(context, blocks, round_info, _Points(v, u, z, g, x, p))
    context.release(x0, z, g, x, p)


class _Points(NamedTuple):
    """The vectors of a step, one row per agent."""

    v: Array
    u: Array
    z: Array
    g: Array
    x: Array
    p: Array  # the projection of x


def _step(context: LocalContext, blocks: Blocks, round_info: RoundInfo, points: _Points) -> None:
    """Take a step: change v, u and z; g and p may be overwritten."""
    v, u, z, g, x, p = points
    dtype = v.dtype.type
    gamma, rho = dtype(round_info.step), dtype(round_info.penalty)
    share = dtype(1 / round_info.m)
    if (pcfedavg := kernels.load("pcfedavg")) is not None:
        factors = pcfedavg.Factors(context.coupling, gamma, rho, share)
        pcfedavg.single_step(v.dtype)(pcfedavg.Points(*points), blocks.mean, factors)
        return
    s = context.coupling * (x - z)
    g -= s
    g *= share
    np.subtract(x, p, out=p)
    p *= rho
    p += s
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
    dtype = v.dtype.type
    gamma, rho, share = (
        dtype(each) for each in (round_info.step, round_info.penalty, 1 / round_info.m)
    )
    center, offsets = (
        read_only(np.ascontiguousarray(each, np.float64))
        for each in (blocks.center, blocks.offsets)
    )
    vectors = context.vectors(pcfedavg.VECTORS)
    for part, source in sources:
        start = pcfedavg.Start(v[part], u[part], blocks.mean, center, offsets[part])
        factors = pcfedavg.Factors(context.coupling[part], gamma, rho, share)
        steps = pcfedavg.local_steps(*source.dtypes)
        scratch = StepScratch(source.scratch(), vectors)
        if not steps(start, factors, source, sets.take(part), scratch):
            return False
    context.release(vectors)
    context.sets.store_thresholds(sets.thresholds)
    return True
