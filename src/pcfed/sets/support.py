r"""The support function of an intersection, from those of its members.

Letters: q the direction, s a point of the set, p a projection, λ the length of a step, h_k the
support function of member k.

$$ h(q) = \max_{s \in \cap X_k} \langle q, s \rangle
   = \min \Big\{ \sum_k h_k(q_k) : \sum_k q_k = q \Big\} $$

Every split of q is an upper bound. Good ones come from projections: proximal steps
$s \leftarrow p = \Pi[s + \lambda q]$ climb to a maximizer, and the projection splits
$s + \lambda q - p$ into normal vectors $y_k$ of the members at p, for which
$h_k(y_k) = \langle y_k, p \rangle$. So $q_k = y_k / \lambda$ lacks only $(p - s) / \lambda$, which
one member takes over. This is nothing where s is a maximizer, and little where λ is large: the
bound exceeds the lower bound $\langle q, p \rangle$ by at most the diameter of that member times
$\|p - s\| / \lambda$.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets.base import ConvexSet, ProjectionError, UnboundedError
from pcfed.sets.members import Members
from pcfed.sets.rounding import EPS, norm
from pcfed.sets.splitting import project_through_members, split_projection

STEP_LENGTHS = (1.0, 10.0, 30.0, 100.0, 300.0, 1e3)
"""Lengths of the proximal steps, relative to the size of the set."""

ACCURACY = 1e-9
"""The difference of the bounds, relative to ‖q‖ times the size of the set, that is small enough."""

RELATIVE_ACCURACY = 1e-2
"""The difference that is small enough, relative to that of the bound and its value at ``near``."""


def support_of_members(
    members: Members, q: Float64Array, best: float, near: Float64Array | None = None
) -> float:
    """Return an upper bound of the support function of an intersection, close to it.

    Parameters
    ----------
    members : sequence of ConvexSet
        The members.
    q : array of shape (n,)
        The direction.
    best : float
        A bound that is known; the result is not larger.
    near : array of shape (n,), optional
        A point of the set that is close to a maximizer, if one is known.
    """
    if not q.any():
        return 0.0
    s = near
    try:
        if s is None:
            s = project_through_members(members, np.zeros_like(q))
        for bound, value in _proximal_steps(members, q, s):
            best = min(best, bound)
            reference = float(q @ near) if near is not None else math.inf
            allowed = RELATIVE_ACCURACY * max(0.0, best - reference)
            if best - value <= allowed:
                break
    except ProjectionError:  # too much work, or no point in common; any bound holds
        pass
    return best


def _proximal_steps(
    members: Members, q: Float64Array, s: Float64Array
) -> Iterator[tuple[float, float]]:
    """Yield an upper and a lower bound of the support function after every step from s."""
    length = norm(q)
    size = max(norm(s), *(member._scale for member in members)) or 1.0
    for relative in STEP_LENGTHS:
        factor = relative * size / length
        p, normals, exact = split_projection(members, s + factor * q)
        bound, value = _split_bound(members, q, [y / factor for y in normals], p), float(q @ p)
        yield bound, value
        # Longer steps lead nowhere else, or to points that are too far away to be projected.
        arrived = bound - value <= ACCURACY * length * size or norm(p - s) <= ACCURACY * size
        if arrived or not exact:
            return
        s = p


def _split_bound(
    members: Members, q: Float64Array, normals: list[Float64Array], p: Float64Array
) -> float:
    """Return the smallest bound by splits in which one member takes over what is missing."""
    pairs = [_bounded_part(m, y, p) for m, y in zip(members, normals, strict=True)]
    parts, values = [part for part, _ in pairs], [value for _, value in pairs]
    missing = q - np.sum(parts, axis=0)
    # Sums of vectors are rounded, and so are multiples of the normal vectors of unbounded members.
    size = math.sqrt(q.size) * max(norm(p), *(member._scale for member in members))
    doubt = 64.0 * EPS * len(members) * size * (norm(q) + sum(map(norm, parts)))
    total, best = math.fsum(values), math.inf
    for member, part, value in zip(members, parts, values, strict=True):
        best = min(best, total - value + member.support_bound(part + missing))
    return best + doubt if not math.isnan(best) else math.inf


def _bounded_part(
    member: ConvexSet, y: Float64Array, p: Float64Array
) -> tuple[Float64Array, float]:
    """Return a vector near y in whose direction the member is bounded, and a bound there."""
    try:
        return member._bounded_part(y, p)
    except (UnboundedError, NotImplementedError):
        return np.zeros_like(y), 0.0
