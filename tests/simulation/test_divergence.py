"""A run whose objective grows without bound ends as diverged; others never do."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Agent, PCFedAvg, PCFedSplit, Problem, run
from pcfed.losses import LeastSquares, LogisticRegression
from pcfed.sets import L1Ball


def problem(loss=LeastSquares, *, m=3, coupling=0.5):
    rng = np.random.default_rng(3)
    agents = []
    for i in range(m):
        X = rng.standard_normal((20, 4))
        y = X @ rng.standard_normal(4)
        agents.append(
            Agent(loss(X, y if loss is LeastSquares else y > 0), L1Ball(1.0 + i), coupling)
        )
    return Problem(agents)


@pytest.mark.parametrize("loss", [LeastSquares, LogisticRegression])
def test_an_objective_that_grows_without_bound(loss):
    result = run(problem(loss), PCFedAvg(step=2.0, penalty=30.0), rounds=400, local_steps=4)
    assert result.status == "diverged"
    assert "more than 1e+06 times as large as at the start" in result.message
    assert "try a smaller step or a smaller penalty" in result.message
    assert np.isfinite(result.models).all()
    assert result.state.round < 400


def test_a_start_at_the_optimum_has_not_diverged():
    """The objective at the start is 1e-30, and rises by far more than a factor of a million."""
    rng = np.random.default_rng(0)
    X, x = rng.standard_normal((30, 3)), np.array([0.2, -0.1, 0.3])
    agents = [Agent(LeastSquares(X + i, (X + i) @ x), L1Ball(2.0), 0.1) for i in range(3)]
    start = x + 1e-15 * rng.standard_normal(3)
    moved = PCFedAvg(step=0.05, penalty=0.1)
    result = run(Problem(agents), moved, rounds=30, x0=start, batch=4)
    assert result.status == "finished"


def test_data_without_any_loss_at_zero():
    agents = [Agent(LeastSquares(np.eye(3), np.zeros(3)), L1Ball(1.0), 0.1) for _ in range(2)]
    result = run(Problem(agents), PCFedSplit(), rounds=5, x0=np.full(3, 1e-170))
    assert result.status == "finished"


@pytest.mark.parametrize(
    ("algorithm", "local_steps", "warned"),
    [
        (PCFedAvg(step=0.5, penalty=1.0), 20, True),
        (PCFedAvg(step=0.125, penalty=1.0), 20, False),
        (PCFedAvg(step=lambda index: 1 / (1 + index), penalty=3.0), 1, True),
        (PCFedAvg(step="auto", penalty=1e9), 20, False),
        (PCFedAvg(step=0.5, penalty="auto"), 20, False),
        (PCFedSplit(), 10**6, False),
    ],
)
def test_a_product_of_step_penalty_and_local_steps_that_is_too_large(
    algorithm, local_steps, warned
):
    said = algorithm.stability_warning(local_steps)
    assert (said is not None) == warned
    if warned:
        assert "step × penalty × local steps is " in said
