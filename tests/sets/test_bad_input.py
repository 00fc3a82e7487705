"""Bad input gets one sentence that names the argument, the value and the remedy."""

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
    NuclearBall,
    Polyhedron,
    PSDCone,
    Scaled,
    Simplex,
    Translated,
)

EYE = np.eye(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1Ball(-1), "L1Ball: radius must be ≥ 0, got -1; give"),
        (lambda: L2Ball(math.nan), "L2Ball: radius must be a finite number, got nan; give"),
        (lambda: LinfBall(math.inf), "LinfBall: radius must be a finite number, got inf; give"),
        (lambda: L2Ball("1"), "L2Ball: radius must be a finite number, got '1'; give"),
        (
            lambda: L2Ball(1, center=[]),
            r"L2Ball: center must be a non-empty array.*\(0,\); reshape",
        ),
        (lambda: L2Ball(1, center=[math.nan]), "L2Ball: center must be finite, got nan at index"),
        (lambda: L1Ball(1, weights=[1, 0]), "L1Ball: weights must be > 0, got 0.0 at index 1; use"),
        (
            lambda: L1Ball(1, weights=[1, 1e-200]),
            "weights must be from 1e-150 .*got 1e-200 to 1.0;",
        ),
        (lambda: L2Ball(1, center=[1j, 1]), "L2Ball: center must be numbers, got list; give"),
        (lambda: L2Ball(1, center=[10**400]), "L2Ball: center must be numbers, got list; give"),
        (lambda: Box(0, 10**400), "Box: upper must be a number or a non-empty vector.*; give"),
        (lambda: L1Ball(1, weights=[1, 2], center=[1]), "center must have 2 entries.*got 1; give"),
        (lambda: Simplex(-2), "Simplex: total must be ≥ 0, got -2; give"),
        (lambda: Box(1, 0), "Box: lower must be ≤ upper, got 1.0 > 0.0 at index 0; swap"),
        (lambda: Box([0, 3], [1, 2]), "Box: lower must be ≤ upper, got 3.0 > 2.0 at index 1; swap"),
        (lambda: Box([0, 0], [1, 2, 3]), "the same length, got 2 and 3; give"),
        (lambda: Box(math.nan, 1), "Box: lower must be a number.*got nan; give"),
        (lambda: Box("a", 1), "Box: lower must be a number.*got 'a'; give"),
        (lambda: Box(math.inf, math.inf), "finite point between.*got inf and inf at index 0; use"),
        (lambda: Halfspace([0, 0], 1), "Halfspace: a must not be all zero, got .*; give"),
        (lambda: Hyperplane([1, 1], math.nan), "Hyperplane: b must be a finite number, got nan"),
        (lambda: Affine(EYE, [1]), "Affine: b must have 2 entries, one for each row.*got 1; give"),
        (lambda: Affine([[1, 0], [2, 0]], [1, 3]), "A x = b must have a solution, got .*; correct"),
        (lambda: Affine([[0, 0]], [0]), "Affine: A must not be all zero, got .*; give"),
        (lambda: Affine([1, 0], [1]), r"A must be a non-empty array with 2 dim.*\(2,\); reshape"),
        (
            lambda: Polyhedron([[0, 0], [1, 0]], [-1, 1]),
            "all zero must have a feasible b, got -1.0 at row 0",
        ),
        (lambda: Polyhedron(EYE, [1, 1], C=EYE), "C and d must be given together, got one"),
        (lambda: Polyhedron(EYE, [1, 1], C=[[1]], d=[1]), "C must have 2 columns.*got 1; give"),
        (lambda: GroupL1Ball([[0, 1], [1]], 1), "groups must be integer labels.*got .*; give each"),
        (lambda: GroupL1Ball([[0], [2]], 1), "groups must be integer labels.*got .*; give each"),
        (lambda: GroupL1Ball([0.5], 1), "groups must be integer labels.*got .*; give each"),
        (lambda: GroupL1Ball([], 1), "groups must be integer labels.*got .*; give each"),
        (lambda: NuclearBall((2, 0), 1), "shape must be a whole number ≥ 1, got 0; give"),
        (lambda: NuclearBall(4, 1), "shape must be two whole numbers, got 4; give"),
        (lambda: NuclearBall((2, 2), 1, center=[1]), "center must have 4 entries.*got 1; flatten"),
        (lambda: PSDCone(0), "PSDCone: size must be a whole number ≥ 1, got 0; give"),
        (lambda: Intersection(), "sets must not be empty, got none; give"),
        (lambda: Intersection(3), "each member must be a set, got 3 at position 0; give"),
        (
            lambda: Intersection(PSDCone(2), Halfspace([1, 2], 1)),
            r"the same number of entries, got \['2', '4'\]; give",
        ),
        (lambda: Blocks({}), "blocks must map slices .* got {}; give"),
        (lambda: Blocks({(0, 2): 3}), "blocks must map slices .* got .*; give"),
        (lambda: Blocks({(0, 2): Simplex(), (1, 3): Simplex()}), r"got \(1, 3\), which overlaps"),
        (lambda: Blocks({(2, 2): Simplex()}), r"got \(2, 2\), which is empty; intersect"),
        (lambda: Translated(3, [1]), "Translated: set must be a set, got 3; give"),
        (lambda: Translated(PSDCone(2), [1]), "offset must have 4 entries.*got 1; give"),
        (lambda: Scaled(Simplex(), 0), "factor must not be zero, got 0; give"),
        (lambda: CustomSet(None), "project must be a function of one vector, got None; give"),
        (lambda: CustomSet(abs, support_bound=3), "support_bound must be a function.*got 3; give"),
    ],
)
def test_constructors(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value).replace("\n ", " ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: L1Ball(1).project([]), r"L1Ball.project: x must be a non-empty array.*\(0,\)"),
        (
            lambda: L1Ball(1).project(1.0),
            r"must be a non-empty array of shape \(n,\) or \(rows, n\)",
        ),
        (lambda: L1Ball(1).project(np.ones((1, 1, 1))), r"got shape \(1, 1, 1\); reshape"),
        (lambda: L1Ball(1).project(["a"]), "L1Ball.project: x must be numbers, got list; give"),
        (lambda: L1Ball(1).project([1e200]), r"at most 1e\+150 in size, got 1e\+200; rescale"),
        (lambda: L1Ball(1).distance(EYE), r"distance: x must be .* \(n,\), got shape \(2, 2\)"),
        (lambda: L2Ball(1, center=[1, 2]).project([1]), "must have 2 entries.*got 1; give"),
        (lambda: Box(0, [1, 2]).contains([1]), "Box.contains: x must have 2 entries.*got 1; give"),
        (lambda: PSDCone(2).project(np.ones((3, 3))), "must have 4 entries.*got 3; give"),
        (lambda: Intersection(Box(0, [1, 2])).project([1]), "must have 2 entries.*got 1; give"),
        (lambda: Scaled(PSDCone(2), 2).project([1]), "must have 4 entries.*got 1; give"),
        (lambda: Blocks({(0, 9): Simplex()}).project([1]), r"slice \(0, 9\), got 1 entries"),
        (
            lambda: Blocks({(0, -1): Simplex(), (1, 3): Simplex()}).project([1, 2, 3]),
            r"got \(1, 3\), which overlaps another; intersect",
        ),
        (
            lambda: Blocks({(0, 3): L2Ball(1, center=[1, 2])}).project([1, 2, 3]),
            "must have 2 entries.*got 3; give",
        ),
        (lambda: L1Ball(1).project([1.0], out=np.ones(2)), r"out must have the shape \(1,\)"),
        (
            lambda: L1Ball(1).project([1.0], out=np.ones(1, np.float32)),
            "out must have .* dtype float64 of x, got .* float32; give",
        ),
    ],
)
def test_points(call, message):
    with pytest.raises(ValueError, match=message):
        call()
