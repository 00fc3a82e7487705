"""The members of an intersection: their projections, which are counted, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.errors import short_repr
from pcfed.sets.base import ConvexSet, EmptySetError, ProjectionError

Members = Sequence[ConvexSet]

MAX_PROJECTIONS = 100_000
"""Projections onto members, nested ones included, before a ``ProjectionError``."""

MAX_SHOWN_MEMBERS = 4
"""Up to this many members are shown in messages as they were written."""

_projections_left: ContextVar[list[int] | None] = ContextVar("projections_left", default=None)


@contextmanager
def limited_work() -> Iterator[None]:
    """Limit the projections onto members within this context; nested contexts share one limit."""
    if _projections_left.get() is not None:
        yield
        return
    token = _projections_left.set([MAX_PROJECTIONS])
    try:
        yield
    finally:
        _projections_left.reset(token)


def project_float64(member: ConvexSet, x: Float64Array) -> Float64Array:
    """Return the projection of one float64 vector without checks; it counts as work."""
    left = _projections_left.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise ProjectionError(
                f"Intersection: {MAX_PROJECTIONS} projections onto members, the last of them onto "
                f"{short_repr(member)}, did not suffice; use fewer members or relax one of them."
            )
    return np.asarray(member._project(x, None), dtype=np.float64)


def empty_intersection(members: Members) -> EmptySetError:
    """Return the error of members without a common point."""
    return EmptySetError(
        f"Intersection: the set is empty, {names(members)} have no point in common; "
        "relax one of them."
    )


def names(members: Members) -> str:
    """Return the members for messages: all of them by name, if they are few as they were written.

    Examples
    --------
    >>> from pcfed.sets import Box, NonNegative
    >>> names([Box(2, 3), NonNegative()])
    'Box(lower=2.0, upper=3.0) and NonNegative()'
    """
    if len(members) <= MAX_SHOWN_MEMBERS:
        return " and ".join(short_repr(member) for member in members)
    return " and ".join(type(member).__name__ for member in members)
