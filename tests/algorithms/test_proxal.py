"""ProxAL: a plain implementation, the optimum inside all sets, and its form for halfspaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pcfed import ProxAL, certify, run
from pcfed.sets import Halfspace, L1Ball
from tests.algorithms.plain import FEATURES, OPTIONS, STEPS, plain_problem
from tests.algorithms.test_fedmid import KINDS, SETS

NUMBERS = {"step": 0.1, "penalty": 3.0, "prox": 1.5, "inner_rounds": 3, "tolerance": 0.4}


@dataclass
class Client:
    """The variables of one agent, and its last outer iteration."""

    u: np.ndarray
    dual: np.ndarray
    mu: float | np.ndarray = 0.0
    outer: int = -1


def set_multiplier(i, mu, beta, y):
    """The new multiplier of y in a set, by its projection, and its product with the identity."""
    s = mu + beta * y
    mu = s - beta * SETS[i].project(s / beta)
    return mu, mu


def proxal(plain, multiplier, *, step, penalty, prox, inner_rounds, tolerance):
    """The proximal AL method (Algorithm 1) with an inexact ADMM (Algorithm 2), from zero.

    ``multiplier`` returns an agent's new multiplier at a point and its product with the Jacobian of
    the constraint. Returns the model, the multipliers and the number of outer iterations. The
    server of the paper knows the copies of all agents; of those that are absent, it has the last.
    """
    m, x = len(plain.X), np.zeros(FEATURES)
    c = 1 / ((m + 1) * penalty)
    clients = [Client(*np.zeros((2, FEATURES))) for _ in range(m)]
    anchor, outer, inner = x, 0, 0

    def gradient(i, r, k, y):
        _, pull = multiplier(i, clients[i].mu, penalty, y)
        return plain.gradient(i, r, k, y) + pull + c * (y - anchor)

    for r, present in enumerate(plain.plan):
        residuals = []
        for i in present:
            client = clients[i]
            if client.outer != outer:
                if client.outer >= 0:
                    client.mu, _ = multiplier(i, client.mu, penalty, anchor)
                client.u, client.dual = anchor, -gradient(i, r, 0, anchor)
                client.outer = outer
            if inner == 0:
                continue
            off = gradient(i, r, 0, x) + client.dual - prox * (x - client.u)
            residuals.append(np.abs(off).max())
            y = x
            for k in range(STEPS):
                y = y - step * (gradient(i, r, k, y) + client.dual + prox * (y - x))
            client.u, client.dual = y, client.dual + prox * (y - x)
        joined = [each for each in clients if each.outer >= 0]
        bound = sum(residuals) * len(joined) / len(present)
        if inner > 0 and (bound <= tolerance / (outer + 1) ** 2 or inner == inner_rounds):
            anchor, outer, inner = x, outer + 1, 0
        else:
            x = sum(prox * each.u + each.dual for each in joined) + c * anchor
            x /= prox * len(joined) + c
            inner += 1
    return x, np.stack([np.broadcast_to(each.mu, FEATURES) for each in clients]), outer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tolerance", [0.0, 1e3])
def test_equals_the_pseudocode(kind, tolerance):
    plain, numbers = plain_problem(kind, SETS), {**NUMBERS, "tolerance": tolerance}
    result = run(plain.problem, ProxAL(**numbers), **OPTIONS)
    x, mu, outer = proxal(plain, set_multiplier, **numbers)
    assert outer == result.state.server["outer"][0]
    assert outer == 3 if tolerance == 0 else outer > 3
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.private["mu"], mu, rtol=0, atol=1e-10)
    models = np.stack([each.project(x) for each in SETS])
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    assert np.abs(x).max() > 0.05
    assert np.abs(mu).max() > 1e-3, "sets must bind"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("participation", [1.0, 2])
def test_reaches_the_optimum_of_cvxpy_inside_all_sets(kind, participation):
    radii = (1.5, 1.0, 3.0)
    plain = plain_problem(kind, [L1Ball(radius) for radius in radii])
    result = run(
        plain.problem,
        ProxAL("auto", 10.0, prox=2.0, constrained=False),
        rounds=1000,
        local_steps=10,
        participation=participation,
        eval_every=1000,
    )
    best = plain.optimum()
    np.testing.assert_allclose(result.average, best, rtol=0, atol=2e-5)
    assert np.abs(best).sum() == pytest.approx(1.0), "the tightest set must bind"
    np.testing.assert_allclose(result.history[-1].infeasibility, 0, atol=2e-5)


def test_the_multipliers_are_those_of_the_optimum():
    """Each is normal to its set, and they balance the gradients."""
    plain = plain_problem("least squares", [L1Ball(1.5), L1Ball(1.0), L1Ball(3.0)])
    problem = plain.problem
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
    normals = rng.normal(size=(4, FEATURES))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    bounds = [-2.0, -1.5, -1.0, 5.0]
    sets = [Halfspace(a, b) for a, b in zip(normals, bounds, strict=True)]
    plain = plain_problem("least squares", sets)
    result = run(plain.problem, ProxAL(**NUMBERS), **OPTIONS)

    def multiplier(i, nu, beta, y):
        nu = np.maximum(nu + beta * (normals[i] @ y - bounds[i]), 0.0)
        return nu, nu * normals[i]

    x, nu, _ = proxal(plain, multiplier, **NUMBERS)
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.private["mu"], nu * normals, rtol=0, atol=1e-10)
    assert nu.max() > 0.1
    assert nu.min() == 0.0, "one constraint must not bind"


def test_totals_of_the_agents_average_to_the_servers():
    plain = plain_problem("least squares", SETS)
    state = run(plain.problem, ProxAL(**NUMBERS), **OPTIONS).state
    total = state.private["total"]
    np.testing.assert_allclose(state.server["mean"], total.mean(axis=0), rtol=0, atol=1e-13)
    assert np.abs(total).max() > 0.1


def test_own_models_are_certified_projections():
    plain = plain_problem("logistic", [L1Ball(0.5), L1Ball(1.0), L1Ball(2.0)])
    problem = plain.problem
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
