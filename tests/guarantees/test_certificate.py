"""The certified gap is never below the true gap, zero at the optimum, and its models feasible."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pcfed import Agent, FedAvg, PCFedAvg, PCFedSplit, Problem, Scaffold, run
from pcfed.guarantees import Gap, certify, feasible_model, gap_term, objective_terms, optimum
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import Box, Intersection, L1Ball, L2Ball, NonNegative, ProjectionError, WholeSpace
from tests.federations import classifiers, regressions
from tests.guarantees.cvxpy_solution import BALL, federation, solve
from tests.losses import cases as loss_cases
from tests.sets.cases import CASES

FLOAT32 = [case for case in loss_cases.CASES if case.dtype == "float32"]
BOUNDED = [case for case in CASES if case.bounded]
UNBOUNDED = [case for case in CASES if not case.bounded and "and" not in case.name]


class Wavy(LeastSquares):
    convex = False


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.name)
def test_never_below_the_true_gap_and_zero_at_the_optimum(case):
    cases = [case, BALL, case]
    problem, terms = federation(cases)
    best = solve(problem, cases, terms)
    rng = np.random.default_rng(1)
    found = optimum(problem, tolerance=1e-9)
    assert found.status == "converged"
    assert found.objective == pytest.approx(best, abs=1e-6)
    for t in (1.0, 0.3, 1e-2, 1e-4, 0.0):
        models = found.models + t * 3 * rng.normal(size=(3, case.n))
        seen = certify(problem, models)
        assert seen.gap >= seen.objective - best - 1e-6
        assert seen.objective == pytest.approx(problem.objective(seen.models), rel=1e-12)
        for agent, model in zip(problem.agents, seen.models, strict=True):
            assert agent.feasible_set.contains(model)
        np.testing.assert_allclose(seen.infeasibility, problem.infeasibility(models), atol=1e-12)
        assert seen.gap_terms.sum() == seen.gap
        assert (seen.gap_terms >= 0).all()
    assert seen.gap <= 2e-9
    assert seen.reason is None


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
@pytest.mark.parametrize("name", ["l1", "simplex", "groups", "nuclear", "l1 and box"])
def test_holds_for_other_losses(name, kind):
    case = next(case for case in CASES if case.name == name)
    cases = [BALL, case]
    problem, terms = federation(cases, kind)
    best = solve(problem, cases, terms)
    for step in (0.05, 0.5):
        result = run(problem, PCFedAvg(step=step, penalty=1.0), rounds=30, local_steps=3)
        seen = certify(problem, result)
        assert seen.gap >= seen.objective - best - 1e-6
    assert optimum(problem).objective == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("case", UNBOUNDED, ids=lambda case: case.name)
def test_without_a_bound_the_gap_is_infinite_or_right(case):
    problem, terms = federation([case, case])
    best = solve(problem, [case, case], terms)
    seen = certify(problem, np.random.default_rng(0).normal(size=(2, case.n)))
    assert seen.objective >= best - 1e-6
    for agent, model in zip(problem.agents, seen.models, strict=True):
        assert agent.feasible_set.contains(model)
    if np.isinf(seen.gap):
        assert seen.reason.startswith("the set of agent 0 has no bound along its gradient")
        assert "no gap" in repr(seen)
    else:
        assert seen.gap >= seen.objective - best - 1e-6


def test_the_reason_names_the_agent():
    problem = regressions([L1Ball(1.0), WholeSpace(), L1Ball(1.0)])
    seen = certify(problem, np.zeros(9))
    assert np.isinf(seen.gap)
    assert "agent 1" in seen.reason
    assert np.isfinite(seen.gap_terms[[0, 2]]).all()


def test_a_free_intercept_has_no_bound_and_a_constrained_one_has():
    X, y = np.random.default_rng(0).normal(size=(9, 3)), np.arange(9) % 2
    loss = LogisticRegression(X, y, intercept=True)
    free = Problem([Agent(loss, L1Ball(1.0), 0.1)])
    assert np.isinf(certify(free, np.zeros(4)).gap)
    held = Problem([Agent(loss, L1Ball(1.0), 0.1, constrain_intercept=True)])
    assert np.isfinite(certify(held, np.zeros(4)).gap)


def test_losses_that_are_not_convex_have_no_gap_but_feasible_models():
    problem = Problem(
        [
            Agent(LeastSquares(np.eye(2), np.ones(2)), L1Ball(1.0), 0.1),
            Agent(Wavy(np.eye(2), np.ones(2)), L1Ball(0.5), 0.1, name="Ada"),
        ]
    )
    seen = certify(problem, np.ones(2))
    assert seen.gap is None
    assert seen.reason == "the loss of Ada is not convex"
    np.testing.assert_allclose(np.abs(seen.models).sum(axis=1), [1.0, 0.5])
    np.testing.assert_allclose(seen.infeasibility, [np.sqrt(0.5), 0.75 * np.sqrt(2)])


def test_by_hand():
    """One agent, f(x) = ½ (x − 3)² on [0, 1]: at x the gap is (3 − x)(1 − x)."""
    problem = Problem([Agent(LeastSquares(np.eye(1), np.array([3.0])), Box(0.0, 1.0), 0.0)])
    for x in (0.0, 0.25, 1.0):
        seen = certify(problem, np.array([x]))
        assert seen.objective == pytest.approx((x - 3) ** 2 / 2)
        assert seen.gap == pytest.approx((3 - x) * (1 - x))


def test_tightening_makes_the_gap_smaller_and_never_too_small():
    """One set is much larger, and the coupling keeps models away from its corners."""
    rng = np.random.default_rng(0)
    agents = []
    for radius in (0.5, 2.0, 500.0):
        X = rng.normal(size=(40, 10))
        y = (X @ rng.normal(size=10) > 0).astype(int)
        agents.append(Agent(LogisticRegression(X, y), L1Ball(radius), coupling=0.1))
    problem = Problem(agents)
    best = optimum(problem, tolerance=1e-10)
    for t in (1.0, 0.1, 0.01):
        models = best.models + t * rng.normal(size=(3, 10))
        plain, tight = (certify(problem, models, tightening=steps) for steps in (0, 1000))
        assert tight.objective == plain.objective
        assert tight.objective - best.objective <= tight.gap < 0.3 * plain.gap


def test_the_order_of_agents_changes_nothing():
    problem = regressions([L1Ball(1.0), L2Ball(0.5), Box(-0.2, 0.3), L1Ball(3.0)])
    models = np.random.default_rng(0).normal(size=(4, 9))
    order = [2, 0, 3, 1]
    here = certify(problem, models)
    there = certify(Problem([problem.agents[i] for i in order]), models[order])
    assert there.gap == pytest.approx(here.gap, rel=1e-12)
    assert there.objective == pytest.approx(here.objective, rel=1e-12)
    np.testing.assert_allclose(there.gap_terms, here.gap_terms[order], rtol=1e-12)
    np.testing.assert_array_equal(there.models, here.models[order])


def test_three_exchanges_of_sums_suffice():
    """As on a network: agents use means and their own data, the server uses sums."""
    problem = regressions([L1Ball(1.0), L2Ball(0.5), Box(-0.2, 0.3)])
    given = np.random.default_rng(0).normal(size=(3, 9))
    own = [feasible_model(agent, x) for agent, x in zip(problem.agents, given, strict=True)]
    average = sum(own) / 3
    sent = [objective_terms(a, x, average) for a, x in zip(problem.agents, own, strict=True)]
    slope = sum(each.gradient for each in sent) / 3
    terms = [gap_term(a, x, average, slope, 3) for a, x in zip(problem.agents, own, strict=True)]
    seen = certify(problem, given, tightening=0)
    assert sum(terms) == pytest.approx(seen.gap, rel=1e-13)
    assert sum(each.objective for each in sent) / 3 == pytest.approx(seen.objective, rel=1e-13)
    assert not any(each.nonconvex for each in sent)


def test_float32_data_are_certified_in_float64():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (30, 5), dtype=np.uint8)
    y = rng.integers(3, size=30)
    coarse = SoftmaxRegression(X, y, classes=3)
    fine = SoftmaxRegression(X / 255, y, classes=3)
    assert coarse.dtype == np.float32
    here = certify(Problem([Agent(coarse, L1Ball(2.0), 0.1)] * 1), np.ones(15))
    there = certify(Problem([Agent(fine, L1Ball(2.0), 0.1)] * 1), np.ones(15))
    assert here.gap == pytest.approx(there.gap, rel=1e-13)
    assert here.models.dtype == np.float64


@pytest.mark.parametrize("case", FLOAT32, ids=str)
def test_losses_of_float32_data_have_a_float64_form(case):
    loss, twin, x = case.build(), case.twin(), case.point()
    exact = 1e-7 if case.model is LeastSquares else 1e-12  # float32 targets are rounded
    assert loss.to_float64().dtype == np.float64
    assert loss.to_float64().value(x) == pytest.approx(twin.value(x), rel=exact)
    np.testing.assert_allclose(loss.to_float64().gradient(x), twin.gradient(x), atol=10 * exact)
    np.testing.assert_allclose(
        loss.to_float64().gradient(x, np.array([3, 1, 1])),
        twin.gradient(x, [3, 1, 1]),
        atol=10 * exact,
    )
    assert loss.dtype == np.float32
    assert twin.to_float64() is twin


@pytest.mark.parametrize("algorithm", [FedAvg(0.05, 3.0), Scaffold(0.05, 3.0), PCFedAvg(0.1, 3.0)])
def test_certifies_the_models_of_every_algorithm(algorithm):
    problem = classifiers()
    best = optimum(problem).objective
    for rounds in (1, 30):
        seen = certify(problem, run(problem, algorithm, rounds=rounds))
        assert 0 <= seen.objective - best <= seen.gap


# -- Gap ------------------------------------------------------------------------------------------


def test_a_run_stops_once_it_is_certified():
    problem = classifiers()
    result = run(problem, PCFedAvg(step=0.09, penalty=20.0), rounds=3000, stop=Gap(0.05))
    assert result.status == "stopped"
    assert certify(problem, result).gap <= 0.05
    before = run(problem, PCFedAvg(step=0.09, penalty=20.0), rounds=result.state.round - 1)
    assert certify(problem, before).gap > 0.05


def test_relative_gaps_are_fractions_of_the_objective():
    problem = classifiers()
    options = {"rounds": 3000, "eval_every": 5}
    result = run(problem, PCFedAvg(0.09, 20.0), stop=Gap(0.1, relative=True), **options)
    seen = certify(problem, result)
    assert result.status == "stopped"
    assert seen.gap <= 0.1 * seen.objective
    assert seen.objective < 1


def test_an_infinite_gap_never_stops_a_run():
    problem = regressions([WholeSpace(), NonNegative()])
    result = run(problem, PCFedAvg(0.1, 1.0), rounds=3, stop=Gap(1e9))
    assert result.status == "finished"


def evaluation_of(problem, models):
    """Return an evaluation of models that no run has computed."""

    def sum_over_agents(function):
        return sum(function(*pair) for pair in zip(problem.agents, models, strict=True))

    record = SimpleNamespace(round=1)
    return SimpleNamespace(
        problem=problem, models=models, record=record, sum_over_agents=sum_over_agents
    )


def test_empty_sets_are_an_error_of_certify_and_do_not_stop_a_run():
    empty = Intersection(L2Ball(1.0), L2Ball(1.0, center=np.full(2, 9.0)))
    agent = Agent.__new__(Agent)
    parts = {"loss": LeastSquares(np.eye(2), np.ones(2)), "constraint": empty, "coupling": 0.1}
    parts |= {"test": None, "name": "", "constrain_intercept": False}
    agent.__dict__.update(parts)
    problem = Problem([agent])
    with pytest.raises(ProjectionError, match="no point in common"):
        certify(problem, np.zeros(2))
    assert not Gap(1e9)(evaluation_of(problem, np.zeros((1, 2))))


def test_gap_does_not_stop_where_models_are_too_large_to_project():
    problem = regressions([L1Ball(1.0), L1Ball(2.0)])
    assert Gap(1e-3)(evaluation_of(problem, np.full((2, 9), 1e200))) is False


def test_one_rule_stops_runs_of_different_problems():
    rule = Gap(1e-3)
    for m in (3, 2):
        problem = regressions([L1Ball(4.0 * (i + 1)) for i in range(m)])
        algorithm = PCFedSplit()
        assert run(problem, algorithm, rounds=400, local_steps=3, stop=rule).status == "stopped"
        assert rule.state_dict()["witness"].shape == (m, problem.n)
