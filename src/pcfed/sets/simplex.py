"""The scaled probability simplex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets import threshold
from pcfed.sets.affine import Hyperplane
from pcfed.sets.base import ConvexSet, LinearConstraints, WarmStart
from pcfed.sets.boxes import NonNegative
from pcfed.sets.compiled import SIMPLEX, ThresholdSet
from pcfed.sets.intersection import Intersection
from pcfed.sets.usage import ACTIVE, Usage
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

    spec_name = "simplex"
    total: float = 1.0

    def __post_init__(self) -> None:
        self._set_fields(total=positive("Simplex: total", self.total, zero=True))

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        return threshold.project(x, self.total, SIMPLEX, warm_start)

    @property
    def _threshold_set(self) -> tuple[ThresholdSet, float]:
        return SIMPLEX, self.total

    @property
    def _scale(self) -> float:
        return self.total

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        s = np.zeros_like(q)
        s[int(np.argmin(q))] = self.total
        return s

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        zeros = int(np.count_nonzero(x <= ACTIVE * self.total))
        multiplier = None
        if v is not None and self.total > 0:
            # In the normal cone, v is λ where x is positive and at most λ elsewhere.
            multiplier = float(v @ x) / self.total
        return Usage(
            f"{zeros} of {x.size} coefficients at 0, with sum {self.total:.4g}",
            True,
            1.0,
            multiplier,
            "the sum",
        )

    def _linear_constraints(self, n: int) -> LinearConstraints:
        return LinearConstraints(-np.eye(n), np.zeros(n), np.ones((1, n)), np.array([self.total]))

    def _scale_entries(self, f: Float64Array) -> Intersection:
        return Intersection(NonNegative(), Hyperplane(1.0 / f, self.total))
