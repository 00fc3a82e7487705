"""The agents of `million`; a module of its own, because actors import it."""

from __future__ import annotations

from functools import cache

import numpy as np

from pcfed import Agent
from pcfed.losses import LeastSquares
from pcfed.sets import Box

PARAMETERS, SAMPLES, STREAMS = 100, 4, 4096
COUPLING = 1.0
GOLDEN = (5**0.5 - 1) / 2


@cache
def loss_of(stream: int) -> LeastSquares:
    """Return least squares with the samples of a random stream."""
    rng = np.random.default_rng([17, stream])
    X = rng.standard_normal((SAMPLES, PARAMETERS))
    model = np.linspace(-1, 1, PARAMETERS)
    return LeastSquares(X, X @ model + rng.standard_normal(SAMPLES))


def bound_of(i: int) -> float:
    """Return the bound of an agent's box, in [0.1, 1.1)."""
    return 0.1 + i * GOLDEN % 1


def make_agent(i: int) -> Agent:
    """Return the agent at a position."""
    bound = bound_of(i)
    return Agent(loss_of(i % STREAMS), Box(-bound, bound), coupling=COUPLING)


@cache
def kept_agent(i: int) -> Agent:
    """Return the agent at a position, which every process makes once."""
    return make_agent(i)
