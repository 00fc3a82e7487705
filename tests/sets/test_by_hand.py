"""Projections, minimizers and bounds that were worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    CustomSet,
    GroupL1Ball,
    Halfspace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    NuclearBall,
    Polyhedron,
    ProjectionError,
    PSDCone,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    UnboundedError,
    WholeSpace,
)

SQUARE = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("convex", "x", "p"),
    [
        (WholeSpace(), [3, -4], [3, -4]),
        (NonNegative(), [3, -4], [3, 0]),
        (Box([-1, 0], [1, math.inf]), [-3, 9], [-1, 9]),
        (L1Ball(3.0), [4, -3, 1], [2, -1, 0]),
        (L1Ball(3.0), [-1, 1, 0.5], [-1, 1, 0.5]),
        (L1Ball(1.0), [2, -2], [0.5, -0.5]),
        (L1Ball(0.0), [2, -2], [0, 0]),
        (L1Ball(1.0, center=[1, 1]), [4, 1], [2, 1]),
        # λ = 1: (3 − 1, 3 − 2) has 2 + 2·1 = 4
        (L1Ball(4.0, weights=[1, 2]), [3, -3], [2, -1]),
        (L2Ball(5.0), [6, -8], [3, -4]),
        (L2Ball(5.0, center=[1, 0]), [7, -8], [4, -4]),
        (LinfBall(1.0, center=[1, 0]), [7, -0.5], [2, -0.5]),
        (Simplex(2.0), [3, 2, -1], [1.5, 0.5, 0]),
        (Simplex(1.0), [-5, -5], [0.5, 0.5]),
        (Simplex(1.0), [2, -1, 0], [1, 0, 0]),
        (Simplex(0.0), [2, -1], [0, 0]),
        (Halfspace([0, 2], 4), [1, 5], [1, 2]),
        (Halfspace([0, 2], 4), [1, -5], [1, -5]),
        (Hyperplane([0, 2], 4), [1, -5], [1, 2]),
        (Affine([[1, 1], [2, 2]], [2, 4]), [3, 1], [2, 0]),
        (Polyhedron(SQUARE, [1, 1]), [3, 4], [1, 1]),
        (Polyhedron(SQUARE, [1, 1], C=[[1, 1]], d=[1]), [4, 1], [1, 0]),
        # lengths 5 and 2 shrink by 1
        (GroupL1Ball([0, 0, 1], 5.0), [3, 4, -2], [2.4, 3.2, -1]),
        (NuclearBall((2, 2), 3.0), [0, 4, -3, 0], [0, 2, -1, 0]),
        (SecondOrderCone(), [1, 3, -4], [3, 1.8, -2.4]),
        (SecondOrderCone(), [-6, 3, -4], [0, 0, 0]),
        (SecondOrderCone(), [6, 3, -4], [6, 3, -4]),
        # symmetric part [[1, 2], [2, 1]] has eigenvalues 3 and −1
        (PSDCone(2), [1, 3, 1, 1], [1.5, 1.5, 1.5, 1.5]),
        (Intersection(Box(0, 1), Hyperplane([1, 1], 1)), [3, 1], [1, 0]),
        (Intersection(L2Ball(1.0), NonNegative()), [3, -4], [1, 0]),
        (Blocks({(0, -1): L1Ball(1.0)}), [2, 2, 9], [0.5, 0.5, 9]),
        (Blocks([(slice(1, 3), NonNegative())]), [-1, -1, 5, -1], [-1, 0, 5, -1]),
        (Translated(L1Ball(1.0), [0, 5]), [3, 5], [1, 5]),
        (Scaled(Simplex(1.0), -2.0), [-3, 0], [-2, 0]),
        (CustomSet(abs), [3, -4], [3, 4]),
    ],
    ids=str,
)
def test_projection(convex, x, p):
    np.testing.assert_allclose(convex.project(x), p, rtol=0, atol=1e-14)
    assert convex.distance(x) == pytest.approx(math.dist(x, p), abs=1e-14)


@pytest.mark.parametrize(
    ("convex", "q", "s"),
    [
        (NonNegative(), [1, 0], [0, 0]),
        (Box(-1, [2, 3]), [1, -1], [-1, 3]),
        (L1Ball(2.0), [1, -3, 2], [0, 2, 0]),
        (L1Ball(2.0, weights=[1, 4, 1], center=[1, 1, 1]), [1, -3, 2], [1, 1, -1]),
        (L2Ball(5.0), [-3, 4], [3, -4]),
        (LinfBall(2.0, center=[1, 0]), [-3, 4], [3, -2]),
        (Simplex(2.0), [1, -1, 3], [0, 2, 0]),
        (Halfspace([0, 2], 4), [0, -3], [0, 2]),
        (Hyperplane([0, 2], 4), [0, 3], [0, 2]),
        (Affine([[0, 2]], [4]), [0, 3], [0, 2]),
        (Polyhedron([[1, 0], [0, 1], [-1, -1]], [1, 1, 0]), [-1, -2], [1, 1]),
        (GroupL1Ball([[0, 2], [1]], 5.0), [3, 4, 4], [-3, 0, -4]),
        (NuclearBall((2, 2), 3.0), [0, 4, -3, 0], [0, -3, 0, 0]),
        (SecondOrderCone(), [5, 3, 4], [0, 0, 0]),
        (PSDCone(2), [1, 0, 0, 1], [0, 0, 0, 0]),
        (Intersection(L2Ball(9.0), Box(0, 1)), [-1, 1], [1, 0]),
        (Blocks({(0, 2): L1Ball(1.0)}), [2, 1, 0], [-1, 0, 0]),
        (Translated(Simplex(1.0), [5, 5]), [1, 2], [6, 5]),
        (Scaled(Simplex(1.0), -2.0), [1, 2], [0, -2]),
        (CustomSet(abs, minimize_linear=np.zeros_like), [1, 2], [0, 0]),
    ],
    ids=str,
)
def test_linear_minimizer(convex, q, s):
    np.testing.assert_allclose(convex.minimize_linear(q), s, rtol=0, atol=1e-12)
    support = convex.support_bound(np.negative(q))
    assert support == pytest.approx(-np.dot(q, s), abs=1e-9)
    assert support >= -np.dot(q, s) - 1e-14


@pytest.mark.parametrize(
    ("convex", "q", "reason"),
    [
        (WholeSpace(), [1, 0], "whole space"),
        (NonNegative(), [0, -1], "entry 1 is unbounded"),
        (Box(0, math.inf), [-1, 0], "entry 0 is unbounded"),
        (Halfspace([1, 0], 1), [1, 0], "multiple of a"),
        (Hyperplane([1, 0], 1), [1, 1e-3], "multiple of a"),
        (Affine([[1, 0]], [1]), [0, 1], "combination of the rows"),
        (Polyhedron([[1, 0]], [1]), [1, 0], "unbounded over it"),
        (SecondOrderCone(), [1, 2], "unless q is in the cone"),
        (PSDCone(1), [-1], "unless q is in the cone"),
        (Blocks({(0, 1): L1Ball(1)}), [1, 1], "entry 1 is free"),
        (Intersection(NonNegative(), NonNegative()), [-1, 0], "no member is bounded"),
    ],
    ids=str,
)
def test_unbounded_directions_have_a_reason(convex, q, reason):
    assert convex.support_bound(np.negative(q)) == math.inf
    assert reason in convex.support_reason(np.negative(q))
    if not isinstance(convex, Intersection):
        with pytest.raises(UnboundedError, match=reason):
            convex.minimize_linear(q)


def test_optional_functions_of_custom_sets():
    bare = CustomSet(abs, name="mine")
    assert bare.support_bound([1.0]) == math.inf
    assert "'mine'" in bare.support_reason([1.0])
    with pytest.raises(NotImplementedError, match="minimize_linear nor support_bound"):
        bare.minimize_linear([1.0])
    assert CustomSet(abs, support_bound=lambda q: 7.0).support_bound([1.0]) == 7.0
    assert not CustomSet(abs, contains=lambda x: bool(x[0] > 2)).contains([1.0])


def test_functions_that_are_not_projections_are_refused():
    with pytest.raises(ProjectionError, match="moves again"):
        CustomSet(lambda x: x / 2).project([1.0])
    with pytest.raises(ProjectionError, match=r"shape \(2,\)"):
        CustomSet(lambda x: x[:1]).project([1.0, 2.0])


def test_points_of_the_set_keep_their_bits():
    for convex in (NonNegative(), Box(-1, 1), L1Ball(3.0), L2Ball(3.0), WholeSpace()):
        x = np.array([-0.0, 0.1, 1.0])
        assert convex.project(x).tobytes() == x.tobytes()
        assert convex.project(x) is not x


def test_ints_become_float64_and_arrays_are_frozen_copies():
    center = np.array([1.0, 2.0])
    ball = L2Ball(1, center=center)
    center[0] = 9.0
    assert ball.center[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        ball.center[0] = 9.0
    assert ball.project([5, 2]).dtype == np.float64
