"""Halfspaces, hyperplanes and systems of linear equations.

Letters: x a point, p its projection, a the normal vector, V an orthonormal basis of the row space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.base import ConvexSet, LinearConstraints, UnboundedError, WarmStart
from pcfed.sets.rounding import EPS, as_float64, norm, repeat_until_settled, tolerance
from pcfed.sets.usage import Usage, linear_usage
from pcfed.validation import frozen, real


@dataclass(frozen=True, eq=False, repr=False)
class _OneLinearConstraint(ConvexSet):
    """A normal vector a and a right-hand side b; base class of ``Halfspace`` and ``Hyperplane``."""

    _entries_name = "coefficients"
    a: Float64Array
    b: float

    def __post_init__(self) -> None:
        a = frozen(f"{self._name}: a", self.a, ndim=1)
        if not a.any():
            raise ValueError(
                f"{self._name}: a must not be all zero, got {a}; give a normal vector."
            )
        self._set_fields(a=a, b=real(f"{self._name}: b", self.b))

    @property
    def n(self) -> int:
        """Number of entries of a."""
        return int(self.a.size)

    @cached_property
    def _scaled(self) -> tuple[Float64Array, float, float]:
        """Return a and b, divided by a power of 2 so that nothing overflows, and ⟨a, a⟩."""
        # Dividing by a power of 2 is exact, so it changes no result that does not overflow.
        power = 2.0 ** min(math.frexp(float(np.abs(self.a).max()))[1], 1023)
        a = self.a / power
        return a, self.b / power, float(a @ a)

    @property
    def _scale(self) -> float:
        _, b, square = self._scaled
        return abs(b) / math.sqrt(square)

    def _excess(self, x: Float64Array) -> float:
        """Return ⟨a, x⟩ − b for the scaled a and b; subclasses set it to 0 inside the set."""
        a, b, _ = self._scaled
        return float(a @ x) - b

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        def step(x: Array) -> Array:
            y = as_float64(x)
            excess = self._excess(y)
            if excess == 0.0:
                return x
            a, _, square = self._scaled
            return (y - (excess / square) * a).astype(x.dtype, copy=False)

        return repeat_until_settled(step, x, self._scale)

    def _distance(self, x: Float64Array) -> float:
        return abs(self._excess(x)) / math.sqrt(self._scaled[2])

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        a, b, square = self._scaled
        multiple = float(a @ q) / square
        parallel = norm(q - multiple * a) <= tolerance(q, EPS, 0.0)
        if not parallel or not self._has_minimum(multiple):
            raise UnboundedError(
                f"{self._name}: a linear function is unbounded over it unless q is a multiple of a "
                "that points out of it; intersect it with a bounded set."
            )
        return (b / square) * a

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        a, b, square = self._scaled
        multiple = float(a @ y) / square
        if not self._has_minimum(-multiple):
            multiple = 0.0
        return multiple * a, multiple * b

    def _has_minimum(self, multiple: float) -> bool:
        """Return whether ⟨multiple · a, x⟩ has a minimum over the set."""
        return True

    def _multiplier(self, v: Float64Array | None) -> float | None:
        """Return the λ for which v is nearest to λ a."""
        return None if v is None else float(self.a @ v) / float(self.a @ self.a)

    def _scale_entries(self, f: Float64Array) -> ConvexSet:
        return type(self)(self.a / f, self.b)


@dataclass(frozen=True, eq=False, repr=False)
class Hyperplane(_OneLinearConstraint):
    r"""The hyperplane $\{x : \langle a, x\rangle = b\}$.

    Parameters
    ----------
    a : array of shape (n,)
        Normal vector, not zero.
    b : float
        Right-hand side.

    Examples
    --------
    >>> from pcfed.sets import Hyperplane
    >>> Hyperplane([1.0, 1.0], 1.0).project([2.0, 1.0])
    array([1., 0.])
    """

    spec_name = "hyperplane"

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        text = f"at {self.b:.4g}, as its equation demands"
        return Usage(text, True, 1.0, self._multiplier(v), "the right-hand side")

    def _linear_constraints(self, n: int) -> LinearConstraints:
        a, b, _ = self._scaled
        return LinearConstraints(np.zeros((0, n)), np.zeros(0), a[None], np.array([b]))


@dataclass(frozen=True, eq=False, repr=False)
class Halfspace(_OneLinearConstraint):
    r"""The halfspace $\{x : \langle a, x\rangle \le b\}$.

    Parameters
    ----------
    a, b
        As in `Hyperplane`; a points out of the set.

    Examples
    --------
    >>> from pcfed.sets import Halfspace
    >>> Halfspace([1.0, 1.0], 1.0).project([2.0, 1.0])
    array([1., 0.])
    """

    spec_name = "halfspace"

    def _excess(self, x: Float64Array) -> float:
        return max(0.0, super()._excess(x))

    def _has_minimum(self, multiple: float) -> bool:
        return multiple <= 0.0

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        multiplier = self._multiplier(v)
        if multiplier is not None:
            multiplier = max(0.0, multiplier)
        size = norm(self.a) * norm(x)
        return linear_usage(float(self.a @ x), self.b, size, multiplier, "the limit")

    def _linear_constraints(self, n: int) -> LinearConstraints:
        a, b, _ = self._scaled
        return LinearConstraints(a[None], np.array([b]), np.zeros((0, n)), np.zeros(0))


@dataclass(frozen=True, eq=False, repr=False)
class Affine(ConvexSet):
    r"""The affine set $\{x : A x = b\}$; rows may be linearly dependent.

    Parameters
    ----------
    A : array of shape (k, n)
        One equation per row.
    b : array of shape (k,)
        Right-hand sides.

    Raises
    ------
    ValueError
        If no x satisfies A x = b.

    Examples
    --------
    >>> from pcfed.sets import Affine
    >>> Affine([[1.0, 0.0], [2.0, 0.0]], [3.0, 6.0]).project([7.0, 5.0])
    array([3., 5.])
    """

    spec_name = "affine"
    _entries_name = "coefficients"
    A: Float64Array
    b: Float64Array

    def __post_init__(self) -> None:
        A, b = checked_system("Affine", "A", self.A, "b", self.b)
        self._set_fields(A=A, b=b)
        with np.errstate(over="ignore", invalid="ignore"):
            _, origin = self._basis
            A, b = unit_rows(A, b)
            residual = np.abs(A @ origin - b)
            size = np.abs(b) + norm(origin) + norm(b)
        if not np.all(residual <= 64.0 * EPS * math.sqrt(A.size) * size):
            raise ValueError(
                "Affine: A x = b must have a solution, got contradictory equations with a residual "
                f"of {residual.max():.3g}; correct or drop row {int(residual.argmax())}."
            )

    @property
    def n(self) -> int:
        """Number of columns of A."""
        return int(self.A.shape[1])

    @cached_property
    def _basis(self) -> tuple[Float64Array, Float64Array]:
        """Return an orthonormal basis V of the row space, as columns, and the shortest solution."""
        # Rows of length 1: the numerical rank must not depend on the units of the equations.
        A, b = unit_rows(self.A, self.b)
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
        r = int(np.count_nonzero(s > EPS * max(A.shape) * s[0]))
        V = np.ascontiguousarray(Vt[:r].T)
        return V, V @ ((U[:, :r].T @ b) / s[:r])

    @property
    def _scale(self) -> float:
        return norm(self._basis[1])

    def _displacement(self, x: Float64Array) -> Float64Array:
        """Return x minus its projection, as coefficients of the basis V."""
        V, origin = self._basis
        return np.asarray((x - origin) @ V)

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        def step(x: Array) -> Array:
            y = as_float64(x)
            p: Array = (y - self._basis[0] @ self._displacement(y)).astype(x.dtype, copy=False)
            return p

        return repeat_until_settled(step, x, self._scale)

    def _distance(self, x: Float64Array) -> float:
        return norm(self._displacement(x))

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        V, origin = self._basis
        if norm(q - V @ (q @ V)) > tolerance(q, EPS, 0.0):
            raise UnboundedError(
                "Affine: a linear function is unbounded over it unless q is a combination of the "
                "rows of A; intersect it with a bounded set."
            )
        return origin

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        V, origin = self._basis
        part = V @ (y @ V)
        return part, float(part @ origin)

    def _linear_constraints(self, n: int) -> LinearConstraints:
        A, b = unit_rows(self.A, self.b)
        return LinearConstraints(A[:0], b[:0], A, b)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        k = len(self.b)
        text = f"satisfies its {k} equations" if k > 1 else "satisfies its equation"
        if v is None:
            return Usage(text, True, 1.0)
        rates = np.linalg.lstsq(self.A.T, v, rcond=None)[0]
        row = int(np.argmax(np.abs(rates)))
        budget = f"the right-hand side of equation {row + 1}"
        return Usage(text, True, 1.0, float(rates[row]), budget)

    def _scale_entries(self, f: Float64Array) -> Affine:
        return Affine(self.A / f, self.b)


def checked_system(
    name: str, left: str, A: Float64Array, right: str, b: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Freeze a matrix and its right-hand sides; raise a ValueError for an infeasible zero row."""
    matrix, vector = frozen(f"{name}: {left}", A, ndim=2), frozen(f"{name}: {right}", b, ndim=1)
    if vector.size != matrix.shape[0]:
        raise ValueError(
            f"{name}: {right} must have {matrix.shape[0]} entries, one for each row of {left}, "
            f"got {vector.size}; give one for each."
        )
    zero = ~matrix.any(axis=1)
    if zero.all():
        raise ValueError(
            f"{name}: {left} must not be all zero, got {matrix.shape} zeros; give rows."
        )
    unsatisfied = zero & ((vector < 0) if left == "A" and name == "Polyhedron" else (vector != 0))
    if unsatisfied.any():
        j = int(np.argmax(unsatisfied))
        raise ValueError(
            f"{name}: a row of {left} that is all zero must have a feasible {right}, "
            f"got {vector[j]} at row {j}; drop the row."
        )
    return matrix, vector


def unit_rows(A: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Divide rows by their lengths and drop rows of zeros."""
    kept = A.any(axis=1)
    # Dividing by the largest entry first keeps the squares from overflowing or underflowing.
    largest = np.abs(A[kept]).max(axis=1, initial=0.0)
    rows = A[kept] / largest[:, None]
    lengths = np.linalg.norm(rows, axis=1)
    return rows / lengths[:, None], b[kept] / largest / lengths
