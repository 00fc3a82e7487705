"""Agents in several ranges, and agents that are made on demand, give the bits of one process."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields, replace
from itertools import pairwise
from weakref import WeakSet

import numpy as np
import pytest

from pcfed import (
    Agent,
    Checkpointing,
    FedAvg,
    Gap,
    Memory,
    PCFedAvg,
    PCFedSplit,
    Privacy,
    Problem,
    RefusalPolicy,
    run,
)
from pcfed.guarantees import certificate_of
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import Box, L1Ball, WholeSpace
from pcfed.simulation import Record, agent_range, simulate
from pcfed.simulation.agent_range import AgentRange
from pcfed.simulation.private_state import PrivateState
from pcfed.simulation.ranges import LocalRanges
from tests.federations import ALGORITHMS

M = 150
RUN = {"rounds": 4, "local_steps": 2, "seed": 5}
CASES = {
    "all agents": {},
    "few agents": {"participation": 0.2, "batch": 3},
    "other steps": {"local_steps": [1 + i % 3 for i in range(M)]},
    "average": {"output": "average", "sampling": "blocks", "batch": 4},
    "random": {"output": "random"},
    "grid": {"grid": 2.0**-32},
    "one vector": {"x0": np.linspace(-0.1, 0.3, 5)},
    "own vectors": {"x0": np.random.default_rng(0).normal(size=(M, 5))},
}


def make_agent(i: int) -> Agent:
    rng = np.random.default_rng(i)
    loss = LeastSquares(rng.normal(size=(6, 5)), rng.normal(size=6))
    return Agent(loss, Box(-0.1 - 0.01 * (i % 7), 0.05), coupling=0.1, personalization=i % 2 / 2)


def make_classifier(i: int) -> Agent:
    rng = np.random.default_rng(i)
    X, y = rng.normal(size=(6, 5)), rng.integers(2, size=6)
    return Agent(LogisticRegression(X, y), L1Ball(0.1 + 0.01 * (i % 5)), coupling=0.1)


def assert_same_bits(one, other):
    np.testing.assert_array_equal(one.models, other.models)
    np.testing.assert_array_equal(one.average, other.average)
    for kind in ("server", "private"):
        ours, theirs = getattr(one.state, kind), getattr(other.state, kind)
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    for mine, their in zip(one.history, other.history, strict=True):
        for name in {item.name for item in fields(Record)} - {"seconds"}:
            ours, theirs = getattr(mine, name), getattr(their, name)
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def in_ranges(edges):
    """Return a function that divides the agents of a run among ranges in this process."""

    def make(problem, plan, algorithm, backend, workers, **options):
        plans = [plan.local_plan(problem.agents[a:b], a) for a, b in pairwise(edges)]
        return LocalRanges([AgentRange(each, algorithm, problem.m, **options) for each in plans])

    return make


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("edges", [(0, 64, M), (0, 64, 128, M)], ids=["two", "three"])
def test_several_ranges_give_the_bits_of_one(edges, case, monkeypatch):
    problem = Problem([make_agent(i) for i in range(M)])
    options = {**RUN, **case}
    one = run(problem, ALGORITHMS["PCFedSplit"], **options)
    monkeypatch.setattr(simulate, "_ranges", in_ranges(edges))
    assert_same_bits(run(problem, ALGORITHMS["PCFedSplit"], **options), one)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_in_ranges(name, monkeypatch):
    agents = [make_agent(i) for i in range(M - 1)]
    if name == "PCFedAvg":
        agents = [Agent(a.loss, a.constraint, a.coupling) for a in agents]
    problem = Problem([*agents, make_agent(4)])
    options = {**RUN, "participation": 0.5}
    one = run(problem, ALGORITHMS[name], **options)
    monkeypatch.setattr(simulate, "_ranges", in_ranges((0, 64, M)))
    assert_same_bits(run(problem, ALGORITHMS[name], **options), one)


@pytest.mark.parametrize("case", [{}, {"participation": 0.4}], ids=["all agents", "few agents"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_private_agents_have_the_same_noise_in_ranges(name, case, monkeypatch):
    budget = Privacy(3.0, 1e-5, feature_norm=3.0)

    def make(i):
        rng = np.random.default_rng(i)
        loss = SoftmaxRegression(rng.normal(size=(8, 3)), rng.integers(3, size=8), classes=3)
        return Agent(loss, L1Ball(1.0 + i % 4), privacy=budget if i % 2 else None)

    problem = Problem([make(i) for i in range(37)])
    options = {**RUN, "batch": 3, "seed": 2**63 + 7, **case}
    one = run(problem, ALGORITHMS[name], **options)
    monkeypatch.setattr(simulate, "_ranges", in_ranges([*range(0, 37, 4), 37]))
    assert_same_bits(run(problem, ALGORITHMS[name], **options), one)


@pytest.mark.parametrize("allowed", [0, 2, 1000])
@pytest.mark.parametrize("steps", [1, [3] * 100 + [1] * 50], ids=["equal steps", "other steps"])
def test_refusals_do_not_depend_on_ranges(steps, allowed, monkeypatch):
    class Failing(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            g = super().gradient(x, rows, out=out)
            g[0] = np.nan
            return g

    agents = [make_agent(i) for i in range(M)]
    for i in (3, 90, 91, 140):
        rng = np.random.default_rng(i)
        agents[i] = Agent(Failing(rng.normal(size=(6, 5)), rng.normal(size=6)), Box(-0.1, 0.05))
    options = {"rounds": 3, "local_steps": steps, "refusals": RefusalPolicy(allowed)}
    problem, algorithm = Problem(agents), ALGORITHMS["FedAvg"]
    one = run(problem, algorithm, **options)
    assert [each.agent for each in one.refusals][:4] == [3, 90, 91, 140][: allowed + 1]
    for edges in ((0, 64, M), (0, 64, 128, M)):
        monkeypatch.setattr(simulate, "_ranges", in_ranges(edges))
        other = run(problem, algorithm, **options)
        assert (other.refusals, other.message) == (one.refusals, one.message)
        assert_same_bits(other, one)


@pytest.mark.parametrize("make", [make_agent, make_classifier])
@pytest.mark.parametrize("name", ["PCFedSplit", "FedAvg"])
def test_agents_on_demand_give_the_same_states(name, make):
    kept, lazy = Problem([make(i) for i in range(M)]), Problem.lazy(M, make)
    for case in ({}, {"participation": 0.2, "batch": 3}, {"batch": 4, "sampling": "blocks"}):
        one = run(kept, ALGORITHMS[name], **{**RUN, **case})
        other = run(lazy, ALGORITHMS[name], **{**RUN, **case})
        np.testing.assert_array_equal(one.models, other.models)
        for key, vector in one.state.server.items():
            np.testing.assert_array_equal(vector, other.state.server[key])
        # Losses at the centre are evaluated together where all agents are kept.
        assert one.history[-1].objective == pytest.approx(other.history[-1].objective, rel=1e-12)


def test_only_agents_that_take_part_are_made():
    made, in_rounds = [], []

    def make(i):
        made.append(i)
        return make_agent(i)

    def absent(index):  # called before every round
        in_rounds.append(set(made))
        made.clear()
        return set(range(1000)) - {index, index + 500}

    problem = Problem.lazy(1000, make)
    run(problem, ALGORITHMS["PCFedSplit"], rounds=4, participation=absent, eval_every=4)
    assert in_rounds[-3:] == [{0, 500}, {1, 501}, {2, 502}]
    assert problem.names[3] == "agent 3"


@pytest.mark.parametrize("case", [{}, {"output": "average", "x0": np.zeros((500, 5))}])
@pytest.mark.parametrize("name", ["PCFedSplit", "FedAvg", "PFedMe"])
def test_few_agents_on_demand_are_alive_at_a_time(name, case, monkeypatch):
    alive, most, evaluated = WeakSet(), [0], []

    def make(i):
        agent = make_agent(i)
        alive.add(agent)
        most.append(max(most.pop(), len(alive)))
        return agent

    def look(evaluation):
        certificate_of(evaluation)
        assert evaluation.models.shape == (500, 5)
        evaluated.append(len(alive))

    monkeypatch.setattr(agent_range, "MAX_MADE_AGENTS", 50)
    monkeypatch.setattr("pcfed.simulation.plan.WINDOW", 50)
    options = {"rounds": 3, "local_steps": 2, "callbacks": [look], "refusals": RefusalPolicy(9)}
    result = run(Problem.lazy(500, make), ALGORITHMS[name], **options, **case)
    assert result.status == "finished"
    assert max(most) <= 2 * 50
    assert max(evaluated) <= 1


def test_large_lists_of_losses_make_few_agents_at_a_time(monkeypatch):
    alive, most = WeakSet(), [0]

    def make(i):
        agent = make_agent(i)
        alive.add(agent)
        most.append(max(most.pop(), len(alive)))
        return agent

    monkeypatch.setattr(agent_range, "MAX_MADE_AGENTS", 50)
    problem = Problem.lazy(500, make)
    plan = simulate.Plan(
        *(problem,), local_steps=1, batch=1.0, sampling="blocks", participation=1.0, seed=0
    )
    losses = AgentRange(plan.local, ALGORITHMS["FedAvg"], 500).losses(-1, np.zeros(5))
    assert losses == [make_agent(i).loss.value(np.zeros(5)) for i in range(500)]
    assert max(most) <= 2 * 50


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("edges", [(0, M), (0, 64, M)], ids=["one", "two"])
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *((name, {}) for name in ALGORITHMS),
        ("PCFedSplit", {"output": "average"}),
        ("PCFedSplit", {"memory": Memory("float32")}),
    ],
    ids=str,
)
def test_large_arrays_are_memory_mapped(name, case, edges, is_local, monkeypatch):
    agents = [make_agent(i) for i in range(M)]
    if name == "PCFedAvg":
        agents = [replace(agent, personalization=0.0) for agent in agents]
    problem, options = Problem(agents), {**RUN, **case}
    in_memory = run(problem, ALGORITHMS[name], **options)
    monkeypatch.setattr("pcfed.arrays.MAX_MEMORY", 1000)
    for module in ("agent_range", "engine"):
        monkeypatch.setattr(f"pcfed.simulation.{module}.MAX_PART", 100)
    monkeypatch.setattr(LocalRanges, "is_local", is_local)
    monkeypatch.setattr(simulate, "_ranges", in_ranges(edges))
    result = run(problem, ALGORITHMS[name], **options)
    assert_same_bits(result, in_memory)
    assert isinstance(result.models, np.memmap)
    # The private state of one range in this process is in memory already, if it is in float64.
    if not is_local or len(edges) > 2 or "memory" in case:
        large = [rows for rows in result.state.private.values() if rows.nbytes > 2000]
        assert all(isinstance(rows, np.memmap) for rows in large)


@pytest.mark.parametrize("is_local", [True, False])
def test_all_models_are_in_memory_once_at_most(is_local, monkeypatch):
    problem = Problem([Agent(LeastSquares(np.ones((1, 20)), [1.0]), WholeSpace())] * 4000)
    monkeypatch.setattr("pcfed.arrays.MAX_MEMORY", 1000)
    for module in ("agent_range", "engine"):
        monkeypatch.setattr(f"pcfed.simulation.{module}.MAX_PART", 2000)
    monkeypatch.setattr(LocalRanges, "is_local", is_local)
    peaks = []

    def measure(evaluation):
        tracemalloc.start()
        assert evaluation.models.shape == (4000, 20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    run(problem, ALGORITHMS["FedAvg"], rounds=1, callbacks=[measure])
    assert peaks[0] < 4000 * 20 * 8 / 4  # what is memory-mapped does not count


def test_rows_start_when_they_take_part():
    state = PrivateState({"x": np.zeros((1, 2))}, 10, start=lambda rows: {"x": 1.0})
    assert state.peek([3, 4])["x"].tolist() == [[1, 1], [1, 1]]
    assert state.all_rows()["x"].sum() == 20
    assert state._arrays["x"].sum() == 0
    state.rows([3, 4])["x"][...] = 7
    assert state.rows([3, 4])["x"].tolist() == [[1, 1], [1, 1]]
    state.write([4], {"x": np.array([[2.0, 3.0]])}, state.rows([4]))
    assert state.peek(slice(3, 6))["x"].tolist() == [[1, 1], [2, 3], [1, 1]]
    assert state._arrays["x"].sum() == 7
    assert state.started()["started"].tolist() == [3, 4]


def test_lazy_runs_resume(tmp_path):
    problem = Problem.lazy(M, make_agent)
    algorithm = ALGORITHMS["PCFedSplit"]
    whole = run(problem, algorithm, **RUN)
    files = Checkpointing(tmp_path / "run", every=1, resume=True)
    run(problem, algorithm, **{**RUN, "rounds": 2}, checkpoint=files)
    assert_same_bits(run(problem, algorithm, **RUN, checkpoint=files), whole)


def test_a_run_resumes_with_the_same_memory_only(tmp_path):
    problem, files = Problem([make_agent(0)]), Checkpointing(tmp_path / "run", resume=True)
    algorithm, memory = ALGORITHMS["PCFedSplit"], Memory("float32")
    run(problem, algorithm, rounds=2, checkpoint=files, memory=memory)
    with pytest.raises(ValueError, match="a run with memory 'float32', and this one has None"):
        run(problem, algorithm, rounds=4, checkpoint=files)
    assert run(problem, algorithm, rounds=4, checkpoint=files, memory=memory).state.round == 4


def test_gaps_without_bound_make_no_agents_in_the_driver():
    made = []

    def make(i):
        made.append(i)
        return replace(make_agent(i), constraint=WholeSpace())

    def count(evaluation):
        made.append(None)

    problem, algorithm = Problem.lazy(100, make), ALGORITHMS["FedAvg"]
    run(problem, algorithm, rounds=2, stop=Gap(1e-3), callbacks=[count])
    first, second = (k for k, i in enumerate(made) if i is None)
    # The round, the evaluation and the three sums of a certificate, which begin with projections.
    assert second - first - 1 == 5 * 100


def test_private_agents_have_no_certificate_from_sums():
    loss = SoftmaxRegression(np.eye(3), np.arange(3), classes=3)
    problem = Problem([Agent(loss, L1Ball(1.0), privacy=Privacy(3.0, 1e-5))])
    with pytest.raises(ValueError, match="certify: agents must have no privacy budget"):
        run(
            problem,
            ALGORITHMS["FedAvg"],
            rounds=1,
            batch=1,
            seed=2**63 + 7,
            callbacks=[certificate_of],
        )


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (FedAvg(step="auto"), {}, "run: step must be a number for Problem.lazy, got 'auto'"),
        (PCFedAvg(step="theory", penalty=1.0), {}, "run: step must be a number .* got 'theory'"),
        (PCFedSplit(), {"x0": "random"}, 'run: x0 must be an array for Problem.lazy, got "random"'),
    ],
)
def test_what_would_make_all_agents_in_the_driver_is_refused(algorithm, options, message):
    made = []

    def make(i):
        made.append(i)
        return make_agent(i)

    with pytest.raises(ValueError, match=message):
        run(Problem.lazy(9, make), algorithm, rounds=1, **options)
    assert set(made) == {0}


def test_bad_lazy_problems_are_refused():
    other = Agent(LeastSquares(np.eye(2), np.ones(2)), Box(0, 1))
    problem = Problem.lazy(9, lambda i: other if i == 7 else make_agent(i))
    with pytest.raises(ValueError, match=r"agent 7 has 2 parameters .* agent 0 has 5"):
        run(problem, ALGORITHMS["FedAvg"], rounds=1)
    with pytest.raises(ValueError, match="make_agent must be a function of a position"):
        Problem.lazy(3, [1, 2, 3])
    with pytest.raises(ValueError, match=r"Problem\.lazy: make_agent\(0\) must be"):
        Problem.lazy(3, lambda i: "an agent")
