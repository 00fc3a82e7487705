"""Polyhedra: projections are quadratic programs, linear functions are linear programs.

Letters: x a point, p its projection, u = p − x, h = b − A x the slack of every inequality at x,
y ≥ 0 and z the multipliers of inequalities and equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import quadprog
from scipy.optimize import OptimizeResult, linprog, nnls

from pcfed.arrays import Array, Float64Array
from pcfed.sets.affine import Affine, checked_system, unit_rows
from pcfed.sets.base import (
    ConvexSet,
    EmptySetError,
    LinearConstraints,
    ProjectionError,
    UnboundedError,
    WarmStart,
)
from pcfed.sets.rounding import EPS, norm, repeat_until_contained, tolerance
from pcfed.sets.usage import ACTIVE, Usage


@dataclass(frozen=True, eq=False, repr=False)
class Polyhedron(ConvexSet):
    r"""The polyhedron $\{x : A x \le b,\; C x = d\}$.

    Parameters
    ----------
    A : array of shape (k, n)
        One inequality per row.
    b : array of shape (k,)
        Their right-hand sides.
    C, d : arrays of shape (l, n) and (l,), optional
        Equations.

    Examples
    --------
    >>> from pcfed.sets import Polyhedron
    >>> Polyhedron([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0]).project([3.0, -1.0])
    array([ 1., -1.])
    """

    spec_name = "polyhedron"
    _entries_name = "coefficients"
    A: Float64Array
    b: Float64Array
    C: Float64Array | None = field(default=None, kw_only=True)
    d: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        A, b = checked_system("Polyhedron", "A", self.A, "b", self.b)
        self._set_fields(A=A, b=b)
        if (self.C is None) != (self.d is None):
            raise ValueError(
                "Polyhedron: C and d must be given together, got one of them; give both or none."
            )
        if self.C is not None and self.d is not None:
            C, d = checked_system("Polyhedron", "C", self.C, "d", self.d)
            if C.shape[1] != A.shape[1]:
                raise ValueError(
                    f"Polyhedron: C must have {A.shape[1]} columns, as A has, got {C.shape[1]}; "
                    "give both the same number."
                )
            self._set_fields(C=C, d=d)

    @property
    def n(self) -> int:
        """Number of columns of A."""
        return int(self.A.shape[1])

    @cached_property
    def _plane(self) -> Affine | None:
        """Return the affine set of the equations."""
        return None if self.C is None or self.d is None else Affine(self.C, self.d)

    @cached_property
    def _rows(self) -> tuple[Float64Array, Float64Array]:
        """Return A and b with rows of length 1."""
        return unit_rows(self.A, self.b)

    @cached_property
    def _reduced(self) -> tuple[Float64Array, Float64Array, Float64Array | None]:
        """Return rows G of length 1, lengths g and a basis Q with A = g · G Qᵀ within the plane."""
        A, _ = self._rows
        if self._plane is not None:
            V = self._plane._basis[0]
            A = A - (A @ V) @ V.T
            A = A - (A @ V) @ V.T  # once leaves errors of cancellation; "twice is enough" (Kahan)
        lengths = np.linalg.norm(A, axis=1)
        # Rows that are parallel to the plane are rounding errors now: constant on the plane.
        constant = lengths <= 64.0 * EPS * math.sqrt(A.shape[1])
        G = A / np.where(constant, 1.0, lengths)[:, None]
        G[constant] = 0.0
        lengths = np.where(constant, 0.0, lengths)
        if G.shape[0] >= G.shape[1]:
            return G, lengths, None
        # p − x is in the span of the rows: with few of them, the problem has few variables.
        Q, R = np.linalg.qr(G.T)
        return np.ascontiguousarray(R.T), lengths, Q

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        A, b = self._rows
        allowed = tolerance(np.zeros_like(x), eps, 1.0) * np.maximum(np.abs(b), max(floor, norm(x)))
        in_plane = self._plane is None or self._plane._contains(x, eps, floor)
        return in_plane and bool(np.all(A @ x - b <= allowed))

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        p, contained = repeat_until_contained(self._nearest, x, self._contains)
        if not contained:
            raise ProjectionError(
                f"Polyhedron: the projection misses the set by {np.max(self.A @ p - self.b):.3g}; "
                "its rows are too close to dependent for floating-point arithmetic, so rescale or "
                "drop rows."
            )
        return p

    def _nearest(self, x: Float64Array) -> Float64Array:
        """Return the nearest point, up to rounding errors relative to x."""
        if not np.isfinite(x).all():
            raise ProjectionError("Polyhedron: the point to project contains NaN or inf.")
        if self._plane is not None:
            x = np.asarray(self._plane._project(x, None), dtype=np.float64)
        A, b = self._rows
        G, lengths, Q = self._reduced
        slack = b - A @ x
        constant = lengths == 0.0
        allowed = tolerance(x, EPS, 0.0) + tolerance(np.zeros_like(x), EPS, 1.0) * np.abs(b)
        if np.any(slack[constant] < -allowed[constant]):
            raise self._empty()
        h = slack[~constant] / lengths[~constant]
        if not np.any(h < 0.0):
            return x
        try:
            u = _shortest_vector(G[~constant], h)
            if u is None:
                # quadprog finds a contradiction in rows that meet in one point only up to rounding.
                # Relaxed by a part of the tolerance of ``contains``, they meet.
                relaxed = h + 0.25 * allowed[~constant] / lengths[~constant]
                u = _shortest_vector(G[~constant], relaxed)
        except (RuntimeError, np.linalg.LinAlgError):
            raise ProjectionError(
                "Polyhedron: the quadratic program did not converge; rescale or drop rows."
            ) from None
        if u is None:
            raise self._empty()
        return x + (u if Q is None else Q @ u)

    def _empty(self) -> ProjectionError:
        """Return the error that explains a failed projection: the set is empty, or nearly so."""
        A, b, C, d = self._linear_constraints(self.n)
        size = _largest(b, d)
        # The least t ≥ 0 with A s ≤ b + t, C s = d is 0 unless the set is empty.
        result: OptimizeResult = linprog(
            np.append(np.zeros(self.n), 1.0),
            np.hstack((A, -np.ones((b.size, 1)))),
            b / size,
            np.hstack((C, np.zeros((d.size, 1)))),
            d / size,
            [*[(None, None)] * self.n, (0.0, None)],
        )
        if result.status == 0 and result.x[-1] < 1e-9:
            return ProjectionError(
                "Polyhedron: its rows are too close to dependent for floating-point arithmetic; "
                "rescale or drop rows."
            )
        return EmptySetError(
            f"Polyhedron: the set is empty, no point satisfies its {b.size} inequalities"
            f"{' and its equations' if d.size else ''}; relax the right-hand sides."
        )

    def _solve_linear_program(self, q: Float64Array) -> tuple[Float64Array, float]:
        """Return a minimizer of ⟨q, s⟩ and a lower bound of the minimum.

        The solver is accurate to 1e-7 only. So the minimizer is recomputed from its active rows,
        and the bound from its multipliers by weak duality: ⟨q, s⟩ ≥ ⟨z, d⟩ − ⟨y, b⟩ for every s in
        the set if q + Aᵀy = Cᵀz, whatever the errors of y ≥ 0 and z are.
        """
        A, b, C, d = self._linear_constraints(self.n)
        size = _largest(b, d)
        length = norm(q) or 1.0
        result: OptimizeResult = linprog(q / length, A, b / size, C, d / size, (None, None))
        if result.status in (2, 3, 4) or result.x is None:
            self._project(np.zeros_like(q), None)  # raises if the set is empty
            raise UnboundedError(
                "Polyhedron: this linear function is unbounded over it; add rows that bound it, or "
                "intersect it with a bounded set."
            )
        s = self._refined_vertex(result.x * size, size)
        y = np.maximum(-result.ineqlin.marginals, 0.0) * length
        z = np.asarray(result.eqlin.marginals) * length
        used = y > 1e-9 * length
        refined = np.linalg.lstsq(np.vstack((-A[used], C)).T, q, rcond=None)[0]
        k = int(np.count_nonzero(used))
        if np.all(refined[:k] >= 0.0):
            y, z = np.zeros_like(y), refined[k:]
            y[used] = refined[:k]
        # What q + Aᵀy − Cᵀz misses costs at most its length times that of a minimizer, of which
        # twice that of s and the size of the set is an estimate.
        missing = norm(q + y @ A - z @ C)
        doubt = 64.0 * EPS * (float(y @ np.abs(b)) + float(np.abs(z) @ np.abs(d)))
        value = float(z @ d) - float(y @ b)
        bound = min(float(q @ s), value) - doubt - 2.0 * missing * (norm(s) + size)
        return s, bound

    def _refined_vertex(self, s: Float64Array, size: float) -> Float64Array:
        """Return a solution of the linear program with the accuracy of a projection."""
        A, b, C, d = self._linear_constraints(self.n)
        active = A @ s - b > -1e-6 * size
        rows, sides = np.vstack((A[active], C)), np.concatenate((b[active], d))
        s = s + np.linalg.lstsq(rows, sides - rows @ s, rcond=None)[0]
        return np.asarray(self._project(s, None), dtype=np.float64)

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        return self._solve_linear_program(q)[0]

    def _support_bound(self, q: Float64Array) -> float:
        return -self._solve_linear_program(-q)[1]

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        # y = Aᵀ λ + Cᵀ μ with λ ≥ 0 on the rows that are active at p; then h(y) ≤ ⟨λ, b⟩ + ⟨μ, d⟩.
        A, b, C, d = self._linear_constraints(self.n)
        active = b - A @ p <= 1e-7 * np.maximum(np.abs(b), norm(p))
        rows, sides = np.vstack((A[active], C, -C)), np.concatenate((b[active], d, -d))
        if not sides.size or not y.any():
            return np.zeros_like(y), 0.0
        multipliers = nnls(rows.T, y)[0]
        return multipliers @ rows, float(multipliers @ sides)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        sizes = np.maximum(np.abs(self.b), np.linalg.norm(self.A, axis=1) * norm(x))
        rows = self.A.any(axis=1)
        active = (self.b - self.A @ x <= ACTIVE * sizes) & rows
        found, total = int(np.count_nonzero(active)), int(np.count_nonzero(rows))
        text = f"{found} of {total} rows active"
        if v is None or not found:
            none = None if v is None else 0.0
            return Usage(text, found > 0, found / total, none, "the limit")
        # v = Aᵀ λ + Cᵀ μ with λ ≥ 0 on the active rows, and μ of any sign.
        C = self.A[:0] if self.C is None else self.C
        rates = nnls(np.vstack((self.A[active], C, -C)).T, v)[0][:found]
        row = int(np.argmax(rates))
        budget = f"the limit of row {int(np.flatnonzero(active)[row]) + 1}"
        return Usage(text, True, found / total, float(rates[row]), budget)

    def _linear_constraints(self, n: int) -> LinearConstraints:
        A, b = self._rows
        C, d = (A[:0], b[:0]) if self._plane is None else unit_rows(self._plane.A, self._plane.b)
        return LinearConstraints(A, b, C, d)

    def _scale_entries(self, f: Float64Array) -> Polyhedron:
        C = None if self.C is None else self.C / f
        return Polyhedron(self.A / f, self.b, C=C, d=self.d)


def _largest(b: Float64Array, d: Float64Array) -> float:
    """Return the size of the right-hand sides, or 1 if all are zero."""
    return float(max(np.abs(b).max(initial=0.0), np.abs(d).max(initial=0.0))) or 1.0


# -- min ‖u‖ subject to G u ≤ h -------------------------------------------------------------------
#
# This is the projection onto a polyhedron after a translation. quadprog solves it by the dual
# active-set method of Goldfarb and Idnani (Math. Program. 27, 1983).
#
# Why quadprog (benchmarks/qp_solvers.py; errors relative to the length of u, times relative to
# quadprog): its violations stay below 3e-16 and its errors below 5e-14 on random, repeated and far
# rows and on cubes. daqp is as exact, fails nowhere and takes 0.1 to 1.2 of the time. osqp (errors
# to 1e-8, 3 to 460 times as long), clarabel (errors to 3e-10, 10 of 10 far problems failed) and
# proxsuite (errors to 1e-4, and no end on repeated rows at a tolerance of 1e-12) are not exact
# enough.


def _shortest_vector(G: Float64Array, h: Float64Array) -> Float64Array | None:
    """Return the shortest u with G u ≤ h, or None if there seems to be none.

    Rows of G have length 1. A row enters the problem only when u violates it, so that rows that are
    far away neither take time nor spoil the scaling.
    """
    working = h < 0.0
    if not working.any():
        return np.zeros(G.shape[1])
    while True:  # ends because rows are only added
        u = _solve_quadratic_program(G[working], h[working])
        if u is None:
            return None
        allowed = 4.0 * EPS * (np.abs(h) + float(np.linalg.norm(u)))
        violated = (G @ u - h > allowed) & ~working
        if not violated.any():
            return u
        working |= violated


def _solve_quadratic_program(G: Float64Array, h: Float64Array) -> Float64Array | None:
    """Solve with all rows; None if quadprog finds that they contradict each other."""
    scale, n = float(-h.min()), G.shape[1]
    try:
        solution = quadprog.solve_qp(np.eye(n), np.zeros(n), -G.T, -h / scale, 0, True)
    except ValueError:
        return None
    u = np.asarray(solution[0]) * scale
    # Least squares on the active rows removes the rounding errors that the updates accumulated.
    active = np.asarray(solution[4]) > 0.0
    polished = np.linalg.lstsq(G[active], h[active], rcond=None)[0]
    better = float(np.max(G @ polished - h)) <= max(0.0, float(np.max(G @ u - h)))
    return np.asarray(polished if better else u)
