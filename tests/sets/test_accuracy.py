"""The threshold against exact arithmetic; polyhedra and intersections at their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    CustomSet,
    Ellipsoid,
    Halfspace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    NuclearBall,
    Polyhedron,
    ProjectionError,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    WarmStart,
)

from .exact_projections import ENGINES, KINDS, exact_l1, hard_points

each_engine = pytest.mark.parametrize("engine", ENGINES)


@each_engine
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_l1_projection_is_accurate_and_no_warm_start_changes_it(kind, dtype, engine, monkeypatch):
    ENGINES[engine](monkeypatch)
    rng = np.random.default_rng(0)
    eps = float(np.finfo(dtype).eps)
    for _ in range(40):
        x = hard_points(rng, kind, int(rng.integers(1, 50))).astype(dtype)
        size = math.fsum(np.abs(x).tolist())
        for radius in (size * 0.999999, size * 0.5, float(int(size / 3)), size * 1e-12):
            if not 0 < radius < size:
                continue
            ball = L1Ball(radius)
            p = ball.project(x)
            assert np.abs(p - exact_l1(x, radius)).max() <= 8 * eps * np.abs(x).max()
            assert math.fsum(np.abs(p).tolist()) <= radius * (1 + 4 * eps)
            assert ball.project(p).tobytes() == p.tobytes()
            warm_start = WarmStart()
            for warm_start.threshold in (0.0, -1.0, 1e300, float(np.abs(p).max()), math.nan):
                assert ball.project(x, warm_start=warm_start).tobytes() == p.tobytes()


@each_engine
@pytest.mark.parametrize("kind", ["on an entry", "tenths", "last bits"])
def test_thresholds_that_rounding_cannot_decide_do_not_depend_on_the_warm_start(
    kind, engine, monkeypatch
):
    ENGINES[engine](monkeypatch)
    rng = np.random.default_rng(5)
    for _ in range(300):
        n = int(rng.integers(3, 40))
        x = np.abs(rng.standard_normal(n))
        largest = np.sort(x)[::-1][: int(rng.integers(2, n))]
        radius = float((largest - largest[-1]).sum())
        if kind == "tenths":
            x, radius = 0.1 * rng.integers(1, 50, n), 0.1 * float(rng.integers(1, 10))
        if kind == "last bits":
            x = 1 + 2.0**-52 * rng.integers(-9, 9, n)
            radius = 2.0**-52 * float(rng.integers(1, 60))
        ball = L1Ball(radius)
        if ball.contains(x):
            continue
        p = ball.project(x)
        exact = exact_l1(x, radius)
        assert np.abs(p - exact).max() <= 1e-15 * np.abs(exact).max()
        warm_start = WarmStart()
        for warm_start.threshold in (*x, *np.nextafter(x, 0), 0.0):
            assert ball.project(x, warm_start=warm_start).tobytes() == p.tobytes()


def test_l1_projection_of_near_ties_in_float32_with_many_entries():
    rng = np.random.default_rng(1)
    x = (1 + 1e-7 * rng.standard_normal(20_000)).astype(np.float32)
    p = L1Ball(1.0).project(x)
    theta = float(x[p > 0].min()) - float(p[p > 0].min())
    assert np.abs(p - np.maximum(x.astype(np.float64) - theta, 0)).max() <= 1e-6
    assert abs(math.fsum(p.tolist()) - 1.0) <= 1e-6


def test_weighted_projection_satisfies_its_optimality_conditions():
    rng = np.random.default_rng(2)
    for _ in range(50):
        w = 10.0 ** rng.uniform(-3, 3, 30)
        x = rng.standard_normal(30) * 10.0 ** rng.integers(-3, 4)
        radius = 0.3 * float(w @ np.abs(x))
        p = L1Ball(radius, weights=w).project(x)
        assert float(w @ np.abs(p)) == pytest.approx(radius, rel=1e-14)
        active = p != 0
        slopes = (np.abs(x) - np.abs(p)) / w
        price = slopes[active].max()
        assert slopes[active].min() == pytest.approx(price, rel=1e-8)
        assert (slopes[~active] <= price * (1 + 1e-8)).all()


def kkt_error(A, b, x, p):
    """Return how far x − p is from the cone of the active rows."""
    rows = A / np.linalg.norm(A, axis=1, keepdims=True)
    sides = b / np.linalg.norm(A, axis=1)
    active = rows @ p - sides > -1e-9 * (1 + np.linalg.norm(p))
    if not active.any():
        return np.linalg.norm(x - p)
    fit = lsq_linear(rows[active].T, x - p, bounds=(0.0, np.inf), method="bvls", tol=1e-14)
    return np.linalg.norm(rows[active].T @ fit.x - (x - p))


@pytest.mark.parametrize("kind", ["plain", "redundant", "degenerate", "thin"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_polyhedra_of_all_kinds(kind, scale):
    rng = np.random.default_rng(3)
    for n, rows in ((3, 8), (10, 6), (20, 60)):
        A = rng.standard_normal((rows, n)) * 10.0 ** rng.integers(-6, 7, (rows, 1))
        if kind == "redundant":
            A[rows // 2 :] = 3.0 * A[: rows - rows // 2]
        slack = 0.0 if kind == "degenerate" else np.abs(A).sum(axis=1) * (kind != "thin" or 1e-7)
        b = scale * (A @ rng.standard_normal(n) + slack)
        convex = Polyhedron(A, b)
        for far in (1.0, 10.0, 1e4):
            x = scale * far * rng.standard_normal(n)
            p = convex.project(x)
            assert convex.contains(p)
            assert kkt_error(A, b, x, p) <= 1e-9 * np.linalg.norm(x)
            assert convex.project(p.astype(np.float32)).dtype == np.float32


def test_the_apex_of_a_polyhedral_cone():
    """The only point is 0, where rounding errors of any size are large in relation to it."""
    cone = Polyhedron([[2.5, 1.5, 0, 0], [-2.5, -1.5, 0, 0], [-1, 1, 0, 0]], [0, 0, 0])
    rng = np.random.default_rng(0)
    known = [-0.43950353, 2.15894031, 0, 0], [-0.2055216, 2.16443857, 0, 0]
    for x in (*known, *(rng.normal(size=(500, 4)) * [2, 2, 0, 0])):
        p = cone.project(x)
        assert cone.contains(p)
        assert (np.asarray(x) - p) @ p == pytest.approx(0.0, abs=1e-12)


def test_empty_polyhedra_are_reported():
    with pytest.raises(ProjectionError, match="Polyhedron: the set is empty"):
        Polyhedron([[1.0, 0.0], [-1.0, 0.0]], [1.0, -1.001]).project([5.0, 5.0])
    with pytest.raises(ProjectionError, match="Polyhedron: the set is empty"):
        Polyhedron([[1.0, 0.0]], [1.0], C=[[2.0, 0.0]], d=[8.0]).project([5.0, 5.0])
    with pytest.raises(ProjectionError, match="Polyhedron: the set is empty"):
        Polyhedron([[1.0, 0.0], [-1.0, 0.0]], [1.0, -2.0]).minimize_linear([1.0, 0.0])


@pytest.mark.parametrize(
    "members",
    [
        (L2Ball(1.0), L2Ball(1.0, center=[2.1, 0.0])),
        (L2Ball(1.0), Halfspace([1.0, 1.0], -1.6)),
        (L1Ball(1.0), Box(0.7, 2.0)),
        (L1Ball(1.0), L2Ball(1.0), Hyperplane([1.0, 0.0], 1.5)),
        (Simplex(1.0), Box(0.0, 0.4)),
        (Affine([[1.0, 0.0]], [1.0]), Hyperplane([1.0, 0.0], 2.0)),
    ],
    ids=str,
)
def test_empty_intersections_are_proved_empty(members):
    for x in ([0.0, 0.0], [30.0, -4.0]):
        with pytest.raises(ProjectionError, match="the set is empty"):
            Intersection(*members).project(x)


def _ball_at(center, radius=1.0):
    return L2Ball(radius, center=center)


@pytest.mark.parametrize(
    ("members", "touching"),
    [
        ((L2Ball(1.0), _ball_at([2.0, 0.0])), [1.0, 0.0]),
        ((L2Ball(1.0), Translated(L2Ball(1.0), [2.0, 0.0])), [1.0, 0.0]),
        ((L2Ball(1.0), _ball_at([2.0] + [0.0] * 9)), [1.0] + [0.0] * 9),
        ((L2Ball(1e8), _ball_at([2e8, 0.0], 1e8)), [1e8, 0.0]),
        ((L1Ball(1.0), L1Ball(1.0, center=[2.0, 0.0, 0.0])), [1.0, 0.0, 0.0]),
        ((L2Ball(1.0), Halfspace([-1.0, 0.0], -1.0)), [1.0, 0.0]),
        ((Ellipsoid(1.0, [1.0, 2.0, 3.0]), _ball_at([2.0, 0.0, 0.0])), [1.0, 0.0, 0.0]),
        ((L2Ball(1.0), _ball_at([2.0, 0.0, 0.0]), _ball_at([1.0, 1.0, 0.0])), [1.0, 0.0, 0.0]),
        ((NuclearBall((2, 2), 1.0), _ball_at([2.0, 0.0, 0.0, 0.0])), [1.0, 0.0, 0.0, 0.0]),
        ((SecondOrderCone(), _ball_at([-1.0, 0.0, 0.0])), [0.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_members_that_touch_in_one_point(members, touching):
    """The point of touching is exact up to the root of the tolerance, which rounding allows."""
    convex, size = Intersection(*members), max(1.0, np.abs(touching).max())
    for seed in range(2):
        x = 3.0 * size * np.random.default_rng(seed).normal(size=len(touching))
        p = convex.project(x)
        assert convex.contains(p)
        np.testing.assert_allclose(p, touching, atol=1e-6 * size)


def test_members_that_just_miss_each_other_are_reported():
    apart = Intersection(L2Ball(1.0), L2Ball(1.0, center=[2.0 + 1e-9, 0.0]))
    with pytest.raises(
        ProjectionError, match=r"L2Ball.* and L2Ball.* have a distance of .* hardly meet"
    ):
        apart.project([3.0, 3.0])


def test_balls_that_nearly_touch():
    overlap = 1e-9
    lens = Intersection(L2Ball(1.0), L2Ball(1.0, center=[2.0 - overlap, 0.0]))
    p = lens.project([0.3, 4.0])
    np.testing.assert_allclose(p, [1.0 - overlap / 2, math.sqrt(overlap)], atol=1e-8)


def nested(depth, outer):
    """Return an intersection of two sets in an intersection of two sets, and so on."""
    rng = np.random.default_rng(0)
    convex = Intersection(L2Ball(1.0), L1Ball(1.4))
    for _ in range(depth - 1):
        convex = Intersection(outer(convex), L2Ball(1.0, center=0.05 * rng.normal(size=4)))
    return convex


def test_nested_intersections_are_flat():
    convex = nested(24, lambda each: each)
    assert len(convex.sets) == 25
    x = 3.0 * np.random.default_rng(1).normal(size=4)
    p = convex.project(x)
    flat = Intersection(*(each for each in convex.sets))
    assert convex.contains(p)
    assert p.tolist() == flat.project(x).tolist()
    twice = Intersection(L2Ball(1.0), L1Ball(1.4))
    for _ in range(24):
        twice = Intersection(twice, twice)
    assert len(twice.sets) == 2
    assert twice.contains(twice.project(x))


@pytest.mark.parametrize(
    "outer",
    [
        lambda each: Translated(each, np.full(4, 0.01)),
        lambda each: Scaled(each, 1.01),
        lambda each: Blocks({(0, 4): each}),
    ],
    ids=["translated", "scaled", "blocks"],
)
def test_nested_combinations_of_intersections_are_flat(outer):
    convex = nested(24, outer)
    assert convex.contains(convex.project(3.0 * np.random.default_rng(1).normal(size=4)))


def test_intersections_that_cannot_be_split_up_end_in_an_error():
    convex = nested(24, lambda each: CustomSet(each.project))
    with pytest.raises(ProjectionError, match=r"100000 projections .* use fewer members"):
        convex.project(3.0 * np.random.default_rng(1).normal(size=4))


@given(st.floats(0.0, 1.9), st.sampled_from([0.5, 3.0, 1e3, 1e8]))
@settings(max_examples=20, derandomize=True, deadline=None, database=None)
def test_two_balls_meet_where_geometry_says(gap, far):
    """The far point on the axis of symmetry goes to the corner of the lens."""
    lens = Intersection(L2Ball(1.0), L2Ball(1.0, center=[gap, 0.0, 0.0]))
    height = math.sqrt(1.0 - (gap / 2) ** 2)
    p = lens.project([gap / 2, height + far, 0.0])
    # the corner of balls that nearly coincide is where rounding puts it
    np.testing.assert_allclose(p, [gap / 2, height, 0.0], rtol=0, atol=1e-8)


def test_large_intersections_use_their_members():
    rng = np.random.default_rng(4)
    x = 0.1 * rng.standard_normal(2_000)
    convex = Intersection(Simplex(1.0), Box(0.0, 0.01))
    p = convex.project(x)
    theta = np.median((x - p)[(p > 1e-9) & (p < 0.01 - 1e-9)])
    np.testing.assert_allclose(p, np.clip(x - theta, 0.0, 0.01), atol=1e-12)


@pytest.mark.parametrize("far", [1.0, 1e3, 1e8])
@pytest.mark.parametrize("n", [6, 2000])
def test_l1_ball_and_box(n, far):
    """The optimality conditions of the l1 ball within bounds, which need not hold zero."""
    rng = np.random.default_rng(n)
    lower, upper = -rng.uniform(0, 0.3, n), rng.uniform(0, 0.3, n)
    lower[0], upper[1] = 0.01, -0.01
    both = Intersection(L1Ball(0.02 * n + 0.1), Box(lower, upper))
    x = far * rng.normal(size=n)
    p = both.project(x)
    assert both.contains(p)
    for s in (both.project(rng.normal(size=n)) for _ in range(20)):
        assert (x - p) @ (s - p) <= 1e-12 * n * far
    assert Intersection(*reversed(both.sets)).project(x).tolist() == p.tolist()
    empty = Intersection(L1Ball(0.5), Box(0.6 / n, 1.0))
    with pytest.raises(ProjectionError, match="the set is empty"):
        empty.project(x)
