"""Properties of the partitions for all labels, numbers of agents and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcfed.data import (
    by_classes,
    class_counts,
    dirichlet,
    iid,
    label_sorted,
    plot_partition,
    unequal,
)

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(np.array)
SEEDS = st.integers(0, 2**32)


def check(parts, labels, agents, *, all_used=True):
    assert len(parts) == agents
    assert all(len(part) for part in parts)
    used = np.sort(np.concatenate(parts))
    assert used.dtype == np.intp
    assert len(np.unique(used)) == len(used)  # no sample belongs to two agents
    if all_used:
        np.testing.assert_array_equal(used, np.arange(len(labels)))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(LABELS, SEEDS, st.data())
def test_iid(labels, seed, data):
    agents = data.draw(st.integers(1, len(labels)))
    parts = iid(labels, agents, seed=seed)
    check(parts, labels, agents)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert same(parts, iid(labels, agents, seed=seed))


@given(LABELS, st.data())
def test_label_sorted(labels, data):
    agents = data.draw(st.integers(1, len(labels)))
    parts = label_sorted(labels, agents)
    check(parts, labels, agents)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    order = np.concatenate(parts)
    expected = sorted(range(len(labels)), key=lambda i: (labels[i], i))
    assert order.tolist() == expected


def test_label_sorted_by_hand():
    parts = label_sorted(np.array([2, 0, 1, 0, 2, 1, 0], np.uint8), 3)
    assert [part.tolist() for part in parts] == [[1, 3, 6], [2, 5], [0, 4]]


@given(LABELS, SEEDS, st.floats(0.05, 100.0), st.data())
def test_dirichlet(labels, seed, alpha, data):
    agents = data.draw(st.integers(1, min(len(labels), 6)))
    minimum = data.draw(st.integers(1, max(1, len(labels) // (2 * agents))))
    options = {"alpha": alpha, "seed": seed, "min_samples": minimum}
    try:
        parts = dirichlet(labels, agents, **options)
    except ValueError:
        with pytest.raises(ValueError, match="no partition in 100 attempts"):
            dirichlet(labels, agents, **options)
        return
    check(parts, labels, agents)
    assert min(len(part) for part in parts) >= minimum
    assert same(parts, dirichlet(labels, agents, **options))


def test_dirichlet_proportions_have_the_right_mean_and_variance():
    """The share that an agent has of a class is Beta(α, (m − 1) α): check mean and variance."""
    labels, agents = np.repeat(np.arange(10), 1000), 4
    for alpha in (0.3, 1.0, 10.0):
        tables = [
            class_counts(labels, dirichlet(labels, agents, alpha=alpha, seed=seed)) / 1000
            for seed in range(60)
        ]
        variance = (1 / agents) * (1 - 1 / agents) / (agents * alpha + 1)
        assert np.mean(tables) == pytest.approx(1 / agents)
        assert np.var(tables) == pytest.approx(variance, rel=0.15)


def test_dirichlet_keeps_the_minimum():
    labels = np.repeat(np.arange(4), 25)
    for seed in range(20):
        parts = dirichlet(labels, 4, alpha=0.5, seed=seed, min_samples=15)
        assert min(len(part) for part in parts) >= 15
    free = [dirichlet(labels, 4, alpha=0.5, seed=seed) for seed in range(20)]
    assert min(len(part) for parts in free for part in parts) < 15


def test_dirichlet_distributes_the_samples_of_a_class_at_random():
    part = dirichlet(np.zeros(1000, int), 2, alpha=100.0, seed=0)[0]
    assert abs(part.mean() - 500) < 50


def test_dirichlet_gives_up_after_so_many_attempts():
    with pytest.raises(
        ValueError, match="no partition in 7 attempts gave each of 5 agents 1 or mor"
    ):
        dirichlet([0] * 100, 5, alpha=1e-9, seed=0, max_attempts=7)


@given(LABELS.filter(lambda x: len(x) > 5), SEEDS, st.data())
def test_by_classes(labels, seed, data):
    present = np.unique(labels)
    agents = data.draw(st.integers(1, 8).filter(lambda m: m <= len(labels)))
    each = data.draw(st.integers(1, len(present)))
    options = {"classes_per_agent": each, "seed": seed}
    most_holders = -(-agents * each // len(present))
    try:
        parts = by_classes(labels, agents, **options)
    except ValueError:
        assert np.bincount(labels)[present].min() < most_holders  # too few of some class
        return
    held = [np.unique(labels[part]) for part in parts]
    assert {len(classes) for classes in held} == {each}
    check(parts, labels, agents, all_used=agents * each >= len(present))
    table = class_counts(labels, parts)[:, present]
    holders = (table > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in table.T:
        shares = column[column > 0]
        assert shares.size == 0 or shares.max() - shares.min() <= 1
    assert same(parts, by_classes(labels, agents, **options))


@given(LABELS, SEEDS, st.floats(0.001, 1000.0), st.data())
def test_unequal_by_ratio(labels, seed, ratio, data):
    agents = data.draw(st.integers(1, len(labels)))
    parts = unequal(labels, agents, ratio=ratio, seed=seed)
    check(parts, labels, agents)
    sizes = [len(part) for part in parts]
    steps = np.diff(sizes) if ratio >= 1 else -np.diff(sizes)
    assert (steps >= -1).all()
    assert same(parts, unequal(labels, agents, ratio=ratio, seed=seed))


def test_unequal_has_the_ratio():
    sizes = [len(part) for part in unequal(np.zeros(60_000, int), 10, ratio=16.0, seed=3)]
    np.testing.assert_allclose(np.array(sizes[1:]) / sizes[:-1], 16 ** (1 / 9), rtol=2e-3)
    assert sizes[-1] / sizes[0] == pytest.approx(16.0, rel=1e-2)
    for ratio in (0.001, 1e-300):
        assert [len(part) for part in unequal(range(5), 4, ratio=ratio, seed=0)] == [2, 1, 1, 1]
    for ratio in (1000.0, 1e300):
        assert [len(part) for part in unequal(range(5), 4, ratio=ratio, seed=0)] == [1, 1, 1, 2]


@given(LABELS, SEEDS, st.data())
def test_unequal_by_sizes(labels, seed, data):
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    if sum(sizes) > len(labels):
        with pytest.raises(ValueError, match="unequal: "):
            unequal(labels, len(sizes), sizes=sizes, seed=seed)
        return
    parts = unequal(labels, len(sizes), sizes=sizes, seed=seed)
    assert [len(part) for part in parts] == sizes
    check(parts, labels, len(sizes), all_used=sum(sizes) == len(labels))


def test_other_seeds_give_other_partitions():
    labels = np.repeat(np.arange(10), 20)
    makers = [
        lambda seed: iid(labels, 5, seed=seed),
        lambda seed: dirichlet(labels, 5, alpha=1.0, seed=seed),
        lambda seed: by_classes(labels, 5, classes_per_agent=3, seed=seed),
        lambda seed: unequal(labels, 5, ratio=3.0, seed=seed),
    ]
    for make in makers:
        assert not same(make(0), make(1))


@given(LABELS, SEEDS, st.data())
def test_counts(labels, seed, data):
    agents = data.draw(st.integers(1, len(labels)))
    parts = iid(labels, agents, seed=seed)
    table = class_counts(labels, parts, classes=6)
    assert table.shape == (agents, 6)
    np.testing.assert_array_equal(table.sum(axis=0), np.bincount(labels, minlength=6))
    np.testing.assert_array_equal(table.sum(axis=1), [len(part) for part in parts])


THREE = [0, 1, 1]
CASES = {
    "no labels": (lambda: iid([], 1, seed=0), "iid: labels must be a non-empty list of whole"),
    "floats": (lambda: iid([0.5], 1, seed=0), "iid: labels must be .* got float64"),
    "matrix": (lambda: label_sorted([[1]], 1), r"label_sorted: labels .* shape \(1, 1\)"),
    "agents": (
        lambda: label_sorted(THREE, 4),
        "num_agents must be at most the number of samples, 3, got 4",
    ),
    "no agent": (
        lambda: iid(THREE, 0, seed=0),
        "iid: num_agents must be a whole number ≥ 1, got 0",
    ),
    "seed": (lambda: iid(THREE, 1, seed=-1), "iid: seed must be a whole number ≥ 0, got -1"),
    "seed none": (lambda: iid(THREE, 1, seed=None), "iid: seed must be a whole number ≥ 0"),
    "alpha": (
        lambda: dirichlet(THREE, 2, alpha=0.0, seed=0),
        "dirichlet: alpha must be > 0, got 0.0",
    ),
    "alpha nan": (
        lambda: dirichlet(THREE, 2, alpha=np.nan, seed=0),
        "dirichlet: alpha must be a finite number",
    ),
    "minimum": (
        lambda: dirichlet(THREE, 2, alpha=1.0, seed=0, min_samples=2),
        "dirichlet: min_samples must be at most 1 for 3 samples and 2 agents, got 2",
    ),
    "attempts": (
        lambda: dirichlet(THREE, 2, alpha=1.0, seed=0, max_attempts=0),
        "dirichlet: max_attempts must be a whole number ≥ 1",
    ),
    "classes": (
        lambda: by_classes(THREE, 2, classes_per_agent=3, seed=0),
        "classes_per_agent must be at most the number of classes, 2, got 3",
    ),
    "rare class": (
        lambda: by_classes(THREE, 2, classes_per_agent=2, seed=0),
        "class 0 must have a sample for each of its 2 agents, got 1",
    ),
    "neither": (lambda: unequal(THREE, 2, seed=0), "unequal: give one of sizes and ratio"),
    "both": (
        lambda: unequal(THREE, 2, sizes=[1, 1], ratio=1.0, seed=0),
        "unequal: give one of sizes and ratio",
    ),
    "sizes": (
        lambda: unequal(THREE, 2, sizes=[1, 3], seed=0),
        "sizes must be 2 numbers with a sum of at most 3, got 2 with the sum 4",
    ),
    "sizes zero": (
        lambda: unequal(THREE, 2, sizes=[1, 0], seed=0),
        r"unequal: sizes\[1\] must be a whole number ≥ 1, got 0",
    ),
    "ratio": (lambda: unequal(THREE, 2, ratio=-1.0, seed=0), "unequal: ratio must be > 0"),
    "ratio zero": (lambda: unequal(THREE, 2, ratio=0.0, seed=0), "unequal: ratio must be > 0"),
    "class_counts": (
        lambda: class_counts(THREE, [[0]], 1),
        r"class_counts: labels must be in 0..0, got 0..1",
    ),
    "counts negative": (
        lambda: class_counts([-1, 0], [[0]]),
        r"class_counts: labels must be in 0..0, got -1",
    ),
    "plot_partition": (
        lambda: plot_partition(THREE, []),
        "plot_partition: parts must not be empty",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_arguments_get_one_sentence(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("agents", [1, 4, 60])
def test_the_plot_shows_the_class_counts(agents):
    labels = np.repeat(np.arange(3), 40)
    parts = dirichlet(labels, agents, alpha=5.0, seed=0)
    figure = plot_partition(labels, parts, class_names=("cat", "dog", "mouse"))
    cells, sizes = figure.axes
    np.testing.assert_array_equal(cells.images[0].get_array(), class_counts(labels, parts))
    assert [bar.get_width() for bar in sizes.patches] == [len(part) for part in parts]
    assert [tick.get_text() for tick in cells.get_xticklabels()] == ["cat", "dog", "mouse"]
    numbers = [text.get_text().replace("·", "0") for text in cells.texts]
    expected = class_counts(labels, parts).ravel().tolist() if agents <= 20 else []
    assert [int(number) for number in numbers] == expected
    figure.canvas.draw()


def test_the_plot_numbers_classes_without_names():
    cells = plot_partition([0, 1, 1], [[0], [1, 2]]).axes[0]
    assert [tick.get_text() for tick in cells.get_xticklabels()] == ["0", "1"]
