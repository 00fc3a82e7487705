r"""Projection onto members that touch each other, from a point that is close to it.

Letters: x the point, p its projection, d_k the distance to member k.

Where balls touch in one point, the corrections of Dykstra's algorithm and the multipliers of ADMM
grow without bound, and p converges slowly. A common point is easier to find: it minimizes

$$ \tfrac12 \sum_k d_k(p)^2, \qquad \text{with gradient } \sum_k (p - \Pi_k[p]), $$

for which quasi-Newton steps (L-BFGS) take some 20 to 150 projections. From a common point, steps
towards x that return to a common point approach the projection; they change nothing where there is
only one common point.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from pcfed.arrays import Float64Array
from pcfed.sets.members import Members, project_float64
from pcfed.sets.rounding import EPS, norm

MAX_QUASI_NEWTON_STEPS, MAX_RESTARTS = 300, 10
"""Steps to one common point, and how often they begin again."""

STEP_FRACTIONS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Parts of the way to x after which a common point is searched."""

MAX_MOVE, MAX_WIDTH = 1e-3, 1e-6
"""How far the last step may move the point, relative to its length and to the size of members."""


def project_to_touching(
    members: Members, x: Float64Array, start: Float64Array
) -> Float64Array | None:
    """Return the common point that is nearest to x, from a start value; None if none is found.

    It is as accurate as the set is narrow: where balls touch, points at 1e-8 times their radius
    from the only common point satisfy all inequalities up to rounding, too.
    """
    p, change = _common_point(members, start), math.inf
    for fraction in STEP_FRACTIONS:
        origin = start if p is None else p
        moved = _common_point(members, origin + fraction * (x - origin))
        if moved is None:
            continue
        change = math.inf if p is None else norm(moved - p)
        if p is None or norm(x - moved) < norm(x - p):
            p = moved
    if p is None:
        return None
    step = STEP_FRACTIONS[-1] * norm(x - p)
    return p if change <= min(MAX_MOVE * step, MAX_WIDTH * _scale(members, p)) else None


def _scale(members: Members, x: Float64Array) -> float:
    """Return the size of the members and of a point."""
    return max(norm(x), *(member._scale for member in members)) or 1.0


def _common_point(members: Members, start: Float64Array) -> Float64Array | None:
    """Return a common point near ``start``, or None if none is found."""
    scale = _scale(members, start)

    def squared_distances(p: Float64Array, unit: float) -> tuple[float, Float64Array]:
        off = [p - project_float64(member, scale * p) / scale for member in members]
        return 0.5 * sum(float(each @ each) for each in off) / unit, np.sum(off, axis=0) / unit

    p, value = start / scale, squared_distances(start / scale, 1.0)[0]
    # The stopping rules of L-BFGS are for values near 1, so it begins again with another unit.
    for _ in range(MAX_RESTARTS):
        result: OptimizeResult = minimize(
            squared_distances,
            p,
            args=(value or 1.0,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MAX_QUASI_NEWTON_STEPS, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
        )
        p, value = result.x, result.fun * (value or 1.0)
        for point in (scale * p, *(project_float64(member, scale * p) for member in members)):
            if all(member._contains(point, EPS / 2.0) for member in members):
                return np.asarray(point)
        if not result.fun < 0.5:
            break
    return None
