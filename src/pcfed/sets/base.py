"""The base class of all convex sets X.

Letters: x a point, p its projection, s a point of the set, q a direction, n the number of entries,
ε the machine epsilon of the dtype of the point.

A set must implement ``_project`` for one vector; everything else has a default. ``_project``
returns ``x`` itself when x is inside, so that a point of the set keeps its bits. Sums are computed
in float64 whatever the dtype of x is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.sets import compiled
from pcfed.sets.compiled import ThresholdSet
from pcfed.sets.rounding import MAX_ENTRY, as_float64, eps_of, norm, tolerance
from pcfed.sets.usage import NORMAL_STEP, Usage
from pcfed.validation import floating, instance


class ProjectionError(ArithmeticError):
    """The projection could not be computed, for example because the set is empty."""


class EmptySetError(ProjectionError):
    """The set has no point."""


class UnboundedError(ValueError):
    """The linear function has no minimum over the set."""


class WarmStart:
    """The start values of iterative projections of points that change little between calls.

    Create one for each sequence of points and pass it to every call. A warm start may save time; it
    never changes the result, whatever it holds.

    Examples
    --------
    >>> from pcfed.sets import L1Ball, WarmStart
    >>> warm_start = WarmStart()
    >>> L1Ball(1.0).project([3.0, 1.0], warm_start=warm_start)
    array([1., 0.])
    """

    __slots__ = ("nested", "threshold", "thresholds")

    def __init__(self) -> None:
        self.threshold = math.nan  # of the last projection of a vector
        self.thresholds: Float64Array = np.empty(0)  # of the rows of the last matrix
        self.nested: dict[Hashable, WarmStart] = {}  # of the rows, blocks or members of a set

    @staticmethod
    def of_part(whole: WarmStart | None, key: Hashable) -> WarmStart | None:
        """Return the warm start of one row, block or member; None if there is no warm start."""
        return None if whole is None else whole.nested.setdefault(key, WarmStart())


class LinearConstraints(NamedTuple):
    """Linear inequalities A x ≤ b and equations C x = d."""

    A: Float64Array
    b: Float64Array
    C: Float64Array
    d: Float64Array

    @staticmethod
    def stack(systems: Iterable[LinearConstraints]) -> LinearConstraints:
        """Return several systems of constraints as one."""
        A, b, C, d = zip(*systems, strict=True)
        return LinearConstraints(np.vstack(A), np.concatenate(b), np.vstack(C), np.concatenate(d))


@dataclass(frozen=True, eq=False, repr=False)
class ConvexSet(ABC):
    """A closed convex set X of parameter vectors.

    The ``repr`` of a set is the call that constructs it.

    Attributes
    ----------
    spec_name : str or None
        The name of the set in configuration files (`parse_set`); None if files cannot describe it.
    """

    spec_name: ClassVar[str | None] = None
    _entries_name: ClassVar[str] = "entries"
    """What the numbers of the set that belong to the entries of a point are called."""

    @property
    def n(self) -> int | None:
        """Number of entries that a point must have, or None if any number is allowed."""
        return None

    def check_model_length(self, n: int, part: str = "the model") -> None:
        """Raise a ValueError that names the set if models of n parameters do not fit.

        Parameters
        ----------
        n : int
            Number of parameters that the set is to limit.
        part : str
            Which part of a model has this number, for the message.
        """
        if self.n is not None and n != self.n:
            raise ValueError(
                f"{self._name}: the set has {self.n} {self._entries_name}, but {part} has {n}; "
                f"give a set of {n} {self._entries_name}."
            )

    # -- for users ------------------------------------------------------------------------------

    def project(
        self, x: ArrayLike, *, out: Array | None = None, warm_start: WarmStart | None = None
    ) -> Array:
        r"""Return the nearest point of the set, $\arg\min_{p \in X} \|p - x\|_2$.

        Parameters
        ----------
        x : array of shape (n,) or (rows, n)
            One point, or one point per row. float32 stays float32; other dtypes become float64.
        out : array, optional
            Where to write the result; it may be ``x``, which is unchanged if an error is raised.
        warm_start : WarmStart, optional
            Kept by the caller between calls; saves time and never changes the result.

        Returns
        -------
        array
            A point for which ``contains`` is true. A point of the set keeps its bits.

        Raises
        ------
        ValueError
            If x has the wrong shape, or contains NaN or inf.
        ProjectionError
            If the set is empty, or an iteration did not converge.
        """
        check_arguments(f"{self._name}.project", out, warm_start)
        if type(x) is np.ndarray and (p := self._project_compiled(x, out, warm_start)) is not None:
            return write_result(p, x, out)
        x = self._checked("project: x", x, ndims=(1, 2))
        check_out(f"{self._name}.project", x, out)
        return self.project_unchecked(x, out, warm_start)

    def project_unchecked(
        self, x: Array, out: Array | None = None, warm_start: WarmStart | None = None
    ) -> Array:
        """Project without checking x, which is float32 or float64, and ``out``.

        This is for loops whose data have been checked before; arguments as in ``project``. NaN
        gives NaN or a ``ProjectionError``, never an endless loop.
        """
        p = self._project_compiled(x, out, warm_start)
        if p is None:
            x = np.ascontiguousarray(x)
            project = self._project if x.ndim == 1 else self._project_rows
            with np.errstate(all="ignore"):
                p = project(x, warm_start)
        return write_result(p, x, out)

    def distance(self, x: ArrayLike) -> float:
        r"""Return the Euclidean distance $\min_{p \in X} \|p - x\|_2$ of one point to the set."""
        return self._distance(as_float64(self._checked("distance: x", x)))

    def contains(self, x: ArrayLike) -> bool:
        r"""Return whether the point is in the set, up to rounding errors.

        The tolerance is $64\,ε\sqrt{n}\,\max(\text{scale}, \|x\|)$, where ε is the machine epsilon
        of the dtype of x and the scale is the size of the numbers that define the set.
        """
        x = self._checked("contains: x", x)
        return self._contains(as_float64(x), eps_of(x))

    def minimize_linear(self, q: ArrayLike) -> Array:
        r"""Return a minimizer of a linear function, some $\arg\min_{s \in X} \langle q, s\rangle$.

        Raises
        ------
        UnboundedError
            A ValueError: there is no minimum over this set.
        NotImplementedError
            If this set does not implement it.
        """
        q = self._checked("minimize_linear: q", q)
        return self._minimize_linear(as_float64(q)).astype(q.dtype, copy=False)

    def support_bound(self, q: ArrayLike, *, near: ArrayLike | None = None) -> float:
        r"""Return an upper bound of $\max_{s \in X} \langle q, s\rangle$, or inf if none is known.

        It is the maximum itself if the set implements ``minimize_linear``. ``support_reason``
        explains an infinite bound.

        Parameters
        ----------
        q : array of shape (n,)
            The direction.
        near : array of shape (n,), optional
            A point of the set that is close to a maximizer. It makes the bounds of intersections
            tighter and faster; for other sets it changes nothing.
        """
        try:
            q = as_float64(self._checked("support_bound: q", q))
            if near is None:
                return self._support_bound(q)
            return self._support_bound_near(
                q, as_float64(self._checked("support_bound: near", near))
            )
        except (UnboundedError, NotImplementedError):
            return math.inf

    def support_reason(self, q: ArrayLike) -> str | None:
        """Return a sentence that explains why ``support_bound(q)`` is infinite, or None."""
        try:
            self._support_bound(as_float64(self._checked("support_reason: q", q)))
        except (UnboundedError, NotImplementedError) as reason:
            return str(reason)
        return None

    def usage(self, x: ArrayLike, v: ArrayLike | None = None) -> Usage:
        r"""Return how much of its limit a point of the set uses, and what more of it would gain.

        Parameters
        ----------
        x : array of shape (n,)
            A point of the set.
        v : array of shape (n,), optional
            The negative gradient of an objective at x, for the multiplier. Where x minimizes the
            objective over the set, v is in the normal cone of the set at x.

        Examples
        --------
        >>> from pcfed.sets import L1Ball
        >>> L1Ball(5.0).usage([3.0, -1.8]).text
        'uses 4.8 of 5 (l1 norm)'
        """
        point = as_float64(self._checked("usage: x", x))
        if v is None:
            return self._usage(point, None)
        return self._usage(point, as_float64(self._checked("usage: v", v)))

    @property
    def spec(self) -> str:
        """The set as configuration files write it, such as ``l1(5)``, with numbers of six digits.

        Examples
        --------
        >>> from pcfed.sets import Halfspace, Intersection, L2Ball
        >>> Intersection(Halfspace([1.0, -1.0], 0.0), L2Ball(3.0)).spec
        'intersection(halfspace([1, -1], 0), l2(3))'
        """
        values = ((f, getattr(self, f.name)) for f in fields(self) if f.init)
        given = (
            f"{f.name}={short_literal(value)}" if f.kw_only else short_literal(value)
            for f, value in values
            if value is not f.default
        )
        return self._call_text(given)

    def __repr__(self) -> str:
        values = ((f.name, getattr(self, f.name), f) for f in fields(self) if f.init)
        given = (f"{name}={literal(value)}" for name, value, f in values if value is not f.default)
        return f"{self._name}({', '.join(given)})"

    # -- for subclasses -------------------------------------------------------------------------

    @abstractmethod
    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        """Project one vector without checks; return ``x`` itself if it is inside."""

    def _project_compiled(
        self, x: Array, out: Array | None, warm_start: WarmStart | None
    ) -> Array | None:
        """Project a vector or rows like ``compiled.project``; None if that is not possible."""
        if (known := self._threshold_set) is None:
            return None
        kind, total = known
        return compiled.project(x, total, kind, out, warm_start)

    @property
    def _threshold_set(self) -> tuple[ThresholdSet, float] | None:
        """The kind and total of a set onto which compiled code projects; None for other sets."""
        return None

    def _project_rows(self, x: Array, warm_start: WarmStart | None) -> Array:
        """Project every row."""
        p = np.empty_like(x)
        for i, row in enumerate(x):
            p[i] = self._project(row, WarmStart.of_part(warm_start, i))
        return p

    def _distance(self, x: Float64Array) -> float:
        """Return the distance of one float64 vector."""
        return norm(x - self._project(x, None))

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        """Compare the distance with a tolerance for a scale of at least ``floor``."""
        return self._distance(x) <= tolerance(x, eps, max(floor, self._scale))

    @property
    def _scale(self) -> float:
        """The size of the numbers that define the set; 0 for cones."""
        return 0.0

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        """Return a minimizer of ⟨q, s⟩, or raise."""
        raise NotImplementedError(
            f"{self._name}: minimizing a linear function over it is not implemented, so its "
            "support bound is infinite; intersect it with a set that has one, such as L2Ball."
        )

    def _support_bound(self, q: Float64Array) -> float:
        """Return the support function, or raise with the reason why it is infinite."""
        return float(q @ self._minimize_linear(-q))

    def _support_bound_near(self, q: Float64Array, near: Float64Array) -> float:
        """Return the support function, or raise; ``near`` is a point close to a maximizer."""
        return self._support_bound(q)

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        """Return a vector near y in whose direction the set is bounded, and a bound there.

        y is a normal vector of the set at p up to rounding errors. Sets that are unbounded in some
        directions remove these errors: the support function is infinite for nearly all of them.
        """
        return y, self._support_bound(y)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        """Return the usage of one float64 vector; by default only whether it is at the boundary."""
        # Without a description of the set, the boundary is where a short step along v leaves it.
        if v is not None and (size := norm(v)) > 0:
            length = NORMAL_STEP * (max(self._scale, norm(x)) or 1.0)
            moved = x + (length / size) * v
            if norm(moved - self._project(moved, None)) > 1e-3 * length:
                return Usage("at the boundary of its set", True)
        return Usage("inside its set", False)

    def _call_text(self, arguments: Iterable[str]) -> str:
        """Return the name in files with arguments, if there are any."""
        name, given = self.spec_name or self._name, ", ".join(arguments)
        return f"{name}({given})" if given else name

    def _scale_entries(self, f: Float64Array) -> ConvexSet | None:
        """Return {(f_1 s_1, .., f_n s_n)} for f > 0, or None if no projection onto it is known."""
        return None

    def _parts(self) -> tuple[ConvexSet, ...]:
        """Return sets whose intersection this set is, as far as it is made from intersections."""
        return (self,)

    def _linear_constraints(self, n: int) -> LinearConstraints | None:
        """Return the constraints that describe the set in n entries, or None if it takes many."""
        return None

    def _check_length(self, where: str, n: int) -> None:
        """Raise a ValueError if points of n entries do not fit."""
        if self.n is not None and n != self.n:
            raise ValueError(
                f"{self._name}.{where} must have {self.n} entries, as the set has, got {n}; "
                "give a point of that length."
            )

    def _set_fields(self, **values: Any) -> None:
        """Set fields in the constructor, although the dataclass is frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _checked(self, where: str, x: ArrayLike, ndims: tuple[int, ...] = (1,)) -> Array:
        """Return x as a finite float array of the right shape."""
        array = checked_points(f"{self._name}.{where}", x, ndims)
        self._check_length(where, array.shape[-1])
        return array


def checked_points(where: str, x: ArrayLike, ndims: tuple[int, ...]) -> Array:
    """Return x as a float array whose entries are finite and not too large."""
    array = x if type(x) is np.ndarray and x.dtype in (np.float32, np.float64) else np.empty(0)
    # Usual arrays are checked by two passes that allocate nothing; NaN fails the comparison.
    fine = array.size > 0 and max(-float(array.min()), float(array.max())) <= MAX_ENTRY
    if not fine:
        array = floating(where, x)
    if array.ndim not in ndims or array.size == 0:
        shapes = " or ".join(("(n,)", "(rows, n)")[ndim - 1] for ndim in ndims)
        raise ValueError(
            f"{where} must be a non-empty array of shape {shapes}, "
            f"got shape {array.shape}; reshape it."
        )
    if not fine and (top := float(np.abs(array).max())) > MAX_ENTRY:
        raise ValueError(
            f"{where} must have entries of at most {MAX_ENTRY} in size, got {top}; "
            "rescale the problem."
        )
    return array


def check_arguments(where: str, out: object, warm_start: object) -> None:
    """Raise a ValueError if ``out`` is no array or ``warm_start`` is no `WarmStart`."""
    if out is not None:
        instance(f"{where}: out", out, np.ndarray, "give an array like x, or none")
    if warm_start is not None:
        instance(f"{where}: warm_start", warm_start, WarmStart, "give WarmStart(), or none")


def check_out(where: str, x: Array, out: Array | None) -> None:
    """Raise a ValueError if ``out`` does not have the shape and dtype of x."""
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise ValueError(
            f"{where}: out must have the shape {x.shape} and dtype {x.dtype} of x, "
            f"got {out.shape} and {out.dtype}; give such an array or none."
        )


def write_result(p: Array, x: Array, out: Array | None) -> Array:
    """Write the projection p of x to ``out``; without ``out`` return an array that is not x."""
    if out is None:
        return p.copy() if p is x else p
    if p is not out:
        out[...] = p
    return out


def short_literal(value: Any) -> str:
    """Return a value as configuration files write it, with six digits and eight entries at most."""
    if isinstance(value, np.ndarray):
        return short_literal(value.tolist())
    if isinstance(value, (list, tuple)):
        shown = [short_literal(each) for each in value[:8]]
        return f"[{', '.join(shown)}{', …' if len(value) > 8 else ''}]"
    if isinstance(value, ConvexSet):
        return value.spec
    return f"{value:g}" if isinstance(value, float) else str(value)


def literal(value: Any) -> str:
    """Return a value as Python code that ``parse_set`` can read."""
    if isinstance(value, np.ndarray):
        return f"array({literal(value.tolist())})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)
