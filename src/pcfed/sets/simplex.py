"""The scaled probability simplex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets import compiled, threshold
from pcfed.sets.base import ConvexSet, Hint, Linear
from pcfed.sets.compiled import SIMPLEX, Target
from pcfed.validation import positive


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
        return threshold.project(x, self.total, SIMPLEX, hint)

    @property
    def _threshold(self) -> tuple[Target, float]:
        return SIMPLEX, self.total

    def _project_at_once(self, x: Array, out: Array | None, hint: Hint | None) -> Array | None:
        return compiled.project(x, self.total, SIMPLEX, out, hint)

    @property
    def _scale(self) -> float:
        return self.total

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        s = np.zeros_like(q)
        s[int(np.argmin(q))] = self.total
        return s

    def _linear(self, n: int) -> Linear:
        return Linear(-np.eye(n), np.zeros(n), np.ones((1, n)), np.array([self.total]))
