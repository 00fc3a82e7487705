"""The agents of `million`; a module of its own, because actors import it."""

from __future__ import annotations

from functools import cache

import numpy as np

from pcfed import Agent
from pcfed.losses import LeastSquares
from pcfed.sets import Box

PARAMETERS, SAMPLES, DIFFERENT = 100, 4, 4096
COUPLING = 1.0
GOLDEN = (5**0.5 - 1) / 2


def bound_of(i: int) -> float:
    """Return the bound of an agent's box, in [0.005, 0.105)."""
    return 0.005 + 0.1 * (i % DIFFERENT * GOLDEN % 1)


@cache
def different_agent(i: int) -> Agent:
    """Return one of the different agents, which every process makes once."""
    rng = np.random.default_rng([17, i])
    X = rng.standard_normal((SAMPLES, PARAMETERS))
    y = X @ np.linspace(-1, 1, PARAMETERS) + rng.standard_normal(SAMPLES)
    bound = bound_of(i)
    return Agent(LeastSquares(X, y), Box(-bound, bound), coupling=COUPLING)


def make_agent(i: int) -> Agent:
    """Return the agent at a position: its data and its box are those of i mod 4096."""
    return different_agent(i % DIFFERENT)


def make_anew(i: int) -> Agent:
    """Return the same agent, made from its random stream whenever it is read."""
    return different_agent.__wrapped__(i % DIFFERENT)
