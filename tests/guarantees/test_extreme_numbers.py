"""Certificates with extreme numbers: a right bound, infinity with a reason, or an error.

Warnings are errors in all tests, so that an overflow which is not handled fails, too.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pcfed import Agent, Problem, certify
from pcfed.guarantees import feasible_model, gap_term, objective_terms
from pcfed.losses import LeastSquares
from pcfed.sets import (
    Box,
    Ellipsoid,
    GroupL1Ball,
    Halfspace,
    Intersection,
    L1Ball,
    L2Ball,
    LinfBall,
    ProjectionError,
    Simplex,
)

N = 3
SETS = {
    "l1": L1Ball,
    "l2": L2Ball,
    "linf": LinfBall,
    "box": lambda r: Box(-r, r),
    "ellipsoid": lambda r: Ellipsoid(r, [1.0, 2.0, 3.0]),
    "groups": lambda r: GroupL1Ball([0, 0, 1], r),
    "simplex": Simplex,
    "intersection": lambda r: Intersection(L2Ball(r), Halfspace([1.0, 2.0, 3.0], r / 4)),
}
EXTREME = [0.0, 5e-324, 1e-320, 1e-300, 1e-160, 1e-8, 1.0, 1e8, 1e150, 1e155, 1e300, 1e308]
magnitudes = st.sampled_from(EXTREME)
rng = np.random.default_rng(0)
X, Y = rng.uniform(-1, 1, (6, N)), rng.uniform(-1, 1, 6)


def problem_with(kind, radius, coupling, target, feature, personalization, center):
    loss, other = LeastSquares(feature * X, target * Y), LeastSquares(feature * X[::-1], target * Y)
    options = {"coupling": coupling, "personalization": personalization}
    agents = [Agent(loss, SETS[kind](radius), **options), Agent(other, L1Ball(1.0), **options)]
    return Problem(agents, center=center)


def check(problem, models):
    """Check that the gap is finite and not too small, or that a sentence says why it is not."""
    center = np.zeros(N) if problem.center == "free" else None
    seen, sentence = None, ""
    try:
        seen = certify(problem, models, center=center)
    except np.linalg.LinAlgError:
        raise
    except (ValueError, ProjectionError) as error:
        sentence = str(error)
    if seen is None:
        assert "; " in sentence
        assert "\n" not in sentence
        return
    assert math.isfinite(seen.objective)
    assert not np.isnan(seen.gap_terms).any()
    if not math.isfinite(seen.gap):
        assert seen.gap == math.inf
        assert seen.reason
        assert "None" not in seen.reason
        return
    assert seen.gap >= 0
    for other in (np.zeros(N), models, -models, np.array([0.3, -0.2, 0.1])):
        try:
            feasible = certify(problem, other, center=center, tightening=0)
        except (ValueError, ProjectionError):
            continue
        assert seen.gap >= (seen.objective - feasible.objective) * (1 - 1e-9) - 1e-300


@given(
    st.sampled_from(sorted(SETS)),
    *[magnitudes] * 5,
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["average", "free"]),
)
@example("l1", 1.0, 1e-320, 1.0, 1.0, 1.0, 0.0, "average")
@example("l1", 1.0, 5e-324, 1.0, 1.0, 1.0, 0.5, "free")
@example("l2", 1.0, 1e308, 1.0, 1.0, 1.0, 0.5, "average")
@example("ellipsoid", 5e-324, 0.1, 1.0, 1.0, 1.0, 0.5, "average")
@example("simplex", 5e-324, 0.1, 1.0, 1.0, 1.0, 0.5, "free")
@example("intersection", 1e308, 0.1, 1.0, 1.0, 1.0, 0.5, "average")
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_combinations_of_extreme_numbers(
    kind, radius, coupling, target, feature, point, personalization, center
):
    problem = problem_with(kind, radius, coupling, target, feature, personalization, center)
    check(problem, point * np.array([1.0, -1.0, 0.5]))


@pytest.mark.parametrize("center", ["average", "free"])
@pytest.mark.parametrize("kind", sorted(SETS))
@pytest.mark.parametrize("value", EXTREME)
def test_one_extreme_number(value, kind, center):
    usual = {"radius": 1.0, "coupling": 0.1, "target": 1.0, "feature": 1.0}
    for name in usual:
        numbers = usual | {name: value}
        problem = problem_with(kind, **numbers, personalization=0.5, center=center)
        check(problem, np.array([1.0, -1.0, 0.5]))


def test_a_tiny_coupling_changes_nothing():
    """A coupling of 1e-320 is as good as none: the certificate is that of the linear problem."""
    models = np.array([0.3, -0.2, 0.1])
    numbers = ("l1", 1.0), (1.0, 1.0, 0.0, "average")
    tiny, none = (
        certify(problem_with(*numbers[0], coupling, *numbers[1]), models)
        for coupling in (1e-320, 0.0)
    )
    assert tiny.gap == pytest.approx(none.gap, rel=1e-12)
    assert tiny.objective == pytest.approx(none.objective, rel=1e-12)


def test_the_terms_of_single_agents_do_not_warn():
    problem = problem_with("l1", 1.0, 1e308, 1e100, 1.0, 0.5, "average")
    agent = problem.agents[0]
    x = feasible_model(agent, np.ones(N))
    slope = objective_terms(agent, x, -x).gradient
    term = gap_term(agent, x, -x, slope, 2)
    assert term >= 0
