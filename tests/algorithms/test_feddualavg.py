"""FedDualAvg: a plain implementation, and the optimum that FedMiD misses."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import FedDualAvg, certify, run
from pcfed.sets import L1Ball, parse_set
from tests.algorithms.plain import FEATURES, OPTIONS, STEPS, plain_problem
from tests.algorithms.test_fedmid import KINDS, SETS


def feddualavg(plain, projections, *, step, server_step):
    """Federated dual averaging with the Euclidean mirror map, from zero: the dual point."""
    z = np.zeros(FEATURES)
    for r, present in enumerate(plain.plan):
        deltas = []
        for i in present:
            own = z
            for k in range(STEPS):
                w = projections[i](own)
                own = own - step * plain.gradient(i, r, k, w)
            deltas.append(own - z)
        z = z + server_step * sum(deltas) / len(deltas)
    return z


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server_step", [1.0, 1.7])
def test_equals_the_pseudocode_with_a_common_set(kind, server_step):
    plain, common = plain_problem(kind, SETS), parse_set("l1(0.8)")
    algorithm = FedDualAvg(
        step=0.3, project_onto="l1(0.8)", server_step=server_step, constrained=False
    )
    result = run(plain.problem, algorithm, **OPTIONS)
    z = feddualavg(plain, [common.project] * 4, step=0.3, server_step=server_step)
    x = common.project(z)
    np.testing.assert_allclose(result.state.server["z"], z, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.models, np.tile(x, (4, 1)), rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, x, rtol=0, atol=1e-10)
    assert np.abs(z).sum() > 0.9, "the common set must bind"


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_pseudocode_with_own_sets(kind):
    plain = plain_problem(kind, SETS)
    result = run(plain.problem, FedDualAvg(step=0.3, server_step=0.9), **OPTIONS)
    own = [each.project for each in SETS]
    z = feddualavg(plain, own, step=0.3, server_step=0.9)
    models = np.stack([project(z) for project in own])
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, models.mean(axis=0), rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.05, "sets must make models differ"
    assert result.history[-1].infeasibility.max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_one_local_step_reaches_the_optimum_of_cvxpy(kind):
    plain = plain_problem(kind, [L1Ball(1.0)] * 3)
    algorithm = FedDualAvg(step=0.3, project_onto="l1(1)")
    result = run(plain.problem, algorithm, rounds=2000, eval_every=2000)
    best = plain.optimum()
    np.testing.assert_allclose(result.average, best, rtol=0, atol=1e-7)
    assert np.abs(best).sum() == pytest.approx(1.0), "the set must bind"
    assert certify(plain.problem, result).gap < 1e-8


def test_models_without_a_common_set_are_always_projections():
    with pytest.raises(ValueError, match="FedDualAvg: constrained must be true without a common"):
        FedDualAvg(step=0.1, constrained=False)
    assert FedDualAvg(step=0.1).feasible
    assert not FedDualAvg(step=0.1, project_onto="l1(1)", constrained=False).feasible
