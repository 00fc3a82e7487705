"""Reference optima have the accuracy that they report."""

from __future__ import annotations

import sys
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from pcfed import Agent, Problem
from pcfed.guarantees import certify, optimum
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import Box, Halfspace, Intersection, L1Ball, L2Ball, NonNegative, WholeSpace
from tests.federations import CLOSED_FORM, classifiers, regressions


def penalised_gradient(problem, models, penalty):
    nearest = [a.feasible_set.project(x) for a, x in zip(problem.agents, models, strict=True)]
    return problem.gradient(models) + penalty / problem.m * (models - np.stack(nearest))


def test_by_hand():
    """Two agents that share ½(z − 3)² with x_1 ≤ 1: x_2 makes up for it, against the coupling."""
    loss = LeastSquares(np.eye(1), np.array([3.0]))
    sets = (Halfspace(np.ones(1), 1.0), WholeSpace())
    problem = Problem([Agent(loss, each, coupling=0.5) for each in sets])
    found = optimum(problem, tolerance=1e-12)
    # d/dx_2 of ½((1 + x_2)/2 − 3)² + 0.5/2 ((x_2 − 1)/2)² = 0
    np.testing.assert_allclose(found.models.ravel(), [1.0, 11 / 3], atol=1e-10)
    assert found.status == "converged"
    assert found.gap == np.inf or found.gap < 1e-12


@pytest.mark.parametrize("penalty", [0.1, 10.0, 1000.0])
def test_the_penalised_gradient_meets_the_tolerance(penalty):
    rng = np.random.default_rng(4)
    for problem in (classifiers(), regressions([make(rng) for make in CLOSED_FORM.values()])):
        found = optimum(problem, penalty=penalty, tolerance=1e-10)
        assert found.status == "converged"
        residual = np.linalg.norm(penalised_gradient(problem, found.models, penalty))
        assert residual == pytest.approx(found.residual, abs=1e-12)
        assert residual <= 1e-10
        far = problem.infeasibility(found.models)
        expected = problem.objective(found.models) + penalty / (2 * problem.m) * far @ far
        assert found.objective == pytest.approx(expected, rel=1e-12)


def test_penalised_optima_approach_the_constrained_one():
    problem = classifiers()
    best = optimum(problem, tolerance=1e-10)
    below = [optimum(problem, penalty=penalty).objective for penalty in (1, 10, 100, 1e4)]
    assert sorted(below) == below
    assert 0 < best.objective - below[-1] < 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_data_do_not_limit_the_accuracy(dtype):
    found = optimum(classifiers(dtype=dtype), tolerance=1e-11)
    assert found.status == "converged"
    assert found.gap <= 1e-11


def test_the_start_does_not_matter():
    problem = classifiers()
    starts = (np.zeros(48), np.full(48, 5.0), np.random.default_rng(0).normal(size=(3, 48)))
    first, *others = (optimum(problem, x0=x0, tolerance=1e-10) for x0 in starts)
    for other in others:
        assert other.objective == pytest.approx(first.objective, abs=1e-9)


def test_many_agents():
    rng = np.random.default_rng(0)
    losses = [LogisticRegression(rng.normal(size=(5, 4)), np.arange(5) % 2) for _ in range(200)]
    problem = Problem([Agent(loss, L1Ball(rng.uniform(0.1, 2)), 0.1) for loss in losses])
    assert optimum(problem, tolerance=1e-8).status == "converged"


def test_intersections_converge():
    problem = regressions([Intersection(L1Ball(1.0), Box(-0.3, 0.2)), L2Ball(1.0)])
    found = optimum(problem, tolerance=1e-9)
    again = optimum(problem, tolerance=1e-9, x0=np.ones(9))
    assert found.status == again.status == "converged"
    assert max(found.gap, again.gap) <= 2e-9
    assert found.objective == pytest.approx(again.objective, abs=1e-8)


def test_constant_losses_converge_without_an_iteration():
    loss = LeastSquares(np.zeros((2, 3)), np.zeros(2))
    found = optimum(Problem([Agent(loss, L1Ball(1.0), 0.0), Agent(loss, NonNegative(), 0.0)]))
    assert (found.status, found.gap, found.iterations) == ("converged", 0.0, 0)


def test_the_status_says_if_the_tolerance_was_not_met():
    found = optimum(classifiers(), iterations=2, tolerance=1e-12)
    assert found.status == "stopped"
    assert "more iterations" in found.message
    assert found.gap == certify(classifiers(), found.models).gap > 1e-12
    stalled = optimum(classifiers(), tolerance=1e-25)
    assert stalled.status == "stalled"
    assert stalled.gap < 1e-12


def test_progress_is_one_line_on_a_terminal_and_every_ten_seconds_elsewhere(capsys, monkeypatch):
    clock = count(0, 4)
    module = sys.modules["pcfed.guarantees.optimum"]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    optimum(classifiers(), progress=True, iterations=6)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.count("\r") == 6
    assert "6 steps" in shown
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    optimum(classifiers(), progress=True, iterations=6)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["3", "6"]  # ten seconds apart


# -- the gradient of f ----------------------------------------------------------------------------

LOSSES = {
    "softmax": lambda X, y, b: SoftmaxRegression(X, y % 3, classes=3, intercept=b, l2=0.1),
    "logistic": lambda X, y, b: LogisticRegression(X, y % 2, intercept=b, l2=0.1),
    "squares": lambda X, y, b: LeastSquares(X, y, intercept=b, l2=0.1),
}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_full_gradient_by_finite_differences(kind, intercept):
    rng = np.random.default_rng(2)
    problem = Problem(
        Agent(LOSSES[kind](rng.normal(size=(7, 3)), np.arange(7), intercept), L1Ball(1.0), sigma)
        for sigma in (0.0, 0.7, 2.0)
    )
    models = rng.normal(size=(3, problem.n))
    gradient = problem.gradient(models)
    step = 1e-6
    for index in np.ndindex(models.shape):
        ahead, back = models.copy(), models.copy()
        ahead[index] += step
        back[index] -= step
        slope = (problem.objective(ahead) - problem.objective(back)) / (2 * step)
        assert gradient[index] == pytest.approx(slope, abs=1e-8)
