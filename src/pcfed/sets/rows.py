"""Projections of many points at once, each onto a set of its own size: one row for each agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import ThresholdSets
from pcfed.sets import compiled, threshold
from pcfed.sets.base import (
    ConvexSet,
    Hint,
    ProjectionError,
    check_out,
    checked_points,
    delivered,
    norm,
    part,
)
from pcfed.sets.compiled import L1_BALL, SIMPLEX, Target
from pcfed.validation import floating


def project_l1_balls(
    x: ArrayLike, radii: ArrayLike, *, out: Array | None = None, hint: Hint | None = None
) -> Array:
    r"""Project every row onto an l1 ball, $\arg\min_p \|p - x_i\|_2$ for $\|p\|_1 \le$ radius i.

    Parameters
    ----------
    x : array of shape (rows, n)
        One point a row. float32 stays float32; all else becomes float64.
    radii : array of shape (rows,)
        ≥ 0, one for each row.
    out : array, optional
        Where to write the result; it may be ``x``.
    hint : Hint, optional
        Kept by the caller between calls; saves time and never changes the result.

    Returns
    -------
    array of shape (rows, n)
        The bits that ``L1Ball(radius).project`` gives for each row.

    Raises
    ------
    ValueError
        If an argument has the wrong shape, NaN or inf in it, or a radius is negative.

    Examples
    --------
    >>> from pcfed.sets import project_l1_balls
    >>> project_l1_balls([[3.0, -2.0, 0.5], [3.0, -2.0, 0.5]], [2.0, 9.0])
    array([[ 1.5, -0.5,  0. ],
           [ 3. , -2. ,  0.5]])
    """
    return _project("project_l1_balls", "radii", x, radii, L1_BALL, out, hint)


def project_simplices(
    x: ArrayLike, totals: ArrayLike, *, out: Array | None = None, hint: Hint | None = None
) -> Array:
    r"""Project every row onto a simplex, $\{p \ge 0, \sum_j p_j =$ total i $\}$.

    Parameters
    ----------
    x : array of shape (rows, n)
        One point a row. float32 stays float32; all else becomes float64.
    totals : array of shape (rows,)
        ≥ 0, one for each row.
    out, hint : optional
        As in ``project_l1_balls``.

    Examples
    --------
    >>> from pcfed.sets import project_simplices
    >>> project_simplices([[1.0, 0.5, -3.0], [1.0, 0.5, -3.0]], [1.0, 4.5])
    array([[0.75, 0.25, 0.  ],
           [2.5 , 2.  , 0.  ]])
    """
    return _project("project_simplices", "totals", x, totals, SIMPLEX, out, hint)


class SetRows:
    """The sets of several agents, each for a row of its own.

    Parameters
    ----------
    sets : sequence of ConvexSet
        One for each row.
    hints : sequence of Hint, optional
        What each set remembers of its row from one call to the next.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.sets import L1Ball
    >>> SetRows([L1Ball(2.0), L1Ball(9.0)]).project(np.array([[3.0, -2.0], [3.0, -2.0]]))
    array([[ 1.5, -0.5],
           [ 3. , -2. ]])
    """

    def __init__(self, sets: Sequence[ConvexSet], hints: Sequence[Hint] | None = None) -> None:
        self.sets = tuple(sets)
        self.hints = tuple(Hint() for _ in sets) if hints is None else tuple(hints)
        kinds = [each._threshold for each in self.sets]
        targets = {kind[0] for kind in kinds if kind is not None}
        self._target: Target | None = None
        if None not in kinds and len(targets) == 1:
            (self._target,) = targets
            self._totals = np.array([kind[1] for kind in kinds if kind is not None])

    def project(self, x: Array, out: Array | None = None) -> Array:
        """Return every row's projection onto its own set, the bits of ``project_unchecked``.

        Parameters
        ----------
        x : array of shape (rows, n)
            float32 or float64.
        out : array, optional
            Where to write the result, of the same shape and dtype; it may be ``x``.
        """
        if self._target is not None and (p := self._project_at_once(x, out)) is not None:
            return delivered(p, x, out)
        p = np.empty_like(x) if out is None else out
        for each, row, place, hint in zip(self.sets, x, p, self.hints, strict=True):
            each.project_unchecked(row, place, hint)
        return p

    def distances(self, x: Float64Array) -> Float64Array:
        """Return every row's distance from its own set, NaN where a row is too wild to project."""
        if self._target is not None and (p := self._project_at_once(x, None)) is not None:
            return np.array([norm(off) for off in x - p])
        return np.array([_distance(*pair) for pair in zip(self.sets, x, strict=True)])

    def threshold_sets(self, dtype: np.dtype[Any]) -> ThresholdSets | None:
        """Return the sets as kernels read them, or None if the kernels do not support them."""
        if self._target is None or not compiled.in_range(self._totals, dtype):
            return None
        slack = self._target.slack * compiled.EPS[dtype]
        return ThresholdSets(self._target.fold, self._totals, slack, self._thresholds())

    def remember(self, thresholds: Float64Array) -> None:
        """Keep every row's threshold, from which the next projection begins."""
        for each, theta in zip(self.hints, thresholds.tolist(), strict=True):
            each.threshold = theta

    def _thresholds(self) -> Float64Array:
        return np.array([each.threshold for each in self.hints])

    def _project_at_once(self, x: Array, out: Array | None) -> Array | None:
        """Project all rows by compiled code, or return None if that can't be done."""
        hint = Hint()
        hint.thresholds = self._thresholds()
        p = compiled.project_rows(x, self._totals, self._target or L1_BALL, out, hint)
        if p is not None:
            self.remember(hint.thresholds)
        return p


def _distance(each: ConvexSet, x: Float64Array) -> float:
    """Return the distance of a point from its set, NaN where it is too wild to project."""
    try:
        return each.distance(x)
    except (ProjectionError, ValueError):
        return float("nan")


def _project(
    name: str,
    what: str,
    x: ArrayLike,
    totals: ArrayLike,
    target: Target,
    out: Array | None,
    hint: Hint | None,
) -> Array:
    """Project every row by compiled code if it can be done, or else one by one."""
    tau = floating(f"{name}: {what}", totals).astype(np.float64, copy=False)
    if type(x) is np.ndarray and x.ndim == 2:
        _check_totals(name, what, tau, x.shape[0])
        p = compiled.project_rows(x, tau, target, out, hint)
        if p is not None:
            return delivered(p, x, out)
    points = checked_points(f"{name}: x", x, (2,))
    _check_totals(name, what, tau, points.shape[0])
    check_out(name, points, out)
    p = np.empty_like(points)
    with np.errstate(all="ignore"):
        for i, row in enumerate(np.ascontiguousarray(points)):
            p[i] = threshold.project(row, float(tau[i]), target, part(hint, i))
    return delivered(p, points, out)


def _check_totals(name: str, what: str, tau: Float64Array, rows: int) -> None:
    """Refuse totals that are negative or not one for each row."""
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
