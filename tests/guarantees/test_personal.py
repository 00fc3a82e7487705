"""Certificates and optima where losses are taken at own models or the centre is free."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Problem, certify, run
from pcfed.algorithms import PCFedSplit
from pcfed.guarantees import constants, optimum
from pcfed.sets import Halfspace, L1Ball
from tests.federations import N, regressions
from tests.guarantees.cvxpy_solution import federation, solve
from tests.personal import VARIANTS, personalized
from tests.sets.cases import CASES

BOUNDED = [case for case in CASES if case.name in ("l1", "l2", "box", "simplex")]
"""Sets of the same dimension for which every direction has a bound."""


@pytest.mark.parametrize(("theta", "center"), VARIANTS)
@pytest.mark.parametrize("kind", ["squares", "logistic"])  # softmax: too flat for the solver
def test_optima_and_certificates_agree_with_cvxpy(kind, theta, center):
    problem, terms = federation(BOUNDED[:3], kind, seed=1)
    problem = personalized(problem, theta, center)
    best = solve(problem, BOUNDED[:3], terms)
    found = optimum(problem, tolerance=1e-7)
    assert found.status == "converged"
    assert found.objective == pytest.approx(best, abs=2e-6)
    rng = np.random.default_rng(3)
    for scale in (0.0, 0.1, 3.0):
        models = found.models + scale * rng.normal(size=found.models.shape)
        point = found.center + scale * rng.normal(size=problem.n)
        for tightening in (0, 200):
            certificate = certify(problem, models, center=point, tightening=tightening)
            assert certificate.gap >= certificate.objective - best - 1e-6
    assert certify(problem, found.models, center=found.center).gap <= 1e-6


@pytest.mark.parametrize(("theta", "center"), VARIANTS)
def test_gradient_and_objective_by_finite_differences(theta, center):
    problem = personalized(regressions([L1Ball(1.0)] * 3), theta, center)
    rng = np.random.default_rng(0)
    x, c, direction = rng.normal(size=(3, N)), rng.normal(size=N), rng.normal(size=(3, N))
    step = 1e-5
    slope = problem.objective(x + step * direction, c) - problem.objective(x - step * direction, c)
    expected = float(np.vdot(problem.gradient(x, c), direction))
    assert slope / (2 * step) == pytest.approx(expected, rel=1e-6)


def test_certificate_of_a_free_center_without_any_coupling_is_infinite():
    problem = personalized(regressions([L1Ball(1.0)] * 2), (0.5,), "free")
    agents = [type(a)(a.loss, a.constraint, 0.0, 0.5) for a in problem.agents]
    certificate = certify(Problem(agents, "free"), np.zeros((2, N)), center=np.zeros(N))
    assert certificate.gap == np.inf
    assert "no agent is coupled to the free center" in certificate.reason


def test_certificate_names_the_agent_whose_set_is_unbounded():
    problem = personalized(regressions([L1Ball(1.0), Halfspace(np.ones(N), 1.0)]), (0.5,), "free")
    result = run(problem, PCFedSplit(), rounds=3)
    assert "the set of agent 1 has no bound" in certify(problem, result).reason


def test_constants_and_penalised_optima_belong_to_the_papers_problem():
    problem = personalized(regressions([L1Ball(1.0)] * 2), (0.5,), "average")
    with pytest.raises(ValueError, match="constants: all losses must be taken at the average"):
        constants(problem, penalty=1.0)
    with pytest.raises(ValueError, match="optimum: penalty must be None unless"):
        optimum(problem, penalty=1.0)
