"""The scaled probability simplex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array, positive
from pcfed.sets.base import ConvexSet, Hint, Linear, eps_of
from pcfed.sets.threshold import shrink


@dataclass(frozen=True, eq=False, repr=False)
class Simplex(ConvexSet):
    r"""The simplex $\{x : x \ge 0, \sum_j x_j = \text{total}\}$.

    Parameters
    ----------
    total : float
        The sum of the entries, ≥ 0.

    Examples
    --------
    >>> from pcfed.sets import Simplex
    >>> Simplex(1.0).project([1.0, 0.5, -3.0])
    array([0.75, 0.25, 0.  ])
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", positive("Simplex: total", self.total, zero=True))

    def _project(self, x: Array, hint: Hint | None) -> Array:
        y = x.astype(np.float64, copy=False)
        slack = 8.0 * eps_of(x) * self.total
        if y.min() >= 0.0 and abs(float(y.sum()) - self.total) <= slack:
            return x
        p: Array = shrink(y, self.total, hint).astype(x.dtype, copy=False)
        for _ in range(4):  # until the sum that is tested above is right
            missing = self.total - float(p.sum(dtype=np.float64))
            if not abs(missing) > slack:
                break
            p[int(np.argmax(p))] += missing
        return p

    @property
    def _scale(self) -> float:
        return self.total

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        s = np.zeros_like(q)
        s[int(np.argmin(q))] = self.total
        return s

    def _linear(self, n: int) -> Linear:
        return Linear(-np.eye(n), np.zeros(n), np.ones((1, n)), np.array([self.total]))
