"""A set in other units: the same points, and the projection that CVXPY finds."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from pcfed.sets import Box, Ellipsoid, L1Ball, L2Ball, NuclearBall, Scaled, Simplex, stretched

from .registry import CASES, Case, N

FACTORS = np.array([0.05, 20.0, 0.5, 1.0, 30.0, 4.0])
REFUSED = {"GroupL1Ball", "NuclearBall", "SecondOrderCone", "PSDCone", "CustomSet"}
KNOWN = [case for case in CASES if type(case.set).__name__ not in REFUSED]


def test_most_sets_are_known():
    assert len(KNOWN) >= 24


@pytest.mark.parametrize("case", KNOWN, ids=[case.name for case in KNOWN])
def test_the_same_points_in_other_units(case: Case):
    wide = stretched(case.set, FACTORS)
    rng = np.random.default_rng(0)
    for _ in range(20):
        inside = case.set.project(rng.normal(size=N) * 3)
        assert wide.contains(FACTORS * inside)
        x = rng.normal(size=N) * 3
        far = case.set.distance(x)
        if far > 1e-6:
            assert wide.distance(FACTORS * x) > 1e-6 * FACTORS.min() * far
        p = wide.project(FACTORS * x)
        rounding = 1e-13 * (1 + np.linalg.norm(p)) / FACTORS.min()
        assert case.set.distance(p / FACTORS) <= rounding


@pytest.mark.parametrize("case", KNOWN, ids=[case.name for case in KNOWN])
def test_its_projection_is_that_of_a_solver(case: Case):
    f = np.array([0.2, 2.0, 0.5, 1.0, 3.0, 0.4])
    x = np.array([1.0, -4.0, 2.0, 0.3, -5.0, 2.5])
    v = cp.Variable(N)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(cp.multiply(f, v) - x)), case.constraints(v))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    np.testing.assert_allclose(stretched(case.set, f).project(x), f * v.value, atol=2e-5)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.n == N], ids=lambda case: case.name
)
def test_one_factor_for_all_scales_every_set(case: Case):
    x = np.array([1.0, -4.0, 2.0, 0.3, -5.0, 2.5])
    mine, other = stretched(case.set, np.full(N, 2.5)), Scaled(case.set, 2.5)
    np.testing.assert_allclose(mine.project(x), other.project(x), atol=1e-9)


def test_kinds():
    assert repr(stretched(Box(-1, np.inf), [2.0, 3.0])) == repr(Box([-2, -3], np.full(2, np.inf)))
    assert isinstance(stretched(L2Ball(1.0), [2.0, 3.0]), Ellipsoid)
    ball = L1Ball(1.0)
    assert stretched(ball, [1.0, 1.0]) is ball


def test_what_is_refused():
    with pytest.raises(ValueError, match="NuclearBall: no projection onto it is known where ent"):
        stretched(NuclearBall((1, 2), 1.0), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"factors must be > 0, got 0\.0 at index 1"):
        stretched(Simplex(), [1.0, 0.0])
    with pytest.raises(ValueError, match="must have 2 entries, as the set has, got 3"):
        stretched(Box([0, 0], [1, 1]), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e6, 1e9])
def test_ellipsoids_of_any_shape(spread):
    rng = np.random.default_rng(2)
    w = np.geomspace(1.0, spread, 40)
    for size in (1.001, 10.0, 1e6):
        y = rng.normal(size=40)
        y *= size / np.linalg.norm(w * y)
        p = Ellipsoid(1.0, w).project(y)
        assert 1 - 1e-12 <= np.linalg.norm(w * p) <= 1
        multiplier = (y[-1] - p[-1]) / (w[-1] ** 2 * p[-1])  # one for all entries: optimality
        np.testing.assert_allclose(p, y / (1 + multiplier * w**2), rtol=1e-9)
