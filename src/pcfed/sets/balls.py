"""Balls of norms: l1, l2, l∞, weighted l2 (ellipsoids), group norms and the nuclear norm.

Letters: x a point, c the centre, y = x − c, p the projection, τ the radius, w the weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.sets import threshold
from pcfed.sets.base import ConvexSet, LinearConstraints, ProjectionError, WarmStart
from pcfed.sets.boxes import Box, box_constraints
from pcfed.sets.compiled import L1_BALL, ThresholdSet
from pcfed.sets.rounding import MAX_ENTRY, as_float64, eps_of, norm, project_translated
from pcfed.sets.threshold import project_to_simplex, project_to_weighted_simplex
from pcfed.sets.usage import ACTIVE, Usage
from pcfed.validation import count, frozen, positive

Labels = NDArray[np.intp]

MAX_NEWTON_STEPS = 200
"""A limit for the projection onto ellipsoids, which takes five to thirty steps."""


class Ball(ConvexSet):
    """A ball {x : ‖x − c‖ ≤ τ} of some norm; every subclass is a dataclass with these fields."""

    # This class is not a dataclass because the fields of a base class come first in constructors,
    # and that of GroupL1Ball takes the groups before the radius.
    radius: float
    center: Float64Array | None
    _norm_name: ClassVar[str]

    def __post_init__(self) -> None:
        self._set_fields(radius=positive(f"{self._name}: radius", self.radius, zero=True))
        if self.center is not None:
            self._set_fields(center=frozen(f"{self._name}: center", self.center, ndim=1))

    @abstractmethod
    def _norm(self, y: Float64Array) -> float:
        """Return the norm whose ball this is."""

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        """Project y, which is outside, onto the ball around 0, up to rounding errors."""
        raise NotImplementedError

    @abstractmethod
    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        """Return a minimizer of ⟨q, s⟩ over the ball around 0."""

    @property
    def n(self) -> int | None:
        """Number of entries of the centre, if there is one."""
        return None if self.center is None else self.center.size

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        if self.center is None:
            return self._project_centered(x, warm_start)
        return project_translated(
            lambda y: self._project_centered(y, warm_start), x, self.center, self._scale
        )

    def _project_centered(self, x: Array, warm_start: WarmStart | None) -> Array:
        """Project onto the ball around 0."""
        y = as_float64(x)
        if not self._norm(y) > self.radius:  # NaN is returned as it is
            return x
        p: Array = self._project_outside(y, warm_start).astype(x.dtype, copy=False)
        # Rounding may leave p outside by some ε; shrink it until it is inside, at the latest at 0.
        shrinkage = eps_of(x)
        while self._norm(as_float64(p)) > self.radius:
            p = p * (1.0 - shrinkage)
            shrinkage = min(1.0, 2.0 * shrinkage)
        return p

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        s = self._minimize_linear_centered(q)
        return s if self.center is None else s + self.center

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        y = x if self.center is None else x - self.center
        size = self._norm(y)
        active = self.radius - size <= ACTIVE * self.radius
        multiplier = None
        if v is not None and self.radius > 0:
            # In the normal cone, ⟨v, y⟩ is the radius times the dual norm of v, which is λ.
            multiplier = max(0.0, float(v @ y)) / self.radius if active else 0.0
        around = "" if self.center is None else ", from its center"
        return Usage(
            f"uses {size:.4g} of {self.radius:.4g} ({self._norm_label}{around})",
            active,
            min(1.0, size / self.radius) if self.radius > 0 else 1.0,
            multiplier,
            "the radius",
        )

    @property
    def _norm_label(self) -> str:
        """The name of the norm for users."""
        return self._norm_name

    def _scaled_center(self, f: Float64Array) -> Float64Array | None:
        return None if self.center is None else f * self.center

    @property
    def _scale(self) -> float:
        return self.radius if self.center is None else max(self.radius, norm(self.center))


@dataclass(frozen=True, eq=False, repr=False)
class L1Ball(Ball):
    r"""The l1 ball $\{x : \sum_j w_j |x_j - c_j| \le \tau\}$: few non-zero entries.

    Parameters
    ----------
    radius : float
        τ ≥ 0.
    center : array of shape (n,), optional
        c; zero if not given.
    weights : array of shape (n,), optional
        w > 0; one if not given.

    Examples
    --------
    >>> from pcfed.sets import L1Ball
    >>> L1Ball(2.0).project([3.0, -2.0, 0.5])
    array([ 1.5, -0.5,  0. ])
    """

    spec_name = "l1"
    _norm_name = "l1 norm"
    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)
    weights: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None:
            self._set_fields(weights=_checked_weights("L1Ball", self.weights, self.center))

    @property
    def n(self) -> int | None:
        """Number of entries of the centre or the weights, if there are any."""
        return super().n if self.weights is None else self.weights.size

    @property
    def _norm_label(self) -> str:
        return self._norm_name if self.weights is None else f"weighted {self._norm_name}"

    @property
    def _threshold_set(self) -> tuple[ThresholdSet, float] | None:
        plain = self.center is None and self.weights is None
        return (L1_BALL, self.radius) if plain else None

    def _project_centered(self, x: Array, warm_start: WarmStart | None) -> Array:
        if self.weights is None:
            return threshold.project(x, self.radius, L1_BALL, warm_start)
        return super()._project_centered(x, warm_start)

    def _norm(self, y: Float64Array) -> float:
        return float((np.abs(y) if self.weights is None else self.weights * np.abs(y)).sum())

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        w = np.ones_like(y) if self.weights is None else self.weights
        p = project_to_weighted_simplex(np.abs(y), w, self.radius)
        return np.copysign(p, y, where=p != 0, out=p)

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        w = np.ones_like(q) if self.weights is None else self.weights
        j = int(np.argmax(np.abs(q) / w))
        s = np.zeros_like(q)
        s[j] = -np.sign(q[j]) * self.radius / w[j]
        return s

    def _scale_entries(self, f: Float64Array) -> L1Ball:
        weights = 1.0 / f if self.weights is None else self.weights / f
        return L1Ball(self.radius, center=self._scaled_center(f), weights=weights)


@dataclass(frozen=True, eq=False, repr=False)
class L2Ball(Ball):
    r"""The Euclidean ball $\{x : \|x - c\|_2 \le \tau\}$.

    Parameters
    ----------
    radius, center
        As in `L1Ball`.

    Examples
    --------
    >>> from pcfed.sets import L2Ball
    >>> L2Ball(1.0).project([3.0, 4.0])
    array([0.6, 0.8])
    """

    spec_name = "l2"
    _norm_name = "l2 norm"
    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def _norm(self, y: Float64Array) -> float:
        return norm(y)

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        return y * (self.radius / norm(y))

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        return _times(q, -self.radius, norm(q))

    def _scale_entries(self, f: Float64Array) -> Ellipsoid:
        return Ellipsoid(self.radius, 1.0 / f, center=self._scaled_center(f))


@dataclass(frozen=True, eq=False, repr=False)
class Ellipsoid(Ball):
    r"""The ellipsoid $\{x : \sqrt{\sum_j w_j^2 (x_j - c_j)^2} \le \tau\}$.

    The projection is $p_j = y_j / (1 + \lambda w_j^2)$, with the $\lambda$ for which it lies on the
    surface. $1/\sqrt{\sum_j w_j^2 p_j^2}$ is concave in $\lambda$, so Newton's method increases
    monotonically from $\lambda = 0$ to it.

    Parameters
    ----------
    radius, center
        As in `L1Ball`.
    weights : array of shape (n,)
        w > 0; the half axes are τ / w.

    References
    ----------
    A. Conn, N. Gould, P. Toint, "Trust-region methods" (2000), §7.3.

    Examples
    --------
    >>> from pcfed.sets import Ellipsoid
    >>> Ellipsoid(1.0, [1.0, 0.5]).project([0.0, 4.0])
    array([0., 2.])
    """

    spec_name = "ellipsoid"
    _norm_name = "weighted l2 norm"
    radius: float
    weights: Float64Array
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_fields(weights=_checked_weights("Ellipsoid", self.weights, self.center))

    @property
    def n(self) -> int:
        """Number of entries of the weights."""
        return int(self.weights.size)

    def _norm(self, y: Float64Array) -> float:
        return norm(self.weights * y)

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        if self.radius == 0.0:
            return np.zeros_like(y)
        # Weights of at most 1 keep the squares from overflowing; λ is scaled accordingly.
        largest = float(self.weights.max())
        w, tau = self.weights / largest, self.radius / largest
        if tau == 0.0:
            return np.zeros_like(y)
        squares, multiplier = w * w, 0.0
        # Newton's method for 1/‖v‖ = 1/τ, which is much closer to linear in λ than ‖v‖ = τ.
        for _ in range(MAX_NEWTON_STEPS):
            v = w * y / (1.0 + multiplier * squares)
            size = norm(v)
            unit = v / size
            slope = float((squares * unit * unit / (1.0 + multiplier * squares)).sum())
            if not slope > 0.0:  # NaN, or entries that underflow
                break
            following = multiplier + (size / tau - 1.0) / slope
            if not following > multiplier * (1.0 + 1e-16):
                break
            multiplier = following
        return np.asarray(y / (1.0 + multiplier * squares))

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        v = q / self.weights
        return _times(v / self.weights, -self.radius, norm(v))

    def _scale_entries(self, f: Float64Array) -> Ellipsoid:
        return Ellipsoid(self.radius, self.weights / f, center=self._scaled_center(f))


@dataclass(frozen=True, eq=False, repr=False)
class LinfBall(Ball):
    r"""The cube $\{x : \max_j |x_j - c_j| \le \tau\}$.

    Parameters
    ----------
    radius, center
        As in `L1Ball`.

    Examples
    --------
    >>> from pcfed.sets import LinfBall
    >>> LinfBall(1.0).project([3.0, -0.5])
    array([ 1. , -0.5])
    """

    spec_name = "linf"
    _norm_name = "linf norm"
    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def _norm(self, y: Float64Array) -> float:
        return float(np.abs(y).max())

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        return np.clip(y, -self.radius, self.radius)

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        return np.sign(q) * -self.radius

    def _linear_constraints(self, n: int) -> LinearConstraints:
        center = np.zeros(n) if self.center is None else self.center
        return box_constraints(center - self.radius, center + self.radius)

    def _scale_entries(self, f: Float64Array) -> Box:
        center = np.zeros_like(f) if self.center is None else self.center
        return Box(f * (center - self.radius), f * (center + self.radius))


@dataclass(frozen=True, eq=False, repr=False)
class GroupL1Ball(Ball):
    r"""The group ball $\{x : \sum_g \|x_g - c_g\|_2 \le \tau\}$: few non-zero groups.

    Parameters
    ----------
    groups : array of int of shape (n,), or list of lists of indices
        The label of every entry, or the indices of every group; each entry is in one group.
    radius, center
        As in `L1Ball`.

    Examples
    --------
    >>> from pcfed.sets import GroupL1Ball
    >>> GroupL1Ball([[0, 1], [2]], 5.0).project([6.0, 8.0, 1.0])
    array([3., 4., 0.])
    """

    spec_name = "group_l1"
    _norm_name = "group l1 norm"
    groups: Labels
    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = _group_labels(self.groups)
        _check_same_length("GroupL1Ball", "groups", labels, self.center)
        self._set_fields(groups=labels)

    @property
    def n(self) -> int:
        """Number of entries that have a group."""
        return int(self.groups.size)

    def _norms(self, y: Float64Array) -> Float64Array:
        """Return the Euclidean norm of every group."""
        order, starts = self._sorted
        largest = float(np.abs(y).max())
        scale = largest if 0.0 < largest < 1e-100 else 1.0  # or else the squares underflow
        squares = np.square(y[order] / scale)
        return scale * np.sqrt(np.add.reduceat(squares, starts))

    @cached_property
    def _sorted(self) -> tuple[Labels, Labels]:
        """Return a permutation that sorts entries by group, and where each group begins."""
        order = np.argsort(self.groups, kind="stable")
        return order, np.flatnonzero(np.diff(self.groups[order], prepend=-1))

    def _norm(self, y: Float64Array) -> float:
        return float(self._norms(y).sum())

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        g = self._norms(y)
        ratio = np.divide(
            project_to_simplex(g, self.radius, warm_start), g, out=np.zeros_like(g), where=g > 0
        )
        return y * ratio[self.groups]

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        g = self._norms(q)
        j = int(np.argmax(g))
        s = np.where(self.groups == j, q, 0.0)
        return _times(s, -self.radius, float(g[j]))


@dataclass(frozen=True, eq=False, repr=False)
class NuclearBall(Ball):
    r"""The nuclear-norm ball, flattened: $\{X : \sum_j σ_j(X - c) \le \tau\}$.

    σ are the singular values. A small radius gives matrices of low rank.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns; points are the matrices flattened row by row.
    radius, center
        As in `L1Ball`; the center has rows · columns entries.

    Examples
    --------
    >>> from pcfed.sets import NuclearBall
    >>> NuclearBall((2, 2), 1.0).project([3.0, 0.0, 0.0, 1.0])
    array([1., 0., 0., 0.])
    """

    spec_name = "nuclear"
    _norm_name = "nuclear norm"
    shape: tuple[int, int]
    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.shape, (tuple, list)) or len(self.shape) != 2:
            raise ValueError(
                f"NuclearBall: shape must be two whole numbers, got {self.shape!r}; "
                "give (rows, columns)."
            )
        rows, columns = (count("NuclearBall: shape", k) for k in self.shape)
        self._set_fields(shape=(rows, columns))
        super().__post_init__()
        if self.center is not None and self.center.size != self.n:
            raise ValueError(
                f"NuclearBall: center must have {self.n} entries, {rows} × {columns}, "
                f"got {self.center.size}; flatten the matrix row by row."
            )

    @property
    def n(self) -> int:
        """Number of entries of the flattened matrix."""
        return self.shape[0] * self.shape[1]

    def _project_centered(self, x: Array, warm_start: WarmStart | None) -> Array:
        if not np.isfinite(x).all():
            return np.full_like(x, math.nan)
        U, s, Vt = self._svd(as_float64(x))
        # U and Vᵀ are orthonormal only up to rounding, so the norm of a projected matrix may exceed
        # the radius by this slack. It must count as inside, or projecting it again would move it.
        slack = 8.0 * eps_of(x) * math.sqrt(s.size) * self.radius
        if float(s.sum()) <= self.radius + slack:
            return x
        P = (U * project_to_simplex(s, self.radius, warm_start)) @ Vt
        return P.ravel().astype(x.dtype, copy=False)

    def _svd(self, y: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        try:
            return np.linalg.svd(y.reshape(self.shape), full_matrices=False)
        except np.linalg.LinAlgError:
            raise ProjectionError("NuclearBall: the singular values did not converge.") from None

    def _norm(self, y: Float64Array) -> float:
        return float(self._svd(y)[1].sum())

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        U, _, Vt = self._svd(q)
        return -self.radius * np.outer(U[:, 0], Vt[0]).ravel()


def _times(vector: Float64Array, radius: float, length: float) -> Float64Array:
    """Return the vector times radius / length; zeros if the length is zero."""
    if not length > 0.0:
        return np.zeros_like(vector)
    ratio = radius / length
    return vector * ratio if math.isfinite(ratio) else vector / length * radius


def _checked_weights(name: str, weights: ArrayLike, center: Array | None) -> Float64Array:
    """Freeze weights, which must be > 0 and in a range without overflow, one for each entry."""
    w = frozen(f"{name}: weights", weights, ndim=1)
    if not w.min() > 0:
        raise ValueError(
            f"{name}: weights must be > 0, got {w.min()} at index {w.argmin()}; "
            "use Blocks to leave entries free."
        )
    if not (w.min() >= 1.0 / MAX_ENTRY and w.max() <= MAX_ENTRY):
        raise ValueError(
            f"{name}: weights must be from {1.0 / MAX_ENTRY} to {MAX_ENTRY}, got "
            f"{w.min()} to {w.max()}; rescale them and the radius."
        )
    _check_same_length(name, "weights", w, center)
    return w


def _check_same_length(name: str, what: str, array: NDArray[Any], center: Array | None) -> None:
    """Raise a ValueError if the centre has another length than the other data."""
    if center is not None and center.size != array.size:
        raise ValueError(
            f"{name}: center must have {array.size} entries, as {what} has, got {center.size}; "
            "give both the same length."
        )


def _group_labels(groups: Any) -> Labels:
    """Return the group of every entry, numbered from 0, from labels or lists of indices."""
    try:
        parts = [np.asarray(g) for g in groups]
        if not parts or any(p.dtype.kind not in "iu" for p in parts):
            raise TypeError
        if all(p.ndim == 0 for p in parts):
            labels = np.unique(np.asarray(parts), return_inverse=True)[1].astype(np.intp)
        else:
            members = np.concatenate(parts)
            labels = np.empty(members.size, dtype=np.intp)
            if not np.array_equal(np.sort(members), np.arange(members.size)):
                raise TypeError
            labels[members] = np.repeat(np.arange(len(parts)), [p.size for p in parts])
    except (TypeError, ValueError):
        raise ValueError(
            "GroupL1Ball: groups must be integer labels, or lists of indices that hold every entry "
            f"once, got {groups!r}; give each of 0..n-1 to exactly one group; use Blocks to leave "
            "entries free."
        ) from None
    labels.setflags(write=False)
    return labels
