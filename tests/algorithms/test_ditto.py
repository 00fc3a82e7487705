"""Ditto against its pseudocode in plain NumPy, and where it must be another method."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Ditto, FedAvg, Local, run
from pcfed.sets import L1Ball, WholeSpace
from tests.algorithms.plain import KINDS, OPTIONS, ditto, plain_agents, problem_of
from tests.federations import classifiers, regressions


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("batch", [1.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_pseudocode(kind, batch, constrained):
    agents = plain_agents(kind, batch=batch, constrained=constrained)
    algorithm = Ditto(step=0.1, own_step=0.2, prox=0.7, constrained=constrained)
    result = run(problem_of(agents), algorithm, batch=batch, **OPTIONS)
    w, v = ditto(agents, eta=0.1, lam=0.7, own_eta=0.2)
    np.testing.assert_allclose(result.state.server["x"], w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.models, v, rtol=0, atol=1e-10)
    assert np.abs(v).min(axis=1).max() > 1e-3
    assert np.ptp(v, axis=0).max() > 0.1


def test_own_models_are_feasible_only_if_constrained():
    problem = classifiers()
    options = {"rounds": 20, "local_steps": 4, "batch": 0.3}
    inside = run(problem, Ditto(step=0.3, prox=0.1), **options)
    outside = run(problem, Ditto(step=0.3, prox=0.1, constrained=False), **options)
    assert Ditto(step=0.3, prox=0.1).feasible
    assert not Ditto(step=0.3, prox=0.1, constrained=False).feasible
    assert max(record.infeasibility.max() for record in inside.history) < 1e-12
    assert problem.infeasibility(outside.models).min() > 0.1
    # The shared model does not depend on own models.
    np.testing.assert_array_equal(inside.state.server["x"], outside.state.server["x"])


def test_without_prox_every_agent_trains_alone_and_the_shared_model_is_that_of_fedavg():
    problem, options = classifiers(), {"rounds": 12, "local_steps": 3, "batch": 0.3}
    result = run(problem, Ditto(step=0.2, prox=0.0, constrained=False), **options)
    alone = run(problem, Local(step=0.2), **options)
    together = run(problem, FedAvg(step=0.2), **options)
    np.testing.assert_allclose(result.models, alone.models, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(result.state.server["x"], together.average)
    assert np.abs(alone.models - together.models).max() > 0.1


def test_a_larger_prox_pulls_own_models_to_the_shared_one():
    problem, distances = regressions([WholeSpace()] * 4), []
    for prox in (0.01, 1.0, 100.0):
        algorithm = Ditto(step=0.05, own_step=0.5 / (prox + 5), prox=prox)
        result = run(problem, algorithm, rounds=200, local_steps=5, eval_every=200)
        apart = result.models - result.state.server["x"]
        distances.append(np.linalg.norm(apart, axis=1).max())
    assert distances[0] > 1.5 * distances[1] > 15 * distances[2] > 0


def test_own_models_solve_their_problem():
    """With full batches, v minimises f_i(v) + μ/2 ‖v − x‖² over the set."""
    problem = regressions([L1Ball(1.0), L1Ball(2.0), L1Ball(4.0)])
    result = run(problem, Ditto(step=0.1, prox=0.5), rounds=500, local_steps=3, eval_every=500)
    x = result.state.server["x"]
    for agent, v in zip(problem.agents, result.models, strict=True):
        slope = agent.loss.gradient(v) + 0.5 * (v - x)
        np.testing.assert_allclose(agent.constraint.project(v - slope), v, atol=1e-9)
        assert np.linalg.norm(slope) > 0.01
