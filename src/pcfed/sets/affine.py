"""One linear equation or inequality, and systems of equations.

Letters: x a point, p its projection, a the normal vector, V an orthonormal basis of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.base import ConvexSet, Hint, Linear, UnboundedError, norm, settle, tolerance
from pcfed.validation import frozen, real

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False, repr=False)
class _OneRow(ConvexSet):
    """What ``Halfspace`` and ``Hyperplane`` share: one row ⟨a, x⟩ and one number b."""

    a: Float64Array
    b: float

    def __post_init__(self) -> None:
        a = frozen(f"{self._name}: a", self.a, ndim=1)
        if not a.any():
            raise ValueError(
                f"{self._name}: a must not be all zero, got {a}; give a normal vector."
            )
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", real(f"{self._name}: b", self.b))

    @property
    def n(self) -> int:
        """Number of entries of a."""
        return int(self.a.size)

    @cached_property
    def _row(self) -> tuple[Float64Array, float, float]:
        """Return a and b, divided by a power of 2 so that nothing overflows, and ⟨a, a⟩."""
        power = 2.0 ** min(math.frexp(float(np.abs(self.a).max()))[1], 1023)
        a = self.a / power
        return a, self.b / power, float(a @ a)

    @property
    def _scale(self) -> float:
        _, b, square = self._row
        return abs(b) / math.sqrt(square)

    def _excess(self, x: Float64Array) -> float:
        """Return ⟨a, x⟩ − b."""
        a, b, _ = self._row
        return float(a @ x) - b

    def _project(self, x: Array, hint: Hint | None) -> Array:
        def step(x: Array) -> Array:
            y = x.astype(np.float64, copy=False)
            excess = self._excess(y)
            if excess == 0.0:
                return x
            a, _, square = self._row
            return (y - (excess / square) * a).astype(x.dtype, copy=False)

        return settle(step, x, self._scale)

    def _distance(self, x: Float64Array) -> float:
        return abs(self._excess(x)) / math.sqrt(self._row[2])

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        a, b, square = self._row
        along = float(a @ q) / square
        if norm(q - along * a) > tolerance(q, EPS, 0.0) or not self._bounded(along):
            raise UnboundedError(
                f"{self._name}: a linear function is unbounded over it unless q is a multiple of a "
                "that points out of it; intersect it with a bounded set."
            )
        return (b / square) * a

    def _bounded(self, along: float) -> bool:
        """Say whether along · ⟨a, x⟩ has a minimum."""
        return True


@dataclass(frozen=True, eq=False, repr=False)
class Hyperplane(_OneRow):
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

    def _linear(self, n: int) -> Linear:
        a, b, _ = self._row
        return Linear(np.zeros((0, n)), np.zeros(0), a[None], np.array([b]))


@dataclass(frozen=True, eq=False, repr=False)
class Halfspace(_OneRow):
    r"""The halfspace $\{x : \langle a, x\rangle \le b\}$.

    Parameters
    ----------
    a : array of shape (n,)
        Normal vector that points out of the set, not zero.
    b : float
        Right-hand side.

    Examples
    --------
    >>> from pcfed.sets import Halfspace
    >>> Halfspace([1.0, 1.0], 1.0).project([2.0, 1.0])
    array([1., 0.])
    """

    def _excess(self, x: Float64Array) -> float:
        return max(0.0, super()._excess(x))

    def _bounded(self, along: float) -> bool:
        return along <= 0.0

    def _budget(self, x: Float64Array) -> tuple[float, float]:
        return float(self.a @ x), self.b

    def _linear(self, n: int) -> Linear:
        a, b, _ = self._row
        return Linear(a[None], np.array([b]), np.zeros((0, n)), np.zeros(0))


@dataclass(frozen=True, eq=False, repr=False)
class Affine(ConvexSet):
    r"""The affine set $\{x : A x = b\}$; rows may depend on each other.

    Parameters
    ----------
    A : array of shape (k, n)
        One equation a row.
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

    A: Float64Array
    b: Float64Array

    def __post_init__(self) -> None:
        A, b = system("Affine", "A", self.A, "b", self.b)
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "b", b)
        with np.errstate(over="ignore", invalid="ignore"):
            _, origin = self._basis
            A, b = unit_rows(A, b)
            missed = np.abs(A @ origin - b)
            size = np.abs(b) + norm(origin) + norm(b)
        if not np.all(missed <= 64.0 * EPS * math.sqrt(A.size) * size):
            raise ValueError(
                f"Affine: A x = b must have a solution, got equations that miss each other by "
                f"{missed.max():.3g}; correct or drop row {int(missed.argmax())}."
            )

    @property
    def n(self) -> int:
        """Number of columns of A."""
        return int(self.A.shape[1])

    @cached_property
    def _basis(self) -> tuple[Float64Array, Float64Array]:
        """Return an orthonormal basis of the rows, as columns V, and the shortest solution."""
        A, b = unit_rows(self.A, self.b)
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
        r = int(np.count_nonzero(s > EPS * max(A.shape) * s[0]))
        V = np.ascontiguousarray(Vt[:r].T)
        return V, V @ ((U[:, :r].T @ b) / s[:r])

    @property
    def _scale(self) -> float:
        return norm(self._basis[1])

    def _off(self, x: Float64Array) -> Float64Array:
        """Return x minus its projection, in the basis."""
        V, origin = self._basis
        return np.asarray((x - origin) @ V)

    def _project(self, x: Array, hint: Hint | None) -> Array:
        def step(x: Array) -> Array:
            y = x.astype(np.float64, copy=False)
            p: Array = (y - self._basis[0] @ self._off(y)).astype(x.dtype, copy=False)
            return p

        return settle(step, x, self._scale)

    def _distance(self, x: Float64Array) -> float:
        return norm(self._off(x))

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        V, origin = self._basis
        if norm(q - V @ (q @ V)) > tolerance(q, EPS, 0.0):
            raise UnboundedError(
                "Affine: a linear function is unbounded over it unless q is a combination of the "
                "rows of A; intersect it with a bounded set."
            )
        return origin

    def _linear(self, n: int) -> Linear:
        A, b = unit_rows(self.A, self.b)
        return Linear(A[:0], b[:0], A, b)


def system(
    name: str, left: str, A: Float64Array, right: str, b: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Freeze a matrix and its right-hand sides, and refuse rows of zeros that nothing satisfies."""
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
            f"{name}: a row of {left} that is all zero must have {right} that it satisfies, "
            f"got {vector[j]} at row {j}; drop the row."
        )
    return matrix, vector


def unit_rows(A: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Divide rows by their lengths and drop rows of zeros."""
    kept = A.any(axis=1)
    top = np.abs(A[kept]).max(axis=1, initial=0.0)
    rows = A[kept] / top[:, None]
    lengths = np.linalg.norm(rows, axis=1)
    return rows / lengths[:, None], b[kept] / top / lengths
