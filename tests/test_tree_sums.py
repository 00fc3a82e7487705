"""Sums over a binary tree of positions: by hand, against a recursion, for any way to cut them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcfed import kernels
from pcfed.tree_sums import TreeSums, tree_mean, tree_sum


def by_recursion(rows, level, j=0):
    """Return the sum of node j of a level, or None if it is empty; rows by position."""
    if level == 0:
        return rows.get(j)
    children = [by_recursion(rows, level - 1, 2 * j + k) for k in range(2)]
    present = [each for each in children if each is not None]
    return sum(present[1:], start=present[0]) if present else None


def expected(rows):
    """Return the sum over the tree, given rows by position."""
    return by_recursion(rows, max(rows).bit_length()) + 0.0


def numbers(shape, seed=0):
    """Return numbers of all sizes, so that the order of additions matters."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 9, shape)


def total(positions, rows, cuts=()):
    """Return the sum of rows that arrive in parts."""
    sums = TreeSums()
    edges = [0, *sorted(cuts), len(positions)]
    for start, end in pairwise(edges):
        sums.add(positions[start:end], {"v": rows[start:end]})
    return sums.totals()["v"]


@pytest.fixture(params=["compiled", "numpy"])
def _engine(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "load", lambda name: None)
    elif kernels.load("sums") is None:
        pytest.skip("needs numba")


ROSTERS = st.lists(st.integers(0, 200), min_size=1, max_size=60, unique=True).map(sorted)


@pytest.mark.usefixtures("_engine")
def test_six_agents_by_hand():
    a, b, c, d, e, f = rows = numbers((6, 3))
    np.testing.assert_array_equal(tree_sum(rows), ((a + b) + (c + d)) + (e + f))
    np.testing.assert_array_equal(tree_sum(rows[:5]), ((a + b) + (c + d)) + e)
    np.testing.assert_array_equal(total([1, 2, 3, 5], rows[:4]), (a + (b + c)) + d)
    np.testing.assert_array_equal(total([5], rows[:1]), a)
    np.testing.assert_array_equal(tree_mean(rows[:3]), ((a + b) + c) / 3)


@pytest.mark.usefixtures("_engine")
def test_nothing_is_minus_zero_and_float32_is_summed_in_float64():
    found = total([0, 1], np.full((2, 1), -0.0))
    assert not np.signbit(found).any()
    rows = np.array([[1.0], [2.0**-30]], np.float32)
    assert total([0, 1], rows) == 1 + 2.0**-30


def test_any_positions_and_any_parts_give_the_bits_of_the_recursion():
    @given(ROSTERS, st.data())
    def check(positions, data):
        rows = numbers((len(positions), 4), seed=len(positions))
        cuts = data.draw(st.lists(st.integers(0, len(positions)), max_size=5))
        found = total(positions, rows, cuts)
        by_position = dict(zip(positions, rows, strict=True))
        np.testing.assert_array_equal(found, expected(by_position))

    check()


def test_any_ranges_give_the_same_bits():
    @given(ROSTERS, st.lists(st.integers(1, 200), max_size=6))
    def check(positions, cuts):
        rows = numbers((len(positions), 2), seed=len(positions))
        edges = sorted({0, 201, *cuts})
        combined = TreeSums()
        for first, stop in pairwise(edges):
            own = [i for i, position in enumerate(positions) if first <= position < stop]
            sums = TreeSums(first, stop)
            for i in own:
                sums.add([positions[i]], {"v": rows[i : i + 1]})
            part = sums.partial_sums()
            assert len(part.positions) <= 16
            combined.add(part.positions, part.vectors)
        np.testing.assert_array_equal(combined.totals()["v"], total(positions, rows))

    check()


def test_without_numba_the_bits_are_the_same(monkeypatch):
    positions = np.flatnonzero(np.random.default_rng(1).random(5000) < 0.3)
    rows = numbers((len(positions), 7)).astype(np.float32)
    compiled = total(positions, rows, cuts=(100, 101, 900))
    monkeypatch.setattr(kernels, "load", lambda name: None)
    np.testing.assert_array_equal(total(positions, rows, cuts=(17,)), compiled)


def test_one_dimension_is_summed_as_two_are():
    for m in (1, 2, 3, 7, 64, 1000):
        values = numbers(m)
        assert tree_sum(values) == tree_sum(values[:, None])[0]


def test_rows_in_another_order_are_refused():
    sums = TreeSums()
    sums.add([4], {"v": np.ones((1, 1))})
    with pytest.raises(ValueError, match="positions must increase"):
        sums.add([4], {"v": np.ones((1, 1))})
    with pytest.raises(ValueError, match="positions must increase"):
        sums.add([7, 6], {"v": np.ones((2, 1))})


def test_rounding_errors_hardly_grow():
    ones = np.full((100_000, 1), 0.1)
    assert abs(tree_sum(ones)[0] - 10_000) < 1e-10
    assert abs(np.add.accumulate(ones)[-1, 0] - 10_000) > 1e-9
