r"""Local gradient steps on an agent's penalised loss, as FedAvg, FedProx, SCAFFOLD and Local take.

$$ y \leftarrow y - \gamma \big( \nabla f_i(y) + \rho (y - \Pi_{X_i}[y])
   + \mu (y - x) + \text{correction} \big) $$

The algorithms differ only in where the steps start and in the terms that are added to the gradient.
"""

from __future__ import annotations

import numpy as np

from pcfed import kernels
from pcfed.algorithms.base import RoundInfo
from pcfed.algorithms.local_context import LocalContext
from pcfed.arrays import Array
from pcfed.kernels.arguments import StepScratch, ThresholdSets

NO_SETS = ThresholdSets(is_ball=False, totals=np.empty(0), slack=0.0, thresholds=np.empty(0))
"""For steps without projections."""


def descend(
    context: LocalContext,
    x: Array,
    round_info: RoundInfo,
    *,
    prox: float = 0.0,
    correction: Array | None = None,
) -> Array:
    r"""Return the models after all local steps of a round.

    Parameters
    ----------
    context : LocalContext
        The agents' data and sets.
    x : array of shape (agents, n) or (1, n)
        Where to start, in the dtype of the steps; not changed.
    round_info : RoundInfo
        The step γ and the penalty ρ.
    prox : float
        FedProx's μ, the pull back to ``x``.
    correction : array of shape (agents, n), optional
        SCAFFOLD's difference of control variates.
    """
    y = context.rows(x)
    if _descend_compiled(context, y, x, round_info, prox, correction):
        return y
    y[...] = x
    gamma, rho, mu = (y.dtype.type(each) for each in (round_info.step, round_info.penalty, prox))
    g, p = context.empty(), context.empty()
    for k in range(context.steps):
        context.gradient(y, k, out=g)
        if rho:
            g += rho * (y - context.project(y, out=p))
        if mu:
            g += mu * (y - x)
        if correction is not None:
            g += correction
        y -= gamma * g
    context.release(g, p)
    return y


def _descend_compiled(
    context: LocalContext,
    y: Array,
    x: Array,
    round_info: RoundInfo,
    prox: float,
    correction: Array | None,
) -> bool:
    """Take all local steps of a round in compiled code, to the same bits as NumPy.

    Returns False if kernels do not support the losses, the sets or a point; y is then undefined.
    """
    projects, dtype = round_info.penalty != 0, y.dtype
    descent, sources = kernels.load("descent"), context.batch_sources()
    sets = context.sets.threshold_sets(dtype) if projects else NO_SETS
    if descent is None or sets is None or not sources:
        return False
    factors = descent.DescentFactors(
        dtype.type(round_info.step), dtype.type(round_info.penalty), dtype.type(prox)
    )
    change = np.empty((1, 0), dtype) if correction is None else correction
    vectors = context.vectors(2)
    for part, source in sources:
        start, c = (rows if len(rows) == 1 else rows[part] for rows in (x, change))
        steps = descent.local_steps(*source.dtypes, projects=projects)
        scratch = StepScratch(source.scratch(), vectors)
        taken = sets.take(part) if projects else sets
        if not steps(y[part], start, c, factors, source, taken, scratch):
            return False
    context.release(vectors)
    if projects:
        context.sets.store_thresholds(sets.thresholds)
    return True
