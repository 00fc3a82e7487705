"""Projection onto an intersection through the projections onto its members: Dykstra and ADMM.

Letters: x the point, p the iterate, y_k the correction of member k, h_k its support function.
Dykstra's algorithm repeats

    for every member k in turn:   v = p + y_k;   p = Π_k[v];   y_k = v − p

p converges to the projection of x but may pause for many cycles, so the iteration stops only when
all corrections together have stopped changing (Birgin and Raydan). The number of cycles grows with
the distance of x: thousands if that is 1,000 times the size of the set. So after a few cycles the
corrections become the start values of ADMM for the same problem, ½‖p − x‖² with a copy z_k = p in
every member and scaled multipliers u_k = y_k/ρ.

With Anderson acceleration, ADMM took some 50 to 200 iterations to machine precision from distances
up to 1e8 times the size of the set, and 1,000 in the slowest of most families of sets. It is too
slow for an l1 ball and a box in thousands of entries from 1,000 times their size, so that
``intersection.py`` solves this pair in closed form.

Both converge slowly, by 1/√k after k steps, where members touch in one point. All common points are
close together then, and ``touching.py`` finds one of them.

References: E. Birgin and M. Raydan, Robust stopping criteria for Dykstra's algorithm, SIAM J. Sci.
Comput. 26 (2005); S. Boyd et al., Distributed optimization and statistical learning via ADMM
(2011), §3.4 and §7; H. Walker and P. Ni, Anderson acceleration for fixed-point iterations, SIAM J.
Numer. Anal. 49 (2011).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets.base import ProjectionError
from pcfed.sets.members import Members, empty_intersection, names, project_float64
from pcfed.sets.rounding import EPS, norm
from pcfed.sets.touching import project_to_touching

MAX_CYCLES = 50
"""Cycles of Dykstra's algorithm before ADMM continues."""

ITERATIONS = (1_000, 9_000)
"""Iterations of ADMM before members are tested for touching, and then before an error."""

SPLIT_ITERATIONS = 300
"""Iterations of ADMM where normal vectors may be inexact."""

MEMORY = 10
"""Number of previous steps from which Anderson acceleration extrapolates."""

PATIENCE = 100
"""Iterations without progress after which acceleration is switched off for as many."""


def project_through_members(members: Members, x: Float64Array) -> Float64Array:
    """Return the projection of x onto the intersection of the members.

    Raises
    ------
    ProjectionError
        If the members have no point in common, or no point of theirs is found.
    """
    p, y, converged = dykstra(members, x)
    for iterations in ITERATIONS:
        if converged:
            return p
        p, y, converged = admm(members, x, p, y, iterations)
        if not converged and (found := project_to_touching(members, x, p)) is not None:
            return found
    if converged:
        return p
    off = max(norm(p - project_float64(member, p)) for member in members)
    raise ProjectionError(
        f"Intersection: {names(members)} have a distance of {off:.3g} from the point of the "
        f"last of {sum(ITERATIONS)} iterations, because they hardly meet or the point is very far "
        "away; relax one of them or move the point."
    )


def split_projection(
    members: Members, x: Float64Array
) -> tuple[Float64Array, list[Float64Array], bool]:
    """Return the projection p of x, normal vectors y_k of the members there, and whether they are.

    x − p = Σ y_k if they are; otherwise all of them are iterates, from which p is missing little.
    """
    p, y, converged = dykstra(members, x)
    return (p, y, True) if converged else admm(members, x, p, y, SPLIT_ITERATIONS)


def dykstra(members: Members, x: Float64Array) -> tuple[Float64Array, list[Float64Array], bool]:
    """Return the last iterate, the corrections, and whether they have converged."""
    p, y = x, [np.zeros_like(x) for _ in members]
    for _ in range(MAX_CYCLES):
        change = 0.0
        for k, member in enumerate(members):
            v = p + y[k]
            p = project_float64(member, v)
            change += norm((v - p) - y[k]) ** 2
            y[k] = v - p
        if math.sqrt(change) <= 4.0 * EPS * norm(p):
            return p, y, True
    return p, y, False


def admm(
    members: Members,
    x: Float64Array,
    p: Float64Array,
    y: list[Float64Array],
    max_iterations: int,
) -> tuple[Float64Array, list[Float64Array], bool]:
    """Continue from an iterate p and corrections y; return what ``dykstra`` returns.

    The state is v_k = p + u_k; at a fixed point of v ↦ p(v) + u(v) every z_k equals p.
    """
    # The multipliers ρ u are as long as x − p; this ρ makes u as long as p.
    rho = max(1.0, norm(x - p) / norm(p)) if p.any() else 1.0
    v = plain = np.stack([p + correction / rho for correction in y])
    acceleration = _AndersonAcceleration()
    next_balancing = 10
    for iteration in range(1, max_iterations + 1):
        z = np.stack([project_float64(m, point) for m, point in zip(members, v, strict=True)])
        u = v - z
        p = (x + rho * (z - u).sum(axis=0)) / (1.0 + len(members) * rho)
        residual, size = norm((p - z).ravel()), max(map(norm, z))
        if not math.isfinite(residual):
            raise ProjectionError(
                f"Intersection: the sizes of {names(members)} and of the point are too different "
                "for floating-point arithmetic; rescale them."
            )
        if residual <= 8.0 * EPS * math.sqrt(x.size) * size:
            return np.asarray(z[-1]), list(rho * u), True
        # Rarely, at powers of 2, since the support functions may cost more than an iteration.
        check_empty = iteration >= 64 and iteration.bit_count() == 1
        if check_empty and (_proves_empty(members, p - z, z) or _proves_empty(members, u, z)):
            raise empty_intersection(members)
        if acceleration.has_failed(residual):
            v = plain
            acceleration.restart()
            continue
        if iteration >= next_balancing:
            next_balancing = iteration + iteration // 2 + 5  # rarer and rarer, so ρ settles
            factor = _penalty_factor(x - p, rho, u, residual / (size or norm(p)))
            if not 0.5 < factor < 2.0:
                rho *= factor
                v = plain = z + u / factor  # ρ u, the corrections, stay the same
                acceleration.restart()
                continue
        plain = p + u
        v = acceleration.next_point(v, plain, residual, iteration)
    return np.asarray(p), list(rho * u), False


class _AndersonAcceleration:
    """Extrapolation of a fixed-point iteration from its last steps, with safeguards."""

    def __init__(self) -> None:
        self._past: deque[tuple[Float64Array, Float64Array]] = deque(maxlen=MEMORY + 1)
        self._previous = self._best = math.inf
        self._last_progress = 0

    def restart(self) -> None:
        """Forget the previous steps."""
        self._past.clear()

    def has_failed(self, residual: float) -> bool:
        """Return whether the last extrapolation increased the residual."""
        return len(self._past) > 1 and residual > 2.0 * self._previous

    def next_point(
        self, v: Float64Array, image: Float64Array, residual: float, iteration: int
    ) -> Float64Array:
        """Return the next point from the image of v, which is the next point of plain ADMM."""
        self._previous = residual
        if residual < 0.5 * self._best:
            self._best, self._last_progress = residual, iteration
        # Extrapolation can cycle where the active constraints change; plain steps always converge.
        if (iteration - self._last_progress) // PATIENCE % 2:
            self.restart()
            return image
        self._past.append(((image - v).ravel(), image.ravel()))
        return self._extrapolate().reshape(image.shape)

    def _extrapolate(self) -> Float64Array:
        """Return the combination of the last images whose residuals cancel best."""
        residuals, images = (np.array(column) for column in zip(*self._past, strict=True))
        if len(self._past) == 1:
            return np.asarray(images[0])
        steps, moves = np.diff(residuals, axis=0), np.diff(images, axis=0)
        lengths = np.linalg.norm(steps, axis=1, keepdims=True)
        if not lengths.any():  # the residual does not change: the members may be disjoint
            return np.asarray(images[-1])
        # Steps shrink by orders of magnitude; scaled to length 1 they are better conditioned.
        lengths = np.maximum(lengths, 1e-10 * lengths.max())
        steps, moves = steps / lengths, moves / lengths
        mix = np.linalg.lstsq(steps @ steps.T, steps @ residuals[-1], rcond=1e-13)[0]
        return np.asarray(images[-1] - mix @ moves)


def _penalty_factor(
    displacement: Float64Array, rho: float, u: Float64Array, primal: float
) -> float:
    """Return the factor for ρ that balances the primal and the dual residual (Boyd, §3.4.1).

    Both are relative. The dual residual is that of x − p = ρ Σ u_k, with x − p the displacement.
    """
    size = rho * max(map(norm, u))
    ratio = primal * size / max(norm(displacement - rho * u.sum(axis=0)), 1e-300)
    return min(max(math.sqrt(ratio), 0.1), 10.0)


def _proves_empty(members: Members, vectors: Float64Array, z: Float64Array) -> bool:
    """Return whether vectors v_k prove that the members have no common point.

    They do if Σ v_k = 0 and Σ h_k(v_k) < 0, since ⟨v_k, s⟩ ≤ h_k(v_k) for a common point s. The
    corrections of disjoint members grow without bound by steps that have this property.
    """
    excess = np.sum(vectors, axis=0)
    sizes = [max(norm(point), m._scale) for m, point in zip(members, z, strict=True)]
    doubt = 1e-9 * sum(map(norm, vectors)) * (1e-300 + sum(sizes))
    for j in range(len(members)):  # subtract the excess from one of them, so that the sum is 0
        bounds = (
            member.support_bound(vectors[k] - excess if k == j else vectors[k])
            for k, member in enumerate(members)
        )
        if sum(bounds) < -doubt:
            return True
    return False
