r"""A smaller gap without another pass over the data.

The coupling is known exactly; only the losses must be replaced by their tangent at the average
$\hat z$. As $\|d\|^2 \ge 2 \langle e, d \rangle - \|e\|^2$, any vectors $e_i$ give the bound

$$ f(\hat x) - f^* \;\le\; \frac1m \sum_i \Big( \langle b_i, \hat x_i \rangle + h_i(-b_i)
   + \frac{\sigma_i}{2} \|\hat x_i - \hat z - e_i\|^2 \Big), \qquad
   b_i = \nabla F(\hat z) + \sigma_i e_i - \frac1m \sum_j \sigma_j e_j $$

with $F = \frac1m \sum_i f_i$ and $h_i$ the support function of agent i's set. No term is negative.
$e_i = \hat x_i - \hat z$ gives the Frank–Wolfe gap. The best choice is $e_i = s_i - \bar s$ where s
minimizes the tangent plus the coupling over the sets. This problem has no data in it, and
accelerated projected gradients solve it. The bound holds at every step, not only at the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.guarantees.accelerated_gradient import accelerated_steps
from pcfed.problem import Agent
from pcfed.sets import WarmStart

STEPS_PER_EVALUATION = 10
"""Steps between two evaluations of the gap."""
PATIENCE = 30
"""The search ends when the gap has fallen by less than 2 % in this number of evaluations."""


def gap_terms(
    agents: Sequence[Agent], models: Float64Array, gradient: Float64Array, e: Float64Array
) -> Float64Array:
    """Return every agent's term of the gap of feasible models, for given vectors $e_i$."""
    sigma = couplings(agents)
    coupling_force = sigma * e
    mean_force = coupling_force.mean(axis=0)
    difference = models - models.mean(axis=0) - e
    terms = np.empty(len(agents))
    for i, agent in enumerate(agents):
        b = gradient + coupling_force[i] - mean_force
        linear = float(b @ models[i]) + agent.feasible_set.support_bound(-b)
        quadratic = float(sigma[i, 0]) / 2 * float(difference[i] @ difference[i])
        terms[i] = max(0.0, linear) + quadratic
    return terms / len(agents)


@dataclass(frozen=True, eq=False)
class TightGap:
    r"""Every agent's term of a gap, and the point s that proves it by $e_i = s_i - \bar s$."""

    gap_terms: Float64Array
    witness: Float64Array

    @property
    def gap(self) -> float:
        """The sum over agents."""
        return float(self.gap_terms.sum())


def tighten(
    agents: Sequence[Agent],
    models: Float64Array,
    gradient: Float64Array,
    max_steps: int,
    witness: Float64Array | None = None,
) -> TightGap:
    """Return the smallest gap found in at most ``max_steps`` projected gradient steps.

    Each step costs one projection per agent; the search ends early when the gap hardly falls. It
    starts from the feasible models, or from ``witness``, that of similar models, if this gives a
    smaller gap.
    """

    def evaluate(s: Float64Array) -> TightGap:
        return TightGap(gap_terms(agents, models, gradient, s - s.mean(axis=0)), s)

    best = evaluate(models)
    sigma = couplings(agents)
    L = float(sigma.max())
    if L == 0.0 or not math.isfinite(best.gap):
        return best
    if witness is not None:
        best = min(best, evaluate(witness), key=lambda each: each.gap)
    warm_starts = [WarmStart() for _ in agents]

    def gradient_step(y: Float64Array) -> Float64Array:
        force = sigma * (y - y.mean(axis=0))
        new: Float64Array = y - (gradient + force - force.mean(axis=0)) / L
        for agent, row, warm_start in zip(agents, new, warm_starts, strict=True):
            agent.feasible_set.project_unchecked(row, row, warm_start)
        return new

    gaps = [best.gap]
    steps = islice(accelerated_steps(gradient_step, best.witness), max_steps)
    for k, (s, _) in enumerate(steps, start=1):
        if k % STEPS_PER_EVALUATION == 0:
            best = min(best, evaluate(s), key=lambda each: each.gap)
            gaps.append(best.gap)
            if len(gaps) > PATIENCE and gaps[-1] > 0.98 * gaps[-1 - PATIENCE]:
                break
    return best


def couplings(agents: Sequence[Agent]) -> Float64Array:
    """Return σ_i as a column."""
    return np.array([[agent.coupling] for agent in agents])
