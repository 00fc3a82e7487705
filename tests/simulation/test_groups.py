"""Agents that work in teams give the same bits as one by one, in compiled loops and in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pcfed import Agent, PCFedAvg, PFedMe, Problem, RefusalPolicy, kernels, run
from pcfed.algorithms import LocalContext
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression, compiled
from pcfed.losses.stack import Stack
from pcfed.sets import Box, L1Ball, L2Ball, NonNegative, ProjectionError, SetRows, Simplex
from pcfed.simulation import plan as plans
from pcfed.simulation.plan import Plan
from tests.federations import ALGORITHMS, CLOSED_FORM, N, classifiers, regressions

RUN = {"rounds": 4, "local_steps": 3, "seed": 5}
# The others take their local steps one by one, in NumPy.
COMPILED = {
    name: algorithm
    for name, algorithm in ALGORITHMS.items()
    if name not in ("FedMiD", "FedDualAvg", "PFedHN", "ProxAL")
}
SAMPLINGS = ["without_replacement", "with_replacement", "blocks"]


def bits(problem: Problem, algorithm, **options) -> list[bytes]:
    """All numbers of a run, times aside."""
    result = run(problem, algorithm, **{**RUN, **options})
    arrays = [*result.state.server.values(), *result.state.private.values(), result.models]
    return [array.tobytes() for array in arrays] + [
        np.array([r.objective, *r.infeasibility, *r.distance]).tobytes() for r in result.history
    ]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_team_gives_the_bits_of_its_agents(algorithm, sampling, monkeypatch):
    problem = classifiers(9, dtype=np.float32)
    options = {"batch": 10, "sampling": sampling, "participation": 7}
    together = bits(problem, algorithm, **options)
    for most in (2, 3):
        monkeypatch.setattr(plans, "MAX_GROUP_AGENTS", most)
        assert bits(problem, algorithm, **options) == together
    monkeypatch.setattr(plans, "MAX_GROUP_AGENTS", 1)
    facts = {"local_steps": 1, "batch": 10, "sampling": sampling, "participation": 1.0, "seed": 0}
    assert Plan(problem, **facts).stack is None
    states = slice(0, -RUN["rounds"])  # the value of the loss is one sum for all agents, or many
    assert bits(problem, algorithm, **options)[states] == together[states]


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_steps_and_projections_have_the_same_bits_without_numba(algorithm, monkeypatch):
    problem = classifiers(5, dtype=np.float32)
    monkeypatch.setattr(compiled, "is_supported", lambda model, batch: False)
    fast = bits(problem, algorithm, batch=0.2)
    monkeypatch.setattr(kernels, "load", lambda name: None)
    assert bits(problem, algorithm, batch=0.2) == fast


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_gradients_without_numba_differ_by_rounding(algorithm, dtype, monkeypatch):
    problem = classifiers(5, dtype=dtype)
    fast = run(problem, algorithm, **RUN, batch=0.2)
    monkeypatch.setattr(kernels, "load", lambda name: None)
    slow = run(problem, algorithm, **RUN, batch=0.2)
    np.testing.assert_allclose(slow.models, fast.models, atol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("algorithm", COMPILED.values(), ids=COMPILED)
def test_all_steps_in_one_compiled_loop_have_the_bits_of_single_ones(algorithm, dtype, monkeypatch):
    problem = classifiers(5, dtype=dtype)
    sources = LocalContext.batch_sources
    taken = []
    monkeypatch.setattr(
        LocalContext, "batch_sources", lambda work: taken.append(sources(work)) or taken[-1]
    )
    at_once = bits(problem, algorithm, batch=0.2)
    assert all(taken)
    monkeypatch.setattr(LocalContext, "batch_sources", lambda work: [])
    assert bits(problem, algorithm, batch=0.2) == at_once


@pytest.mark.parametrize("algorithm", COMPILED.values(), ids=COMPILED)
def test_an_agent_that_diverges_in_a_compiled_loop_spoils_nobody_else(algorithm, monkeypatch):
    wild = classifiers(5, dtype=np.float64, factors=[1, 1, 1e200, 1, 1])
    if isinstance(algorithm, PFedMe):  # in its set, the agent would not diverge
        algorithm = replace(algorithm, constrained=False)
    together = run(wild, algorithm, **RUN, batch=0.2, refusals=RefusalPolicy(4))
    monkeypatch.setattr(LocalContext, "batch_sources", lambda work: [])
    one_step_at_a_time = run(wild, algorithm, **RUN, batch=0.2, refusals=RefusalPolicy(4))
    assert {refusal.agent for refusal in together.refusals} == {2}
    assert together.refusals == one_step_at_a_time.refusals
    np.testing.assert_array_equal(together.models, one_step_at_a_time.models)


@pytest.mark.parametrize("numba", [True, False], ids=["numba", "NumPy"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["softmax", "logistic", "least squares"])
def test_a_stack_gives_the_bits_of_its_losses(kind, l2, intercept, dtype, numba, monkeypatch):
    if not numba:
        monkeypatch.setattr(kernels, "load", lambda name: None)
    rng = np.random.default_rng(0)
    for features, batch in ((3, 2), (40, 7), (784, 20)):
        losses = []
        for samples in (20, 25, 31):
            X = (40 * rng.normal(size=(samples, features)) + 100).clip(0, 255).astype(dtype)
            y = rng.integers(2, size=samples)
            options = {"intercept": intercept, "l2": l2}
            losses.append(
                SoftmaxRegression(X, y, classes=5, **options)
                if kind == "softmax"
                else LogisticRegression(X, y, **options)
                if kind == "logistic"
                else LeastSquares(X, y, **options)
            )
        stack = Stack.build(losses)
        assert stack is not None
        who = np.array([2, 0])
        x = (0.01 * rng.normal(size=(2, losses[0].n))).astype(losses[0].dtype)
        rows = np.stack([rng.choice(20, batch, replace=False) for _ in who])
        out = stack.gradient(who, x, rows, out=np.empty_like(x))
        for i, x_i, rows_i, out_i in zip(who, x, rows, out, strict=True):
            np.testing.assert_array_equal(out_i, losses[i].gradient(x_i, rows_i))
        values = [loss.value(x[0]) for loss in losses]
        np.testing.assert_allclose(stack.values(x[0]), values, rtol=1e-6)


def test_losses_that_differ_are_not_stacked():
    X, y = np.eye(3), np.arange(3)
    plain = LeastSquares(X, y)
    others = [LeastSquares(X, y, l2=1.0), LeastSquares(X.astype(np.float32), y)]
    others += [LeastSquares(X, y, intercept=True), LogisticRegression(X, [0, 1, 0])]
    assert Stack.build([plain, plain]) is not None
    assert all(Stack.build([plain, other]) is None for other in others)


def test_agents_with_other_steps_batches_or_dtypes_are_in_teams_of_their_own():
    rng = np.random.default_rng(0)

    def agent(samples, dtype):
        X = rng.normal(size=(samples, 3)).astype(dtype)
        return Agent(LeastSquares(X, np.ones(samples)), L1Ball(1.0), coupling=0.1)

    wide = [agent(10, np.float64) for _ in range(4)]
    narrow = [agent(10, np.float32) for _ in range(2)]
    large = [agent(2**18, np.float64)]
    problem = Problem([*large, *wide, *narrow])
    options = {"local_steps": 1, "batch": 1.0, "sampling": "without_replacement"}
    plan = Plan(problem, participation=1.0, seed=0, **options)
    everybody = list(range(7))
    assert plan.groups(0, everybody, [1] * 7) == [[5, 6], [1, 2, 3, 4], [0]]
    assert plan.groups(0, everybody, [1] * 7, min_groups=2) == [[5], [6], [1, 2], [3, 4], [0]]
    assert plan.groups(0, [1, 3, 4], [1, 2, 1, 1, 2, 1, 1]) == [[3], [1, 4]]
    uneven = [1, 2, 1, 1, 2, 1, 1]
    result = run(problem, PCFedAvg(step=0.1, penalty=1.0), rounds=3, local_steps=uneven)
    assert result.status == "finished"


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_team_in_another_order_than_the_roster_keeps_to_its_own_rows(algorithm, monkeypatch):
    rng = np.random.default_rng(0)
    sets = [L1Ball(0.1), L2Ball(0.2), L1Ball(3.0), L2Ball(5.0), L1Ball(9.0)]
    agents = []
    for samples, each in zip((10, 40, 20, 30, 50), sets, strict=True):
        X, y = rng.normal(size=(samples, 4)), rng.normal(size=samples)
        agents.append(Agent(LeastSquares(X, y), each, coupling=0.1))
    problem = Problem(agents)
    plan = Plan(problem, local_steps=1, batch=1.0, sampling="blocks", participation=1.0, seed=0)
    assert plan.groups(0, range(5), [1] * 5) == [[0, 2, 3, 1, 4]]
    together = bits(problem, algorithm)
    monkeypatch.setattr(plans, "MAX_GROUP_AGENTS", 1)
    states = slice(0, -RUN["rounds"])
    assert bits(problem, algorithm)[states] == together[states]


def test_one_projection_that_fails_does_not_spoil_the_team():
    class Broken(L2Ball):
        def _project(self, x, warm_start):
            if np.abs(x).max() > 0:
                raise ProjectionError("it is broken")
            return x

    sets = [L2Ball(1.0), Broken(1.0), L2Ball(2.0)]
    problem = regressions(sets)
    algorithm = PCFedAvg(step=0.1, penalty=1.0)
    absent = run(problem, algorithm, **RUN, participation=lambda r: [1])
    refused = run(problem, algorithm, **RUN, refusals=RefusalPolicy(4))
    assert {refusal.agent for refusal in refused.refusals} == {1}
    np.testing.assert_array_equal(refused.models[[0, 2]], absent.models[[0, 2]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_projected_onto_their_own_sets(dtype):
    rng = np.random.default_rng(0)
    mixed = [make(rng) for make in CLOSED_FORM.values()]
    boxes = [Box(-0.1, 0.2), Box(-rng.random(N), 0.3), NonNegative(), Box(-np.inf, rng.random(N))]
    balls = [L1Ball(r) for r in (0.5, 1.0, 9.0)]
    for sets in (balls, [Simplex(1.0), Simplex(3.0)], boxes, boxes[::2], mixed):
        rows = SetRows(sets)
        for _ in range(2):  # the second time with what was remembered
            x = rng.normal(size=(len(sets), N)).astype(dtype)
            x[:, 0] = -0.0
            expected = np.stack([each.project(row) for each, row in zip(sets, x, strict=True)])
            np.testing.assert_array_equal(np.signbit(rows.project(x)), np.signbit(expected))
            np.testing.assert_array_equal(rows.project(x), expected)
            np.testing.assert_array_equal(rows.project(x, out=x), expected)
        x = rng.normal(size=(len(sets), N))
        distances = [each.distance(row) for each, row in zip(sets, x, strict=True)]
        np.testing.assert_allclose(rows.distances(x), distances, rtol=1e-12)
    wild = np.full((3, N), np.nan)
    assert np.isnan(SetRows([L1Ball(1.0)] * 3).distances(wild)).all()
