"""Polyhedra: projections are quadratic programs, linear functions are linear programs.

Letters: x a point, p its projection, u = p − x, h the room that x leaves in every row, y ≥ 0 and z
the multipliers of rows and equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.optimize import OptimizeResult, linprog

from pcfed.arrays import Array, Float64Array
from pcfed.sets.affine import EPS, Affine, system, unit_rows
from pcfed.sets.base import (
    ConvexSet,
    Hint,
    Linear,
    ProjectionError,
    UnboundedError,
    norm,
    tolerance,
)
from pcfed.sets.least_distance import least_distance


@dataclass(frozen=True, eq=False, repr=False)
class Polyhedron(ConvexSet):
    r"""The polyhedron $\{x : A x \le b,\; C x = d\}$.

    Parameters
    ----------
    A : array of shape (k, n)
        One inequality a row.
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

    A: Float64Array
    b: Float64Array
    C: Float64Array | None = field(default=None, kw_only=True)
    d: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        A, b = system("Polyhedron", "A", self.A, "b", self.b)
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "b", b)
        if (self.C is None) != (self.d is None):
            raise ValueError(
                "Polyhedron: C and d must be given together, got one of them; give both or none."
            )
        if self.C is not None and self.d is not None:
            C, d = system("Polyhedron", "C", self.C, "d", self.d)
            if C.shape[1] != A.shape[1]:
                raise ValueError(
                    f"Polyhedron: C must have {A.shape[1]} columns, as A has, got {C.shape[1]}; "
                    "give both the same number."
                )
            object.__setattr__(self, "C", C)
            object.__setattr__(self, "d", d)

    @property
    def n(self) -> int:
        """Number of columns of A."""
        return int(self.A.shape[1])

    @cached_property
    def _plane(self) -> Affine | None:
        """Return the set of the equations."""
        if self.C is None or self.d is None:
            return None
        return Affine(self.C, self.d)

    @cached_property
    def _rows(self) -> tuple[Float64Array, Float64Array]:
        """Return A and b with rows of length 1."""
        return unit_rows(self.A, self.b)

    @cached_property
    def _reduced(self) -> tuple[Float64Array, Float64Array, Float64Array | None]:
        """Return G, lengths g and a basis Q with g · G Qᵀ = A within the plane of the equations."""
        A, _ = self._rows
        if self._plane is not None:
            V = self._plane._basis[0]
            A = A - (A @ V) @ V.T
            A = A - (A @ V) @ V.T  # twice is enough
        lengths = np.linalg.norm(A, axis=1)
        flat = lengths <= 64.0 * EPS * math.sqrt(A.shape[1])
        G = A / np.where(flat, 1.0, lengths)[:, None]
        G[flat] = 0.0
        lengths = np.where(flat, 0.0, lengths)
        if G.shape[0] >= G.shape[1]:
            return G, lengths, None
        Q, R = np.linalg.qr(G.T)
        return np.ascontiguousarray(R.T), lengths, Q

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        A, b = self._rows
        allowed = tolerance(np.zeros_like(x), eps, 1.0) * np.maximum(np.abs(b), max(floor, norm(x)))
        in_plane = self._plane is None or self._plane._contains(x, eps, floor)
        return in_plane and bool(np.all(A @ x - b <= allowed))

    def _project(self, x: Array, hint: Hint | None) -> Array:
        y = x.astype(np.float64, copy=False)
        eps = float(np.finfo(x.dtype).eps)
        if self._contains(y, eps / 16.0, 0.0):
            return x
        p = y
        for _ in range(4):  # again from p: errors relative to a far x are corrected
            p = self._nearest(p)
            rounded: Array = p.astype(x.dtype, copy=False)
            if self._contains(rounded.astype(np.float64, copy=False), eps / 4.0, 0.0):
                return rounded
        if self._contains(rounded.astype(np.float64, copy=False), eps, 0.0):
            return rounded
        raise ProjectionError(
            f"Polyhedron: the projection misses the set by {np.max(self.A @ p - self.b):.3g}; its "
            "rows "
            "are too close to dependent for the precision of floats, so rescale or drop rows."
        )

    def _nearest(self, x: Float64Array) -> Float64Array:
        """Return the nearest point, up to rounding errors relative to x."""
        if not np.isfinite(x).all():
            raise ProjectionError("Polyhedron: the point to project has NaN or inf in it.")
        if self._plane is not None:
            x = np.asarray(self._plane._project(x, None), dtype=np.float64)
        A, b = self._rows
        G, lengths, Q = self._reduced
        room = b - A @ x
        flat = lengths == 0.0
        allowed = tolerance(x, EPS, 0.0) + tolerance(np.zeros_like(x), EPS, 1.0) * np.abs(b)
        if np.any(room[flat] < -allowed[flat]):
            raise self._empty()
        h = room[~flat] / lengths[~flat]
        if not np.any(h < 0.0):
            return x
        try:
            u = least_distance(G[~flat], h)
            if u is None:  # rows that meet only up to rounding: use a part of the tolerance
                u = least_distance(G[~flat], h + 0.25 * allowed[~flat] / lengths[~flat])
        except (RuntimeError, np.linalg.LinAlgError):
            raise ProjectionError(
                "Polyhedron: the quadratic program did not converge; rescale or drop rows."
            ) from None
        if u is None:
            raise self._empty()
        return x + (u if Q is None else Q @ u)

    def _empty(self) -> ProjectionError:
        """Explain why there is no projection: no point satisfies all rows, or nearly none."""
        A, b, C, d = self._linear(self.n)
        size = _largest(b, d)
        cost = np.append(np.zeros(self.n), 1.0)  # the least t ≥ 0 with A s ≤ b + t, C s = d
        result: OptimizeResult = linprog(
            cost,
            np.hstack((A, -np.ones((b.size, 1)))),
            b / size,
            np.hstack((C, np.zeros((d.size, 1)))),
            d / size,
            [*[(None, None)] * self.n, (0.0, None)],
        )
        if result.status == 0 and result.x[-1] < 1e-9:
            return ProjectionError(
                "Polyhedron: its rows are too close to dependent for the precision of floats; "
                "rescale or drop rows."
            )
        return ProjectionError(
            f"Polyhedron: the set is empty, no point satisfies its {b.size} inequalities"
            f"{' and its equations' if d.size else ''}; relax the right-hand sides."
        )

    def _program(self, q: Float64Array) -> tuple[Float64Array, float]:
        """Return a minimizer of ⟨q, s⟩ and a lower bound of the minimum, by weak duality."""
        A, b, C, d = self._linear(self.n)
        size = _largest(b, d)
        length = norm(q) or 1.0
        result: OptimizeResult = linprog(q / length, A, b / size, C, d / size, (None, None))
        if result.status in (2, 3, 4) or result.x is None:
            self._project(np.zeros_like(q), None)  # raises if the set is empty
            raise UnboundedError(
                "Polyhedron: this linear function is unbounded over it; add rows that bound it, or "
                "intersect it with a bounded set."
            )
        s = result.x * size
        tight = A @ s - b > -1e-6 * size
        rows, sides = np.vstack((A[tight], C)), np.concatenate((b[tight], d))
        s = s + np.linalg.lstsq(rows, sides - rows @ s, rcond=None)[0]
        s = np.asarray(self._project(s, None), dtype=np.float64)
        y = np.maximum(-result.ineqlin.marginals, 0.0) * length
        z = np.asarray(result.eqlin.marginals) * length
        used = y > 1e-9 * length
        refined = np.linalg.lstsq(np.vstack((-A[used], C)).T, q, rcond=None)[0]
        k = int(np.count_nonzero(used))
        if np.all(refined[:k] >= 0.0):
            y, z = np.zeros_like(y), refined[k:]
            y[used] = refined[:k]
        missing = norm(q + y @ A - z @ C)
        doubt = 64.0 * EPS * (float(y @ np.abs(b)) + float(np.abs(z) @ np.abs(d)))
        value = float(z @ d) - float(y @ b)
        bound = min(float(q @ s), value) - doubt - 2.0 * missing * (norm(s) + size)
        return s, bound

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        return self._program(q)[0]

    def _support(self, q: Float64Array) -> float:
        return -self._program(-q)[1]

    def _linear(self, n: int) -> Linear:
        A, b = self._rows
        C, d = (A[:0], b[:0]) if self._plane is None else unit_rows(self._plane.A, self._plane.b)
        return Linear(A, b, C, d)


def _largest(b: Float64Array, d: Float64Array) -> float:
    """Return the size of the right-hand sides, or 1 if all are zero."""
    return float(max(np.abs(b).max(initial=0.0), np.abs(d).max(initial=0.0))) or 1.0
