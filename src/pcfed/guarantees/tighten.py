r"""A smaller gap without another pass over the data.

The coupling is known exactly; only the losses must be replaced by their tangents at the feasible
models $\hat x_i$ and the centre $\hat c$. As $\|d\|^2 \ge 2 \langle e, d \rangle - \|e\|^2$, any
vectors $e_i$ give the bound

$$ f(\hat x) - f^* \;\le\; \frac1m \sum_i \Big( \langle b_i, \hat x_i \rangle + h_i(-b_i)
   + \frac{\sigma_i}{2} \|\hat x_i - \hat c - e_i\|^2 \Big) $$

where $h_i$ is the support function of agent i's set and, with $G = \frac1m \sum_i (1 - \theta_i)
\nabla f_i(\hat c)$,

$$ b_i = \theta_i \nabla f_i(\hat x_i) + \sigma_i e_i + G - \frac1m \sum_j \sigma_j e_j . $$

If the centre is free, the last two terms must cancel, so that the tangent is bounded in the centre.
No term is negative. The best choice is $e_i = s_i - c(s)$, where s minimizes the tangent plus the
coupling over the sets and $c(s)$ is the average of s, or the free centre that is best for s:
$c(s) = \sum_i \sigma_i s_i / \sum_i \sigma_i - m G / \sum_i \sigma_i$. This problem has no data in
it, and accelerated projected gradients solve it. The bound holds at every step, not only at the
minimum. With $s = \hat x$ and the average it is the Frank–Wolfe gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.accelerated_gradient import accelerated_steps
from pcfed.problem import Agent, Center
from pcfed.sets import ProjectionError, WarmStart
from pcfed.sets.rounding import MAX_ENTRY

STEPS_PER_EVALUATION = 10
"""Steps between two evaluations of the gap."""
PATIENCE = 30
"""The search ends when the gap has fallen by less than 2 % in this number of evaluations."""

ITERATIVE_PATIENCE, ITERATIVE_STEPS = 2, 20
"""The same, and a limit on the steps, where projections are iterations of their own."""
ITERATIVE_GOAL = 1e-9
"""Where they are, no steps are taken from this gap, relative to the products of b and models."""

MAX_TIGHTENING_FACTOR = 100.0
"""Tightening is only tried on gaps up to this multiple of the tolerance.

It divides gaps by less than that in all problems we measured, so that beyond it the steps would be
wasted.
"""


@dataclass(frozen=True, eq=False)
class Tangents:
    r"""The problem with losses replaced by their tangents at feasible models and a centre.

    Attributes
    ----------
    agents : sequence of Agent
        The agents.
    models, center : array of shape (m, n), and (n,)
        $\hat x$ and $\hat c$.
    own_gradients : array of shape (m, n), or (1, n) if all rows are the same
        $\theta_i \nabla f_i(\hat x_i)$.
    shared_gradient : array of shape (n,)
        $G$.
    kind : {"average", "free"}
        What the centre is.
    """

    agents: Sequence[Agent]
    models: Float64Array
    center: Float64Array
    own_gradients: Float64Array
    shared_gradient: Float64Array
    kind: Center = "average"

    @cached_property
    def sigma(self) -> Float64Array:
        """The couplings, as a column."""
        return couplings(self.agents)

    @property
    def bounded(self) -> bool:
        """Whether the tangent plus the coupling is bounded in the centre."""
        free = self.kind == "free"
        return not (free and not self.sigma.any() and bool(self.shared_gradient.any()))

    def deviations(self, s: Float64Array) -> Float64Array:
        """Return $e_i = s_i - c(s)$."""
        if self.kind == "average":
            return np.asarray(s - s.mean(axis=0))
        total = float(self.sigma.sum())
        if total == 0:
            return self.models - self.center
        best = ((self.sigma * s).sum(axis=0) - len(self.agents) * self.shared_gradient) / total
        return np.asarray(s - best)

    def gradients(self, e: Float64Array) -> Float64Array:
        """Return $b_i$, one row per agent."""
        force = self.sigma * e
        if self.kind == "free":
            return self.own_gradients + force
        return np.asarray(self.own_gradients + (self.shared_gradient - force.mean(axis=0)) + force)

    @cached_property
    def iterative(self) -> bool:
        """Whether projections onto a set are iterations of their own: those onto intersections."""
        return any(len(agent.feasible_set._parts()) > 1 for agent in self.agents)

    def worth_tightening(self, gap: float) -> bool:
        r"""Return whether a gap is large enough for steps that take iterations each.

        The terms of a gap are differences of numbers of the size $\|b_i\| \|\hat x_i\|$.
        """
        if not self.iterative:
            return True
        b = self.gradients(self.deviations(self.models))
        sizes = np.linalg.norm(b, axis=1) * np.linalg.norm(self.models, axis=1)
        return not gap <= ITERATIVE_GOAL * float(sizes.mean())

    def gap_terms(self, s: Float64Array) -> Float64Array:
        """Return every agent's term of the gap that a point s proves."""
        if not self.bounded:
            return np.full(len(self.agents), math.inf)
        e = self.deviations(s)
        b = self.gradients(e)
        difference = self.models - self.center - e
        terms = np.empty(len(self.agents))
        for i, agent in enumerate(self.agents):
            # Where s solves the problem above, −b_i is a normal vector of the set at s_i.
            linear = linear_gap(agent, self.models[i], b[i], near=s[i])
            quadratic = float(self.sigma[i, 0]) / 2 * float(difference[i] @ difference[i])
            terms[i] = linear + quadratic
        return finite_or_infinite(terms / len(self.agents))


@dataclass(frozen=True, eq=False)
class TightGap:
    r"""Every agent's term of a gap, and the point s that proves it."""

    gap_terms: Float64Array
    witness: Float64Array

    @property
    def gap(self) -> float:
        """The sum over agents."""
        return float(self.gap_terms.sum())


def tighten(tangents: Tangents, max_steps: int, witness: Float64Array | None = None) -> TightGap:
    """Return the smallest gap found in at most ``max_steps`` projected gradient steps.

    Each step costs one projection per agent; the search ends early when the gap hardly falls. It
    starts from the feasible models, or from ``witness``, that of similar models, if this gives a
    smaller gap.
    """

    def evaluate(s: Float64Array) -> TightGap:
        return TightGap(tangents.gap_terms(s), s)

    best = evaluate(tangents.models)
    L = float(tangents.sigma.max())
    if L == 0.0 or not math.isfinite(best.gap):
        return best
    if witness is not None:
        best = min(best, evaluate(witness), key=lambda each: each.gap)
    warm_starts = [WarmStart() for _ in tangents.agents]

    def gradient_step(y: Float64Array) -> Float64Array:
        new: Float64Array = y - tangents.gradients(tangents.deviations(y)) / L
        if not np.abs(new).max() <= MAX_ENTRY:
            raise ProjectionError("tighten: the step is too long for a projection.")
        for agent, row, warm_start in zip(tangents.agents, new, warm_starts, strict=True):
            agent.feasible_set.project_unchecked(row, row, warm_start)
        return new

    patience = PATIENCE
    if tangents.iterative:
        patience, max_steps = ITERATIVE_PATIENCE, min(max_steps, ITERATIVE_STEPS)
    gaps = [best.gap]
    steps = islice(accelerated_steps(gradient_step, best.witness), max_steps)
    with suppress(ProjectionError):  # the best gap before it holds
        for k, (s, _) in enumerate(steps, start=1):
            if k % STEPS_PER_EVALUATION == 0:
                best = min(best, evaluate(s), key=lambda each: each.gap)
                gaps.append(best.gap)
                if len(gaps) > patience and gaps[-1] > 0.98 * gaps[-1 - patience]:
                    break
    return best


def linear_gap(agent: Agent, model: Array, q: Array, near: Array) -> float:
    r"""Return $\max_{s \in X_j} \langle q, \hat x_j - s\rangle$, or inf if it is not known.

    ``near`` is a point of the set that is close to the maximizer s.
    """
    if not np.abs(q).max() <= MAX_ENTRY:  # NaN, or too large for sets to be evaluated
        return math.inf
    gap = float(q @ model) + agent.feasible_set.support_bound(-q, near=near)
    return math.inf if math.isnan(gap) else max(0.0, gap)


def finite_or_infinite(terms: Float64Array) -> Float64Array:
    """Return terms of a gap with inf instead of NaN: an overflow leaves them unknown, not small."""
    return np.where(np.isnan(terms), math.inf, terms)


def couplings(agents: Sequence[Agent]) -> Float64Array:
    """Return σ_i as a column."""
    return np.array([[agent.coupling] for agent in agents])
