"""Intercepts are free of the agents' sets, and certificates are finite if they are bounded."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from pcfed import Agent, PCFedSplit, Problem, run
from pcfed.guarantees import certify, optimum
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import Box, Intersection, L1Ball, L2Ball, LinfBall, Simplex

KINDS = ("least-squares", "logistic", "softmax")
CLASSES = 3
SETS = [
    (L1Ball(0.8), lambda w: [cp.norm1(w) <= 0.8]),
    (Box(-0.1, 0.5), lambda w: [w >= -0.1, w <= 0.5]),
    (L2Ball(0.7), lambda w: [cp.norm2(w) <= 0.7]),
    (LinfBall(0.3), lambda w: [cp.norm_inf(w) <= 0.3]),
    (Simplex(1.0), lambda w: [cp.sum(w) == 1, w >= 0]),
    (Intersection(Simplex(1.0), Box(0.0, 0.6)), lambda w: [cp.sum(w) == 1, w >= 0, w <= 0.6]),
]
BOUNDS = {"least-squares": (40.0, 2.0), "logistic": (30.0, 0.02), "softmax": (30.0, 0.05)}
"""A bound that is far away, and one that binds."""


def random_problem(seed):
    """Return a problem with mixed sets, its optimal value from CVXPY, and its bound."""
    rng = np.random.default_rng(seed)
    kind, bound = KINDS[seed % 3], BOUNDS[KINDS[seed % 3]][seed % 2]
    columns, outputs = 4, CLASSES if kind == "softmax" else 1
    sets = [SETS[k] for k in rng.permutation(len(SETS))[:3]]
    w = [cp.Variable(outputs * columns) for _ in sets]
    b = [cp.Variable(outputs) for _ in sets]
    mean_w, mean_b = sum(w) / 3, sum(b) / 3
    agents, cost, limits = [], 0, []
    for i, (convex, constraints) in enumerate(sets):
        X = 1.0 + rng.normal(size=(12, columns))
        logits = X @ cp.reshape(mean_w, (outputs, columns), order="C").T
        logits += np.ones((12, 1)) @ cp.reshape(mean_b, (1, outputs), order="C")
        if kind == "least-squares":
            y = 5.0 + X @ rng.normal(size=columns)
            loss = LeastSquares(X, y, intercept=True)
            term = cp.sum_squares(logits[:, 0] - y) / 2
        elif kind == "logistic":
            y = (X.sum(axis=1) + 2 * rng.normal(size=12) > 3).astype(int)
            loss = LogisticRegression(X, y, intercept=True)
            term = cp.sum(cp.logistic(cp.multiply(1 - 2 * y, logits[:, 0])))
        else:
            y = rng.integers(CLASSES, size=12)
            loss = SoftmaxRegression(X, y, classes=CLASSES, intercept=True)
            own = cp.sum(cp.multiply(np.eye(CLASSES)[y], logits))
            term = cp.sum(cp.log_sum_exp(logits, axis=1)) - own
        coupling = 0.1 * (i + 1)
        agents.append(Agent(loss, convex, coupling, intercept_bound=bound))
        difference = cp.hstack([w[i] - mean_w, b[i] - mean_b])
        cost += term / 12 + coupling / 2 * cp.sum_squares(difference)
        limits += [*constraints(w[i]), cp.abs(b[i]) <= bound]
    joint = cp.Problem(cp.Minimize(cost / 3), limits)
    joint.solve(solver=cp.CLARABEL)
    assert joint.status == "optimal"
    return Problem(agents), float(joint.value), bound


@pytest.mark.parametrize("seed", range(21))
def test_never_below_the_true_gap_and_small_at_the_optimum(seed):
    problem, best, bound = random_problem(seed)
    found = optimum(problem, tolerance=1e-8)
    assert found.objective == pytest.approx(best, abs=1e-6)
    rng = np.random.default_rng(seed)
    for t in (1.0, 0.1, 1e-3, 0.0):
        models = found.models + t * rng.normal(size=(problem.m, problem.n))
        for tightening in (0, 200):
            seen = certify(problem, models, tightening=tightening)
            assert np.isfinite(seen.gap)
            assert seen.gap >= seen.objective - best - 1e-6
    assert seen.gap <= 1e-6
    intercepts = seen.models[:, problem.agents[0].loss.intercept_slice]
    assert np.abs(intercepts).max() <= bound
    if bound <= 2:  # the bound binds, so that it is not idle in this test
        assert np.abs(intercepts).max() > 0.99 * bound


def test_intercepts_are_free_of_the_set():
    """The target is 7 for all features: the intercept is 7, whatever the set of coefficients."""
    X = np.random.default_rng(0).normal(size=(30, 3))
    loss = LeastSquares(X, np.full(30, 7.0), intercept=True)
    agents = [Agent(loss, L1Ball(r), 0.1, intercept_bound=50.0) for r in (0.01, 0.1)]
    problem = Problem(agents)
    result = run(problem, PCFedSplit(), rounds=100, local_steps=10)
    np.testing.assert_allclose(result.models, np.tile([0, 0, 0, 7.0], (2, 1)), atol=1e-6)
    assert certify(problem, result).gap < 1e-6


def test_a_bound_needs_an_intercept_that_the_set_leaves_free():
    X, y = np.eye(2), np.ones(2)
    with pytest.raises(ValueError, match="intercept_bound must be left out if there is no"):
        Agent(LeastSquares(X, y), L1Ball(1.0), 0.1, intercept_bound=5.0)
    loss = LeastSquares(X, y, intercept=True)
    with pytest.raises(ValueError, match="intercept_bound must be left out if there is no"):
        Agent(loss, L1Ball(1.0), 0.1, constrain_intercept=True, intercept_bound=5.0)
    for bound in (0.0, -1.0, float("inf"), float("nan"), "wide"):
        with pytest.raises(ValueError, match="Agent: intercept_bound must be"):
            Agent(loss, L1Ball(1.0), 0.1, intercept_bound=bound)
