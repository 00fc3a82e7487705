"""The ball of the nuclear norm, the sum of singular values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.balls import Ball
from pcfed.sets.base import ProjectionError, WarmStart, as_float64, eps_of
from pcfed.sets.threshold import project_to_simplex
from pcfed.validation import count


@dataclass(frozen=True, eq=False, repr=False)
class NuclearBall(Ball):
    r"""The nuclear-norm ball, flattened: $\{X : \sum_j σ_j(X - c) \le \tau\}$.

    σ are the singular values. A small radius gives matrices of low rank.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns; points are the matrices flattened row by row.
    radius : float
        τ ≥ 0.
    center : array of shape (rows · columns,), optional
        c; zero if not given.

    Examples
    --------
    >>> from pcfed.sets import NuclearBall
    >>> NuclearBall((2, 2), 1.0).project([3.0, 0.0, 0.0, 1.0])
    array([1., 0., 0., 0.])
    """

    spec_name = "nuclear"
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
        object.__setattr__(self, "shape", (rows, columns))
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

    def _project_outside(self, y: Float64Array, warm_start: WarmStart | None) -> Float64Array:
        U, s, Vt = self._svd(y)
        return np.asarray(((U * project_to_simplex(s, self.radius, warm_start)) @ Vt).ravel())

    def _minimize_linear_centered(self, q: Float64Array) -> Float64Array:
        U, _, Vt = self._svd(q)
        return -self.radius * np.outer(U[:, 0], Vt[0]).ravel()
