"""pFedMe against its pseudocode in plain NumPy, and the envelopes that it minimises."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import PFedMe, run
from pcfed.sets import L1Ball
from tests.algorithms.plain import KINDS, OPTIONS, pfedme, plain_agents, problem_of
from tests.federations import classifiers, regressions


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("batch", [1.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_pseudocode(kind, batch, constrained):
    agents = plain_agents(kind, batch=batch, constrained=constrained)
    options = {"prox": 2.0, "own_steps": 4, "server_step": 1.5, "constrained": constrained}
    algorithm = PFedMe(step=0.1, own_step=0.15, **options)
    result = run(problem_of(agents), algorithm, batch=batch, **OPTIONS)
    w, theta = pfedme(agents, eta=0.1, lam=2.0, beta=1.5, K=4, own_eta=0.15)
    np.testing.assert_allclose(result.state.server["x"], w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.models, theta, rtol=0, atol=1e-10)
    assert np.abs(w).max() > 0.02
    assert np.ptp(theta, axis=0).max() > 0.1


def test_own_models_are_feasible_only_if_constrained():
    problem = classifiers()
    options = {"rounds": 20, "local_steps": 4, "batch": 0.3}
    inside = run(problem, PFedMe(step=0.3, prox=1.0), **options)
    outside = run(problem, PFedMe(step=0.3, prox=1.0, constrained=False), **options)
    assert max(record.infeasibility.max() for record in inside.history) < 1e-12
    assert problem.infeasibility(outside.models).max() > 0.1
    assert np.abs(inside.state.server["x"] - outside.state.server["x"]).max() > 1e-3


@pytest.mark.parametrize("constrained", [True, False])
def test_it_minimises_the_mean_of_the_envelopes(constrained):
    """At the end own models are proximal points of the shared model, and their mean is it."""
    problem = regressions([L1Ball(1.0), L1Ball(2.0), L1Ball(4.0)])
    algorithm = PFedMe(step=0.5, own_step=0.2, prox=1.0, own_steps=60, constrained=constrained)
    result = run(problem, algorithm, rounds=300, eval_every=300)
    x = result.state.server["x"]
    np.testing.assert_allclose(result.models.mean(axis=0), x, atol=1e-6)
    for agent, v in zip(problem.agents, result.models, strict=True):
        target = v - (agent.loss.gradient(v) + (v - x))
        np.testing.assert_allclose(
            agent.constraint.project(target) if constrained else target, v, atol=1e-6
        )
    assert np.ptp(result.models, axis=0).max() > 0.05


def test_the_server_step_scales_the_change_of_the_shared_model():
    problem, shared = classifiers(), []
    for server_step in (1.0, 2.0):
        algorithm = PFedMe(step=0.3, prox=1.0, server_step=server_step)
        shared.append(run(problem, algorithm, rounds=1, local_steps=3).state.server["x"])
    np.testing.assert_allclose(shared[1], 2 * shared[0], rtol=1e-14)
    assert np.abs(shared[0]).max() > 1e-3
