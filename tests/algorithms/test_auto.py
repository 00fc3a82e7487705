"""Steps and penalties that are worked out for a problem."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from pcfed import (
    Agent,
    Ditto,
    FedAvg,
    Local,
    PCFedAvg,
    PerFedAvg,
    Power,
    Problem,
    ProxAL,
    Scaffold,
    run,
)
from pcfed.algorithms import PenaltyAlgorithm, RunInfo, StepAlgorithm
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import L1Ball
from tests.federations import ALGORITHMS, classifiers, regressions


def test_steps_and_penalties():
    problem = regressions([L1Ball(1.0)] * 4)
    plain = PCFedAvg("auto", "auto").resolved(problem, RunInfo(100, 10))
    assert plain.penalty == 10.0
    assert plain.step * (problem.L_f / 4 + problem.sigma / 2 + 10.0) == pytest.approx(0.6)
    for algorithm in (FedAvg("auto", "auto"), Local("auto", "auto"), Scaffold("auto", "auto")):
        found = algorithm.resolved(problem, RunInfo(100, 10))
        assert found.penalty == 10.0
        assert found.step * (problem.L_f + 10.0) == pytest.approx(0.6)
    for algorithm, added in ((Ditto("auto", prox=3.0), 3.0), (PerFedAvg("auto"), 0.0)):
        found = algorithm.resolved(problem, RunInfo(100, 10))
        assert found.step * (problem.L_f + added) == pytest.approx(0.6)
    found = ProxAL("auto", "auto", prox=3.0).resolved(problem, RunInfo(100, 10))
    assert found.step * (problem.L_f + 10.0 + 3.0) == pytest.approx(0.6)


def test_decays_where_gradients_are_noisy_to_the_end():
    problem = classifiers()
    algorithm = PCFedAvg("auto", "auto")
    assert isinstance(algorithm.resolved(problem, RunInfo(9, 2, (5,) * 3, True)).step, Power)
    assert isinstance(algorithm.resolved(problem, RunInfo(9, 2, (5,) * 3)).step, float)
    step = algorithm.resolved(problem, RunInfo(9, 2, (5,) * 3, True)).step
    assert step(0) == pytest.approx(2 * step(60))


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_method_falls_with_auto(kind):
    algorithm = ALGORITHMS[kind]
    if isinstance(algorithm, PenaltyAlgorithm):
        algorithm = replace(algorithm, step="auto", penalty="auto")
    elif isinstance(algorithm, StepAlgorithm):
        algorithm = replace(algorithm, step="auto")
    for batch in (1.0, 0.2):
        result = run(classifiers(4), algorithm, rounds=30, local_steps=5, batch=batch)
        assert result.status == "finished"
        assert result.history[-1].loss < result.start.loss


def test_small_batches_are_more_curved():
    """With b = 1 it is the largest sample, with b = N the loss itself."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 5)), rng.integers(2, size=20)
    top = np.square(X).sum(axis=1).max()
    for loss, curvature in (
        (LeastSquares(X, y), 1.0),
        (LogisticRegression(X, y), 0.25),
        (SoftmaxRegression(X, y, classes=5), 0.5 * 0.4),
        (SoftmaxRegression(X, y, classes=2), 0.5),
    ):
        assert loss.typical_smoothness(1) == pytest.approx(curvature * top)
        assert loss.typical_smoothness(20) == loss.typical_smoothness()
        sizes = [loss.typical_smoothness(b) for b in (1, 5, 10, 19, 20)]
        assert sizes == sorted(sizes, reverse=True)
        assert loss.typical_smoothness() <= loss.smoothness()


def test_expected_smoothness_is_that_of_all_batches():
    """The mean over all batches B of ∇²f_B ∇²f_B is at most expected smoothness times ∇²f."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6, 3))
    loss = LeastSquares(X, np.zeros(6))
    whole = X.T @ X / 6
    squares = [X[list(B)].T @ X[list(B)] / 2 for B in combinations(range(6), 2)]
    mean = sum(H @ H for H in squares) / len(squares)
    slack = loss.typical_smoothness(2) * whole - mean
    assert np.linalg.eigvalsh(slack).min() >= -1e-12


def test_losses_without_a_smoothness_need_a_number():
    class Steep(LeastSquares):
        def smoothness(self):
            return math.inf

    problem = Problem([Agent(Steep(np.eye(2), np.ones(2)), L1Ball(1.0), 0.1)])
    with pytest.raises(
        ValueError, match="step must be a number for losses without a known smoothness"
    ):
        run(problem, FedAvg("auto", 1.0), rounds=1)


def test_growing_batches_stop_at_all_data():
    problem = regressions([L1Ball(1.0)] * 3)
    kwargs = {"rounds": 4, "local_steps": 2, "seed": 1}
    grown = run(problem, FedAvg(0.05), batch=lambda r: 10 ** (r - 1.0), x0=None, **kwargs)
    sizes = run(problem, FedAvg(0.05), batch=lambda r: 10**9, **kwargs)
    full = run(problem, FedAvg(0.05), batch=1.0, **kwargs)
    np.testing.assert_array_equal(sizes.models, full.models)
    assert not np.array_equal(grown.models, full.models)
    with pytest.raises(ValueError, match="batch must be a fraction"):
        run(problem, FedAvg(0.05), batch=lambda r: -0.5, **kwargs)
