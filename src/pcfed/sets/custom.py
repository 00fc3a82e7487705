"""Sets that are defined by a function of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.errors import short_repr
from pcfed.sets.base import ConvexSet, ProjectionError, WarmStart
from pcfed.sets.rounding import eps_of, norm, repeat_until_settled, tolerance

PointMap = Callable[[Float64Array], Array]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class CustomSet(ConvexSet):
    r"""A convex set that is defined by its projection, $\{x : \text{project}(x) = x\}$.

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
        A name for error messages.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.sets import CustomSet
    >>> CustomSet(lambda x: np.full_like(x, x.mean()), name="all equal").project([1.0, 3.0])
    array([2., 2.])
    """

    name: str
    _functions: dict[str, Callable[[Float64Array], Any]] = field(init=False)

    def __init__(
        self,
        project: PointMap,
        *,
        contains: Callable[[Float64Array], bool] | None = None,
        minimize_linear: PointMap | None = None,
        support_bound: Callable[[Float64Array], float] | None = None,
        name: str = "custom",
    ) -> None:
        optional = {
            "contains": contains,
            "minimize_linear": minimize_linear,
            "support_bound": support_bound,
        }
        functions = {"project": project} | {k: f for k, f in optional.items() if f is not None}
        for what, function in functions.items():
            if isinstance(function, type) or not callable(function):
                raise ValueError(
                    f"CustomSet: {what} must be a function of one vector, got "
                    f"{short_repr(function)}; give a callable."
                )
        self._set_fields(name=str(name), _functions=functions)

    def __repr__(self) -> str:
        function = getattr(self._functions["project"], "__name__", "…")
        return f"CustomSet(project={function}, name={self.name!r})"

    @property
    def spec(self) -> str:
        """The name of the set; files cannot describe it."""
        return self.name

    def _call(self, x: Float64Array) -> Float64Array:
        """Call the user's projection and check the shape of its result."""
        try:
            p = np.array(self._functions["project"](x.copy()), dtype=np.float64)
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

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        def step(x: Array) -> Array:
            return self._call(x.astype(np.float64)).astype(x.dtype, copy=False)

        p = repeat_until_settled(step, x, 0.0)
        if p is not x and not self._contains(p.astype(np.float64), eps_of(x)):
            raise ProjectionError(
                f"CustomSet {self.name!r}: project must return a point of the set, got a point "
                "that it moves again or for which contains is false; correct the function."
            )
        return p

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        if "contains" in self._functions:
            return bool(self._functions["contains"](x.copy()))
        return norm(self._call(x) - x) <= tolerance(x, eps, floor)

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        if "minimize_linear" not in self._functions:
            raise NotImplementedError(
                f"CustomSet {self.name!r}: it has neither minimize_linear nor support_bound, so no "
                "bound of a linear function over it is known; give CustomSet one of them."
            )
        return np.array(self._functions["minimize_linear"](q.copy()), dtype=np.float64)

    def _support_bound(self, q: Float64Array) -> float:
        if "support_bound" not in self._functions:
            return super()._support_bound(q)
        return float(self._functions["support_bound"](q.copy()))
