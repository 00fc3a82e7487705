"""Boxes, which bound every entry separately, and the whole space."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.sets.base import ConvexSet, LinearConstraints, UnboundedError, WarmStart
from pcfed.sets.rounding import tolerance
from pcfed.sets.usage import ACTIVE, Usage

Bound = float | Float64Array


@dataclass(frozen=True, eq=False, repr=False)
class WholeSpace(ConvexSet):
    r"""The whole space $\mathbb{R}^n$: no constraint.

    Examples
    --------
    >>> from pcfed.sets import WholeSpace
    >>> WholeSpace().project([3.0, -1.0])
    array([ 3., -1.])
    """

    spec_name = "whole_space"

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        return x

    def _project_rows(self, x: Array, warm_start: WarmStart | None) -> Array:
        return x

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        if q.any():
            raise UnboundedError(
                "WholeSpace: a linear function that is not 0 is unbounded over the whole space; "
                "use a bounded set such as L2Ball."
            )
        return np.zeros_like(q)

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        return np.zeros_like(y), 0.0

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        return Usage("no limit", False, None, None if v is None else 0.0)

    def _scale_entries(self, f: Float64Array) -> WholeSpace:
        return self


def clip(x: Array, lower: Bound, upper: Bound) -> Array:
    """Return x with entries within bounds, in the dtype of x; −0.0 keeps its sign bit."""
    p: Array = np.clip(x, lower, upper).astype(x.dtype, copy=False)
    return np.where(p == x, x, p)


@dataclass(frozen=True, eq=False, repr=False)
class Bounds(ConvexSet):
    """A product of intervals; the base class of ``Box`` and ``NonNegative``."""

    @property
    def _bounds(self) -> tuple[Bound, Bound]:
        """Return the lower and the upper bounds."""
        return 0.0, math.inf

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        p = self._project_rows(x, warm_start)
        return x if np.array_equal(p, x) else p

    def _project_rows(self, x: Array, warm_start: WarmStart | None) -> Array:
        return clip(x, *self._bounds)

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        # Each entry has a tolerance of its own: a bound of 1e8 must not loosen one of 1e-8.
        bounds = np.abs(np.broadcast_arrays(x, *self._bounds)[1:])
        scales = np.where(np.isfinite(bounds), bounds, 0.0).max(axis=0)
        allowed = tolerance(x, eps, floor)
        unit = tolerance(np.zeros_like(x), eps, 1.0)
        outside = np.abs(x - self._project_rows(x, None))
        return bool((outside <= np.maximum(allowed, unit * scales)).all())

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        lower, upper = self._bounds
        s = np.where(q > 0, lower, np.where(q < 0, upper, np.clip(0.0, lower, upper)))
        infinite = np.flatnonzero(~np.isfinite(s))
        if infinite.size:
            raise UnboundedError(
                f"{self._name}: a linear function is unbounded over it because entry {infinite[0]} "
                "is unbounded; give that entry finite bounds."
            )
        return s

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        lower, upper = self._bounds
        part = np.where(np.isinf(np.where(y > 0, upper, lower)), 0.0, y)
        return part, self._support_bound(part)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        lower, upper = (np.broadcast_to(bound, x.shape) for bound in self._bounds)
        sizes = (np.where(np.isfinite(bound), np.abs(bound), 0.0) for bound in (lower, upper))
        largest = np.abs(x).max()
        below, above = (ACTIVE * np.maximum(largest, size) for size in sizes)
        at_lower, at_upper = x - lower <= below, upper - x <= above
        num_active = int(np.count_nonzero(at_lower | at_upper))
        multiplier, entry = None, None
        if v is not None:
            rates = np.maximum(np.where(at_upper, v, 0.0), np.where(at_lower, -v, 0.0))
            entry = int(np.argmax(rates))
            multiplier = max(0.0, float(rates[entry]))
        return Usage(
            f"{num_active} of {x.size} coefficients at a bound",
            num_active > 0,
            num_active / x.size,
            multiplier,
            "the bound",
            entry if multiplier else None,
        )

    def _linear_constraints(self, n: int) -> LinearConstraints:
        return box_constraints(*(np.broadcast_to(b, n) for b in self._bounds))


@dataclass(frozen=True, eq=False, repr=False)
class NonNegative(Bounds):
    r"""The vectors without negative entries, $\{x : x \ge 0\}$.

    Examples
    --------
    >>> from pcfed.sets import NonNegative
    >>> NonNegative().project([3.0, -1.0])
    array([3., 0.])
    """

    spec_name = "nonnegative"

    def _scale_entries(self, f: Float64Array) -> NonNegative:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Box(Bounds):
    r"""The box $\{x : \text{lower} \le x \le \text{upper}\}$.

    Parameters
    ----------
    lower, upper : float or array of shape (n,)
        One bound for all entries, or one for each; −inf and inf mean no bound.

    Examples
    --------
    >>> from pcfed.sets import Box
    >>> Box(-1.0, [1.0, float("inf")]).project([3.0, 7.0])
    array([1., 7.])
    """

    spec_name = "box"
    lower: Bound
    upper: Bound

    def __post_init__(self) -> None:
        lower = _checked_bound("Box: lower", self.lower)
        upper = _checked_bound("Box: upper", self.upper)
        sizes = {np.size(b) for b in (lower, upper) if isinstance(b, np.ndarray)}
        if len(sizes) > 1:
            raise ValueError(
                f"Box: lower and upper must have the same length, got {np.size(lower)} "
                f"and {np.size(upper)}; give both the same number of entries, or a number."
            )
        crossed = np.atleast_1d(
            ~((lower <= np.asarray(upper)) & (lower < math.inf) & (upper > -math.inf))
        )
        if crossed.any():
            j = int(np.argmax(crossed))
            low, high = (np.broadcast_to(b, crossed.shape)[j] for b in (lower, upper))
            raise ValueError(
                f"Box: lower must be ≤ upper, got {low} > {high} at index {j}; "
                "swap them, and use -inf below and inf above for no bound."
                if low > high
                else "Box: each entry needs a finite point between its bounds, got "
                f"{low} and {high} at index {j}; use -inf below and inf above for no bound."
            )
        self._set_fields(lower=lower, upper=upper)

    @property
    def _bounds(self) -> tuple[Bound, Bound]:
        return self.lower, self.upper

    @property
    def n(self) -> int | None:
        """Number of entries of the bounds, if they are arrays."""
        return next((b.size for b in self._bounds if isinstance(b, np.ndarray)), None)

    def _scale_entries(self, f: Float64Array) -> Box:
        return Box(f * self.lower, f * self.upper)


def box_constraints(lower: Float64Array, upper: Float64Array) -> LinearConstraints:
    """Return lower ≤ x ≤ upper as linear constraints, without the infinite bounds."""
    eye = np.eye(lower.size)
    low, high = np.isfinite(lower), np.isfinite(upper)
    A, b = np.vstack((eye[high], -eye[low])), np.concatenate((upper[high], -lower[low]))
    return LinearConstraints(A, b, eye[:0], b[:0])


def _checked_bound(where: str, value: ArrayLike) -> Bound:
    """Return a bound as a float or a read-only float64 array; inf is allowed, NaN is not."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.array(math.nan)
    if array.ndim > 1 or array.size == 0 or np.isnan(array).any():
        raise ValueError(
            f"{where} must be a number or a non-empty vector of numbers, got {value!r}; "
            "give one such as 0.0, -inf or inf."
        )
    array.setflags(write=False)
    return array if array.ndim else float(array)
