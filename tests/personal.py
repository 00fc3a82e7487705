"""Problems in which losses are taken at own models or the centre is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pcfed import Problem
from pcfed.problem import Center

VARIANTS = [
    (theta, center)
    for center in ("average", "free")
    for theta in ((0.0,), (0.5,), (1.0,), (0.0, 0.3, 1.0))
    if (theta, center) != ((0.0,), "average")
]
"""Values of the agents' personalization, in turn, and the centre; all but the paper's problem."""


def personalized(problem: Problem, theta: Sequence[float], center: Center) -> Problem:
    """Return the problem with these values of personalization, in turn, and this centre."""
    agents = [
        replace(agent, personalization=theta[i % len(theta)])
        for i, agent in enumerate(problem.agents)
    ]
    return Problem(agents, center)
