"""The second-order cone and the cone of positive semidefinite matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.base import ConvexSet, ProjectionError, UnboundedError, WarmStart
from pcfed.sets.rounding import EPS, as_float64, eps_of, norm
from pcfed.sets.usage import ACTIVE, Usage
from pcfed.validation import count

MAX_ROUNDING_STEPS = 1000
"""Limit on the steps to the next number that correct rounding errors; one or two are usual."""


@dataclass(frozen=True, eq=False, repr=False)
class SelfDualCone(ConvexSet):
    """A cone that is its own dual: ⟨q, s⟩ ≥ 0 for all s in it exactly when q is in it."""

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        if not self._contains(q, EPS):
            raise UnboundedError(
                f"{self._name}: a linear function is unbounded over it unless q is in the cone "
                "itself; intersect it with a bounded set such as L2Ball."
            )
        return np.zeros_like(q)

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        # Moreau: what the projection removes is in the polar cone, where the support function is 0.
        return y - as_float64(self._project(y, None)), 0.0


@dataclass(frozen=True, eq=False, repr=False)
class SecondOrderCone(SelfDualCone):
    r"""The second-order cone $\{(t, z) : \|z\|_2 \le t\}$; t is the first entry of the point.

    Examples
    --------
    >>> from pcfed.sets import SecondOrderCone
    >>> SecondOrderCone().project([0.0, 3.0, 4.0])
    array([2.5, 1.5, 2. ])
    """

    spec_name = "second_order_cone"

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        t, length = float(x[0]), norm(x[1:])
        text = f"norm {length:.4g} of at most {t:.4g}, its first coefficient"
        # A cone has no budget to enlarge, so that there is no multiplier.
        return Usage(text, t - length <= ACTIVE * t, min(1.0, length / t) if t > 0 else 1.0)

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        y = as_float64(x)
        t, length = float(y[0]), norm(y[1:])
        if not length > t:  # NaN is returned as it is
            return x
        if length <= -t:
            return np.zeros_like(x)
        height = t + 0.5 * (length - t)
        p: Array = (y * (height / length)).astype(x.dtype, copy=False)
        p[0] = height
        for _ in range(MAX_ROUNDING_STEPS):  # rounding may leave p outside by some ε
            if not p[0] < norm(p[1:]):
                break
            p[0] = np.nextafter(p[0], p.dtype.type(math.inf))
        return p


@dataclass(frozen=True, eq=False, repr=False)
class PSDCone(SelfDualCone):
    r"""The positive semidefinite matrices, flattened: $\{X : X = X^\top, X \succeq 0\}$.

    The projection of a matrix that is not symmetric is that of its symmetric part.

    Parameters
    ----------
    size : int
        Number of rows; points have size² entries.

    Examples
    --------
    >>> from pcfed.sets import PSDCone
    >>> PSDCone(2).project([1.0, 0.0, 0.0, -2.0])
    array([1., 0., 0., 0.])
    """

    spec_name = "psd"
    size: int

    def __post_init__(self) -> None:
        self._set_fields(size=count("PSDCone: size", self.size))

    @property
    def n(self) -> int:
        """Number of entries of the flattened matrix."""
        return self.size**2

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        values = np.linalg.eigvalsh(x.reshape(self.size, self.size))
        zeros = int(np.count_nonzero(values <= ACTIVE * max(0.0, float(values[-1]))))
        text = f"{zeros} of {self.size} eigenvalues at 0"
        return Usage(text, zeros > 0, zeros / self.size)

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        X = as_float64(x).reshape(self.size, self.size)
        if not np.isfinite(X).all():
            return np.full_like(x, math.nan)
        S = 0.5 * (X + X.T)
        try:
            values, vectors = np.linalg.eigh(S)
        except np.linalg.LinAlgError:
            raise ProjectionError("PSDCone: the eigenvalues did not converge.") from None
        # A projected matrix has eigenvalues down to −slack by rounding; it must count as inside.
        slack = 8.0 * eps_of(x) * math.sqrt(self.size) * norm(x)
        if values[0] >= -slack and norm((X - S).ravel()) <= slack:
            return x
        P = (vectors * np.maximum(values, 0.0)) @ vectors.T
        p: Array = (0.5 * (P + P.T)).ravel().astype(x.dtype, copy=False)
        return p
