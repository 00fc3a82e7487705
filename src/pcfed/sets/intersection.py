"""Intersections of sets: Dykstra's method, and ADMM where it is slow.

Letters: x the point, p the iterate, y_k the correction that belongs to member k, h_k its support
function.

    for every member k in turn:   v = p + y_k;   p = Π_k[v];   y_k = v − p

p converges to the projection of x but may stand still for long, so the iteration stops only when
all corrections together stand still (Birgin and Raydan). The number of cycles grows with the
distance of x: thousands at 1,000 times the size of the set. So after a few the corrections are
handed to ADMM for the same problem, ½‖p − x‖² with a copy z_k = p in every member and u_k = y_k/ρ.
Extrapolated over its last steps (Anderson), it took some 50 to 200 iterations to machine precision
from points up to 1e8 times as far as the set is large, and 1,000 in the slowest of most families.
An l1 ball and a box in thousands of entries, from 1,000 times the size, is too slow for it.

If the members have no common point, the corrections grow for ever by steps v_k with Σ v_k = 0 and
Σ h_k(v_k) < 0. Any such vectors prove it, since ⟨v_k, s⟩ ≤ h_k(v_k) for a common point s.

Reference: E. Birgin and M. Raydan, Robust stopping criteria for Dykstra's algorithm, SIAM J. Sci.
Comput. 26 (2005); S. Boyd et al., Distributed optimization via ADMM (2011), §3.4 and §7.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.affine import EPS, Affine
from pcfed.sets.balls import L1Ball
from pcfed.sets.base import (
    ConvexSet,
    Hint,
    Linear,
    ProjectionError,
    UnboundedError,
    fullest,
    norm,
)
from pcfed.sets.boxes import Bounds
from pcfed.sets.l1_in_box import project_l1_in_box
from pcfed.sets.polyhedra import Polyhedron

CYCLES = 50
"""Of Dykstra's method, before ADMM takes over."""

ITERATIONS = 20_000
"""Of ADMM, before it gives up."""

MEMORY = 10
"""Steps that the extrapolation of ADMM looks back."""

PATIENCE = 100
"""Iterations without progress after which it is left out for as many."""

SMALL = 256
"""Up to this many entries, members that linear rows describe are merged into one polyhedron."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Intersection(ConvexSet):
    r"""The points that are in all of the sets, $\bigcap_k X_k$.

    Parameters
    ----------
    *sets : ConvexSet
        The members, at least one.

    Raises
    ------
    ProjectionError
        From ``project``: if the members have no point in common.

    Examples
    --------
    >>> from pcfed.sets import Box, Intersection, Simplex
    >>> Intersection(Simplex(1.0), Box(0.0, 0.5)).project([3.0, 0.2, 0.1])
    array([0.5, 0.3, 0.2])
    """

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
        lengths = {member.n for member in sets} - {None}
        if len(lengths) > 1:
            raise ValueError(
                "Intersection: members must have one number of entries, "
                f"got {sorted(map(str, lengths))}; give sets of the same space."
            )
        object.__setattr__(self, "sets", sets)
        object.__setattr__(self, "_merged", {})

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.sets))})"

    @property
    def n(self) -> int | None:
        """Number of entries of the members, if one of them has it."""
        return next((member.n for member in self.sets if member.n is not None), None)

    def _check_length(self, where: str, n: int) -> None:
        for member in self.sets:
            member._check_length(where, n)

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        return all(member._contains(x, eps, floor) for member in self.sets)

    def _members(self, n: int) -> tuple[ConvexSet, ...]:
        """Return the members, with those of linear rows merged into one if n is small."""
        if n not in self._merged:
            rows = [member._linear(n) if n <= SMALL else None for member in self.sets]
            linear = [r for r in rows if r is not None]
            others = [m for m, r in zip(self.sets, rows, strict=True) if r is None]
            merged = (_merge(linear), *others) if len(linear) > 1 else self.sets
            self._merged[n] = merged
        return self._merged[n]

    def _budget(self, x: Float64Array) -> tuple[float, float] | None:
        return fullest(member._budget(x) for member in self.sets)

    def _linear(self, n: int) -> Linear | None:
        rows = [member._linear(n) for member in self.sets]
        known = [r for r in rows if r is not None]
        return _stack(known) if len(known) == len(rows) else None

    def _project(self, x: Array, hint: Hint | None) -> Array:
        eps = float(np.finfo(x.dtype).eps)
        y = x.astype(np.float64, copy=False)
        if self._contains(y, eps / 16.0, 0.0):
            return x
        if not np.isfinite(y).all():
            raise ProjectionError("Intersection: the point to project has NaN or inf in it.")
        members = self._members(x.size)
        p = y
        for _ in range(4):  # again from p: errors relative to a far x are corrected
            p = nearest(members, p)
            rounded: Array = p.astype(x.dtype, copy=False)
            if self._contains(rounded.astype(np.float64, copy=False), eps / 4.0, 0.0):
                return rounded
        if self._contains(rounded.astype(np.float64, copy=False), eps, 0.0):
            return rounded
        raise ProjectionError(
            f"Intersection: no point was found that is in all of {_names(members)} up to rounding; "
            "they hardly meet, so relax one of them."
        )

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        members = self._members(q.size)
        for member in members:  # a minimizer over one member that is in all is one over all
            try:
                s = member._minimize_linear(q)
            except (UnboundedError, NotImplementedError):
                continue
            if self._contains(s, EPS, 0.0):
                return s
        return super()._minimize_linear(q)

    def _support(self, q: Float64Array) -> float:
        reasons = []
        best = math.inf
        for member in self._members(q.size):
            try:
                best = min(best, member._support(q))
            except (UnboundedError, NotImplementedError) as reason:
                reasons.append(str(reason))
        if best == math.inf:
            raise UnboundedError(
                f"Intersection: no member is bounded in this direction ({' '.join(reasons)})"
            )
        return best


def nearest(members: tuple[ConvexSet, ...], x: Float64Array) -> Float64Array:
    """Return the projection of x onto the intersection of the members."""
    if len(members) == 1:
        return _onto(members[0], x)
    match members:
        case (L1Ball(center=None, weights=None) as ball, Bounds() as box) | (
            Bounds() as box,
            L1Ball(center=None, weights=None) as ball,
        ):
            lower, upper = (np.broadcast_to(bound, x.shape) for bound in box._bounds)
            found = project_l1_in_box(x, ball.radius, lower, upper)
            if found is None:
                raise ProjectionError(
                    f"Intersection: the set is empty, {_names(members)} have no point in common; "
                    "relax one of them."
                )
            return found
    p, y, settled = dykstra(members, x)
    return p if settled else admm(members, x, p, y)


def dykstra(
    members: tuple[ConvexSet, ...], x: Float64Array
) -> tuple[Float64Array, list[Float64Array], bool]:
    """Return the iterate, the corrections, and whether they stand still at the scale of p."""
    p, y = x, [np.zeros_like(x) for _ in members]
    for _ in range(CYCLES):
        change = 0.0
        for k, member in enumerate(members):
            v = p + y[k]
            p = _onto(member, v)
            change += norm((v - p) - y[k]) ** 2
            y[k] = v - p
        if math.sqrt(change) <= 4.0 * EPS * norm(p):
            return p, y, True
    return p, y, False


def admm(
    members: tuple[ConvexSet, ...], x: Float64Array, p: Float64Array, y: list[Float64Array]
) -> Float64Array:
    """Return the projection, from an iterate and corrections to begin with.

    The state is v_k = p + u_k; a fixed point of v ↦ p(v) + u(v) has z_k = p for every member k.
    """
    rho = max(1.0, norm(x - p) / norm(p)) if p.any() else 1.0
    v = plain = np.stack([p + correction / rho for correction in y])
    past: deque[tuple[Float64Array, Float64Array]] = deque(maxlen=MEMORY + 1)
    before = best = math.inf
    balance, progress = 10, 0
    for iteration in range(1, ITERATIONS + 1):
        z = np.stack([_onto(member, point) for member, point in zip(members, v, strict=True)])
        u = v - z
        p = (x + rho * (z - u).sum(axis=0)) / (1.0 + len(members) * rho)
        apart, size = norm((p - z).ravel()), max(map(norm, z))
        if apart <= 8.0 * EPS * math.sqrt(x.size) * size:
            return np.asarray(z[-1])
        check = iteration >= 64 and iteration.bit_count() == 1
        if check and (_disjoint(members, p - z, z) or _disjoint(members, u, z)):
            raise ProjectionError(
                f"Intersection: the set is empty, {_names(members)} have no point in common; "
                "relax one of them."
            )
        if len(past) > 1 and apart > 2.0 * before:  # the extrapolation was no good
            v = plain
            past.clear()
            continue
        if iteration >= balance:  # the two residuals, each relative to its size
            balance = iteration + iteration // 2 + 5
            heavy = rho * max(map(norm, u))
            ratio = (apart / size) * heavy / max(norm(x - p - rho * u.sum(axis=0)), 1e-300)
            factor = min(max(math.sqrt(ratio), 0.1), 10.0)
            if not 0.5 < factor < 2.0:
                rho *= factor
                v = plain = z + u / factor
                past.clear()
                continue
        before, plain = apart, p + u
        if apart < 0.5 * best:
            best, progress = apart, iteration
        if (iteration - progress) // PATIENCE % 2:  # no progress for long: plain steps for a while
            v = plain
            past.clear()
            continue
        past.append(((plain - v).ravel(), plain.ravel()))
        v = _extrapolate(past).reshape(plain.shape)
    raise ProjectionError(
        f"Intersection: {_names(members)} are {apart:.3g} apart after {ITERATIONS} iterations, "
        "since they hardly meet or the point is very far away; relax one of them or move the point."
    )


def _extrapolate(past: deque[tuple[Float64Array, Float64Array]]) -> Float64Array:
    """Return the mix of the last images whose residuals cancel best (Anderson acceleration)."""
    residuals, images = (np.array(column) for column in zip(*past, strict=True))
    if len(past) == 1:
        return np.asarray(images[0])
    steps, moves = np.diff(residuals, axis=0), np.diff(images, axis=0)
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    if not lengths.any():  # a residual that stays as it is: the members may be disjoint
        return np.asarray(images[-1])
    lengths = np.maximum(lengths, 1e-10 * lengths.max())
    steps, moves = steps / lengths, moves / lengths
    mix = np.linalg.lstsq(steps @ steps.T, steps @ residuals[-1], rcond=1e-13)[0]
    return np.asarray(images[-1] - mix @ moves)


def _onto(member: ConvexSet, x: Float64Array) -> Float64Array:
    return np.asarray(member._project(x, None), dtype=np.float64)


def _disjoint(members: tuple[ConvexSet, ...], steps: Float64Array, z: Float64Array) -> bool:
    """Say whether corrections, or their steps, prove that the members have no common point."""
    rest = np.sum(steps, axis=0)
    doubt = 1e-9 * sum(map(norm, steps)) * (1e-300 + sum(map(norm, z)))
    for j in range(len(members)):
        bounds = (
            member.support_bound(steps[k] - rest if k == j else steps[k])
            for k, member in enumerate(members)
        )
        if sum(bounds) < -doubt:
            return True
    return False


def _names(members: tuple[ConvexSet, ...]) -> str:
    return " and ".join(type(member).__name__ for member in members)


def _stack(rows: list[Linear]) -> Linear:
    """Put the rows of several sets together."""
    return Linear(
        np.vstack([r.A for r in rows]),
        np.concatenate([r.b for r in rows]),
        np.vstack([r.C for r in rows]),
        np.concatenate([r.d for r in rows]),
    )


def _merge(rows: list[Linear]) -> ConvexSet:
    """Return one set that all of the rows describe."""
    A, b, C, d = _stack(rows)
    try:
        if not b.size:
            return Affine(C, d)
        return Polyhedron(A, b, C=C, d=d) if d.size else Polyhedron(A, b)
    except ValueError as reason:
        raise ProjectionError(f"Intersection: the set is empty ({reason})") from None
