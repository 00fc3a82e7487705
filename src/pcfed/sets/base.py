"""What every convex set X offers, derived from one kernel.

Letters: x a point, p its projection, s a point of the set, q a direction, n the number of entries,
ε the machine epsilon of the dtype of the point.

A set implements ``_project`` for one vector. It returns ``x`` itself when x is inside, so a point
of the set keeps its bits; sums are formed in float64 whatever the dtype of x is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.validation import floating

LARGEST = 1e150
"""Entries beyond this are refused: their squares would overflow."""


class ProjectionError(ArithmeticError):
    """A projection that could not be computed, for example because the set is empty."""


class UnboundedError(ValueError):
    """A linear function that has no minimum over the set."""


class Hint:
    """What a set remembers between projections of points that move little.

    Create one for each stream of points and pass it on every call. A hint may save time; it never
    changes the result, whatever it holds.

    Examples
    --------
    >>> from pcfed.sets import Hint, L1Ball
    >>> hint = Hint()
    >>> L1Ball(1.0).project([3.0, 1.0], hint=hint)
    array([1., 0.])
    """

    __slots__ = ("parts", "threshold", "thresholds")

    def __init__(self) -> None:
        self.threshold = math.nan
        self.thresholds: Float64Array = np.empty(0)
        self.parts: dict[Hashable, Hint] = {}


def part(hint: Hint | None, key: Hashable) -> Hint | None:
    """Return the hint of one row, block or member."""
    return None if hint is None else hint.parts.setdefault(key, Hint())


class Linear(NamedTuple):
    """The set {A x ≤ b, C x = d} of a set that linear rows describe."""

    A: Float64Array
    b: Float64Array
    C: Float64Array
    d: Float64Array


@dataclass(frozen=True, eq=False, repr=False)
class ConvexSet(ABC):
    """A closed convex set X of parameter vectors.

    Every set prints as the call that makes it. ``n`` is the number of entries of its points where
    its data fix one, and ``None`` otherwise.
    """

    @property
    def n(self) -> int | None:
        """Number of entries that a point must have, or None when any number will do."""
        return None

    # -- for users ------------------------------------------------------------------------------

    def project(self, x: ArrayLike, *, out: Array | None = None, hint: Hint | None = None) -> Array:
        r"""Return the nearest point of the set, $\arg\min_{p \in X} \|p - x\|_2$.

        Parameters
        ----------
        x : array of shape (n,) or (rows, n)
            One point, or one point a row. float32 stays float32; all else becomes float64.
        out : array, optional
            Where to write the result; it may be ``x``, which an error leaves as it is.
        hint : Hint, optional
            Kept by the caller between calls; saves time and never changes the result.

        Returns
        -------
        array
            ``contains`` is true of it. A point of the set comes back with the same bits.

        Raises
        ------
        ValueError
            If x has the wrong shape, or NaN or inf in it.
        ProjectionError
            If the set is empty, or an iteration did not converge.
        """
        if type(x) is np.ndarray and (p := self._project_at_once(x, out, hint)) is not None:
            return delivered(p, x, out)
        x = self._checked("project: x", x, ndims=(1, 2))
        check_out(f"{self._name}.project", x, out)
        return self.project_unchecked(x, out, hint)

    def project_unchecked(
        self, x: Array, out: Array | None = None, hint: Hint | None = None
    ) -> Array:
        """Do as ``project`` without looking at x: for loops that checked their data before.

        Parameters
        ----------
        x : array of shape (n,) or (rows, n)
            float32 or float64. NaN in gives NaN out, or a ``ProjectionError``; it never hangs.
        out : array, optional
            Where to write the result, of the same shape and dtype; it may be ``x``.
        hint : Hint, optional
            As in ``project``.
        """
        p = self._project_at_once(x, out, hint)
        if p is None:
            x = np.ascontiguousarray(x)
            with np.errstate(all="ignore"):
                p = self._project(x, hint) if x.ndim == 1 else self._project_rows(x, hint)
        return delivered(p, x, out)

    def distance(self, x: ArrayLike) -> float:
        r"""Return the Euclidean distance $\min_{p \in X} \|p - x\|_2$ of one point to the set."""
        return self._distance(_wide(self._checked("distance: x", x)))

    def contains(self, x: ArrayLike) -> bool:
        r"""Say whether the point is in the set, up to rounding.

        The tolerance is $64\,ε\sqrt{n}\,\max(\text{scale}, \|x\|)$, where ε belongs to the dtype of
        x and the scale is that of the numbers that define the set.
        """
        x = self._checked("contains: x", x)
        return self._contains(_wide(x), eps_of(x), 0.0)

    def minimize_linear(self, q: ArrayLike) -> Array:
        r"""Return a point of the set where a linear function is least.

        It is some $\arg\min_{s \in X} \langle q, s\rangle$.

        Raises
        ------
        UnboundedError
            A ValueError: there is no minimum over this set.
        NotImplementedError
            If this set does not know how.
        """
        q = self._checked("minimize_linear: q", q)
        return self._minimize_linear(_wide(q)).astype(q.dtype, copy=False)

    def support_bound(self, q: ArrayLike) -> float:
        r"""Return an upper bound of $\max_{s \in X} \langle q, s\rangle$, or inf if none is known.

        It is the maximum itself wherever ``minimize_linear`` is known. ``support_reason`` tells why
        it is infinite.
        """
        try:
            return self._support(_wide(self._checked("support_bound: q", q)))
        except (UnboundedError, NotImplementedError):
            return math.inf

    def support_reason(self, q: ArrayLike) -> str | None:
        """Return why ``support_bound(q)`` is infinite, in a sentence, or None if it is finite."""
        try:
            self._support(_wide(self._checked("support_reason: q", q)))
        except (UnboundedError, NotImplementedError) as reason:
            return str(reason)
        return None

    def budget(self, x: ArrayLike) -> tuple[float, float] | None:
        """Return how much of its budget a point uses, and the budget; None for sets without one.

        That of a ball is its radius, that of a halfspace its b.
        """
        return self._budget(_wide(self._checked("budget: x", x)))

    def __repr__(self) -> str:
        parts = ((f.name, getattr(self, f.name), f) for f in fields(self) if f.init)
        shown = (f"{name}={literal(value)}" for name, value, f in parts if value is not f.default)
        return f"{self._name}({', '.join(shown)})"

    # -- for sets -------------------------------------------------------------------------------

    @abstractmethod
    def _project(self, x: Array, hint: Hint | None) -> Array:
        """Project one vector without checks; return ``x`` itself if it is inside."""

    def _project_at_once(self, x: Array, out: Array | None, hint: Hint | None) -> Array | None:
        """Project a vector or rows with code that checks x on the way and writes to ``out``.

        Return None if there is no such code or it refuses x, which it never changes; return ``x``
        itself if it is inside.
        """
        return None

    @property
    def _threshold(self) -> tuple[Any, float] | None:
        """The target and total of a set that a threshold alone projects onto; else None."""
        return None

    def _project_rows(self, x: Array, hint: Hint | None) -> Array:
        """Project every row."""
        p = np.empty_like(x)
        for i, row in enumerate(x):
            p[i] = self._project(row, part(hint, i))
        return p

    def _distance(self, x: Float64Array) -> float:
        """Return the distance of one float64 vector."""
        return norm(x - self._project(x, None))

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        """Compare the distance with the tolerance; ``floor`` is a scale that x came from."""
        return self._distance(x) <= tolerance(x, eps, max(floor, self._scale))

    @property
    def _scale(self) -> float:
        """The size of the numbers that define the set; 0 for cones."""
        return 0.0

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        """Return a minimizer of ⟨q, s⟩, or raise."""
        raise NotImplementedError(
            f"{self._name}: no way to minimize a linear function over it is known, so its support "
            "bound is infinite; intersect it with a set that has one, such as L2Ball."
        )

    def _support(self, q: Float64Array) -> float:
        """Return the support function, or raise with the reason why it is infinite."""
        return float(q @ self._minimize_linear(-q))

    def _budget(self, x: Float64Array) -> tuple[float, float] | None:
        """Return what a point uses, and of how much."""
        return None

    def _linear(self, n: int) -> Linear | None:
        """Return the rows that describe the set in n entries, or None if no few rows do."""
        return None

    def _check_length(self, where: str, n: int) -> None:
        """Refuse points of the wrong length."""
        if self.n is not None and n != self.n:
            raise ValueError(
                f"{self._name}.{where} must have {self.n} entries, as the set has, got {n}; "
                "give a point of that length."
            )

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _checked(self, where: str, x: ArrayLike, ndims: tuple[int, ...] = (1,)) -> Array:
        """Return x as a finite float array of the right shape."""
        array = checked_points(f"{self._name}.{where}", x, ndims)
        self._check_length(where, array.shape[-1])
        return array


def fullest(budgets: Iterable[tuple[float, float] | None]) -> tuple[float, float] | None:
    """Return the budget of which least is left."""
    known = [each for each in budgets if each is not None]
    return min(known, key=lambda each: each[1] - each[0]) if known else None


# -- numbers --------------------------------------------------------------------------------------


def checked_points(where: str, x: ArrayLike, ndims: tuple[int, ...]) -> Array:
    """Return x as a float array of finite entries that are not too large, or say what is wrong."""
    array = x if type(x) is np.ndarray and x.dtype in (np.float32, np.float64) else np.empty(0)
    fine = array.size > 0 and max(-float(array.min()), float(array.max())) <= LARGEST
    if not fine:
        array = floating(where, x)
    if array.ndim not in ndims or array.size == 0:
        shapes = " or ".join(("(n,)", "(rows, n)")[ndim - 1] for ndim in ndims)
        raise ValueError(
            f"{where} must be a non-empty array of shape {shapes}, "
            f"got shape {array.shape}; reshape it."
        )
    if not fine and (top := float(np.abs(array).max())) > LARGEST:
        raise ValueError(
            f"{where} must have entries of at most {LARGEST} in size, got {top}; "
            "rescale the problem."
        )
    return array


def check_out(where: str, x: Array, out: Array | None) -> None:
    """Refuse an ``out`` that the projection of x does not fit in."""
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise ValueError(
            f"{where}: out must have the shape {x.shape} and dtype {x.dtype} of x, "
            f"got {out.shape} and {out.dtype}; give such an array or none."
        )


def delivered(p: Array, x: Array, out: Array | None) -> Array:
    """Return the projection p of x in ``out``, or else as an array that is not x."""
    if out is None:
        return p.copy() if p is x else p
    if p is not out:
        out[...] = p
    return out


def _wide(x: Array) -> Float64Array:
    return x.astype(np.float64, copy=False)


def eps_of(x: Array) -> float:
    """Return the machine epsilon of the dtype of x."""
    return float(np.finfo(x.dtype).eps)


def norm(x: Array) -> float:
    """Return the Euclidean length, formed in float64 and safe from underflow."""
    wide = _wide(x)
    length = math.sqrt(float(wide @ wide))
    if length < 1e-140 and wide.any():
        top = float(np.abs(wide).max())
        return top * norm(wide / top)
    return length


def tolerance(x: Float64Array, eps: float, scale: float) -> float:
    """Return how far outside a point may be and still count as inside."""
    return 64.0 * eps * math.sqrt(x.size) * max(scale, norm(x))


def settle(step: Callable[[Array], Array], x: Array, scale: float) -> Array:
    """Repeat ``step`` until it moves x by rounding errors only, and return that x.

    For sets that no float may meet exactly, such as hyperplanes: the result is a fixed point, so
    projecting twice gives the same bits, and errors relative to a far x are corrected.
    """
    for _ in range(8):
        p = step(x)
        if p is x or norm(_wide(p) - _wide(x)) <= 8.0 * eps_of(x) * max(scale, norm(x)):
            return x
        x = p
    return x


def shifted(
    project: Callable[[Array, Hint | None], Array],
    x: Array,
    offset: Float64Array,
    scale: float,
    hint: Hint | None,
) -> Array:
    """Project onto a set that was moved by ``offset``: centred balls and ``Translated``."""

    def step(x: Array) -> Array:
        y = _wide(x) - offset
        p = project(y, hint)
        return x if p is y else (p + offset).astype(x.dtype, copy=False)

    return settle(step, x, scale)


def literal(value: Any) -> str:
    """Write a field so that it can be read back."""
    if isinstance(value, np.ndarray):
        return f"array({literal(value.tolist())})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)
