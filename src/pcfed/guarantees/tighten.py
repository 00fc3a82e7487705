r"""A smaller gap without another look at the data.

The coupling is known exactly, only the losses need to be replaced by their tangent at the average
$\hat z$. As $\|d\|^2 \ge 2 \langle e, d \rangle - \|e\|^2$, for whatever vectors $e_i$

$$ f(\hat x) - f^* \;\le\; \frac1m \sum_i \Big( \langle b_i, \hat x_i \rangle + h_i(-b_i)
   + \frac{\sigma_i}{2} \|\hat x_i - \hat z - e_i\|^2 \Big), \qquad
   b_i = \nabla F(\hat z) + \sigma_i e_i - \frac1m \sum_j \sigma_j e_j $$

with $F = \frac1m \sum_i f_i$ and $h_i$ the support function of agent i's set. No term is negative.
$e_i = \hat x_i - \hat z$ gives the Frank–Wolfe gap. The best are $e_i = s_i - \bar s$ at the
minimum s over the sets of the tangent plus the coupling, a problem without data, which accelerated
projections approach: every step may make the gap smaller, and none can make it wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.problem import Agent
from pcfed.sets import WarmStart

LOOK = 10
"""Steps between two evaluations of the gap."""
PATIENCE = 30
"""Evaluations that must make the gap smaller by a fiftieth, or it ends."""


def shares_of_gap(
    agents: Sequence[Agent], models: Float64Array, slope: Float64Array, apart: Float64Array
) -> Float64Array:
    r"""Return every agent's summand of the gap.

    Parameters
    ----------
    agents : sequence of Agent
        Whose sets and couplings.
    models : array of shape (m, n)
        The feasible models $\hat x_i$.
    slope : array of shape (n,)
        $\nabla F(\hat z)$.
    apart : array of shape (m, n)
        The vectors $e_i$.
    """
    sigma = _couplings(agents)
    pulls = sigma * apart
    mean = pulls.mean(axis=0)
    off = models - models.mean(axis=0) - apart
    shares = np.empty(len(agents))
    for i, agent in enumerate(agents):
        b = slope + pulls[i] - mean
        far = float(b @ models[i]) + agent.feasible_set.support_bound(-b)
        shares[i] = max(0.0, far) + float(sigma[i, 0]) / 2 * float(off[i] @ off[i])
    return shares / len(agents)


@dataclass(frozen=True, eq=False)
class Tightened:
    r"""The smallest gap that was found.

    Attributes
    ----------
    shares : Array
        Per agent, its summand of the gap.
    witness : Array
        (m, n): the point s whose $e_i = s_i - \bar s$ prove it.
    """

    shares: Float64Array
    witness: Float64Array


def tighten(
    agents: Sequence[Agent],
    models: Float64Array,
    slope: Float64Array,
    steps: int,
    witness: Float64Array | None = None,
) -> Tightened:
    r"""Return the smallest gap found in at most ``steps`` steps of projections.

    Parameters
    ----------
    agents : sequence of Agent
        Whose sets and couplings.
    models : array of shape (m, n)
        The feasible models $\hat x_i$.
    slope : array of shape (n,)
        $\nabla F(\hat z)$.
    steps : int
        Each costs a projection per agent; it ends sooner where more steps bring little.
    witness : array of shape (m, n), optional
        Where to begin, if that is better than the models: the witness of models nearby.

    References
    ----------
    O'Donoghue, Candès, "Adaptive restart for accelerated gradient schemes" (2015), §3.2.
    """
    best = _at(agents, models, slope, models)
    sigma = _couplings(agents)
    largest = float(sigma.max())
    if largest == 0.0 or not math.isfinite(best.shares.sum()):
        return best
    if witness is not None:
        best = min(best, _at(agents, models, slope, witness), key=_gap)
    warm_starts = [WarmStart() for _ in agents]
    gaps = [_gap(best)]
    s, y, t = best.witness, best.witness, 1.0
    for k in range(1, steps + 1):
        pull = sigma * (y - y.mean(axis=0))
        new = y - (slope + pull - pull.mean(axis=0)) / largest
        for agent, row, warm_start in zip(agents, new, warm_starts, strict=True):
            agent.feasible_set.project_unchecked(row, row, warm_start)
        uphill = np.vdot(y - new, new - s) > 0
        after = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = new if uphill else new + (t - 1) / after * (new - s)
        s, t = new, 1.0 if uphill else after
        if k % LOOK == 0:
            best = min(best, _at(agents, models, slope, s), key=_gap)
            gaps.append(_gap(best))
            if len(gaps) > PATIENCE and gaps[-1] > 0.98 * gaps[-1 - PATIENCE]:
                break
    return best


def _at(
    agents: Sequence[Agent], models: Float64Array, slope: Float64Array, s: Float64Array
) -> Tightened:
    """Return the gap that a point proves."""
    return Tightened(shares_of_gap(agents, models, slope, s - s.mean(axis=0)), s)


def _gap(found: Tightened) -> float:
    """Return the sum over agents."""
    return float(found.shares.sum())


def _couplings(agents: Sequence[Agent]) -> Float64Array:
    """Return σ_i as a column."""
    return np.array([[agent.coupling] for agent in agents])
