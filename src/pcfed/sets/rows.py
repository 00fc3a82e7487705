"""Projections of many points at once, each onto its own set: one row per agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import ThresholdSets
from pcfed.sets import compiled, threshold
from pcfed.sets.base import (
    ConvexSet,
    ProjectionError,
    WarmStart,
    check_arguments,
    check_out,
    checked_points,
    write_result,
)
from pcfed.sets.boxes import Bounds, clip
from pcfed.sets.compiled import L1_BALL, SIMPLEX, ThresholdSet
from pcfed.sets.rounding import norm
from pcfed.validation import floating, instance, type_text


def project_l1_balls(
    x: ArrayLike, radii: ArrayLike, *, out: Array | None = None, warm_start: WarmStart | None = None
) -> Array:
    r"""Project every row onto an l1 ball, $\arg\min_p \|p - x_i\|_2$ for $\|p\|_1 \le$ radius i.

    Parameters
    ----------
    x : array of shape (rows, n)
        One point per row. float32 stays float32; other dtypes become float64.
    radii : array of shape (rows,)
        ≥ 0, one for each row.
    out : array, optional
        Where to write the result; it may be ``x``.
    warm_start : WarmStart, optional
        Kept by the caller between calls; saves time and never changes the result.

    Returns
    -------
    array of shape (rows, n)
        The same bits as ``L1Ball(radius).project`` gives for each row.

    Raises
    ------
    ValueError
        If an argument has the wrong shape or contains NaN or inf, or if a radius is negative.

    Examples
    --------
    >>> from pcfed.sets import project_l1_balls
    >>> project_l1_balls([[3.0, -2.0, 0.5], [3.0, -2.0, 0.5]], [2.0, 9.0])
    array([[ 1.5, -0.5,  0. ],
           [ 3. , -2. ,  0.5]])
    """
    return _project("project_l1_balls", "radii", x, radii, L1_BALL, out, warm_start)


def project_simplices(
    x: ArrayLike,
    totals: ArrayLike,
    *,
    out: Array | None = None,
    warm_start: WarmStart | None = None,
) -> Array:
    r"""Project every row onto a simplex, $\{p \ge 0, \sum_j p_j =$ total i $\}$.

    Parameters
    ----------
    totals : array of shape (rows,)
        ≥ 0, one for each row.
    x, out, warm_start
        As in ``project_l1_balls``.

    Examples
    --------
    >>> from pcfed.sets import project_simplices
    >>> project_simplices([[1.0, 0.5, -3.0], [1.0, 0.5, -3.0]], [1.0, 4.5])
    array([[0.75, 0.25, 0.  ],
           [2.5 , 2.  , 0.  ]])
    """
    return _project("project_simplices", "totals", x, totals, SIMPLEX, out, warm_start)


class SetRows:
    """The sets of several agents, one per row, and the warm starts of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.sets import L1Ball
    >>> SetRows([L1Ball(2.0), L1Ball(9.0)]).project(np.array([[3.0, -2.0], [3.0, -2.0]]))
    array([[ 1.5, -0.5],
           [ 3. , -2. ]])
    """

    def __init__(
        self, sets: Sequence[ConvexSet], warm_starts: Sequence[WarmStart] | None = None
    ) -> None:
        if not isinstance(sets, Iterable):
            raise ValueError(
                f"SetRows: sets must be a list of sets, got {type_text(sets)}; give one per row."
            )
        self.sets = tuple(sets)
        for i, each in enumerate(self.sets):
            instance(f"SetRows: sets[{i}]", each, ConvexSet, "give one such as L1Ball(1.0)")
        self.warm_starts = tuple(warm_starts or (WarmStart() for _ in self.sets))
        threshold_sets = [each._threshold_set for each in self.sets]
        kinds = {each[0] for each in threshold_sets if each is not None}
        self._kind: ThresholdSet | None = None
        if None not in threshold_sets and len(kinds) == 1:
            (self._kind,) = kinds
            self._totals = np.array([each[1] for each in threshold_sets if each is not None])
        self._bounds = _bounds_of_rows(self.sets)

    def project(self, x: Array, out: Array | None = None) -> Array:
        """Project every row onto its own set; the arguments and bits of ``project_unchecked``."""
        if self._kind is not None and (p := self._project_compiled(x, out)) is not None:
            return write_result(p, x, out)
        if self._bounds is not None:
            with np.errstate(all="ignore"):
                return write_result(clip(x, *self._bounds), x, out)
        p = np.empty_like(x) if out is None else out
        rows = zip(self.sets, x, p, self.warm_starts, strict=True)
        for each, row, out_row, warm_start in rows:
            each.project_unchecked(row, out_row, warm_start)
        return p

    def distances(self, x: Float64Array) -> Float64Array:
        """Return the distance of every row from its own set; NaN where it cannot be projected."""
        if self._kind is not None and (p := self._project_compiled(x, None)) is not None:
            return np.array([norm(off) for off in x - p])
        return np.array([_distance(*pair) for pair in zip(self.sets, x, strict=True)])

    def threshold_sets(self, dtype: np.dtype[Any]) -> ThresholdSets | None:
        """Return the sets as kernels read them, or None if the kernels do not support them."""
        if self._kind is None or not compiled.totals_in_range(self._totals, dtype):
            return None
        slack = self._kind.slack * compiled.EPS[dtype]
        return ThresholdSets(self._kind.is_ball, self._totals, slack, self._thresholds())

    def store_thresholds(self, thresholds: Float64Array) -> None:
        """Store the threshold of every row as the start value of its next projection."""
        for each, theta in zip(self.warm_starts, thresholds.tolist(), strict=True):
            each.threshold = theta

    def _thresholds(self) -> Float64Array:
        return np.array([each.threshold for each in self.warm_starts])

    def _project_compiled(self, x: Array, out: Array | None) -> Array | None:
        """Project all rows by compiled code, or return None if the kernels do not support them."""
        warm_start = WarmStart()
        warm_start.thresholds = self._thresholds()
        p = compiled.project_rows(x, self._totals, self._kind or L1_BALL, out, warm_start)
        if p is not None:
            self.store_thresholds(warm_start.thresholds)
        return p


def _bounds_of_rows(sets: Sequence[ConvexSet]) -> tuple[Float64Array, Float64Array] | None:
    """Return the lower and the upper bounds of all rows, or None if not all sets are boxes."""
    boxes = [each for each in sets if isinstance(each, Bounds)]
    if not boxes or len(boxes) < len(sets):
        return None
    width = max(np.size(bound) for box in boxes for bound in box._bounds)
    lower, upper = np.empty((2, len(boxes), width))
    for i, box in enumerate(boxes):
        lower[i], upper[i] = box._bounds
    return lower, upper


def _distance(each: ConvexSet, x: Float64Array) -> float:
    """Return the distance of a point from its set; NaN where it cannot be projected."""
    try:
        return each.distance(x)
    except (ProjectionError, ValueError):
        return float("nan")


def _project(
    name: str,
    what: str,
    x: ArrayLike,
    totals: ArrayLike,
    kind: ThresholdSet,
    out: Array | None,
    warm_start: WarmStart | None,
) -> Array:
    """Project every row by compiled code if possible, otherwise one by one with NumPy."""
    check_arguments(name, out, warm_start)
    tau = floating(f"{name}: {what}", totals).astype(np.float64, copy=False)
    # The compiled code checks x itself, so that usual arrays are read once.
    usual = x if type(x) is np.ndarray and x.ndim == 2 else None
    points = checked_points(f"{name}: x", x, (2,)) if usual is None else usual
    rows = points.shape[0]
    if tau.shape != (rows,):
        raise ValueError(
            f"{name}: {what} must have shape ({rows},), one number for each row of x, got shape "
            f"{tau.shape}; give one for each row."
        )
    if rows and not tau.min() >= 0.0:
        raise ValueError(
            f"{name}: {what} must be ≥ 0, got {tau.min()} at index {tau.argmin()}; "
            "give numbers ≥ 0."
        )
    p = compiled.project_rows(points, tau, kind, out, warm_start)
    if p is None:
        points = checked_points(f"{name}: x", points, (2,))
        check_out(name, points, out)
        p = np.empty_like(points)
        with np.errstate(all="ignore"):
            for i, row in enumerate(np.ascontiguousarray(points)):
                p[i] = threshold.project(row, float(tau[i]), kind, WarmStart.of_part(warm_start, i))
    return write_result(p, points, out)
