"""FedMiD: a plain implementation, where it reaches the optimum, and where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import FedMiD, certify, run
from pcfed.sets import Box, Hyperplane, L1Ball, L2Ball, parse_set
from tests.algorithms.plain import FEATURES, OPTIONS, STEPS, plain_problem

SETS = [L1Ball(0.15), L2Ball(0.1), Box(-0.05, 0.1), L1Ball(1.5)]
KINDS = ["least squares", "logistic"]


def fedmid(plain, projections, server_projection, *, step, server_step):
    """Federated mirror descent with the Euclidean mirror map, from zero."""
    x = np.zeros(FEATURES)
    for r, present in enumerate(plain.plan):
        deltas = []
        for i in present:
            y = x
            for k in range(STEPS):
                y = projections[i](y - step * plain.gradient(i, r, k, y))
            deltas.append(y - x)
        x = server_projection(x + server_step * sum(deltas) / len(deltas))
    return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server_step", [1.0, 1.7])
def test_equals_the_pseudocode_with_a_common_set(kind, server_step):
    plain, common = plain_problem(kind, SETS), parse_set("l1(0.8)")
    algorithm = FedMiD(step=0.3, project_onto="l1(0.8)", server_step=server_step, constrained=False)
    result = run(plain.problem, algorithm, **OPTIONS)
    numbers = {"step": 0.3, "server_step": server_step}
    x = fedmid(plain, [common.project] * 4, common.project, **numbers)
    np.testing.assert_allclose(result.models, np.tile(x, (4, 1)), rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, x, rtol=0, atol=1e-10)
    free = fedmid(plain, [np.copy] * 4, np.copy, **numbers)
    assert np.abs(x - free).max() > 0.1, "the common set must bind"
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_pseudocode_with_own_sets(kind):
    plain = plain_problem(kind, SETS)
    result = run(plain.problem, FedMiD(step=0.3, server_step=0.9), **OPTIONS)
    own = [each.project for each in SETS]
    x = fedmid(plain, own, np.copy, step=0.3, server_step=0.9)
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)
    models = np.stack([project(x) for project in own])
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, models.mean(axis=0), rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.05, "sets must make models differ"
    assert result.history[-1].infeasibility.max() < 1e-12


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_the_penalty_is_on_the_distance_from_the_own_set(penalty):
    plain, common = plain_problem("least squares", SETS), parse_set("l2(1)")
    algorithm = FedMiD(step=0.1, penalty=penalty, project_onto="l2(1)", constrained=False)
    result = run(plain.problem, algorithm, **OPTIONS)
    loss_gradient = plain.gradient

    def gradient(i, r, k, y):
        return loss_gradient(i, r, k, y) + penalty * (y - SETS[i].project(y))

    plain.gradient = gradient
    x = fedmid(plain, [common.project] * 4, common.project, step=0.1, server_step=1.0)
    np.testing.assert_allclose(result.average, x, rtol=0, atol=1e-10)
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_one_local_step_reaches_the_optimum_if_agents_agree(kind):
    ball = L1Ball(1.0)
    plain = plain_problem(kind, [ball] * 3)
    plain.X, plain.y = [plain.X[0]] * 3, [plain.y[0]] * 3
    algorithm = FedMiD(step=0.4, project_onto="l1(1)")
    result = run(plain.problem, algorithm, rounds=1500, eval_every=1500)
    np.testing.assert_allclose(result.average, plain.optimum(), rtol=0, atol=1e-7)
    assert certify(plain.problem, result).gap < 1e-8


def test_one_local_step_reaches_the_optimum_in_an_affine_set():
    a = np.arange(1.0, FEATURES + 1)
    plain = plain_problem("least squares", [Hyperplane(a, 2.0)] * 3)
    algorithm = FedMiD(step=0.3, project_onto=repr(Hyperplane(a, 2.0)))
    result = run(plain.problem, algorithm, rounds=1000, eval_every=1000)
    Q = sum(X.T @ X / len(X) for X in plain.X)
    c = sum(X.T @ y / len(y) for X, y in zip(plain.X, plain.y, strict=True))
    system = np.block([[Q, a[:, None]], [a[None], np.zeros((1, 1))]])
    best = np.linalg.solve(system, [*c, 2.0])[:-1]
    np.testing.assert_allclose(result.average, best, rtol=0, atol=1e-9)
    assert np.linalg.norm(best) > 0.1


def test_averages_of_projected_points_miss_the_optimum_of_others():
    """The curse of primal averaging, which `test_feddualavg` does not have."""
    plain = plain_problem("least squares", [L1Ball(1.0)] * 3)
    algorithm = FedMiD(step=0.2, project_onto="l1(1)")
    result = run(plain.problem, algorithm, rounds=1000, eval_every=1000)
    assert np.linalg.norm(result.average - plain.optimum()) > 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"project_onto": 3}, "FedMiD: project_onto must be a str, got int"),
        ({"project_onto": "l7(1)"}, "l7"),
        ({"server_step": 0.0}, "FedMiD: server_step must be > 0, got 0.0"),
        ({"constrained": 1}, "FedMiD: constrained must be True or False, got 1"),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        FedMiD(step=0.1, **options)
