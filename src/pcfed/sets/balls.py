"""Balls of the l1, l2, l∞ and group norms, weighted and with a centre.

Letters: x a point, c the centre, y = x − c, p the projection, τ the radius.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.sets import compiled, threshold
from pcfed.sets.base import LARGEST, ConvexSet, Hint, Linear, eps_of, norm, shifted
from pcfed.sets.boxes import box_rows
from pcfed.sets.compiled import L1_BALL, Target
from pcfed.sets.threshold import shrink, weighted_shrink
from pcfed.validation import frozen, positive

Labels = NDArray[np.intp]


@dataclass(frozen=True, eq=False, repr=False)
class Ball(ConvexSet):
    """A set {x : ‖x − c‖ ≤ τ} for some norm: what its kinds share."""

    @property
    @abstractmethod
    def _ball(self) -> tuple[float, Float64Array | None]:
        """Return the radius and the centre."""

    @abstractmethod
    def _size(self, y: Float64Array) -> float:
        """Return the norm that the ball is of."""

    @abstractmethod
    def _onto(self, y: Float64Array, hint: Hint | None) -> Float64Array:
        """Project y, which is outside, onto the ball around 0."""

    @abstractmethod
    def _extreme(self, q: Float64Array) -> Float64Array:
        """Return a minimizer of ⟨q, s⟩ over the ball around 0."""

    @property
    def n(self) -> int | None:
        """Number of entries of the centre, if there is one."""
        center = self._ball[1]
        return None if center is None else center.size

    def _project(self, x: Array, hint: Hint | None) -> Array:
        center = self._ball[1]
        if center is None:
            return self._project_around_zero(x, hint)
        return shifted(self._project_around_zero, x, center, self._scale, hint)

    def _project_around_zero(self, x: Array, hint: Hint | None) -> Array:
        radius = self._ball[0]
        y = x.astype(np.float64, copy=False)
        if not self._size(y) > radius:  # NaN stays as it is
            return x
        p: Array = self._onto(y, hint).astype(x.dtype, copy=False)
        less = eps_of(x)
        while self._size(p.astype(np.float64, copy=False)) > radius:  # by rounding; ends at 0
            p = p * (1.0 - less)
            less = min(1.0, 2.0 * less)
        return p

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        center = self._ball[1]
        s = self._extreme(q)
        return s if center is None else s + center

    def _budget(self, x: Float64Array) -> tuple[float, float]:
        radius, center = self._ball
        return self._size(x if center is None else x - center), radius

    @property
    def _scale(self) -> float:
        radius, center = self._ball
        return radius if center is None else max(radius, norm(center))


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

    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)
    weights: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        freeze_ball(self, self.radius, self.center)
        if self.weights is not None:
            w = checked_weights("L1Ball", self.weights)
            same_length("L1Ball", "weights", w, self.center)
            object.__setattr__(self, "weights", w)

    @property
    def _ball(self) -> tuple[float, Float64Array | None]:
        return self.radius, self.center

    @property
    def n(self) -> int | None:
        """Number of entries of the centre or the weights, if there are any."""
        return super().n if self.weights is None else self.weights.size

    @property
    def _threshold(self) -> tuple[Target, float] | None:
        plain = self.center is None and self.weights is None
        return (L1_BALL, self.radius) if plain else None

    def _project_at_once(self, x: Array, out: Array | None, hint: Hint | None) -> Array | None:
        if self.center is None and self.weights is None:
            return compiled.project(x, self.radius, L1_BALL, out, hint)
        return None

    def _project_around_zero(self, x: Array, hint: Hint | None) -> Array:
        if self.weights is None:
            return threshold.project(x, self.radius, L1_BALL, hint)
        return super()._project_around_zero(x, hint)

    def _size(self, y: Float64Array) -> float:
        return float((np.abs(y) if self.weights is None else self.weights * np.abs(y)).sum())

    def _onto(self, y: Float64Array, hint: Hint | None) -> Float64Array:
        w = np.ones_like(y) if self.weights is None else self.weights
        p = weighted_shrink(np.abs(y), w, self.radius)
        return np.copysign(p, y, where=p != 0, out=p)

    def _extreme(self, q: Float64Array) -> Float64Array:
        w = np.ones_like(q) if self.weights is None else self.weights
        j = int(np.argmax(np.abs(q) / w))
        s = np.zeros_like(q)
        s[j] = -np.sign(q[j]) * self.radius / w[j]
        return s


@dataclass(frozen=True, eq=False, repr=False)
class L2Ball(Ball):
    r"""The Euclidean ball $\{x : \|x - c\|_2 \le \tau\}$.

    Parameters
    ----------
    radius : float
        τ ≥ 0.
    center : array of shape (n,), optional
        c; zero if not given.

    Examples
    --------
    >>> from pcfed.sets import L2Ball
    >>> L2Ball(1.0).project([3.0, 4.0])
    array([0.6, 0.8])
    """

    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        freeze_ball(self, self.radius, self.center)

    @property
    def _ball(self) -> tuple[float, Float64Array | None]:
        return self.radius, self.center

    def _size(self, y: Float64Array) -> float:
        return norm(y)

    def _onto(self, y: Float64Array, hint: Hint | None) -> Float64Array:
        return y * (self.radius / norm(y))

    def _extreme(self, q: Float64Array) -> Float64Array:
        length = norm(q)
        return q * (-self.radius / length) if length > 0 else np.zeros_like(q)


@dataclass(frozen=True, eq=False, repr=False)
class LinfBall(Ball):
    r"""The cube $\{x : \max_j |x_j - c_j| \le \tau\}$.

    Parameters
    ----------
    radius : float
        τ ≥ 0.
    center : array of shape (n,), optional
        c; zero if not given.

    Examples
    --------
    >>> from pcfed.sets import LinfBall
    >>> LinfBall(1.0).project([3.0, -0.5])
    array([ 1. , -0.5])
    """

    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        freeze_ball(self, self.radius, self.center)

    @property
    def _ball(self) -> tuple[float, Float64Array | None]:
        return self.radius, self.center

    def _size(self, y: Float64Array) -> float:
        return float(np.abs(y).max())

    def _onto(self, y: Float64Array, hint: Hint | None) -> Float64Array:
        return np.clip(y, -self.radius, self.radius)

    def _extreme(self, q: Float64Array) -> Float64Array:
        return np.sign(q) * -self.radius

    def _linear(self, n: int) -> Linear:
        center = np.zeros(n) if self.center is None else self.center
        return box_rows(center - self.radius, center + self.radius)


@dataclass(frozen=True, eq=False, repr=False)
class GroupL1Ball(Ball):
    r"""The group ball $\{x : \sum_g \|x_g - c_g\|_2 \le \tau\}$: few non-zero groups.

    Parameters
    ----------
    groups : array of int of shape (n,), or list of lists of indices
        The label of every entry, or the indices of every group; each entry is in one group.
    radius : float
        τ ≥ 0.
    center : array of shape (n,), optional
        c; zero if not given.

    Examples
    --------
    >>> from pcfed.sets import GroupL1Ball
    >>> GroupL1Ball([[0, 1], [2]], 5.0).project([6.0, 8.0, 1.0])
    array([3., 4., 0.])
    """

    groups: Labels
    radius: float
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        freeze_ball(self, self.radius, self.center)
        labels = _labels(self.groups)
        same_length("GroupL1Ball", "groups", labels, self.center)
        object.__setattr__(self, "groups", labels)

    @property
    def _ball(self) -> tuple[float, Float64Array | None]:
        return self.radius, self.center

    @property
    def n(self) -> int:
        """Number of entries that have a group."""
        return int(self.groups.size)

    def _norms(self, y: Float64Array) -> Float64Array:
        """Return the length of every group."""
        order, starts = self._sorted
        top = float(np.abs(y).max())
        scale = top if 0.0 < top < 1e-100 else 1.0
        squares = np.square(y[order] / scale)
        return scale * np.sqrt(np.add.reduceat(squares, starts))

    @cached_property
    def _sorted(self) -> tuple[Labels, Labels]:
        """Return an order that puts groups together, and where each begins."""
        order = np.argsort(self.groups, kind="stable")
        return order, np.flatnonzero(np.diff(self.groups[order], prepend=-1))

    def _size(self, y: Float64Array) -> float:
        return float(self._norms(y).sum())

    def _onto(self, y: Float64Array, hint: Hint | None) -> Float64Array:
        g = self._norms(y)
        ratio = np.divide(shrink(g, self.radius, hint), g, out=np.zeros_like(g), where=g > 0)
        return y * ratio[self.groups]

    def _extreme(self, q: Float64Array) -> Float64Array:
        g = self._norms(q)
        j = int(np.argmax(g))
        s = np.where(self.groups == j, q, 0.0)
        return s * (-self.radius / g[j]) if g[j] > 0 else s


def freeze_ball(ball: Ball, radius: float, center: ArrayLike | None) -> None:
    """Check and freeze the fields that all balls have."""
    name = type(ball).__name__
    object.__setattr__(ball, "radius", positive(f"{name}: radius", radius, zero=True))
    if center is not None:
        object.__setattr__(ball, "center", frozen(f"{name}: center", center, ndim=1))


def checked_weights(name: str, weights: ArrayLike) -> Float64Array:
    """Freeze weights, which must be > 0 and in a range in which nothing overflows."""
    w = frozen(f"{name}: weights", weights, ndim=1)
    if not w.min() > 0:
        raise ValueError(
            f"{name}: weights must be > 0, got {w.min()} at index {w.argmin()}; "
            "use Blocks to leave entries free."
        )
    if not (w.min() >= 1.0 / LARGEST and w.max() <= LARGEST):
        raise ValueError(
            f"{name}: weights must be from {1.0 / LARGEST} to {LARGEST}, got "
            f"{w.min()} to {w.max()}; rescale them and the radius."
        )
    return w


def same_length(name: str, what: str, array: NDArray[Any], center: Array | None) -> None:
    """Refuse a centre that does not fit the other data."""
    if center is not None and center.size != array.size:
        raise ValueError(
            f"{name}: center must have {array.size} entries, as {what} has, got {center.size}; "
            "give both the same length."
        )


def _labels(groups: Any) -> Labels:
    """Return the group of every entry, numbered from 0, from labels or lists of indices."""
    rule = (
        "GroupL1Ball: groups must be integer labels, or lists of indices that hold every entry once"
    )
    remedy = "give each of 0..n-1 to exactly one group; use Blocks to leave entries free."
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
        raise ValueError(f"{rule}, got {groups!r}; {remedy}") from None
    labels.setflags(write=False)
    return labels
