"""Batches are unbiased however they are drawn; streams belong to (seed, agent, round)."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import PCFedAvg, Problem, run
from pcfed.plan import Plan
from pcfed.sampling import Batches, Purpose, batch_size, stream
from tests.federations import classifiers

WAYS = ["without_replacement", "with_replacement", "blocks"]


@pytest.mark.parametrize("sampling", WAYS)
@pytest.mark.parametrize(("samples", "size"), [(10, 3), (12, 4), (7, 6), (5, 1), (6, 6)])
def test_batch_means_are_unbiased(sampling, samples, size):
    """The mean over a batch has the mean over all samples, also when the size divides nothing."""
    values = np.arange(samples) ** 2.0
    batches = Batches(samples, size, sampling)
    rng = np.random.default_rng(0)
    means = []
    for _ in range(20_000):
        rows = batches.draw(rng)
        means.append(values.mean() if rows is None else values[rows].mean())
    error = abs(np.mean(means) - values.mean())
    assert error <= 5 * np.std(means) / np.sqrt(len(means)) + 1e-12


@pytest.mark.parametrize("sampling", WAYS)
def test_batch_gradients_are_unbiased(sampling):
    agent = classifiers(1).agents[0]
    x = np.random.default_rng(1).normal(size=agent.loss.n)
    batches = Batches(agent.loss.size, 7, sampling)  # 7 does not divide 50
    rng = np.random.default_rng(2)
    draws = np.stack([agent.loss.gradient(x, batches.draw(rng)) for _ in range(4000)])
    error = np.abs(draws.mean(axis=0) - agent.loss.gradient(x))
    assert (error <= 5 * draws.std(axis=0) / np.sqrt(len(draws))).all()
    assert draws.std(axis=0).max() > 0.01


def test_rows_are_distinct_without_replacement_and_contiguous_in_blocks():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = Batches(20, 8).draw(rng)
        assert len(set(rows.tolist())) == 8
        block = Batches(20, 8, "blocks").draw(rng)
        assert (block.start, block.stop) in {(0, 8), (8, 16), (16, 20)}


def test_full_batches_read_all_rows_and_draw_nothing():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert Batches(5, 5).draw(rng) is None
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(
    ("batch", "samples", "size"), [(0.1, 100, 10), (1.0, 7, 7), (0.01, 9, 1), (1, 7, 1), (7, 7, 7)]
)
def test_a_float_is_a_fraction_and_an_int_a_size(batch, samples, size):
    assert batch_size(batch, samples, agent="agent 0") == size


def test_streams_are_reproducible_and_differ_in_every_coordinate():
    keys = [
        (0, Purpose.BATCHES, 0, 0),
        (1, Purpose.BATCHES, 0, 0),
        (0, Purpose.START, 0, 0),
        (0, Purpose.BATCHES, 1, 0),
        (0, Purpose.BATCHES, 0, 1),
    ]
    draws = [stream(*key).integers(2**60, size=8).tolist() for key in keys]
    assert len({tuple(draw) for draw in draws}) == len(keys)
    assert draws == [stream(*key).integers(2**60, size=8).tolist() for key in keys]


def plan(problem: Problem, **options) -> Plan:
    defaults = {"local_steps": 1, "batch": 0.2, "sampling": "without_replacement", "seed": 3}
    return Plan(problem, **{**defaults, "participation": 1.0, **options})


def test_adding_an_agent_changes_nobody_elses_batches():
    few, many = (plan(classifiers(m)) for m in (3, 5))
    for i in range(3):
        for r in range(4):
            a, b = few.work(i, r, 1), many.work(i, r, 1)
            np.testing.assert_array_equal(a.batches.draw(a.rng), b.batches.draw(b.rng))


def test_who_sat_a_round_out_draws_the_same_batches_afterwards():
    """An agent whose round 0 is skipped, and one that was there, see the same rows in round 1."""
    problem = classifiers(2)
    there, away = plan(problem), plan(problem, participation=[[0]])
    assert there.present(0) == [0, 1]
    assert away.present(0) == [1]
    first = there.work(0, 0, 1)
    first.batches.draw(first.rng)
    a, b = there.work(0, 1, 1), away.work(0, 1, 1)
    np.testing.assert_array_equal(a.batches.draw(a.rng), b.batches.draw(b.rng))


@pytest.mark.parametrize(("share", "number"), [(1.0, 5), (0.4, 2), (0.01, 1), (3, 3), (1, 1)])
def test_participation_by_share_or_number(share, number):
    p = plan(classifiers(5), participation=share)
    chosen = [p.present(r) for r in range(200)]
    assert all(len(each) == number == len(set(each)) for each in chosen)
    assert {i for each in chosen for i in each} == set(range(5))
    assert all(each == sorted(each) for each in chosen)


def test_participation_by_schedule_says_who_is_absent():
    by_list = plan(classifiers(3), participation=[[0], [], [1, 2]])
    assert [by_list.present(r) for r in range(4)] == [[1, 2], [0, 1, 2], [0], [0, 1, 2]]
    by_rule = plan(classifiers(3), participation=lambda r: {r % 3})
    assert [by_rule.present(r) for r in range(3)] == [[1, 2], [0, 2], [0, 1]]


def test_local_steps_by_number_agent_and_round():
    problem = classifiers(3)
    assert plan(problem, local_steps=4).steps(7) == [4, 4, 4]
    assert plan(problem, local_steps=[1, 2, 3]).steps(7) == [1, 2, 3]
    assert plan(problem, local_steps=np.array([1, 2, 3])).steps(0) == [1, 2, 3]
    assert plan(problem, local_steps=lambda r: r + 1).steps(4) == [5, 5, 5]
    assert plan(problem, local_steps=lambda r: [r + 1, 1, 1]).longest(range(9)) == 9


def test_a_round_without_anybody_changes_nothing():
    problem = classifiers(3)
    algorithm = PCFedAvg(step=0.3, penalty=2.0)
    one = run(problem, algorithm, rounds=1, local_steps=2)
    nobody = {"participation": lambda r: {0, 1, 2}}
    two = run(problem, algorithm, rounds=1, local_steps=2, x0=one, **nobody)
    np.testing.assert_array_equal(one.models, two.models)
    assert two.state.round == 2
    assert two.history[-1].bytes_up == one.history[-1].bytes_up
