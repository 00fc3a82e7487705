r"""The local steps of PC-FedAvg, in the compact form.

An agent's own block is $x = C + w + v + u$, and $z = C + \bar w + v + u/m$ is the average of its m
blocks. The point whose distance from the set is penalised is $y = x + \lambda/\rho$, which is x
without corrections; with them, x and z also move by $-\gamma\,cu/m$ in each step. A step is

$$ v \leftarrow v - \gamma \big( (g - s)/m + \hat{cv} - cv \big), \quad
   u \leftarrow u - \gamma \big( \rho (y - \Pi_X[y]) + s - cu \big), \quad
   s = \sigma (x - z), $$

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
class Corrections:
    """What exact PC-FedAvg adds to the local steps of a round, in the dtype of the steps.

    All have one row per agent except ``mean_shift``, which is the same for all.
    """

    every: Array  # ĉv − cv
    own: Array  # cu
    offset: Array  # λ/ρ
    own_shift: Array  # γ cu/m
    mean_shift: Array  # γ ĉu/m

    @property
    def rows(self) -> tuple[Array, ...]:
        """All that have one row per agent."""
        return self.every, self.own, self.offset, self.own_shift


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
    context: LocalContext,
    blocks: Blocks,
    round_info: RoundInfo,
    corrections: Corrections | None = None,
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
    corrections : Corrections, optional
        Those of the exact variant.

    Returns
    -------
    v, u : arrays of shape (agents, n)
        What is added to all blocks, and what is added to the own block only.
    """
    v, u = context.empty(), context.empty()
    if not _steps_compiled(context, blocks, round_info, corrections, v, u):
        _single_steps(context, blocks, round_info, corrections, v, u)
    if corrections is not None:
        context.release(*corrections.rows)
    return v, u


def _single_steps(
    context: LocalContext,
    blocks: Blocks,
    round_info: RoundInfo,
    fix: Corrections | None,
    v: Array,
    u: Array,
) -> None:
    """Take one step after the other, with gradients and projections of any kind."""
    dtype = v.dtype.type
    x0 = np.add(blocks.center, blocks.offsets, context.empty(), casting="same_kind")
    z, g, x, p = context.rows(blocks.mean), context.empty(), context.empty(), context.empty()
    y = x if fix is None else context.empty()
    v[...] = u[...] = 0
    for k in range(context.steps):
        context.gradient(z, out=g)
        np.add(x0, v + u, out=x)
        if fix is not None:
            x -= dtype(k) * fix.own_shift
            np.add(x, fix.offset, out=y)
        context.project(y, out=p)
        _step(context, blocks, round_info, fix, _Points(v, u, z, g, x, y, p), k)
    context.release(x0, z, g, x, y, p)


class _Points(NamedTuple):
    """The vectors of a step, one row per agent."""

    v: Array
    u: Array
    z: Array
    g: Array
    x: Array
    y: Array
    p: Array  # the projection of y


def _step(
    context: LocalContext,
    blocks: Blocks,
    round_info: RoundInfo,
    fix: Corrections | None,
    points: _Points,
    k: int,
) -> None:
    """Take step k: change v, u and z; g and p may be overwritten."""
    v, u, z, g, x, y, p = points
    dtype = v.dtype.type
    gamma, rho = dtype(round_info.step), dtype(round_info.penalty)
    share = dtype(1 / round_info.m)
    if (pcfedavg := kernels.load("pcfedavg")) is not None:
        factors = pcfedavg.Factors(context.coupling, gamma, rho, share)
        corrections = fix and pcfedavg.Corrections(*fix.rows, fix.mean_shift)
        step = pcfedavg.single_step(v.dtype, corrected=fix is not None)
        step(pcfedavg.Points(*points), blocks.mean, corrections, factors, dtype(k))
        return
    s = context.coupling * (x - z)
    g -= s
    g *= share
    np.subtract(y, p, out=p)
    p *= rho
    p += s
    if fix is not None:
        g += fix.every
        p -= fix.own
    v -= gamma * g
    u -= gamma * p
    np.add(blocks.mean, v + share * u, out=z)
    if fix is not None:
        z -= dtype(k + 1) * fix.mean_shift


def _steps_compiled(
    context: LocalContext,
    blocks: Blocks,
    round_info: RoundInfo,
    fix: Corrections | None,
    v: Array,
    u: Array,
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
        corrections = None
        if fix is not None:
            corrections = pcfedavg.Corrections(*(each[part] for each in fix.rows), fix.mean_shift)
        steps = pcfedavg.local_steps(*source.dtypes, corrected=fix is not None)
        scratch = StepScratch(source.scratch(), vectors)
        if not steps(start, corrections, factors, source, sets.take(part), scratch):
            return False
    context.release(vectors)
    context.sets.store_thresholds(sets.thresholds)
    return True
