"""How much of a limit is used, by hand, and what more of it gains, by finite differences."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from pcfed import Agent, Problem
from pcfed.guarantees import optimum
from pcfed.losses import LeastSquares
from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    CustomSet,
    Ellipsoid,
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
    PSDCone,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    WholeSpace,
    parse_set,
)
from pcfed.sets.splitting import project_float64
from pcfed.sets.usage import split_normal
from tests.sets.cases import CASES, set_classes

BY_HAND = [
    # set, point, negative gradient; text, active, share, multiplier
    (WholeSpace(), [3, -1], [1, 1], "no limit", False, None, 0),
    (L1Ball(5.0), [3, -1.8], [1, 1], "uses 4.8 of 5 (l1 norm)", False, 0.96, 0),
    (L1Ball(5.0), [3, -2], [2, -2], "uses 5 of 5 (l1 norm)", True, 1, 2),
    (L1Ball(5.0), [3, -2], [-2, 2], "uses 5 of 5 (l1 norm)", True, 1, 0),
    (
        L1Ball(4.0, center=[1, 0], weights=[1, 2]),
        [-1, -1],
        [-3, -6],
        "uses 4 of 4 (weighted l1 norm, from its center)",
        True,
        1,
        3,
    ),
    (L1Ball(0.0), [0, 0], [1, 1], "uses 0 of 0 (l1 norm)", True, 1, None),
    (L2Ball(10.0), [3, 4], [3, 4], "uses 5 of 10 (l2 norm)", False, 0.5, 0),
    (L2Ball(5.0), [3, 4], [0.6, 0.8], "uses 5 of 5 (l2 norm)", True, 1, 1),
    (Ellipsoid(6.0, [2, 0.5]), [3, 0], [8, 0], "uses 6 of 6 (weighted l2 norm)", True, 1, 4),
    (LinfBall(0.4), [0.4, -0.4, 0], [2, -1, 0], "uses 0.4 of 0.4 (linf norm)", True, 1, 3),
    (
        GroupL1Ball([[0, 1], [2]], 7.0),
        [3, 4, -2],
        [0.6, 0.8, -1],
        "uses 7 of 7 (group l1 norm)",
        True,
        1,
        1,
    ),
    (
        NuclearBall((2, 2), 4.0),
        [3, 0, 0, 1],
        [2, 0, 0, 2],
        "uses 4 of 4 (nuclear norm)",
        True,
        1,
        2,
    ),
    (Box(0, 2), [0, 2, 1, 0], [-1, 3, 0, 5], "3 of 4 coefficients at a bound", True, 0.75, 3),
    (Box(0, 2), [1, 1], [0, 0], "0 of 2 coefficients at a bound", False, 0, 0),
    (NonNegative(), [0, 7], [-4, 0], "1 of 2 coefficients at a bound", True, 0.5, 4),
    (Simplex(1.0), [0.5, 0.5, 0], [2, 2, 1], "1 of 3 coefficients at 0, with sum 1", True, 1, 2),
    (Halfspace([1, 2], 1), [0, 0.4], [0, 0], "0.2 below its limit of 1", False, 0.8, 0),
    (Halfspace([1, 2], 1), [-1, 1], [3, 6], "at its limit of 1", True, 1, 3),
    (Halfspace([1, 0], 0), [-2, 5], [0, 0], "2 below its limit of 0", False, None, 0),
    (Hyperplane([1, 1], 2), [1, 1], [-3, -3], "at 2, as its equation demands", True, 1, -3),
    (Affine([[1, 0], [0, 1]], [1, 2]), [1, 2], [1, -4], "satisfies its 2 equations", True, 1, -4),
    (Affine([[1, 0]], [1]), [1, 2], [5, 0], "satisfies its equation", True, 1, 5),
    (
        Polyhedron([[1, 0], [0, 1], [1, 1]], [1, 2, 9]),
        [1, 2],
        [3, 5],
        "2 of 3 rows active",
        True,
        2 / 3,
        5,
    ),
    (
        Polyhedron([[1, 0, 0], [0, 1, 0]], [1, 2], C=[[0, 0, 1]], d=[4]),
        [1, 0, 4],
        [2, 0, -7],
        "1 of 2 rows active",
        True,
        0.5,
        2,
    ),
    (Polyhedron([[1, 0]], [1]), [0, 0], [0, 0], "0 of 1 rows active", False, 0, 0),
    (
        SecondOrderCone(),
        [10, 3, 4],
        [0, 0, 0],
        "norm 5 of at most 10, its first coefficient",
        False,
        0.5,
        None,
    ),
    (PSDCone(2), [4, 0, 0, 0], [0, 0, 0, -1], "1 of 2 eigenvalues at 0", True, 0.5, None),
    (
        Intersection(L1Ball(3.0), NonNegative(), Halfspace([1, 1], 2.5)),
        [1, 1],
        [0, 0],
        "0.5 below its limit of 2.5",
        False,
        0.8,
        0,
    ),
    (Intersection(L2Ball(9.0), L1Ball(2.0)), [1, 1], [3, 3], "uses 2 of 2 (l1 norm)", True, 1, 3),
    # The corner of two halfspaces: v = 3 (1, 0) + 5 (0, 1).
    (
        Intersection(Halfspace([1, 0], 1), Halfspace([0, 1], 2)),
        [1, 2],
        [3, 5],
        "at its limit of 2",
        True,
        1,
        5,
    ),
    (
        Blocks({(0, 1): L1Ball(3.0), (1, 3): L2Ball(5.0)}),
        [1, -3, 4],
        [0, -6, 8],
        "uses 5 of 5 (l2 norm)",
        True,
        1,
        10,
    ),
    (
        Translated(L1Ball(1.0), [1, 1]),
        [1, 0.5],
        [0, 0],
        "uses 0.5 of 1 (l1 norm), from its offset",
        False,
        0.5,
        0,
    ),
    (
        Scaled(L1Ball(1.0), 2.0),
        [2, 0],
        [3, 0],
        "uses 1 of 1 (l1 norm), divided by 2",
        True,
        1,
        6,
    ),
    (
        CustomSet(lambda x: np.minimum(x, 1.0)),
        [1, 0],
        [1, 0],
        "at the boundary of its set",
        True,
        None,
        None,
    ),
    (CustomSet(lambda x: np.minimum(x, 1.0)), [0, 0], [1, 0], "inside its set", False, None, None),
]


@pytest.mark.parametrize(
    ("convex", "x", "v", "text", "active", "share", "multiplier"),
    BY_HAND,
    ids=[f"{type(case[0]).__name__} {case[3]}" for case in BY_HAND],
)
def test_usage_by_hand(convex, x, v, text, active, share, multiplier):
    usage = convex.usage(x, v)
    assert (usage.text, usage.active) == (text, active)
    assert usage.share == (None if share is None else pytest.approx(share))
    assert usage.multiplier == (None if multiplier is None else pytest.approx(multiplier))
    if type(convex) is not CustomSet:
        # Without a gradient there is no multiplier, and nothing else changes. An intersection may
        # name another of several active members.
        alone = convex.usage(x)
        assert alone.active == active
        assert alone.multiplier is None


def test_every_kind_of_set_has_a_case():
    assert {type(case[0]) for case in BY_HAND} == set(set_classes())


def test_a_bound_names_its_coefficient_and_a_block_its_slice():
    usage = Blocks({(2, 4): Box(0, 1), (4, 6): L1Ball(9)}).usage([9, 9, 0.5, 1, 1, 1], np.arange(6))
    assert (usage.entry, usage.span, usage.multiplier) == (3, (2, 4), 3.0)
    nested = Blocks({(1, 4): Blocks({(1, 3): L1Ball(2.0)})}).usage([5, 5, 1, 1], [0, 0, 1, 1])
    assert nested.span == (2, 4)


def test_points_in_the_middle_of_a_large_set_are_not_at_its_limit():
    for case in CASES:
        inner = {"box": np.zeros(6), "l2": np.zeros(6), "l1 and box": np.zeros(6)}.get(case.name)
        if inner is not None:
            assert not case.set.usage(inner).active, case.name


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "whole"], ids=lambda c: c.name)
def test_projections_from_outside_are_at_the_limit(case):
    outside = 50 * np.random.default_rng(0).normal(size=case.n)
    p = case.set.project(outside)
    usage = case.set.usage(p, outside - p)  # a normal vector, by definition of the projection
    assert usage.active
    assert usage.share is None or 0 < usage.share <= 1


def test_specifications_are_read_again():
    for case in CASES:
        if case.name not in ("custom", "blocks") and "…" not in case.set.spec:
            assert parse_set(case.set.spec).spec == case.set.spec
    assert CASES[-1].set.spec == "sum zero"
    assert Blocks({(0, 2): L1Ball(1.5), (3, None): Simplex()}).spec == (
        "blocks(0:2 = l1(1.5), 3: = simplex)"
    )
    assert L1Ball(1, weights=np.ones(9)).spec == "l1(1, weights=[1, 1, 1, 1, 1, 1, 1, 1, …])"


# -- multipliers are derivatives of the optimum ---------------------------------------------------

CENTER = np.array([0.5, -0.25, 0.0, 0.1])
NORMAL = np.array([1.0, -1.0, 2.0, 0.5])

FAMILIES = {
    "l1": L1Ball,
    "l1 weights": lambda r: L1Ball(r, center=CENTER, weights=np.array([1.0, 2.0, 0.5, 1.0])),
    "l2": L2Ball,
    "ellipsoid": lambda r: Ellipsoid(r, np.array([1.0, 2.0, 0.5, 1.0])),
    "linf": LinfBall,
    "groups": lambda r: GroupL1Ball([[0, 2], [1, 3]], r),
    "nuclear": lambda r: NuclearBall((2, 2), r),
    "halfspace": lambda r: Halfspace(NORMAL, r - 2.0),
    "hyperplane": lambda r: Hyperplane(NORMAL, r),
    "simplex": Simplex,
    "box": lambda r: Box(-9.0, np.array([9.0, r - 1.5, 9.0, 9.0])),
    "lower bound": lambda r: Box(np.array([1.5 - r + 3.0, -9.0, -9.0, -9.0]), 9.0),
    "affine": lambda r: Affine(NORMAL[None], [r]),
    "polyhedron": lambda r: Polyhedron(np.stack([NORMAL, -np.eye(4)[1]]), [r - 2.0, 9.0]),
    "translated": lambda r: Translated(L1Ball(r), CENTER),
    "scaled": lambda r: Scaled(L1Ball(r), -1.5),
    "blocks": lambda r: Blocks({(0, 3): L2Ball(r)}),
    "ball and inactive box": lambda r: Intersection(Box(-9, 9), L1Ball(r)),
    "ball and active box": lambda r: Intersection(Box(-9, 0.55), L1Ball(r)),
    "ball and active halfspace": lambda r: Intersection(L2Ball(r), Halfspace(NORMAL, 0.0)),
    "two balls": lambda r: Intersection(L1Ball(r), LinfBall(0.5)),
}


def optimum_with(convex):
    """Return the problem of an agent with this set and one without a limit, and its optimum."""
    rng = np.random.default_rng(3)
    agents = []
    for each in (convex, WholeSpace()):
        X = rng.normal(size=(12, 4))
        y = X @ np.array([2.0, 1.0, 3.0, -1.0]) + rng.normal(size=12)
        agents.append(Agent(LeastSquares(X, y), each, coupling=0.4))
    problem = Problem(agents)
    return problem, optimum(problem, tolerance=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_multipliers_are_derivatives_of_the_optimum(name):
    family, r, h = FAMILIES[name], 1.2, 1e-3
    problem, best = optimum_with(family(r))
    v = -problem.gradient(best.models)[0]
    convex = family(r)
    uses = [convex.usage(best.models[0], v)]
    if isinstance(convex, Intersection):
        # The usage is that of the tightest member; that of the ball is asked for here.
        x = best.models[0]
        active = [m for m in convex.sets if m.usage(x).active]
        parts = split_normal([partial(project_float64, m) for m in active], x, v)
        np.testing.assert_allclose(sum(parts), v, atol=1e-3 * np.linalg.norm(v))
        uses = [m.usage(x, part) for m, part in zip(active, parts, strict=True)]
        uses = [use for use in uses if f"of {r} " in use.text]
        assert len(active) == (1 if "inactive" in name else 2)
    (usage,) = uses
    change = optimum_with(family(r - h))[1].objective - optimum_with(family(r + h))[1].objective
    assert abs(change) > 1e-6, "the limit must bind"
    assert usage.multiplier == pytest.approx(change / (2 * h), rel=2e-2)
    assert math.isfinite(usage.multiplier)
