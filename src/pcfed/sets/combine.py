"""Sets made from other sets: one per slice, translated, and scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.errors import did_you_mean
from pcfed.sets.base import ConvexSet, LinearConstraints, UnboundedError, WarmStart
from pcfed.sets.rounding import as_float64, norm, project_translated, repeat_until_settled
from pcfed.sets.usage import Usage, tightest
from pcfed.validation import frozen, real

Slice = tuple[int, int | None]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Blocks(ConvexSet):
    r"""A different set for each slice of the parameters, $\{x : x_{[a:b]} \in X_{ab}\}$.

    Entries in no slice are free, so ``Blocks({(0, -1): L1Ball(1.0)})`` constrains all but the last
    entry.

    Parameters
    ----------
    blocks : mapping from (start, stop) to ConvexSet, or pairs of a slice and a set
        Slices as in Python: a negative number counts from the end, None means the end.

    Examples
    --------
    >>> from pcfed.sets import Blocks, L1Ball, NonNegative
    >>> Blocks({(0, 2): L1Ball(1.0), (3, None): NonNegative()}).project([3.0, 0.0, -5.0, -7.0])
    array([ 1.,  0., -5.,  0.])
    """

    spec_name = "blocks"
    blocks: tuple[tuple[Slice, ConvexSet], ...]

    def __init__(
        self,
        blocks: Mapping[Slice, ConvexSet] | Iterable[tuple[Slice | slice, ConvexSet]],
    ) -> None:
        pairs = blocks.items() if isinstance(blocks, Mapping) else blocks
        try:
            given = tuple((_start_and_stop(where), member) for where, member in pairs)
        except (TypeError, ValueError):
            given = ()
        if not given or not all(isinstance(member, ConvexSet) for _, member in given):
            raise ValueError(
                f"Blocks: blocks must map slices (start, stop) to sets, got {blocks!r}; "
                "give for example {(0, 10): L1Ball(1.0)}."
            )
        self._set_fields(blocks=given)
        # Slices that count from the end are checked once the number of entries is known.
        known = [where for where, _ in given if where[0] >= 0 and (where[1] or -1) >= 0]
        if known:
            self._check_disjoint(sorted(slice(*where).indices(2**62)[:2] for where in known))

    @classmethod
    def for_module(cls, module: Any, sets: Mapping[str, ConvexSet]) -> Self:
        """Return a set per named parameter of a PyTorch module; everything else is free.

        The slices are those of `pcfed.losses.TorchLoss`: trainable parameters, in the order of
        ``module.parameters()``. A set sees the parameter as a flat vector, row-major. There is an
        example in `pcfed.losses.TorchLoss`.

        Parameters
        ----------
        module : torch.nn.Module
            The model.
        sets : mapping from str to ConvexSet
            Names as in ``module.named_parameters()``.

        Raises
        ------
        ValueError
            If there is no such parameter, or its set has another number of entries.
        """
        spans = parameter_slices("Blocks.for_module", module)
        if not isinstance(sets, Mapping) or not sets:
            raise ValueError(
                f"Blocks.for_module: sets must map names of parameters to sets, got {sets!r}; "
                'give for example {"weight": L1Ball(1.0)}.'
            )
        for name, member in sets.items():
            if name not in spans:
                raise ValueError(
                    f"Blocks.for_module: the module has no trainable parameter {name!r}; "
                    f"{did_you_mean(name, spans)}Valid names are {', '.join(spans)}."
                )
            _check_is_set(f"Blocks.for_module: {name}", member)
            start, stop = spans[name]
            if member.n is not None and member.n != stop - start:
                raise ValueError(
                    f"Blocks.for_module: the set of {name!r} must have {stop - start} entries like "
                    f"the parameter, got {member.n}; give a set of its size."
                )
        return cls((spans[name], member) for name, member in sets.items())

    def __repr__(self) -> str:
        return f"Blocks({{{', '.join(f'{where}: {member!r}' for where, member in self.blocks)}}})"

    def _check_disjoint(self, spans: list[tuple[int, int]]) -> None:
        """Raise a ValueError if slices overlap or are empty."""
        end = 0
        for start, stop in spans:
            if start >= stop or start < end:
                fault = "overlaps another" if start < end else "is empty"
                raise ValueError(
                    f"Blocks: slices must be disjoint and not empty, got ({start}, {stop}), which "
                    f"{fault}; intersect sets of one slice with Intersection."
                )
            end = stop

    def _spans(self, n: int) -> list[tuple[slice, ConvexSet]]:
        """Return the slice of n entries and the set of every block."""
        spans = [(slice(*slice(*where).indices(n)[:2]), member) for where, member in self.blocks]
        self._check_disjoint(sorted((span.start, span.stop) for span, _ in spans))
        return spans

    def check_model_length(self, n: int, part: str = "the model") -> None:
        """Raise a ValueError if a slice or the set of a slice does not fit."""
        for (start, stop), _ in self.blocks:
            if max(start, stop or 0) > n or min(start, stop or 0) < -n:
                raise ValueError(
                    f"Blocks: the slice ({start}, {stop}) must be within the parameters, but "
                    f"{part} has {n}; correct the slice."
                )
        for span, member in self._spans(n):
            member.check_model_length(
                span.stop - span.start, f"the slice ({span.start}, {span.stop}) of {part}"
            )

    def _check_length(self, where: str, n: int) -> None:
        for (start, stop), _ in self.blocks:
            if max(start, stop or 0) > n or min(start, stop or 0) < -n:
                raise ValueError(
                    f"Blocks.{where} must have all entries of the slice ({start}, {stop}), got {n} "
                    "entries; give more entries or correct the slice."
                )
        for span, member in self._spans(n):
            member._check_length(where, span.stop - span.start)

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        out = x
        for k, (span, member) in enumerate(self._spans(x.size)):
            piece = x[span]
            p = member._project(piece, WarmStart.of_part(warm_start, k))
            if p is not piece:
                out = x.copy() if out is x else out
                out[span] = p
        return out

    def _distance(self, x: Float64Array) -> float:
        return math.hypot(*(member._distance(x[span]) for span, member in self._spans(x.size)))

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        return all(m._contains(x[span], eps, floor) for span, m in self._spans(x.size))

    def _check_zero_where_free(self, q: Float64Array) -> None:
        """Raise an UnboundedError if q is not zero on free entries."""
        free = q != 0
        for span, _ in self._spans(q.size):
            free[span] = False
        if free.any():
            raise UnboundedError(
                f"Blocks: entry {int(np.argmax(free))} is free, so a linear function of it is "
                "unbounded; give its slice a bounded set."
            )

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        self._check_zero_where_free(q)
        s = np.zeros_like(q)
        for span, member in self._spans(q.size):
            s[span] = member._minimize_linear(q[span])
        return s

    def _support_bound(self, q: Float64Array) -> float:
        self._check_zero_where_free(q)
        return math.fsum(member._support_bound(q[span]) for span, member in self._spans(q.size))

    def _support_bound_near(self, q: Float64Array, near: Float64Array) -> float:
        self._check_zero_where_free(q)
        spans = self._spans(q.size)
        return math.fsum(m._support_bound_near(q[span], near[span]) for span, m in spans)

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        part, value = np.zeros_like(y), 0.0
        for span, member in self._spans(y.size):
            part[span], own = member._bounded_part(y[span], p[span])
            value += own
        return part, value

    @property
    def spec(self) -> str:
        """The set as configuration files write it."""
        ends = ((start, "" if stop is None else stop) for (start, stop), _ in self.blocks)
        pairs = zip(ends, self.blocks, strict=True)
        return self._call_text(f"{start}:{stop} = {m.spec}" for (start, stop), (_, m) in pairs)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        return tightest(
            member._usage(x[span], None if v is None else v[span]).within(span.start, span.stop)
            for span, member in self._spans(x.size)
        )

    def _scale_entries(self, f: Float64Array) -> Blocks:
        spans = self._spans(f.size)
        return Blocks((span, scale_entries(member, f[span])) for span, member in spans)

    def _parts(self) -> tuple[ConvexSet, ...]:
        parts = [(where, member._parts()) for where, member in self.blocks]
        count = max(len(own) for _, own in parts)
        if count == 1:
            return (self,)
        return tuple(
            Blocks((where, own[k]) for where, own in parts if k < len(own)) for k in range(count)
        )

    def _linear_constraints(self, n: int) -> LinearConstraints | None:
        systems = []
        for span, member in self._spans(n):
            own = member._linear_constraints(span.stop - span.start)
            if own is None:
                return None
            pad = ((0, 0), (span.start, n - span.stop))
            systems.append(own._replace(A=np.pad(own.A, pad), C=np.pad(own.C, pad)))
        return LinearConstraints.stack(systems)


@dataclass(frozen=True, eq=False, repr=False)
class Translated(ConvexSet):
    r"""A translated set, $\{s + \text{offset} : s \in X\}$.

    Parameters
    ----------
    set : ConvexSet
        X.
    offset : array of shape (n,)
        The translation.

    Examples
    --------
    >>> from pcfed.sets import NonNegative, Translated
    >>> Translated(NonNegative(), [1.0, 2.0]).project([0.0, 5.0])
    array([1., 5.])
    """

    spec_name = "translated"
    set: ConvexSet
    offset: Float64Array

    def __post_init__(self) -> None:
        _check_is_set("Translated", self.set)
        offset = frozen("Translated: offset", self.offset, ndim=1)
        self.set._check_length("offset", offset.size)
        self._set_fields(offset=offset)

    @property
    def n(self) -> int:
        """Number of entries of the offset."""
        return int(self.offset.size)

    @property
    def _scale(self) -> float:
        return max(self.set._scale, norm(self.offset))

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        return project_translated(
            lambda y: self.set._project(y, warm_start), x, self.offset, self._scale
        )

    def _distance(self, x: Float64Array) -> float:
        return self.set._distance(x - self.offset)

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        return self.set._contains(x - self.offset, eps, max(floor, norm(x), norm(self.offset)))

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        return self.set._minimize_linear(q) + self.offset

    def _support_bound(self, q: Float64Array) -> float:
        return self.set._support_bound(q) + float(q @ self.offset)

    def _support_bound_near(self, q: Float64Array, near: Float64Array) -> float:
        return self.set._support_bound_near(q, near - self.offset) + float(q @ self.offset)

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        part, value = self.set._bounded_part(y, p - self.offset)
        return part, value + float(part @ self.offset)

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        use = self.set._usage(x - self.offset, v)
        return replace(use, text=f"{use.text}, from its offset")

    def _parts(self) -> tuple[ConvexSet, ...]:
        parts = self.set._parts()
        return (self,) if len(parts) == 1 else tuple(_translated(s, self.offset) for s in parts)

    def _scale_entries(self, f: Float64Array) -> Translated:
        return Translated(scale_entries(self.set, f), f * self.offset)


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(ConvexSet):
    r"""A scaled set, $\{\text{factor} \cdot s : s \in X\}$.

    Parameters
    ----------
    set : ConvexSet
        X.
    factor : float
        Not zero; a negative factor reflects the set.

    Examples
    --------
    >>> from pcfed.sets import Scaled, Simplex
    >>> Scaled(Simplex(1.0), -2.0).project([0.0, -5.0])
    array([-0., -2.])
    """

    spec_name = "scaled"
    set: ConvexSet
    factor: float

    def __post_init__(self) -> None:
        _check_is_set("Scaled", self.set)
        factor = real("Scaled: factor", self.factor)
        if factor == 0.0:
            raise ValueError("Scaled: factor must not be zero, got 0; give a number such as 2.0.")
        self._set_fields(factor=factor)

    @property
    def n(self) -> int | None:
        """Number of entries that the set has."""
        return self.set.n

    @property
    def _scale(self) -> float:
        return abs(self.factor) * self.set._scale

    def check_model_length(self, n: int, part: str = "the model") -> None:
        """Raise a ValueError if the set does not fit."""
        self.set.check_model_length(n, part)

    def _check_length(self, where: str, n: int) -> None:
        self.set._check_length(where, n)

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        def step(x: Array) -> Array:
            y = as_float64(x) / self.factor
            p = self.set._project(y, warm_start)
            return x if p is y else (p * self.factor).astype(x.dtype, copy=False)

        return repeat_until_settled(step, x, self._scale)

    def _distance(self, x: Float64Array) -> float:
        return abs(self.factor) * self.set._distance(x / self.factor)

    def _contains(self, x: Float64Array, eps: float, floor: float = 0.0) -> bool:
        return self.set._contains(x / self.factor, eps, floor / abs(self.factor))

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        return self.set._minimize_linear(self.factor * q) * self.factor

    def _support_bound(self, q: Float64Array) -> float:
        return self.set._support_bound(self.factor * q)

    def _support_bound_near(self, q: Float64Array, near: Float64Array) -> float:
        return self.set._support_bound_near(self.factor * q, near / self.factor)

    def _bounded_part(self, y: Float64Array, p: Float64Array) -> tuple[Float64Array, float]:
        part, value = self.set._bounded_part(self.factor * y, p / self.factor)
        return part / self.factor, value

    def _usage(self, x: Float64Array, v: Float64Array | None) -> Usage:
        use = self.set._usage(x / self.factor, None if v is None else self.factor * v)
        return replace(use, text=f"{use.text}, divided by {self.factor:.4g}")

    def _parts(self) -> tuple[ConvexSet, ...]:
        parts = self.set._parts()
        return (self,) if len(parts) == 1 else tuple(_scaled(s, self.factor) for s in parts)

    def _scale_entries(self, f: Float64Array) -> Scaled:
        return Scaled(scale_entries(self.set, f), self.factor)


def _translated(convex: ConvexSet, offset: Float64Array) -> Translated:
    """Return a translated set; one that is translated already gets the sum of both offsets."""
    # Every combination around another repeats its projection, so that depth costs time.
    if isinstance(convex, Translated):
        return Translated(convex.set, convex.offset + offset)
    return Translated(convex, offset)


def _scaled(convex: ConvexSet, factor: float) -> Translated | Scaled:
    """Return a scaled set, with one translation and one factor at most."""
    if isinstance(convex, Translated):
        return Translated(_scaled(convex.set, factor), factor * convex.offset)
    if isinstance(convex, Scaled) and 1e-100 < abs(factor * convex.factor) < 1e100:
        return Scaled(convex.set, factor * convex.factor)
    return Scaled(convex, factor)


def scale_entries(convex: ConvexSet, factors: ArrayLike) -> ConvexSet:
    r"""Return the set $\{(f_1 s_1, .., f_n s_n) : s \in X\}$, which projects exactly.

    A box stays a box and linear constraints stay linear constraints; an l1 ball becomes a weighted
    one, an l2 ball an ellipsoid, a simplex an intersection. With the same factor for all entries
    every set is only scaled.

    Parameters
    ----------
    convex : ConvexSet
        X.
    factors : array of shape (n,)
        f > 0, one for each entry.

    Raises
    ------
    ValueError
        If the factors differ and no projection onto the scaled set is known: group and nuclear
        balls, cones, custom sets.

    Examples
    --------
    >>> from pcfed.sets import L1Ball, scale_entries
    >>> scale_entries(L1Ball(1.0), [2.0, 4.0])
    L1Ball(radius=1.0, weights=array([0.5, 0.25]))
    """
    f = frozen("scale_entries: factors", factors, ndim=1)
    if not f.min() > 0:
        raise ValueError(
            f"scale_entries: factors must be > 0, got {f.min()} at index {f.argmin()}; "
            "give positive factors."
        )
    convex._check_length("scale_entries: factors", f.size)
    if np.all(f == 1.0):
        return convex
    scaled = convex._scale_entries(f)
    if scaled is not None:
        return scaled
    if np.all(f == f[0]):
        return Scaled(convex, float(f[0]))
    raise ValueError(
        f"{type(convex).__name__}: no projection onto it is known where entries have different "
        "factors; use the same factor for all entries, or another set."
    )


def parameter_slices(where: str, module: Any) -> dict[str, tuple[int, int]]:
    """Return the slice of every trainable parameter of a PyTorch module in its flat vector.

    Parameters
    ----------
    where : str
        The caller for the message, for example ``"Blocks.for_module"``.
    module : torch.nn.Module
        The model.
    """
    if not hasattr(module, "named_parameters"):  # without importing torch
        raise ValueError(
            f"{where}: module must be a torch.nn.Module, got {type(module).__name__}; give the one "
            "that TorchLoss gets."
        )
    sizes = {k: int(p.numel()) for k, p in module.named_parameters() if p.requires_grad}
    stops = zip(sizes.items(), accumulate(sizes.values()), strict=True)
    return {name: (stop - size, stop) for (name, size), stop in stops}


def _start_and_stop(where: Slice | slice) -> Slice:
    """Return start and stop of a slice as ints."""
    if isinstance(where, slice):
        if where.step not in (None, 1):
            raise ValueError
        where = (where.start or 0, where.stop)
    start, stop = where
    return int(start), None if stop is None else int(stop)


def _check_is_set(name: str, member: object) -> None:
    """Raise a ValueError if the member is not a set."""
    if not isinstance(member, ConvexSet):
        raise ValueError(
            f"{name}: set must be a set, got {member!r}; give one such as L1Ball(1.0)."
        )
