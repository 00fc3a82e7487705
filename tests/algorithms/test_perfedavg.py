"""Per-FedAvg against its pseudocode in plain NumPy, and the meta-gradients that it follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pcfed import FedAvg, PerFedAvg, run
from pcfed.sets import WholeSpace
from tests.algorithms.plain import (
    KINDS,
    OPTIONS,
    SEED,
    N,
    per_fedavg,
    plain_agents,
    problem_of,
)
from tests.federations import classifiers, regressions


@pytest.mark.parametrize("hessian_free", [True, False])
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("batch", [1.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_pseudocode(kind, batch, constrained, hessian_free):
    agents = plain_agents(kind, batch=batch, constrained=constrained)
    options = {"own_step": 0.3, "own_steps": 2, "hessian_free": hessian_free, "difference": 0.01}
    algorithm = PerFedAvg(step=0.15, constrained=constrained, **options)
    result = run(problem_of(agents), algorithm, batch=batch, **OPTIONS)
    more = {"hessian_free": hessian_free, "delta": 0.01, "own_steps": 2}
    w, v = per_fedavg(agents, alpha=0.3, beta=0.15, **more)
    np.testing.assert_allclose(result.state.server["x"], w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.models, v, rtol=0, atol=1e-10)
    assert np.abs(w).max() > 0.1
    assert np.ptp(v, axis=0).max() > 0.05


def test_own_models_are_feasible_only_if_constrained():
    problem = classifiers()
    options = {"rounds": 30, "local_steps": 4, "batch": 0.3}
    inside = run(problem, PerFedAvg(step=0.3), **options)
    outside = run(problem, PerFedAvg(step=0.3, constrained=False), **options)
    assert max(record.infeasibility.max() for record in inside.history) < 1e-12
    assert problem.infeasibility(outside.models).max() > 0.1
    # Sets do not change the shared model.
    np.testing.assert_array_equal(inside.state.server["x"], outside.state.server["x"])


def test_with_a_tiny_own_step_it_is_fedavg():
    problem = classifiers()
    algorithm = PerFedAvg(step=0.2, own_step=1e-13)
    result = run(problem, algorithm, rounds=10, local_steps=3)
    expected = run(problem, FedAvg(step=0.2), rounds=10, local_steps=3).average
    np.testing.assert_allclose(result.state.server["x"], expected, atol=1e-11)
    assert np.abs(expected).max() > 0.1


def test_hessian_free_steps_minimise_the_loss_after_a_step_and_first_order_ones_do_not():
    problem = regressions([WholeSpace()] * 4)

    def slope(x):
        """The gradient of the mean of f_i(x − α ∇f_i(x)), with exact Hessians."""
        total = np.zeros(problem.n)
        for agent in problem.agents:
            zero = agent.loss.gradient(np.zeros(problem.n))
            H = np.stack([agent.loss.gradient(e) - zero for e in np.eye(problem.n)])
            g = agent.loss.gradient(x - 0.1 * agent.loss.gradient(x))
            total += g - 0.1 * H @ g
        return np.linalg.norm(total / problem.m)

    found = {}
    for hessian_free in (True, False):
        algorithm = PerFedAvg(step=0.3, own_step=0.1, hessian_free=hessian_free)
        result = run(problem, algorithm, rounds=2000, eval_every=2000)
        found[hessian_free] = slope(result.state.server["x"])
    assert found[True] < 1e-8
    assert found[False] > 1e-3


def test_the_batches_of_one_step_differ():
    """With equal batches, one local step of the Hessian-free method would be another one."""
    agents = plain_agents("least squares", batch=0.3)
    algorithm = PerFedAvg(step=0.15, own_step=0.3, hessian_free=True, constrained=False)
    result = run(problem_of(agents), algorithm, rounds=1, batch=0.3, seed=SEED)
    w = np.zeros(N)
    for agent in agents:
        rows = agent.batches(0, 1)[0]
        g = agent.gradient(-0.3 * agent.gradient(np.zeros(N), rows), rows)
        product = agent.gradient(g, rows) - agent.gradient(np.zeros(N), rows)
        w -= 0.15 * (g - 0.3 * product) / len(agents)
    assert np.abs(result.state.server["x"] - w).max() > 0.01


@pytest.mark.parametrize(("difference", "dtype"), [(1e-6, "float32"), (1e-14, None), (2.0, None)])
def test_a_difference_that_gives_no_product_with_the_hessian_is_refused(difference, dtype):
    problem = classifiers(dtype=np.dtype(dtype or "float64").type)
    options = {"rounds": 1, "local_steps": 2}
    algorithm = PerFedAvg(step=0.1, hessian_free=True, difference=difference)
    smallest = "1.2e-05" if dtype else "2.2e-14"
    with pytest.raises(ValueError, match=f"PerFedAvg: difference must be from {smallest} to 1 for"):
        run(problem, algorithm, **options)
    run(problem, replace(algorithm, hessian_free=False), **options)  # which does not need it


def test_the_smallest_difference_in_float32_still_gives_the_product():
    problem, options = classifiers(dtype=np.float32), {"rounds": 5, "local_steps": 3}
    tiny, usual, first_order = (
        run(problem, PerFedAvg(step=0.3, own_step=0.3, **each), **options).state.server["x"]
        for each in (
            {"hessian_free": True, "difference": 1.2e-5},
            {"hessian_free": True},
            {"hessian_free": False},
        )
    )
    assert np.linalg.norm(tiny - usual) < 0.1 * np.linalg.norm(first_order - usual)
    assert np.linalg.norm(first_order - usual) > 1e-3
