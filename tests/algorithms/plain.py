"""Small problems for comparisons with plain implementations of algorithms, as loops over agents.

The losses and their gradients are written out here, so that a plain implementation shares nothing
with `pcfed` but the projections, who takes part, and the rows of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from pcfed import Agent, Problem
from pcfed.losses import LeastSquares, LogisticRegression
from pcfed.sampling import BatchSampler, resolve_batch_size
from pcfed.sets import ConvexSet

FEATURES = 6
STEPS, BATCH, SEED = 4, 0.3, 3
ABSENT = [[], [0], [1, 2], [3], [], [0, 3], [2], [], [1], [], [0, 1], []]
"""Who is absent in each round."""

OPTIONS = {
    "rounds": len(ABSENT),
    "local_steps": STEPS,
    "batch": BATCH,
    "participation": ABSENT,
    "seed": SEED,
}
"""Arguments of `run` for a comparison with absences and batches."""


@dataclass
class PlainProblem:
    """Least squares or logistic regression of some agents, as arrays."""

    kind: str
    X: list[np.ndarray]
    y: list[np.ndarray]
    sets: list[ConvexSet]

    @property
    def problem(self) -> Problem:
        """The same as a problem."""
        loss = LeastSquares if self.kind == "least squares" else LogisticRegression
        data = zip(self.X, self.y, self.sets, strict=True)
        return Problem([Agent(loss(X, y), each) for X, y, each in data])

    @property
    def plan(self) -> list[list[int]]:
        """Who takes part in each round."""
        return [[i for i in range(len(self.X)) if i not in absent] for absent in ABSENT]

    def gradient(self, i: int, r: int, k: int, x: np.ndarray) -> np.ndarray:
        """Return the gradient of agent i in round r on the batch of local step k."""
        size = resolve_batch_size(BATCH, len(self.y[i]), agent="")
        rows = BatchSampler(len(self.y[i]), size).draw(SEED, i, r, STEPS)[k]
        X, y = self.X[i][rows], self.y[i][rows]
        if self.kind == "least squares":
            return X.T @ (X @ x - y) / len(y)
        return X.T @ (1 / (1 + np.exp(-(X @ x))) - y) / len(y)

    def optimum(self) -> np.ndarray:
        """Return CVXPY's model with the least mean loss in all sets, which are l1 balls."""
        x = cp.Variable(FEATURES)
        losses = [
            cp.sum_squares(X @ x - y) / (2 * len(y))
            if self.kind == "least squares"
            else cp.sum(cp.logistic(X @ x) - cp.multiply(y, X @ x)) / len(y)
            for X, y in zip(self.X, self.y, strict=True)
        ]
        inside = [cp.norm1(x) <= each.radius for each in self.sets]
        problem = cp.Problem(cp.Minimize(sum(losses) / len(losses)), inside)
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        return x.value


def plain_problem(kind: str, sets: Sequence[ConvexSet], seed: int = 0) -> PlainProblem:
    """Return agents with different data and different solutions."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(20 + i, FEATURES)) for i in range(len(sets))]
    outputs = [each @ (2 * rng.normal(size=FEATURES)) + rng.normal(size=len(each)) for each in X]
    y = outputs if kind == "least squares" else [(each > 0).astype(float) for each in outputs]
    return PlainProblem(kind, X, y, list(sets))
