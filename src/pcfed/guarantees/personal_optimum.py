r"""The optimum of problems whose losses are taken at own models, or whose centre is free.

The search takes accelerated projected gradient steps on all models, and on the centre if it is
free, at once. Times m, the objective is

$$ \sum_i \Big( \theta_i f_i(x_i) + (1 - \theta_i) f_i(c)
   + \frac{\sigma_i}{2} \|x_i - c\|^2 \Big). $$

With $L_i$ the smoothness of $f_i$, its curvature is at most $\theta_i L_i + 2\sigma_i$ in $x_i$ and
$\sum_i ((1 - \theta_i) L_i + 2\sigma_i)$ in a free centre; steps are as long as that allows. If the
centre is the average, the curvature in all models together is at most
$\max_i (\theta_i L_i + \sigma_i) + \frac1m \sum_i (1 - \theta_i) L_i$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.guarantees.accelerated_gradient import accelerated_steps
from pcfed.guarantees.certificate import Certificate, certify
from pcfed.problem import Problem

STEPS_PER_ITERATION = 25
"""Accelerated steps between two certificates."""

PATIENCE = 40
"""Iterations without progress after which the search ends."""


@dataclass(frozen=True, eq=False)
class PersonalSearch:
    """What the search found.

    Attributes
    ----------
    certificate : Certificate
        Of the best models, with them.
    residual : float
        The length of the last step, times the curvature.
    iterations, gradients : int
        Number of certificates, and of passes over all data.
    converged : bool
        Whether the gap, or the residual where it is infinite, meets the tolerance.
    stalled : bool
        Whether progress ended before that.
    """

    certificate: Certificate
    residual: float
    iterations: int
    gradients: int
    converged: bool
    stalled: bool


def search_personal_optimum(
    problem: Problem, x0: Float64Array, *, tolerance: float, iterations: int
) -> PersonalSearch:
    """Search for the optimum of a convex problem, in float64."""
    problem = problem.to_float64()
    curvatures = _curvatures(problem)
    joint = _JointVariables(problem)
    steps = accelerated_steps(
        lambda y: joint.project(y - joint.gradient(y) / curvatures), joint.start(x0)
    )
    best: Certificate | None = None
    smallest, idle = (math.inf, math.inf), 0
    residual, gradients = math.inf, 0
    for iteration in range(1, iterations + 1):
        for _ in range(STEPS_PER_ITERATION):
            y, back = next(steps)
            residual = float(np.linalg.norm(curvatures * back)) / problem.m
        gradients += STEPS_PER_ITERATION + 1
        models, center = joint.split(y)
        certificate = certify(
            problem, models, center=center, witness=best.witness if best else None
        )
        gap = math.inf if certificate.gap is None else certificate.gap
        idle = 0 if (gap, residual) < smallest else idle + 1
        if best is None or (gap, residual) < smallest:
            best, smallest = certificate, (gap, residual)
        error = smallest[0] if math.isfinite(smallest[0]) else smallest[1]
        converged, stalled = error <= tolerance, idle >= PATIENCE
        if converged or stalled or iteration == iterations:
            return PersonalSearch(best, smallest[1], iteration, gradients, converged, stalled)
    raise AssertionError("unreachable: there is at least one iteration")


class _JointVariables:
    """All models as rows, and below them the centre if it is free."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.free = problem.center == "free"

    def start(self, x0: Float64Array) -> Float64Array:
        """Return the projected start, with its mean as the centre."""
        rows = [*x0, x0.mean(axis=0)] if self.free else [*x0]
        return self.project(np.stack(rows))

    def split(self, y: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the models and the centre."""
        return (y[:-1], y[-1]) if self.free else (y, y.mean(axis=0))

    def gradient(self, y: Float64Array) -> Float64Array:
        """Return the gradient of m times the objective."""
        problem = self.problem
        models, center = self.split(y)
        own = problem.m * problem.gradient(models, center)
        if not self.free:
            return own
        shared = np.zeros(problem.n)
        for agent, x in zip(problem.agents, models, strict=True):
            shared -= agent.coupling * (x - center)
            if agent.personalization < 1:
                shared += (1 - agent.personalization) * agent.loss.gradient(center)
        return np.concatenate([own, shared[None]])

    def project(self, y: Float64Array) -> Float64Array:
        """Return the models projected onto their sets."""
        new = np.array(y)
        for agent, row in zip(self.problem.agents, new, strict=False):
            row[...] = agent.feasible_set.project(row)
        return new


def _curvatures(problem: Problem) -> Float64Array:
    """Return a bound on the curvature in every row, as a column."""
    agents = problem.agents
    L, theta, sigma = np.array(
        [(a.loss.smoothness(), a.personalization, a.coupling) for a in agents]
    ).T
    if problem.center == "average":
        most = float((theta * L + sigma).max() + ((1 - theta) * L).mean())
        return np.full((problem.m, 1), most or 1.0)
    rows = np.array([*(theta * L + 2 * sigma), ((1 - theta) * L + 2 * sigma).sum()])
    rows[rows == 0] = 1.0
    return rows[:, None]
