"""Ellipsoids whose axes are those of the coordinates.

Letters: x a point, c the centre, y = x − c, p the projection, τ the radius, w the weights, λ the
multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets.balls import Ball, checked_weights, freeze_ball, same_length
from pcfed.sets.base import Hint, norm

STEPS = 200
"""Of Newton's method at most; it ends by itself after five to thirty."""


@dataclass(frozen=True, eq=False, repr=False)
class Ellipsoid(Ball):
    r"""The ellipsoid $\{x : \sqrt{\sum_j w_j^2 (x_j - c_j)^2} \le \tau\}$.

    Its projection is $p_j = y_j / (1 + \lambda w_j^2)$, with the $\lambda$ for which it lies on the
    surface: $1/\sqrt{\sum_j w_j^2 p_j^2}$ is concave in $\lambda$, so that Newton's method rises to
    it from $\lambda = 0$.

    Parameters
    ----------
    radius : float
        τ ≥ 0.
    weights : array of shape (n,)
        w > 0; the half axes are τ / w.
    center : array of shape (n,), optional
        c; zero if not given.

    References
    ----------
    A. Conn, N. Gould, P. Toint, "Trust-region methods" (2000), §7.3.

    Examples
    --------
    >>> from pcfed.sets import Ellipsoid
    >>> Ellipsoid(1.0, [1.0, 0.5]).project([0.0, 4.0])
    array([0., 2.])
    """

    radius: float
    weights: Float64Array
    center: Float64Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        freeze_ball(self, self.radius, self.center)
        weights = checked_weights("Ellipsoid", self.weights)
        same_length("Ellipsoid", "weights", weights, self.center)
        object.__setattr__(self, "weights", weights)

    @property
    def _ball(self) -> tuple[float, Float64Array | None]:
        return self.radius, self.center

    @property
    def n(self) -> int:
        """Number of entries of the weights."""
        return int(self.weights.size)

    def _size(self, y: Float64Array) -> float:
        return norm(self.weights * y)

    def _onto(self, y: Float64Array, hint: Hint | None) -> Float64Array:
        if self.radius == 0.0:
            return np.zeros_like(y)
        top = float(self.weights.max())
        w, tau = self.weights / top, self.radius / top
        squares, multiplier = w * w, 0.0
        for _ in range(STEPS):
            v = w * y / (1.0 + multiplier * squares)
            size = norm(v)
            scaled = v / size
            slope = float((squares * scaled * scaled / (1.0 + multiplier * squares)).sum())
            after = multiplier + (size / tau - 1.0) / slope
            if not after > multiplier * (1.0 + 1e-16):
                break
            multiplier = after
        return np.asarray(y / (1.0 + multiplier * squares))

    def _extreme(self, q: Float64Array) -> Float64Array:
        along = q / self.weights
        length = norm(along)
        return along / self.weights * (-self.radius / length) if length > 0 else np.zeros_like(q)
