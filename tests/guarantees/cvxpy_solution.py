"""The joint problem solved by CVXPY, as an independent reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cvxpy as cp
import numpy as np

from pcfed import Agent, Problem
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from tests.sets.cases import CASES, Case

WHOLE = CASES[0]
BALL = next(case for case in CASES if case.name == "l2")
LossTerm = Callable[[cp.Expression], cp.Expression]


def federation(
    cases: Sequence[Case], kind: str = "squares", *, seed: int = 0, dtype: type = np.float64
) -> tuple[Problem, list[LossTerm]]:
    """Return a problem with these sets, and its losses for CVXPY."""
    rng = np.random.default_rng(seed)
    n = cases[0].n
    agents, terms = [], []
    for i, case in enumerate(cases):
        features = n // 2 if kind == "softmax" else n
        X = rng.normal(size=(8, features)).astype(dtype)
        if kind == "squares":
            y = X @ (3 * rng.normal(size=n)).astype(dtype)
            loss, term = LeastSquares(X, y), _squares(X, y)
        elif kind == "logistic":
            y = np.sign(X @ rng.normal(size=n) + 0.1).astype(int)
            loss, term = LogisticRegression(X, y), _logistic(X, y)
        else:
            y = rng.integers(2, size=8)
            loss, term = SoftmaxRegression(X, y, classes=2), _softmax(X, y)
        agents.append(Agent(loss, case.set, coupling=0.2 * (i + 1)))
        terms.append(term)
    return Problem(agents), terms


def solve(problem: Problem, cases: Sequence[Case], terms: Sequence[LossTerm]) -> float:
    """Return the optimal value."""
    x = [cp.Variable(problem.n) for _ in cases]
    center = sum(x) / problem.m if problem.center == "average" else cp.Variable(problem.n)
    cost = sum(
        agent.personalization * term(x_i)
        + (1 - agent.personalization) * term(center)
        + agent.coupling / 2 * cp.sum_squares(x_i - center)
        for agent, x_i, term in zip(problem.agents, x, terms, strict=True)
    )
    constraints = [
        each for case, x_i in zip(cases, x, strict=True) for each in case.constraints(x_i)
    ]
    joint = cp.Problem(cp.Minimize(cost / problem.m), constraints)
    joint.solve(solver=cp.CLARABEL)
    assert joint.status == "optimal"
    return float(joint.value)


def _squares(X: np.ndarray, y: np.ndarray) -> LossTerm:
    return lambda z: cp.sum_squares(X @ z - y) / (2 * len(y))


def _logistic(X: np.ndarray, y: np.ndarray) -> LossTerm:
    return lambda z: cp.sum(cp.logistic(cp.multiply(-y, X @ z))) / len(y)


def _softmax(X: np.ndarray, y: np.ndarray) -> LossTerm:
    def term(z: cp.Expression) -> cp.Expression:
        logits = X @ cp.reshape(z, (2, X.shape[1]), order="C").T
        own = cp.sum(cp.multiply(np.eye(2)[y], logits))
        return (cp.sum(cp.log_sum_exp(logits, axis=1)) - own) / len(y)

    return term
