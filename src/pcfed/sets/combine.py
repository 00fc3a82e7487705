"""Sets made from other sets: per slice, moved, and scaled."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sets.base import (
    ConvexSet,
    Hint,
    Linear,
    UnboundedError,
    fullest,
    norm,
    part,
    settle,
    shifted,
)
from pcfed.validation import frozen, real

Slice = tuple[int, int | None]


@runtime_checkable
class Module(Protocol):
    """What has named parameters: a ``torch.nn.Module``, which is not imported here."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """Return the parameters in their order, each with its name."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Blocks(ConvexSet):
    r"""A different set for each slice of the parameters, $\{x : x_{[a:b]} \in X_{ab}\}$.

    Entries that no slice mentions are free, so ``Blocks({(0, -1): L1Ball(1.0)})`` constrains all
    but the last entry.

    Parameters
    ----------
    blocks : mapping from (start, stop) to ConvexSet, or pairs of a slice and a set
        Slices as in Python: a negative number counts from the end, None is the end.

    Examples
    --------
    >>> from pcfed.sets import Blocks, L1Ball, NonNegative
    >>> Blocks({(0, 2): L1Ball(1.0), (3, None): NonNegative()}).project([3.0, 0.0, -5.0, -7.0])
    array([ 1.,  0., -5.,  0.])
    """

    blocks: tuple[tuple[Slice, ConvexSet], ...]

    def __init__(
        self,
        blocks: Mapping[Slice, ConvexSet] | Iterable[tuple[Slice | slice, ConvexSet]],
    ) -> None:
        pairs = blocks.items() if isinstance(blocks, Mapping) else blocks
        try:
            given = tuple((_ends(where), member) for where, member in pairs)
        except (TypeError, ValueError):
            given = ()
        if not given or not all(isinstance(member, ConvexSet) for _, member in given):
            raise ValueError(
                f"Blocks: blocks must map slices (start, stop) to sets, got {blocks!r}; "
                "give for example {(0, 10): L1Ball(1.0)}."
            )
        object.__setattr__(self, "blocks", given)
        known = [where for where, _ in given if where[0] >= 0 and (where[1] or -1) >= 0]
        if known:
            self._disjoint(sorted(slice(*where).indices(2**62)[:2] for where in known))

    @classmethod
    def for_module(cls, module: Module, sets: Mapping[str, ConvexSet]) -> Self:
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
        if not isinstance(module, Module):
            raise ValueError(
                f"Blocks.for_module: module must be a torch.nn.Module, got "
                f"{type(module).__name__}; give the one that TorchLoss gets."
            )
        if not isinstance(sets, Mapping) or not sets:
            raise ValueError(
                f"Blocks.for_module: sets must map names of parameters to sets, got {sets!r}; "
                'give for example {"weight": L1Ball(1.0)}.'
            )
        spans, end = {}, 0
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                spans[name] = (end, end + int(parameter.numel()))
                end = spans[name][1]
        for name, member in sets.items():
            if name not in spans:
                near = difflib.get_close_matches(str(name)[:80], spans, n=1)
                guess = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(
                    f"Blocks.for_module: the module has no trainable parameter {name!r}; {guess}"
                    f"Valid names are {', '.join(spans)}."
                )
            _member(f"Blocks.for_module: {name}", member)
            start, stop = spans[name]
            if member.n is not None and member.n != stop - start:
                raise ValueError(
                    f"Blocks.for_module: the set of {name!r} must have {stop - start} entries like "
                    f"the parameter, got {member.n}; give a set of its size."
                )
        return cls((spans[name], member) for name, member in sets.items())

    def __repr__(self) -> str:
        return f"Blocks({{{', '.join(f'{where}: {member!r}' for where, member in self.blocks)}}})"

    def _disjoint(self, spans: list[tuple[int, int]]) -> None:
        """Refuse slices that overlap or select nothing."""
        end = 0
        for start, stop in spans:
            if start >= stop or start < end:
                fault = "overlaps another" if start < end else "selects nothing"
                raise ValueError(
                    f"Blocks: slices must be disjoint and not empty, got ({start}, {stop}), which "
                    f"{fault}; intersect sets of one slice with Intersection."
                )
            end = stop

    def _spans(self, n: int) -> list[tuple[int, slice, ConvexSet]]:
        """Return the blocks with their slices of n entries."""
        spans = [(k, slice(*slice(*w).indices(n)[:2]), m) for k, (w, m) in enumerate(self.blocks)]
        self._disjoint(sorted((s.start, s.stop) for _, s, _ in spans))
        return spans

    def _check_length(self, where: str, n: int) -> None:
        for (start, stop), _ in self.blocks:
            if max(start, stop or 0) > n or min(start, stop or 0) < -n:
                raise ValueError(
                    f"Blocks.{where} must be as long as the slice ({start}, {stop}) asks, got {n} "
                    "entries; give more entries or correct the slice."
                )
        for _, span, member in self._spans(n):
            member._check_length(where, span.stop - span.start)

    def _project(self, x: Array, hint: Hint | None) -> Array:
        out = x
        for k, span, member in self._spans(x.size):
            piece = x[span]
            p = member._project(piece, part(hint, k))
            if p is not piece:
                out = x.copy() if out is x else out
                out[span] = p
        return out

    def _distance(self, x: Float64Array) -> float:
        return math.hypot(*(member._distance(x[span]) for _, span, member in self._spans(x.size)))

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        return all(m._contains(x[span], eps, floor) for _, span, m in self._spans(x.size))

    def _free(self, q: Float64Array) -> None:
        """Refuse directions that are not zero on free entries."""
        free = q != 0
        for _, span, _ in self._spans(q.size):
            free[span] = False
        if free.any():
            raise UnboundedError(
                f"Blocks: entry {int(np.argmax(free))} is free, so a linear function of it is "
                "unbounded; "
                "give its slice a bounded set."
            )

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        self._free(q)
        s = np.zeros_like(q)
        for _, span, member in self._spans(q.size):
            s[span] = member._minimize_linear(q[span])
        return s

    def _support(self, q: Float64Array) -> float:
        self._free(q)
        return math.fsum(member._support(q[span]) for _, span, member in self._spans(q.size))

    def _budget(self, x: Float64Array) -> tuple[float, float] | None:
        return fullest(member._budget(x[span]) for _, span, member in self._spans(x.size))

    def _linear(self, n: int) -> Linear | None:
        rows = []
        for _, span, member in self._spans(n):
            own = member._linear(span.stop - span.start)
            if own is None:
                return None
            pad = ((0, 0), (span.start, n - span.stop))
            rows.append((np.pad(own.A, pad), own.b, np.pad(own.C, pad), own.d))
        A, b, C, d = zip(*rows, strict=True)
        return Linear(np.vstack(A), np.concatenate(b), np.vstack(C), np.concatenate(d))


@dataclass(frozen=True, eq=False, repr=False)
class Translated(ConvexSet):
    r"""A set that is moved, $\{s + \text{offset} : s \in X\}$.

    Parameters
    ----------
    set : ConvexSet
        X.
    offset : array of shape (n,)
        How far to move it.

    Examples
    --------
    >>> from pcfed.sets import NonNegative, Translated
    >>> Translated(NonNegative(), [1.0, 2.0]).project([0.0, 5.0])
    array([1., 5.])
    """

    set: ConvexSet
    offset: Float64Array

    def __post_init__(self) -> None:
        _member("Translated", self.set)
        offset = frozen("Translated: offset", self.offset, ndim=1)
        self.set._check_length("offset", offset.size)
        object.__setattr__(self, "offset", offset)

    @property
    def n(self) -> int:
        """Number of entries of the offset."""
        return int(self.offset.size)

    @property
    def _scale(self) -> float:
        return max(self.set._scale, norm(self.offset))

    def _project(self, x: Array, hint: Hint | None) -> Array:
        return shifted(self.set._project, x, self.offset, self._scale, hint)

    def _distance(self, x: Float64Array) -> float:
        return self.set._distance(x - self.offset)

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        return self.set._contains(x - self.offset, eps, max(floor, norm(x), norm(self.offset)))

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        return self.set._minimize_linear(q) + self.offset

    def _support(self, q: Float64Array) -> float:
        return self.set._support(q) + float(q @ self.offset)

    def _budget(self, x: Float64Array) -> tuple[float, float] | None:
        return self.set._budget(x - self.offset)


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(ConvexSet):
    r"""A set that is scaled about the origin, $\{\text{factor} \cdot s : s \in X\}$.

    Parameters
    ----------
    set : ConvexSet
        X.
    factor : float
        Not zero; a negative one reflects the set.

    Examples
    --------
    >>> from pcfed.sets import Scaled, Simplex
    >>> Scaled(Simplex(1.0), -2.0).project([0.0, -5.0])
    array([-0., -2.])
    """

    set: ConvexSet
    factor: float

    def __post_init__(self) -> None:
        _member("Scaled", self.set)
        factor = real("Scaled: factor", self.factor)
        if factor == 0.0:
            raise ValueError("Scaled: factor must not be zero, got 0; give a number such as 2.0.")
        object.__setattr__(self, "factor", factor)

    @property
    def n(self) -> int | None:
        """Number of entries that the set has."""
        return self.set.n

    @property
    def _scale(self) -> float:
        return abs(self.factor) * self.set._scale

    def _check_length(self, where: str, n: int) -> None:
        self.set._check_length(where, n)

    def _project(self, x: Array, hint: Hint | None) -> Array:
        def step(x: Array) -> Array:
            y = x.astype(np.float64, copy=False) / self.factor
            p = self.set._project(y, hint)
            return x if p is y else (p * self.factor).astype(x.dtype, copy=False)

        return settle(step, x, self._scale)

    def _distance(self, x: Float64Array) -> float:
        return abs(self.factor) * self.set._distance(x / self.factor)

    def _contains(self, x: Float64Array, eps: float, floor: float) -> bool:
        return self.set._contains(x / self.factor, eps, floor / abs(self.factor))

    def _minimize_linear(self, q: Float64Array) -> Float64Array:
        return self.set._minimize_linear(self.factor * q) * self.factor

    def _support(self, q: Float64Array) -> float:
        return self.set._support(self.factor * q)


def _ends(where: Slice | slice) -> Slice:
    """Return start and stop of a slice as ints."""
    if isinstance(where, slice):
        if where.step not in (None, 1):
            raise ValueError
        where = (where.start or 0, where.stop)
    start, stop = where
    return int(start), None if stop is None else int(stop)


def _member(name: str, member: object) -> None:
    """Refuse what is not a set."""
    if not isinstance(member, ConvexSet):
        raise ValueError(
            f"{name}: set must be a set, got {member!r}; give one such as L1Ball(1.0)."
        )
