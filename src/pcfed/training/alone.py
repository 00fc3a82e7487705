"""The best model of every agent alone, with which its own model is compared.

A comparison with training alone is only fair if that training has come to its end, however many
rounds the training together had. For convex losses the best model inside the agent's set is
therefore computed, by `pcfed.guarantees.optimum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.guarantees import optimum
from pcfed.problem import Agent, Problem

TOLERANCE = 1e-7
"""The largest distance from the optimum, as a fraction of the loss of the model that is zero."""


def can_be_solved(problem: Problem) -> bool:
    """Return whether the losses of all agents are convex and smooth."""
    return all(agent.loss.convex for agent in problem.agents) and math.isfinite(problem.L_f)


def solve_alone(
    problem: Problem, on_alone: Callable[[int, int], None] = lambda done, total: None
) -> Float64Array:
    """Return the best model of every agent inside its set, on its loss alone, one per row.

    ``on_alone`` is called with the number of agents that are done, and of all.
    """
    models = np.empty((problem.m, problem.n))
    for i, agent in enumerate(problem.agents):
        on_alone(i, problem.m)
        models[i] = _solve(agent)
    on_alone(problem.m, problem.m)
    return models


def _solve(agent: Agent) -> Float64Array:
    scale = agent.loss.value(np.zeros(agent.loss.n))
    alone = Problem([replace(agent, coupling=0.0, personalization=0.0)])
    best = optimum(alone, tolerance=TOLERANCE * scale if scale > 0 else None)
    model: Float64Array = best.models[0]
    return model
