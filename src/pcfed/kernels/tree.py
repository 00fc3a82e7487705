"""Which rows are added in a sum over a binary tree: plain Python, which numba compiles."""

from __future__ import annotations

from typing import Any

FROM_SLOT = -1
"""The tag of an entry of the stack that is a partial sum, not a row."""

NOT_INCREASING = -1
"""Returned in place of the number of additions if positions do not increase."""


def plan_merges(
    positions: Any, last: int, gaps: Any, tags: Any, size: int, into: Any, left: Any, right: Any
) -> tuple[int, int]:
    """Plan the additions for rows that arrive in the order of their positions.

    The stack has the partial sums of nodes whose parents are not complete yet. Entry k is
    ``slots[k]``, or the row ``tags[k]``. The first bit of ``gaps[k]`` is the level of the smallest
    node that contains the entries k − 1 and k, less one; gaps decrease towards the top.

    Parameters
    ----------
    positions : sequence of int
        The positions of the rows.
    last : int
        The position before them, −1 if there is none.
    gaps, tags, size
        The stack, which changes in place; it needs at least 64 entries. Before, all of its
        entries are slots.
    into, left, right
        Receive one number per addition: ``slots[into]`` becomes the sum of the entries ``into`` and
        ``into + 1``, which are the rows ``left`` and ``right``, or slots if these are negative.

    Returns
    -------
    tuple of int
        The number of additions, or ``NOT_INCREASING``, and the new size of the stack.
    """
    done = 0
    for k in range(size):
        tags[k] = FROM_SLOT
    for i in range(len(positions)):
        position = positions[i]
        if position <= last:
            return NOT_INCREASING, size
        gap = last ^ position
        # A node is complete when a position beyond it arrives: the first bit of its gap is lower.
        while size > 1 and gaps[size - 1] < gap and gaps[size - 1] < gaps[size - 1] ^ gap:
            size -= 1
            into[done], left[done], right[done] = size - 1, tags[size - 1], tags[size]
            tags[size - 1] = FROM_SLOT
            done += 1
        gaps[size], tags[size] = gap, i
        size += 1
        # Or when its own last position arrives, which saves a copy of the row.
        end = (position + 1) & -(position + 1)
        while size > 1 and gaps[size - 1] < end:
            size -= 1
            into[done], left[done], right[done] = size - 1, tags[size - 1], tags[size]
            tags[size - 1] = FROM_SLOT
            done += 1
        last = position
    return done, size
