r"""Intersections of sets.

Linear members in few entries are merged into one polyhedron; an l1 ball and a box have a closed
form; for everything else ``splitting.py`` projects through the members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.affine import Affine
from pcfed.sets.balls import L1Ball
from pcfed.sets.base import (
    ConvexSet,
    EmptySetError,
    LinearConstraints,
    ProjectionError,
    UnboundedError,
    WarmStart,
)
from pcfed.sets.boxes import Bounds
from pcfed.sets.combine import scale_entries
from pcfed.sets.members import empty_intersection, limited_work, names, project_float64
from pcfed.sets.polyhedra import Polyhedron
from pcfed.sets.rounding import EPS, repeat_until_contained
from pcfed.sets.splitting import project_through_members
from pcfed.sets.support import support_of_members
from pcfed.sets.usage import Usage, split_normal, tightest

MAX_MERGED_ENTRIES = 256
"""Up to this many entries, linear members are merged into one polyhedron."""


MAX_PARTS = 1000
"""Up to this many sets, translated, scaled and other combinations of intersections are split up."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Intersection(ConvexSet):
    r"""The points that are in all of the sets, $\bigcap_k X_k$.

    Parameters
    ----------
    *sets : ConvexSet
        The members, at least one. Members of a member that is an intersection become members.

    Raises
    ------
    ProjectionError
        From ``project``: if the members have no point in common, or hardly meet.

    Examples
    --------
    >>> from pcfed.sets import Box, Intersection, Simplex
    >>> Intersection(Simplex(1.0), Box(0.0, 0.5)).project([3.0, 0.2, 0.1])
    array([0.5, 0.3, 0.2])
    """

    spec_name = "intersection"
    sets: tuple[ConvexSet, ...]
    _merged: dict[int, tuple[ConvexSet, ...]] = field(init=False)

    def __init__(self, *sets: ConvexSet) -> None:
        for k, member in enumerate(sets):
            if not isinstance(member, ConvexSet):
                raise ValueError(
                    f"Intersection: each member must be a set, got {member!r} at position {k}; "
                    "give sets such as L1Ball(1.0)."
                )
        if not sets:
            raise ValueError(
                "Intersection: sets must not be empty, got none; give at least one set."
            )
        sets = _flattened(sets)
        lengths = {member.n for member in sets} - {None}
        if len(lengths) > 1:
            raise ValueError(
                "Intersection: members must have the same number of entries, "
                f"got {sorted(map(str, lengths))}; give sets of the same space."
            )
        self._set_fields(sets=sets, _merged={})

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.sets))})"

    @property
    def n(self) -> int | None:
        """Number of entries of the members, if the data of one of them determine it."""
        # Asking every member once, as the time would double with every level of nesting.
        return next((n for member in self.sets if (n := member.n) is not None), None)

    def check_model_length(self, n: int, part: str = "the model") -> None:
        """Raise a ValueError if a member does not fit."""
        for member in self.sets:
            member.check_model_length(n, part)

    def _check_length(self, where: str, n: int) -> None:
        for member in self.sets:
            member._check_length(where, n)

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        return all(member._contains(x, eps, floor) for member in self.sets)

    def _members(self, n: int) -> tuple[ConvexSet, ...]:
        """Return the members, with the linear ones merged into one if n is small."""
        if n not in self._merged:
            small, sets = n <= MAX_MERGED_ENTRIES, self._all_parts
            constraints = [m._linear_constraints(n) if small else None for m in sets]
            linear = [each for each in constraints if each is not None]
            others = [m for m, own in zip(sets, constraints, strict=True) if own is None]
            self._merged[n] = (_merge(linear), *others) if len(linear) > 1 else sets
        return self._merged[n]

    @property
    def spec(self) -> str:
        """The set as configuration files write it."""
        return self._call_text(member.spec for member in self.sets)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        uses = [member._usage(x, v) for member in self.sets]
        active = [k for k, use in enumerate(uses) if use.active]
        if v is not None and len(active) > 1:
            # v is a sum of normal vectors, one for each active member.
            projections = [partial(project_float64, self.sets[k]) for k in active]
            for k, part in zip(active, split_normal(projections, x, v), strict=True):
                uses[k] = self.sets[k]._usage(x, part)
        return tightest(uses)

    @cached_property
    def _all_parts(self) -> tuple[ConvexSet, ...]:
        """The members and the parts of combinations among them, unless these are too many."""
        parts = tuple(part for member in self.sets for part in member._parts())
        return parts if len(parts) <= MAX_PARTS else self.sets

    def _parts(self) -> tuple[ConvexSet, ...]:
        return self._all_parts if len(self._all_parts) <= MAX_PARTS else (self,)

    def _scale_entries(self, f: Float64Array) -> Intersection:
        return Intersection(*(scale_entries(member, f) for member in self.sets))

    def _linear_constraints(self, n: int) -> LinearConstraints | None:
        constraints = [member._linear_constraints(n) for member in self.sets]
        known = [each for each in constraints if each is not None]
        return LinearConstraints.stack(known) if len(known) == len(constraints) else None

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        try:
            with limited_work():
                p, contained = repeat_until_contained(
                    lambda y: _nearest(self._members(y.size), y), x, self._contains
                )
        except EmptySetError:
            # It may name the polyhedron into which members were merged; name the members.
            raise empty_intersection(self.sets) from None
        if not contained:
            raise ProjectionError(
                f"Intersection: no point was found that is in all of {names(self.sets)} up to "
                "rounding; they hardly meet, so relax one of them."
            )
        return p

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        # A minimizer over one member that is in all members is a minimizer over the intersection.
        for member in self._members(q.size):
            try:
                s = member._minimize_linear(q)
            except (UnboundedError, NotImplementedError):
                continue
            if self._contains(s, EPS):
                return s
        return super()._minimize_linear(q)

    def _support_bound(self, q: Float64Array) -> float:
        return self._split_support_bound(q, None)

    def _support_bound_near(self, q: Float64Array, near: Float64Array) -> float:
        return self._split_support_bound(q, near)

    def _split_support_bound(self, q: Float64Array, near: Float64Array | None) -> float:
        """Return a bound by a single member, or by a split of q over all of them if it is less."""
        members = self._members(q.size)
        best, reasons = math.inf, []
        for member in members:
            try:
                best = min(best, member._support_bound(q))
            except (UnboundedError, NotImplementedError) as reason:
                reasons.append(str(reason))
        if len(members) > 1:
            with np.errstate(all="ignore"), limited_work():
                best = support_of_members(members, q, best, near)
        if best == math.inf:
            raise UnboundedError(
                f"Intersection: no member is bounded in this direction ({' '.join(reasons)})"
            )
        return best


def _flattened(sets: tuple[ConvexSet, ...]) -> tuple[ConvexSet, ...]:
    """Return the members, those of intersections instead of these, and none of them twice."""
    parts = (each.sets if isinstance(each, Intersection) else (each,) for each in sets)
    return tuple({id(member): member for part in parts for member in part}.values())


def _nearest(members: tuple[ConvexSet, ...], x: Float64Array) -> Float64Array:
    """Return the projection of x onto the intersection of the members."""
    if not np.isfinite(x).all():
        raise ProjectionError("Intersection: the point to project contains NaN or inf.")
    if len(members) == 1:
        return project_float64(members[0], x)
    match members:
        case (L1Ball(center=None, weights=None) as ball, Bounds() as box) | (
            Bounds() as box,
            L1Ball(center=None, weights=None) as ball,
        ):
            lower, upper = (np.broadcast_to(bound, x.shape) for bound in box._bounds)
            found = _project_l1_in_box(x, ball.radius, lower, upper)
            if found is None:
                raise empty_intersection(members)
            return found
    return project_through_members(members, x)


def _project_l1_in_box(
    x: Float64Array, radius: float, lower: Float64Array, upper: Float64Array
) -> Float64Array | None:
    r"""Return the projection onto an l1 ball and a box, or None if they are disjoint.

    $$ \min_p \tfrac12 \|p - x\|^2 \quad \text{subject to} \quad \|p\|_1 \le \tau,\;
    l \le p \le u $$

    has the solution $p(\theta) = \operatorname{clip}(\operatorname{soft}(x, \theta), l, u)$ for the
    smallest multiplier $\theta \ge 0$ with $\|p(\theta)\|_1 \le \tau$, because the entries are
    independent problems once θ is known. $\|p(\theta)\|_1$ decreases, and is linear between the
    numbers $|x_j|$, $|x_j| - |l_j|$ and $|x_j| - |u_j|$.
    """
    a = np.abs(x)

    def clipped(theta: float) -> Float64Array:
        return np.clip(np.copysign(np.maximum(a - theta, 0.0), x), lower, upper)

    def size(theta: float) -> float:
        return float(np.abs(clipped(theta)).sum())

    if size(0.0) <= radius:
        return clipped(0.0)
    knots = np.concatenate(([0.0], a, a - np.abs(lower), a - np.abs(upper)))
    knots = np.unique(knots[np.isfinite(knots) & (knots >= 0.0)])
    if size(knots[-1]) > radius * (1.0 + 64.0 * EPS):
        return None
    low, high = 0, knots.size - 1  # bisection: the norm is > τ at low and ≤ τ at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(knots[middle]) > radius else (low, middle)
    above, below = size(knots[low]) - radius, radius - size(knots[high])
    fraction = above / (above + max(below, 0.0))
    return clipped(knots[low] + fraction * (knots[high] - knots[low]))


def _merge(constraints: list[LinearConstraints]) -> ConvexSet:
    """Return the set of the points that satisfy all constraints."""
    A, b, C, d = LinearConstraints.stack(constraints)
    try:
        if not b.size:
            return Affine(C, d)
        return Polyhedron(A, b, C=C, d=d) if d.size else Polyhedron(A, b)
    except ValueError as reason:  # the equations contradict each other
        raise EmptySetError(str(reason)) from None
