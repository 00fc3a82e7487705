"""Certificates with intersections: zero at the optimum that CVXPY finds, and never too small."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest

from pcfed import Agent, Problem, certify
from pcfed.losses import LeastSquares
from pcfed.sets import (
    Affine,
    Blocks,
    Box,
    ConvexSet,
    Ellipsoid,
    GroupL1Ball,
    Halfspace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    NonNegative,
    Polyhedron,
    PSDCone,
    SecondOrderCone,
    Translated,
)

AGENTS, SEEDS = 3, range(33)
Constraints = Callable[[Any], list[Any]]
Pair = tuple[ConvexSet, Constraints]


def simple_set(rng: np.random.Generator, n: int) -> Pair:
    """Return a random set that contains 0, and the same as constraints of CVXPY."""
    r, groups = float(rng.uniform(0.3, 1.2)), np.arange(n) // 3
    a, w = rng.normal(size=n), rng.uniform(0.5, 2.0, n)
    low, high = -rng.uniform(0.1, 1.0, n), rng.uniform(0.1, 1.0, n)
    labels = range(int(groups.max()) + 1)
    kinds: list[Pair] = [
        (L1Ball(r), lambda x: [cp.norm1(x) <= r]),
        (L2Ball(r), lambda x: [cp.norm2(x) <= r]),
        (Box(low, high), lambda x: [x >= low, x <= high]),
        (Halfspace(a, r / 4), lambda x: [a @ x <= r / 4]),
        (Ellipsoid(r, w), lambda x: [cp.norm2(cp.multiply(w, x)) <= r]),
        (
            GroupL1Ball(groups, r),
            lambda x: [cp.sum([cp.norm2(x[groups == g]) for g in labels]) <= r],
        ),
    ]
    return kinds[rng.integers(len(kinds))]


def random_set(rng: np.random.Generator, n: int) -> Pair:
    """Return a single bounded set, blocks, or an intersection of two or three sets."""
    kind = int(rng.integers(4))
    if kind == 0:
        found = simple_set(rng, n)
        return random_set(rng, n) if isinstance(found[0], Halfspace) else found
    if kind == 1:
        half, ball = n // 2, L2Ball(float(rng.uniform(0.2, 0.8)))
        first = Intersection(ball, Box(-0.4, 0.3))
        return Blocks({(0, half): first, (half, n): ball}), lambda x: [
            *(cp.norm2(x[:half]) <= ball.radius, x[:half] >= -0.4, x[:half] <= 0.3),
            cp.norm2(x[half:]) <= ball.radius,
        ]
    members = [simple_set(rng, n) for _ in range(kind)]
    if all(isinstance(each, Halfspace) for each, _ in members):
        members.append((L2Ball(1.5), lambda x: [cp.norm2(x) <= 1.5]))
    sets = Intersection(*(each for each, _ in members))
    return sets, lambda x: [limit for _, limits in members for limit in limits(x)]


class Mixture(NamedTuple):
    """A problem with random sets, and the optimum that CVXPY finds."""

    problem: Problem
    models: np.ndarray
    objective: float


@cache
def mixture(seed: int) -> Mixture:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([6, 10, 20, 30]))
    sets = [random_set(rng, n) for _ in range(AGENTS)]
    while not any(isinstance(each, Intersection) for each, _ in sets):
        sets[int(rng.integers(AGENTS))] = random_set(rng, n)
    rows = 2 * n + 8
    data = [(rng.normal(size=(rows, n)), 2 * rng.normal(size=rows)) for _ in range(AGENTS)]
    sigma = float(rng.uniform(0.05, 0.5))
    pairs = list(zip(data, sets, strict=True))
    problem = Problem([Agent(LeastSquares(X, y), each, sigma) for (X, y), (each, _) in pairs])
    x = [cp.Variable(n) for _ in range(AGENTS)]
    mean = sum(x) / AGENTS
    losses = [
        cp.sum_squares(X @ mean - y) / (2 * rows) + sigma / 2 * cp.sum_squares(own - mean)
        for (X, y), own in zip(data, x, strict=True)
    ]
    limits = [limit for own, (_, limits) in zip(x, sets, strict=True) for limit in limits(own)]
    joint = cp.Problem(cp.Minimize(sum(losses) / AGENTS), limits)
    with warnings.catch_warnings():  # CLARABEL calls it inaccurate where 1e-11 is out of reach
        warnings.simplefilter("ignore")
        options = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
        joint.solve(solver="CLARABEL", **options)
    assert joint.status in ("optimal", "optimal_inaccurate")
    return Mixture(problem, np.array([own.value for own in x]), float(joint.value))


@pytest.mark.parametrize("tightening", [0, 2000])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_gap_is_zero_at_the_optimum(seed: int, tightening: int) -> None:
    problem, models, best = mixture(seed)
    start = time.perf_counter()
    seen = certify(problem, models, tightening=tightening)
    assert time.perf_counter() - start < 30  # usually below 0.3 s
    assert seen.relative_gap is not None
    assert 0 <= seen.relative_gap <= 1e-6
    assert seen.objective == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_certificate_is_below_the_true_gap(seed: int) -> None:
    problem, models, best = mixture(seed)
    rng = np.random.default_rng(seed)
    for t, tightening in ((3.0, 0), (1.0, 0), (0.1, 20), (1e-2, 0), (1e-4, 0), (1e-6, 0)):
        seen = certify(problem, models + t * rng.normal(size=models.shape), tightening=tightening)
        assert seen.gap is not None
        assert seen.gap >= seen.objective - best - 1e-8 * abs(best)


N = 6
NORMAL = np.random.default_rng(0).normal(size=N)
C = np.random.default_rng(1).normal(size=(2, N))
LOWER, UPPER = np.full(N, -1.0), np.full(N, 1.0)
LOWER[0], UPPER[5] = 0.1, -0.1


def _soc_constraints(x: Any) -> list[Any]:
    return [cp.norm2(x[1:]) <= x[0], cp.norm1(x) <= 2]


def _psd_constraints(x: Any) -> list[Any]:
    X = cp.reshape(x, (2, 2), order="C")
    return [X == X.T, X >> 0, cp.norm1(x - 0.3) <= 1]


def _translated_constraints(x: Any) -> list[Any]:
    return [cp.norm2(x - 0.2) <= 1, cp.norm_inf(x - 0.2) <= 0.6, cp.norm1(x) <= 1.5]


CASES: list[tuple[ConvexSet, Constraints, int]] = [
    (
        Intersection(L1Ball(1.0), Box(-0.3, 0.4)),
        lambda x: [cp.norm1(x) <= 1, x >= -0.3, x <= 0.4],
        N,
    ),
    (
        Intersection(L1Ball(1.0), Box(LOWER, UPPER)),
        lambda x: [cp.norm1(x) <= 1, x >= LOWER, x <= UPPER],
        N,
    ),
    (
        Intersection(L2Ball(1.0), L2Ball(1.0, center=np.full(N, 0.3))),
        lambda x: [cp.norm2(x) <= 1, cp.norm2(x - 0.3) <= 1],
        N,
    ),
    (
        Intersection(L2Ball(1.0), Hyperplane(NORMAL, 0.2), NonNegative()),
        lambda x: [cp.norm2(x) <= 1, NORMAL @ x == 0.2, x >= 0],
        N,
    ),
    (
        Intersection(L2Ball(1.0), Affine(C, [0.1, 0.2]), Box(-np.inf, 0.5)),
        lambda x: [cp.norm2(x) <= 1, C @ x == [0.1, 0.2], x <= 0.5],
        N,
    ),
    (
        Intersection(Intersection(L1Ball(1.5), L2Ball(0.8)), Intersection(Halfspace(NORMAL, 0.1))),
        lambda x: [cp.norm1(x) <= 1.5, cp.norm2(x) <= 0.8, NORMAL @ x <= 0.1],
        N,
    ),
    (Intersection(SecondOrderCone(), L1Ball(2.0)), _soc_constraints, N),
    (Intersection(PSDCone(2), L1Ball(1.0, center=np.full(4, 0.3))), _psd_constraints, 4),
    (
        Intersection(
            Translated(Intersection(L2Ball(1.0), Box(-0.6, 0.6)), np.full(N, 0.2)), L1Ball(1.5)
        ),
        _translated_constraints,
        N,
    ),
    (
        Intersection(Polyhedron(C, [0.1, 0.3]), L2Ball(1.0)),
        lambda x: [C @ x <= [0.1, 0.3], cp.norm2(x) <= 1],
        N,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].spec)
def test_the_support_function_of_intersections(case: tuple[ConvexSet, Constraints, int]) -> None:
    intersection, constraints, n = case
    rng = np.random.default_rng(0)
    for _ in range(4):
        q, x = rng.normal(size=n), cp.Variable(n)
        best = cp.Problem(cp.Maximize(q @ x), constraints(x)).solve(solver="CLARABEL")
        near = intersection.project(x.value)
        for bound in (intersection.support_bound(q), intersection.support_bound(q, near=near)):
            assert bound == pytest.approx(best, abs=1e-6)
            assert bound >= float(q @ near) - 1e-12
        # A bound, whatever point is given as near.
        far = intersection.project(3 * rng.normal(size=n))
        assert best - 1e-7 <= intersection.support_bound(q, near=far) <= 1.2 * abs(best) + 1.0
    assert intersection.support_bound(np.zeros(n)) == 0.0


def test_directions_in_which_no_member_is_bounded_have_no_bound() -> None:
    e = np.eye(N)
    wedge = Intersection(Halfspace(e[0], 1.0), Halfspace(e[1], 1.0))
    assert wedge.support_bound(e[0] + e[1]) == pytest.approx(2.0)
    assert wedge.support_bound(-e[0]) == np.inf
    cone = Intersection(SecondOrderCone(), Halfspace(e[1], 1.0))
    assert cone.support_bound(e[1], near=np.zeros(N)) == pytest.approx(1.0)
    assert cone.support_bound(e[0], near=np.zeros(N)) == np.inf
    assert cone.support_reason(e[0]) is not None
    assert cone.support_bound(e[1] + 1e-6 * e[2], near=np.zeros(N)) == np.inf
