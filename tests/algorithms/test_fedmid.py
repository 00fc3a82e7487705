"""FedMiD: a plain implementation, where it reaches the optimum, and where it does not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pcfed import FedDualAvg, FedMiD, certify, run
from pcfed.sets import Hyperplane, L1Ball, L2Ball
from tests.algorithms.plain import (
    KINDS,
    OPTIONS,
    STEPS,
    N,
    fedmid,
    one_data_set,
    optimum,
    plain_agents,
    problem_of,
    projection,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server_step", [1.0, 1.7])
def test_equals_the_pseudocode_with_a_common_set(kind, server_step):
    agents, common = plain_agents(kind), projection(L1Ball(0.8))
    algorithm = FedMiD(step=0.3, project_onto="l1(0.8)", server_step=server_step, constrained=False)
    result = run(problem_of(agents), algorithm, batch=0.3, **OPTIONS)
    x = fedmid(agents, eta=0.3, server_eta=server_step, common=common)
    np.testing.assert_allclose(result.models, np.tile(x, (4, 1)), rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, x, rtol=0, atol=1e-10)
    free = fedmid(plain_agents(kind, constrained=False), eta=0.3, server_eta=server_step)
    assert np.abs(x - free).max() > 0.1, "the common set must bind"
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_pseudocode_with_own_sets(kind):
    agents = plain_agents(kind)
    result = run(problem_of(agents), FedMiD(step=0.3, server_step=0.9), batch=0.3, **OPTIONS)
    x = fedmid(agents, eta=0.3, server_eta=0.9)
    np.testing.assert_allclose(result.state.server["x"], x, rtol=0, atol=1e-10)
    models = np.stack([agent.project(x) for agent in agents])
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, models.mean(axis=0), rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.05, "sets must make models differ"
    assert result.history[-1].infeasibility.max() < 1e-12


def test_the_shared_model_is_in_the_averaged_set():
    """With own sets and all agents, it is the mean of points that agents have projected."""
    radii = [0.2, 0.9, 1.6]
    agents = one_data_set([L1Ball(radius) for radius in radii])
    problem, options = problem_of(agents), {"local_steps": STEPS, "eval_every": 5}
    before, x = (
        run(problem, FedMiD(step=0.1), rounds=rounds, **options).state.server["x"]
        for rounds in (4, 5)
    )
    ends = []
    for agent in agents:
        y = before
        for _ in range(STEPS):
            y = agent.project(y - 0.1 * agent.gradient(y))
        ends.append(y)
    np.testing.assert_allclose(x, np.mean(ends, axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.abs(ends).sum(axis=1), radii, rtol=1e-12)
    # The end points have the same signs, so the mean is on the boundary of the averaged ball.
    assert np.abs(x).sum() == pytest.approx(np.mean(radii), rel=1e-12)
    assert np.abs(x).sum() > 2 * min(radii)


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_the_penalty_is_on_the_distance_from_the_own_set(penalty):
    agents = plain_agents("least squares")
    algorithm = FedMiD(step=0.1, penalty=penalty, project_onto="l2(1)", constrained=False)
    result = run(problem_of(agents), algorithm, batch=0.3, **OPTIONS)
    x = fedmid(agents, eta=0.1, common=projection(L2Ball(1.0)), rho=penalty)
    np.testing.assert_allclose(result.average, x, rtol=0, atol=1e-10)
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_one_local_step_reaches_the_optimum_if_agents_agree(kind):
    agents = plain_agents(kind, [L1Ball(1.0)]) * 3
    problem, algorithm = problem_of(agents), FedMiD(step=0.4, project_onto="l1(1)")
    result = run(problem, algorithm, rounds=1500, eval_every=1500)
    np.testing.assert_allclose(result.average, optimum(agents), rtol=0, atol=1e-7)
    assert certify(problem, result).gap < 1e-8


def test_one_local_step_reaches_the_optimum_in_an_affine_set():
    a = np.arange(1.0, N + 1)
    agents = plain_agents("least squares", [Hyperplane(a, 2.0)] * 3)
    algorithm = FedMiD(step=0.3, project_onto=repr(Hyperplane(a, 2.0)))
    result = run(problem_of(agents), algorithm, rounds=1000, eval_every=1000)
    Q = sum(agent.X.T @ agent.X / len(agent.X) for agent in agents)
    c = sum(agent.X.T @ agent.y / len(agent.y) for agent in agents)
    system = np.block([[Q, a[:, None]], [a[None], np.zeros((1, 1))]])
    best = np.linalg.solve(system, [*c, 2.0])[:-1]
    np.testing.assert_allclose(result.average, best, rtol=0, atol=1e-9)
    assert np.linalg.norm(best) > 0.1


def test_averages_of_projected_points_miss_the_optimum_of_others():
    """The curse of primal averaging, which `test_feddualavg` does not have."""
    agents = plain_agents("least squares", [L1Ball(1.0)] * 3)
    algorithm = FedMiD(step=0.2, project_onto="l1(1)")
    result = run(problem_of(agents), algorithm, rounds=1000, eval_every=1000)
    assert np.linalg.norm(result.average - optimum(agents)) > 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"project_onto": 3}, "FedMiD: project_onto must be a str, got int"),
        ({"project_onto": "l7(1)"}, "FedMiD: project_onto must be a set or \"own\": .*'l7' is not"),
        ({"project_onto": "OWN"}, "FedMiD: project_onto must be a set or \"own\": .*'OWN' is not"),
        ({"server_step": 0.0}, "FedMiD: server_step must be > 0, got 0.0"),
        ({"constrained": 1}, "FedMiD: constrained must be True or False, got 1"),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        FedMiD(step=0.1, **options)


@pytest.mark.parametrize("kind", [FedMiD, FedDualAvg])
def test_a_common_set_of_another_length_is_one_sentence(kind):
    algorithm = kind(step=0.1, project_onto="box([0, 0], [1, 1])")
    expected = (
        f"{kind.__name__}: project_onto: Box: the set has 2 entries, but the model has {N}; give a "
        f"set of {N} entries."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        run(problem_of(plain_agents("least squares")), algorithm, rounds=1)
