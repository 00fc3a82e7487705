"""Batches are unbiased with every sampling; streams are keyed by (seed, agent, round)."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from scipy.stats import chisquare

from pcfed import PCFedAvg, Problem, run
from pcfed.sampling import (
    BatchSampler,
    Purpose,
    Sampling,
    random_bits,
    random_stream,
    resolve_batch_size,
)
from pcfed.simulation.plan import Plan
from tests.federations import classifiers

SAMPLINGS = get_args(Sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("samples", "size"), [(10, 3), (12, 4), (7, 6), (5, 1), (6, 6)])
def test_batch_means_are_unbiased(sampling, samples, size):
    """The expected mean over a batch is the mean over all samples, whatever the size."""
    values = np.arange(samples) ** 2.0
    batches = BatchSampler(samples, size, sampling)
    means = []
    for rows in batches.draw(0, 1, 2, 20_000):
        means.append(values.mean() if rows is None else values[rows].mean())
    error = abs(np.mean(means) - values.mean())
    assert error <= 5 * np.std(means) / np.sqrt(len(means)) + 1e-12


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_batch_gradients_are_unbiased(sampling):
    agent = classifiers(1).agents[0]
    x = np.random.default_rng(1).normal(size=agent.loss.n)
    batches = BatchSampler(agent.loss.size, 7, sampling)  # 7 does not divide 50
    draws = np.stack([agent.loss.gradient(x, rows) for rows in batches.draw(2, 0, 0, 4000)])
    error = np.abs(draws.mean(axis=0) - agent.loss.gradient(x))
    assert (error <= 5 * draws.std(axis=0) / np.sqrt(len(draws))).all()
    assert draws.std(axis=0).max() > 0.01


def test_rows_are_distinct_without_replacement_and_contiguous_in_blocks():
    for samples in (20, 300):  # drawn by sorting, and by a generator
        for rows in BatchSampler(samples, 8).draw(0, 0, 0, 50):
            assert len(set(rows.tolist())) == 8
            assert 0 <= rows.min() <= rows.max() < samples
    for block in BatchSampler(20, 8, "blocks").draw(0, 0, 0, 50):
        assert (block.start, block.stop) in {(0, 8), (8, 16), (16, 20)}


def test_full_batches_read_all_rows():
    assert BatchSampler(5, 5).draw(0, 0, 0, 2) == [None, None]
    assert BatchSampler(5, 5).draw_group(0, [3, 1], 0, 2).tolist() == [[[0, 1, 2, 3, 4]] * 2] * 2


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("samples", [20, 300])
def test_every_row_is_drawn_equally_often(sampling, samples):
    """Chi-squared over rows, for one agent over rounds and for one round over agents."""
    batches, every = BatchSampler(samples, 5, sampling), np.arange(samples)
    by_round = [every[rows] for r in range(400) for rows in batches.draw(0, 7, r, 5)]
    by_agent = batches.draw_group(0, range(400), 3, 5)
    for drawn in (np.concatenate(by_round), by_agent.ravel()):
        counts = np.bincount(drawn, minlength=samples)
        blocks = samples // 5 if sampling == "blocks" else samples
        counts = counts.reshape(blocks, -1)[:, 0]
        assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("batch", "samples", "size"), [(0.1, 100, 10), (1.0, 7, 7), (0.01, 9, 1), (1, 7, 1), (7, 7, 7)]
)
def test_a_float_is_a_fraction_and_an_int_a_size(batch, samples, size):
    assert resolve_batch_size(batch, samples, agent="agent 0") == size


def test_streams_are_reproducible_and_differ_in_every_coordinate():
    keys = [
        (0, Purpose.BATCHES, 0, 0),
        (1, Purpose.BATCHES, 0, 0),
        (0, Purpose.START, 0, 0),
        (0, Purpose.BATCHES, 1, 0),
        (0, Purpose.BATCHES, 0, 1),
    ]
    draws = [random_stream(*key).integers(2**60, size=8).tolist() for key in keys]
    assert len({tuple(draw) for draw in draws}) == len(keys)
    assert draws == [random_stream(*key).integers(2**60, size=8).tolist() for key in keys]


def plan(problem: Problem, **options) -> Plan:
    defaults = {"local_steps": 1, "batch": 0.2, "sampling": "without_replacement", "seed": 3}
    return Plan(problem, **{**defaults, "participation": 1.0, **options})


def test_adding_an_agent_changes_no_other_batches():
    few, many = (plan(classifiers(m)) for m in (3, 5))
    for i in range(3):
        for r in range(4):
            a, b = few.context([i], r, 2), many.context([4, i], r, 2)
            np.testing.assert_array_equal(a.draw(0), b.draw(1))


def test_an_absent_round_does_not_change_later_batches():
    """An agent draws the same rows in round 1, present or absent in round 0."""
    problem = classifiers(2)
    present, absent = plan(problem), plan(problem, participation=[[0]])
    assert present.present(0) == [0, 1]
    assert absent.present(0) == [1]
    assert present.context([0], 0, 1).draw(0)
    a, b = present.context([0], 1, 1), absent.context([0], 1, 1)
    np.testing.assert_array_equal(a.draw(0), b.draw(0))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("samples", [60, 300])
def test_batches_do_not_depend_on_their_number_or_on_other_agents(sampling, samples):
    batches, every = BatchSampler(samples, 6, sampling), np.arange(samples)
    few, many = (batches.draw(1, 2, 3, steps) for steps in (3, 9))
    in_group = batches.draw_group(1, [4, 2], 3, 9, num_samples=[samples + 12, samples])[1]
    for a, b, c in zip(few, many, in_group, strict=False):
        np.testing.assert_array_equal(every[a], every[b])
        np.testing.assert_array_equal(every[a], c)


def test_random_bits_differ_in_every_coordinate():
    positions = np.tile(np.arange(1000), (3, 1))
    draws = [random_bits(seed, [0, 1, 9], index, positions) for seed in (0, 1) for index in (0, 1)]
    assert np.unique(draws).size == 12 * 1000
    ones = np.unpackbits(np.array(draws).view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(12 * 1000 * 64)


@pytest.mark.parametrize(
    ("participation", "num_present"), [(1.0, 5), (0.4, 2), (0.01, 1), (3, 3), (1, 1)]
)
def test_participation_by_fraction_or_count(participation, num_present):
    p = plan(classifiers(5), participation=participation)
    chosen = [p.present(r) for r in range(200)]
    assert all(len(each) == num_present == len(set(each)) for each in chosen)
    assert {i for each in chosen for i in each} == set(range(5))
    assert all(each == sorted(each) for each in chosen)


def test_participation_by_schedule_lists_the_absent_agents():
    by_list = plan(classifiers(3), participation=[[0], [], [1, 2]])
    assert [by_list.present(r) for r in range(4)] == [[1, 2], [0, 1, 2], [0], [0, 1, 2]]
    by_rule = plan(classifiers(3), participation=lambda r: {r % 3})
    assert [by_rule.present(r) for r in range(3)] == [[1, 2], [0, 2], [0, 1]]


def test_local_steps_by_number_agent_and_round():
    problem = classifiers(3)
    assert plan(problem, local_steps=4).steps(7) == [4, 4, 4]
    assert plan(problem, local_steps=[1, 2, 3]).steps(7) == [1, 2, 3]
    assert plan(problem, local_steps=np.array([1, 2, 3])).steps(0) == [1, 2, 3]
    assert plan(problem, local_steps=[1, 2, 3]).steps(7, [0, 2]) == [1, 3]
    assert plan(problem, local_steps=lambda r: r + 1).steps(4) == [5, 5, 5]
    assert plan(problem, local_steps=lambda r: r + 1).steps(4, [1]) == [5]
    assert plan(problem, local_steps=lambda r: [r + 1, 7, 9]).steps(4, [0, 1]) == [5, 7]
    assert plan(problem, local_steps=lambda r: [r + 1, 1, 1]).max_local_steps(range(9)) == 9


def test_a_round_without_agents_changes_nothing():
    problem = classifiers(3)
    algorithm = PCFedAvg(step=0.3, penalty=2.0)
    one = run(problem, algorithm, rounds=1, local_steps=2)
    nobody = {"participation": lambda r: {0, 1, 2}}
    two = run(problem, algorithm, rounds=1, local_steps=2, x0=one, **nobody)
    np.testing.assert_array_equal(one.models, two.models)
    assert two.state.round == 2
    assert two.history[-1].bytes_up == one.history[-1].bytes_up
