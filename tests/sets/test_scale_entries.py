"""Sets with scaled entries: the same points, and the projection that CVXPY finds."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from pcfed.sets import Box, Ellipsoid, L1Ball, L2Ball, NuclearBall, Scaled, Simplex, scale_entries

from .cases import CASES, Case, N

FACTORS = np.array([0.05, 20.0, 0.5, 1.0, 30.0, 4.0])
NOT_KNOWN = {"GroupL1Ball", "NuclearBall", "SecondOrderCone", "PSDCone", "CustomSet"}
KNOWN = [case for case in CASES if type(case.set).__name__ not in NOT_KNOWN]


def test_most_sets_can_be_scaled():
    assert len(KNOWN) >= 24


@pytest.mark.parametrize("case", KNOWN, ids=[case.name for case in KNOWN])
def test_scaled_points_are_in_the_scaled_set(case: Case):
    scaled = scale_entries(case.set, FACTORS)
    rng = np.random.default_rng(0)
    for _ in range(20):
        inside = case.set.project(rng.normal(size=N) * 3)
        assert scaled.contains(FACTORS * inside)
        x = rng.normal(size=N) * 3
        far = case.set.distance(x)
        if far > 1e-6:
            assert scaled.distance(FACTORS * x) > 1e-6 * FACTORS.min() * far
        p = scaled.project(FACTORS * x)
        rounding = 1e-13 * (1 + np.linalg.norm(p)) / FACTORS.min()
        assert case.set.distance(p / FACTORS) <= rounding


@pytest.mark.parametrize("case", KNOWN, ids=[case.name for case in KNOWN])
def test_projection_agrees_with_cvxpy(case: Case):
    f = np.array([0.2, 2.0, 0.5, 1.0, 3.0, 0.4])
    x = np.array([1.0, -4.0, 2.0, 0.3, -5.0, 2.5])
    v = cp.Variable(N)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(cp.multiply(f, v) - x)), case.constraints(v))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    np.testing.assert_allclose(scale_entries(case.set, f).project(x), f * v.value, atol=2e-5)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.n == N], ids=lambda case: case.name
)
def test_equal_factors_scale_every_set(case: Case):
    x = np.array([1.0, -4.0, 2.0, 0.3, -5.0, 2.5])
    by_entries, at_once = scale_entries(case.set, np.full(N, 2.5)), Scaled(case.set, 2.5)
    np.testing.assert_allclose(by_entries.project(x), at_once.project(x), atol=1e-9)


def test_boxes_stay_boxes_and_balls_become_ellipsoids():
    assert repr(scale_entries(Box(-1, np.inf), [2.0, 3.0])) == repr(
        Box([-2, -3], np.full(2, np.inf))
    )
    assert isinstance(scale_entries(L2Ball(1.0), [2.0, 3.0]), Ellipsoid)
    ball = L1Ball(1.0)
    assert scale_entries(ball, [1.0, 1.0]) is ball


def test_invalid_factors_and_sets():
    with pytest.raises(ValueError, match="NuclearBall: no projection onto it is known where ent"):
        scale_entries(NuclearBall((1, 2), 1.0), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"factors must be > 0, got 0\.0 at index 1"):
        scale_entries(Simplex(), [1.0, 0.0])
    with pytest.raises(ValueError, match="must have 2 entries, as the set has, got 3"):
        scale_entries(Box([0, 0], [1, 1]), [1.0, 2.0, 3.0])


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
