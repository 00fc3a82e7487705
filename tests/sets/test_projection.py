"""One property suite over all sets."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pcfed.sets import CustomSet, UnboundedError, WarmStart, WholeSpace

from .cases import CASES, EXAMPLES, IDS, Case, set_classes

each_set = pytest.mark.parametrize("case", CASES + EXAMPLES, ids=lambda case: case.name)
property_test = settings(
    deadline=None,
    derandomize=True,
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
ENTRY = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.0, 2.0]),
    st.floats(-3.0, 3.0, width=32),
    st.floats(-1.0, 1.0).map(lambda t: 1.0 + 1e-15 * t),
)
SCALE = st.sampled_from([1.0, 1.0, 1e-8, 1e-3, 1e3, 1e8])
DTYPE = st.sampled_from([np.float64, np.float64, np.float32])


@st.composite
def points(draw, n, scale=SCALE, dtype=DTYPE):
    """Points with zeros and ties, of all scales."""
    entries = draw(st.lists(ENTRY, min_size=n, max_size=n))
    return (draw(scale) * np.array(entries)).astype(draw(dtype))


def test_every_set_has_an_example_of_itself():
    assert [type(case.set) for case in EXAMPLES] == set_classes()
    assert len(EXAMPLES) >= 21


def rounding(*arrays):
    """Return what may be lost by rounding at the scale of some points."""
    eps = max(np.finfo(a.dtype).eps for a in arrays)
    return 64 * eps * max(1.0, *(float(np.linalg.norm(a)) for a in arrays))


@each_set
@given(data=st.data())
@property_test
def test_projection_is_feasible_idempotent_and_keeps_its_dtype(case: Case, data):
    x = data.draw(points(case.n))
    p = case.set.project(x)
    assert p.dtype == x.dtype
    assert p.shape == x.shape
    assert np.isfinite(p).all()
    assert case.set.contains(p)
    again = case.set.project(p)
    if case.closed_form:
        assert again.tobytes() == p.tobytes()
    else:
        assert np.linalg.norm(again - p) <= rounding(p)
    if case.set.contains(x):
        assert np.linalg.norm(p - x) <= 2 * rounding(x) * math.sqrt(case.n)


@each_set
@given(data=st.data())
@property_test
def test_projection_satisfies_the_variational_inequality(case: Case, data):
    x = data.draw(points(case.n))
    p = case.set.project(x)
    s = case.set.project(data.draw(points(case.n, dtype=st.just(np.float64))))
    error = rounding(x, p, s) * (np.linalg.norm(x - p) + np.linalg.norm(s - p))
    assert float((x - p) @ (s - p)) <= 8 * error


@each_set
@given(data=st.data())
@property_test
def test_projection_is_nonexpansive(case: Case, data):
    x, y = (data.draw(points(case.n, dtype=st.just(np.float64))) for _ in range(2))
    p, q = case.set.project(x), case.set.project(y)
    assert np.linalg.norm(p - q) <= np.linalg.norm(x - y) + 8 * rounding(x, y)


@each_set
@given(data=st.data())
@property_test
def test_distance_is_the_length_of_the_projection(case: Case, data):
    x = data.draw(points(case.n, dtype=st.just(np.float64)))
    p = case.set.project(x)
    assert case.set.distance(x) == pytest.approx(np.linalg.norm(x - p), abs=8 * rounding(x))


@each_set
@given(data=st.data())
@property_test
def test_rows_out_and_warm_start_change_no_bit(case: Case, data):
    dtype = st.just(data.draw(DTYPE))
    x = np.stack([data.draw(points(case.n, dtype=dtype)) for _ in range(3)])
    before = x.copy()
    single = np.stack([case.set.project(row) for row in x])
    assert case.set.project(x).tobytes() == single.tobytes()
    assert x.tobytes() == before.tobytes()
    assert case.set.project_unchecked(x).tobytes() == single.tobytes()
    warm_start = WarmStart()
    for row, p in zip(x, single, strict=True):  # the warm start of another point
        assert case.set.project(row, warm_start=warm_start).tobytes() == p.tobytes()
    assert case.set.project(x, warm_start=warm_start).tobytes() == single.tobytes()
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    assert case.set.project(strided).tobytes() == single.tobytes()
    assert case.set.project(x, out=x) is x
    assert x.tobytes() == single.tobytes()


@each_set
@given(data=st.data())
@property_test
def test_linear_minimizers_and_support_bounds(case: Case, data):
    q = data.draw(
        points(case.n, scale=st.sampled_from([1.0, 1e-3, 1e3]), dtype=st.just(np.float64))
    )
    s = case.set.project(data.draw(points(case.n, dtype=st.just(np.float64))))
    error = rounding(s) * max(1e-300, np.linalg.norm(q))
    bound = case.set.support_bound(q)
    assert float(q @ s) <= bound + error
    assert (case.set.support_reason(q) is None) == math.isfinite(bound)
    try:
        least = case.set.minimize_linear(q)
    except (UnboundedError, NotImplementedError):
        assert not case.bounded
        return
    assert case.set.contains(least)
    slack = 64 * error if case.closed_form else 1e-7 * max(1.0, np.linalg.norm(q))  # of HiGHS
    assert float(q @ least) <= float(q @ s) + slack
    assert case.set.support_bound(-q) == pytest.approx(-float(q @ least), rel=1e-9, abs=slack)


@each_set
def test_points_just_outside_are_outside(case: Case):
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = 4.0 * rng.standard_normal(case.n)
        p = case.set.project(x)
        gap = np.linalg.norm(x - p)
        if gap > 1e-3:
            assert not case.set.contains(p + (1e-5 / gap) * (x - p))
    assert isinstance(case.set, WholeSpace) or gap > 0 or case.set.distance(-x) > 0


@each_set
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused(case: Case, bad):
    x = np.ones(case.n)
    x[case.n // 2] = bad
    for method in ("project", "distance", "contains", "minimize_linear", "support_bound"):
        with pytest.raises(ValueError, match=r"must be finite.*index \[\d\]; remove"):
            getattr(case.set, method)(x)


@each_set
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unchecked_projection_of_nan_ends(case: Case, dtype):
    x = np.ones(case.n, dtype=dtype)
    for bad in (math.nan, math.inf):
        x[1] = bad
        try:
            p = case.set.project_unchecked(x)
        except ArithmeticError:
            assert not case.closed_form or isinstance(case.set, CustomSet)
        else:
            assert p.shape == x.shape


def reference(case: Case, x):
    """Solve the projection with CVXPY."""
    v = cp.Variable(case.n)
    program = cp.Problem(cp.Minimize(cp.sum_squares(v - x)), case.constraints(v))
    tight = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    program.solve(solver=cp.CLARABEL, **tight)
    return v.value


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_projection_agrees_with_cvxpy(case: Case):
    rng = np.random.default_rng(1)
    for scale in (0.3, 1.0, 3.0):
        x = scale * rng.standard_normal(case.n)
        x[1] = x[0]
        np.testing.assert_allclose(case.set.project(x), reference(case, x), atol=2e-6 * (1 + scale))


MEETING = ("simplex and box", "l1 and box", "l2 and halfspace")


@pytest.mark.parametrize("name", MEETING)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_intersections_are_accurate(name):
    """The distance is flat at the optimum, so compare objectives where CVXPY's point is rough."""
    case = CASES[IDS.index(name)]
    rng = np.random.default_rng(2)
    for _ in range(5):
        x = 3.0 * rng.standard_normal(case.n)
        p, r = case.set.project(x), reference(case, x)
        assert np.linalg.norm(p - r) <= 2e-6
        assert np.linalg.norm(x - p) == pytest.approx(np.linalg.norm(x - r), rel=1e-9)
