"""ProxAL: a plain implementation, the optimum inside all sets, and its form for halfspaces."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import ProxAL, certify, run
from pcfed.sets import Halfspace, L1Ball
from tests.algorithms.plain import (
    KINDS,
    OPTIONS,
    N,
    optimum,
    plain_agents,
    problem_of,
    proxal,
)

NUMBERS = {"step": 0.1, "penalty": 3.0, "prox": 1.5, "inner_rounds": 3, "tolerance": 0.4}
PAPER = {"eta": 0.1, "beta": 3.0, "rho": 1.5, "inner_rounds": 3, "tolerance": 0.4}
"""The same numbers by the names of the pseudocode."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tolerance", [0.0, 1e3])
def test_equals_the_pseudocode(kind, tolerance):
    agents, other = plain_agents(kind), {"tolerance": tolerance}
    result = run(problem_of(agents), ProxAL(**NUMBERS | other), batch=0.3, **OPTIONS)
    x, mu, outer = proxal(agents, **PAPER | other)
    assert outer == result.state.server["outer"][0]
    assert outer == 3 if tolerance == 0 else outer > 3
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.private["mu"], mu, rtol=0, atol=1e-10)
    models = np.stack([agent.project(x) for agent in agents])
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    assert np.abs(x).max() > 0.05
    assert np.abs(mu).max() > 1e-3, "sets must bind"


@pytest.mark.parametrize(("kind", "tolerance"), [("least squares", 8.0), ("logistic", 0.8)])
def test_absent_agents_count_in_the_residual(kind, tolerance):
    """With these tolerances, the residual of the participants alone would end an ADMM too early."""
    agents, other = plain_agents(kind), {"inner_rounds": 6, "tolerance": tolerance}
    result = run(problem_of(agents), ProxAL(**NUMBERS | other), batch=0.3, **OPTIONS)
    x, _, outer = proxal(agents, **PAPER | other)
    assert result.state.server["outer"][0] == outer == 1
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("participation", [1.0, 2])
def test_reaches_the_optimum_of_cvxpy_inside_all_sets(kind, participation):
    radii = (1.5, 1.0, 3.0)
    agents = plain_agents(kind, [L1Ball(radius) for radius in radii])
    result = run(
        problem_of(agents),
        ProxAL("auto", 10.0, prox=2.0, constrained=False),
        rounds=1000,
        local_steps=10,
        participation=participation,
        eval_every=1000,
    )
    best = optimum(agents)
    np.testing.assert_allclose(result.average, best, rtol=0, atol=2e-5)
    assert np.abs(best).sum() == pytest.approx(1.0), "the tightest set must bind"
    np.testing.assert_allclose(result.history[-1].infeasibility, 0, atol=2e-5)


def test_the_multipliers_are_those_of_the_optimum():
    """Each is normal to its set, and they balance the gradients."""
    problem = problem_of(plain_agents("least squares", [L1Ball(1.5), L1Ball(1.0), L1Ball(3.0)]))
    algorithm = ProxAL("auto", 10.0, prox=2.0, constrained=False)
    result = run(problem, algorithm, rounds=1000, local_steps=10, eval_every=1000)
    x, mu = result.average, result.state.private["mu"]
    total = sum(agent.loss.gradient(x) for agent in problem.agents)
    np.testing.assert_allclose(mu.sum(axis=0), -total, rtol=0, atol=1e-3)
    assert np.abs(total).max() > 1
    np.testing.assert_array_equal(mu[[0, 2]], 0)  # these sets do not bind
    # A normal of the l1 ball: its largest entries are where the model is not zero.
    assert mu[1] @ x == pytest.approx(np.abs(mu[1]).max() * 1.0, rel=1e-4)


def test_equals_the_form_with_inequalities_for_halfspaces():
    """With unit normals, μ_i is the multiplier of the paper times the normal."""
    rng = np.random.default_rng(4)
    normals = rng.normal(size=(4, N))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    bounds = [-2.0, -1.5, -1.0, 5.0]
    sets = [Halfspace(a, b) for a, b in zip(normals, bounds, strict=True)]
    agents = plain_agents("least squares", sets)
    result = run(problem_of(agents), ProxAL(**NUMBERS), batch=0.3, **OPTIONS)

    def multiplier(i, nu, beta, w):
        a, b = normals[i.index], bounds[i.index]
        nu = np.maximum(nu + beta * (a @ w - b), 0.0)
        return nu, nu * a

    x, nu, _ = proxal(agents, multiplier, **PAPER)
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.private["mu"], nu * normals, rtol=0, atol=1e-10)
    assert nu.max() > 0.1
    assert nu.min() == 0.0, "one constraint must not bind"


def test_totals_of_the_agents_average_to_the_servers():
    problem = problem_of(plain_agents("least squares"))
    state = run(problem, ProxAL(**NUMBERS), batch=0.3, **OPTIONS).state
    total = state.private["total"]
    np.testing.assert_allclose(state.server["mean"], total.mean(axis=0), rtol=0, atol=1e-13)
    assert np.abs(total).max() > 0.1


def test_own_models_are_certified_projections():
    problem = problem_of(plain_agents("logistic", [L1Ball(0.5), L1Ball(1.0), L1Ball(2.0)]))
    result = run(problem, ProxAL("auto", 10.0, prox=1.0), rounds=60, local_steps=5)
    assert result.history[-1].infeasibility.max() < 1e-12
    certificate = certify(problem, result)
    np.testing.assert_allclose(certificate.models, result.models, atol=1e-12)
    assert 0 < certificate.gap < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": 0.0}, "ProxAL: penalty must be > 0, got 0.0"),
        ({"prox": 0.0}, "ProxAL: prox must be > 0, got 0.0"),
        ({"inner_rounds": 0}, "ProxAL: inner_rounds must be a whole number ≥ 1, got 0"),
        ({"tolerance": -1.0}, "ProxAL: tolerance must be ≥ 0, got -1.0"),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        ProxAL(**{**NUMBERS, **options})


def test_the_penalty_is_positive_in_every_round():
    problem = problem_of(plain_agents("least squares"))
    algorithm = ProxAL(**{**NUMBERS, "penalty": lambda index: 1.0 - index})
    with pytest.raises(ValueError, match=r"ProxAL: penalty in round 1 must be > 0, got 0\.0; give"):
        run(problem, algorithm, rounds=3)
