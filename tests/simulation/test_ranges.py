"""Agents in several ranges, and agents that are made on demand, give the bits of one process."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

from pcfed import Agent, Checkpointing, Problem, run
from pcfed.losses import LeastSquares, LogisticRegression
from pcfed.sets import Box, L1Ball
from pcfed.simulation import Record, simulate
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


def test_bad_lazy_problems_are_refused():
    with pytest.raises(ValueError, match="make_agent must be a function of a position"):
        Problem.lazy(3, [1, 2, 3])
    with pytest.raises(ValueError, match=r"Problem\.lazy: make_agent\(0\) must be"):
        Problem.lazy(3, lambda i: "an agent")
