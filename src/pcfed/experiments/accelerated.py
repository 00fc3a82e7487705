r"""Accelerated projected gradients on the joint problem: a competitor with two exchanges a step.

The joint objective f has the gradient blocks $\frac1m (\bar g + \sigma_j (y_j - \bar y))$ with
$\bar g = \frac1m \sum_i (\nabla f_i(\bar y) - \sigma_i (y_i - \bar y))$. So an iteration needs
two sums over all agents: one for the average $\bar y$ of the extrapolated models, and one for
$\bar g$. Every agent then projects its own model. The momentum is reset where it points uphill, by
a sum of scalars that travels with the next exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.guarantees.accelerated_gradient import accelerated_steps
from pcfed.problem import Problem
from pcfed.sets import SetRows

EXCHANGES = 2
"""Rounds of an iteration."""

BYTES_PER_NUMBER = 8


@dataclass(frozen=True)
class AcceleratedGradient:
    """The method with steps of a given length.

    Parameters
    ----------
    step : float
        Length of the gradient steps, 1 over the smoothness of the joint objective.
    """

    step: float

    def iterates(self, problem: Problem, iterations: int) -> Iterator[Float64Array]:
        """Yield the models after every iteration, inside their sets, starting from zeros."""
        sets = SetRows([agent.feasible_set for agent in problem.agents])

        def gradient_step(y: Float64Array) -> Float64Array:
            models = sets.project(y - self.step * problem.gradient(y))
            return models.astype(np.float64, copy=False)

        start = sets.project(np.zeros((problem.m, problem.n))).astype(np.float64, copy=False)
        for models, _ in islice(accelerated_steps(gradient_step, start), iterations):
            yield models

    @staticmethod
    def bytes_per_iteration(problem: Problem) -> int:
        """Return the bytes of an iteration: n numbers up and n down per agent and exchange."""
        return EXCHANGES * 2 * problem.m * problem.n * BYTES_PER_NUMBER


def accelerated_gradient(problem: Problem, *, typical: bool) -> AcceleratedGradient:
    r"""Return the method with steps of length $m / (L + \sigma)$.

    Parameters
    ----------
    problem : Problem
        The agents.
    typical : bool
        Whether L is the mean of the curvatures that the losses expect, if they are known, or that
        of the bounds, which are safe.
    """
    losses = [agent.loss for agent in problem.agents]
    L = float(np.mean([loss.typical_smoothness() for loss in losses])) if typical else math.inf
    if not math.isfinite(L):
        L = float(np.mean([loss.smoothness() for loss in losses]))
    return AcceleratedGradient(problem.m / (L + problem.sigma))
