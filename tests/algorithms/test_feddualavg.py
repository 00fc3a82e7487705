"""FedDualAvg: a plain implementation, and the optimum that FedMiD misses."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import FedDualAvg, certify, run
from pcfed.sets import L1Ball
from tests.algorithms.plain import (
    KINDS,
    OPTIONS,
    feddualavg,
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
    algorithm = FedDualAvg(
        step=0.3, project_onto="l1(0.8)", server_step=server_step, constrained=False
    )
    result = run(problem_of(agents), algorithm, batch=0.3, **OPTIONS)
    z = feddualavg(agents, eta=0.3, server_eta=server_step, common=common)
    x = common(z)
    np.testing.assert_allclose(result.state.server["z"], z, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.models, np.tile(x, (4, 1)), rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, x, rtol=0, atol=1e-10)
    assert np.abs(z).sum() > 0.9, "the common set must bind"


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_pseudocode_with_own_sets(kind):
    agents = plain_agents(kind)
    result = run(problem_of(agents), FedDualAvg(step=0.3, server_step=0.9), batch=0.3, **OPTIONS)
    z = feddualavg(agents, eta=0.3, server_eta=0.9)
    models = np.stack([agent.project(z) for agent in agents])
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, models.mean(axis=0), rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.05, "sets must make models differ"
    assert result.history[-1].infeasibility.max() < 1e-12


def test_the_mean_of_the_models_is_in_the_averaged_set():
    """With own sets it is a mean of points of the sets, whoever takes part."""
    radii = [0.2, 0.9, 1.6, 0.5]
    problem = problem_of(one_data_set([L1Ball(radius) for radius in radii]))
    result = run(problem, FedDualAvg(step=0.1, server_step=1.7), **OPTIONS)
    assert np.abs(result.average).sum() == pytest.approx(np.mean(radii), rel=1e-12)
    assert np.abs(result.state.server["z"]).sum() > max(radii)
    np.testing.assert_array_equal(result.average, result.models.mean(axis=0))


@pytest.mark.parametrize("kind", KINDS)
def test_one_local_step_reaches_the_optimum_of_cvxpy(kind):
    agents = plain_agents(kind, [L1Ball(1.0)] * 3)
    problem, algorithm = problem_of(agents), FedDualAvg(step=0.3, project_onto="l1(1)")
    result = run(problem, algorithm, rounds=2000, eval_every=2000)
    best = optimum(agents)
    np.testing.assert_allclose(result.average, best, rtol=0, atol=1e-7)
    assert np.abs(best).sum() == pytest.approx(1.0), "the set must bind"
    assert certify(problem, result).gap < 1e-8


def test_models_without_a_common_set_are_always_projections():
    with pytest.raises(ValueError, match="FedDualAvg: constrained must be true without a common"):
        FedDualAvg(step=0.1, constrained=False)
    assert FedDualAvg(step=0.1).feasible
    assert not FedDualAvg(step=0.1, project_onto="l1(1)", constrained=False).feasible
