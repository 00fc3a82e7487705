"""Small problems in plain NumPy, for implementations of published methods in the tests.

Gradients and projections are written out here, so that nothing of pcfed is in the numbers that its
algorithms are compared with, except which rows are in which batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pcfed import Agent, Problem
from pcfed.losses import LeastSquares, LogisticRegression
from pcfed.sampling import BatchSampler
from pcfed.sets import Box, L2Ball, WholeSpace

N = 5
SEED = 3
KINDS = ("least squares", "logistic")

SETS = (
    (L2Ball(0.3), lambda v: v * min(1.0, 0.3 / np.linalg.norm(v))),
    (Box(-0.1, 0.2), lambda v: np.clip(v, -0.1, 0.2)),
    (WholeSpace(), lambda v: v),
    (L2Ball(0.7), lambda v: v * min(1.0, 0.7 / np.linalg.norm(v))),
)
"""The agents' sets, and their projections."""


def absent(index: int) -> list[int]:
    """Who is absent in a round."""
    return [[0], [2, 3], [], [1]][index % 4]


@dataclass
class PlainAgent:
    """One agent's data, gradient and projection."""

    position: int
    kind: str
    X: np.ndarray
    y: np.ndarray
    project: Callable[[np.ndarray], np.ndarray]
    batch: float

    def batches(self, index: int, number: int) -> list:
        """The rows of the first batches of a round."""
        samples = len(self.y)
        sampler = BatchSampler(samples, max(1, round(self.batch * samples)))
        return list(sampler.draw(SEED, self.position, index, number))

    def gradient(self, w: np.ndarray, rows=None) -> np.ndarray:
        X, y = (self.X, self.y) if rows is None else (self.X[rows], self.y[rows])
        if self.kind == "least squares":
            return X.T @ (X @ w - y) / len(y)
        signs = 2 * y - 1
        return -X.T @ (signs / (1 + np.exp(signs * (X @ w)))) / len(y)


def plain_problem(kind: str, batch: float, *, constrained: bool) -> tuple[Problem, list]:
    """Return a problem, and the same agents in plain NumPy."""
    rng = np.random.default_rng(11)
    agents, plain = [], []
    for i, (convex, project) in enumerate(SETS):
        X = rng.normal(size=(20 + 3 * i, N))
        y = X @ rng.normal(size=N) + 0.1 * rng.normal(size=len(X))
        if kind == "logistic":
            y = (y > 0).astype(float)
        loss = {"least squares": LeastSquares, "logistic": LogisticRegression}[kind]
        agents.append(Agent(loss(X, y), convex, coupling=0.1))
        plain.append(PlainAgent(i, kind, X, y, project if constrained else np.copy, batch))
    return Problem(agents), plain


def present(plain: list[PlainAgent], index: int) -> list[PlainAgent]:
    """Who takes part in a round."""
    return [agent for agent in plain if agent.position not in absent(index)]


OPTIONS = {"participation": absent, "seed": SEED}
"""The options of `run` that go with it."""
