"""A set of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.base import ConvexSet, Hint, ProjectionError, eps_of, norm, settle, tolerance

PointMap = Callable[[Float64Array], Array]


class _Given(NamedTuple):
    """The functions of the user."""

    project: PointMap
    contains: Callable[[Float64Array], bool] | None
    minimize_linear: PointMap | None
    support_bound: Callable[[Float64Array], float] | None


@dataclass(frozen=True, eq=False, repr=False, init=False)
class CustomSet(ConvexSet):
    r"""A convex set that a projection of your own defines, $\{x : \text{project}(x) = x\}$.

    Parameters
    ----------
    project : callable
        Takes and returns float64 vectors: the nearest point of the set.
    contains : callable, optional
        Whether a vector is inside; by default, whether ``project`` moves it by rounding errors
        only.
    minimize_linear : callable, optional
        Takes q and returns a minimizer of ⟨q, s⟩ over the set.
    support_bound : callable, optional
        Takes q and returns an upper bound of ⟨q, s⟩ over the set. Certificates need one of the two.
    name : str
        For messages.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.sets import CustomSet
    >>> CustomSet(lambda x: np.full_like(x, x.mean()), name="all equal").project([1.0, 3.0])
    array([2., 2.])
    """

    name: str
    _given: _Given = field(init=False)

    def __init__(
        self,
        project: PointMap,
        *,
        contains: Callable[[Float64Array], bool] | None = None,
        minimize_linear: PointMap | None = None,
        support_bound: Callable[[Float64Array], float] | None = None,
        name: str = "custom",
    ) -> None:
        for what, function in {
            "project": project,
            "contains": contains or project,
            "minimize_linear": minimize_linear or project,
            "support_bound": support_bound or project,
        }.items():
            if not callable(function):
                raise ValueError(
                    f"CustomSet: {what} must be a function of one vector, got {function!r}; "
                    "give a callable."
                )
        object.__setattr__(self, "name", str(name))
        object.__setattr__(
            self, "_given", _Given(project, contains, minimize_linear, support_bound)
        )

    def __repr__(self) -> str:
        shown = getattr(self._given.project, "__name__", "…")
        return f"CustomSet(project={shown}, name={self.name!r})"

    def _call(self, x: Float64Array) -> Float64Array:
        """Call the user's projection and look at what it returns."""
        try:
            p = np.array(self._given.project(x.copy()), dtype=np.float64)
        except Exception as error:
            raise ProjectionError(
                f"CustomSet {self.name!r}: project raised {type(error).__name__}: {error}"
            ) from error
        if p.shape != x.shape:
            raise ProjectionError(
                f"CustomSet {self.name!r}: project must return a vector of shape {x.shape}, "
                f"got {p.shape}; return one number for each entry."
            )
        return p

    def _project(self, x: Array, hint: Hint | None) -> Array:
        def step(x: Array) -> Array:
            return self._call(x.astype(np.float64)).astype(x.dtype, copy=False)

        p = settle(step, x, 0.0)
        if p is not x and not self._contains(p.astype(np.float64), eps_of(x), 0.0):
            raise ProjectionError(
                f"CustomSet {self.name!r}: project must return a point of the set, got one that it "
                "moves again or that contains rejects; correct the function."
            )
        return p

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        if self._given.contains is not None:
            return bool(self._given.contains(x.copy()))
        return norm(self._call(x) - x) <= tolerance(x, eps, floor)

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        if self._given.minimize_linear is None:
            raise NotImplementedError(
                f"CustomSet {self.name!r}: it was made without minimize_linear and support_bound, "
                "so "
                "nothing bounds a linear function over it; give CustomSet one of them."
            )
        return np.array(self._given.minimize_linear(q.copy()), dtype=np.float64)

    def _support(self, q: Float64Array) -> float:
        if self._given.support_bound is None:
            return super()._support(q)
        return float(self._given.support_bound(q.copy()))
