"""Sums over agents as a binary tree over their positions in the roster.

A node of level k covers the positions $[j 2^k, (j + 1) 2^k)$, and its sum is that of its two
children, in float64. Agents that are absent are holes: a node with one child that is not empty has
the sum of that child. The tree depends on positions only, so that any number of threads, groups and
machines gives the same bits: whoever has a range of positions sums the nodes inside it, and whoever
receives these partial sums adds them as if they were rows. Rounding errors grow with the logarithm
of the number of agents, and not with the number itself as those of sequential sums do.

Additions are compiled where numba is installed, else done by NumPy, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pcfed import kernels
from pcfed.arrays import Array, Float64Array
from pcfed.kernels.tree import NOT_INCREASING, plan_merges

MAX_DEPTH = 64
"""Entries of the stack at most: positions have fewer bits."""

Positions = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class PartialSums:
    """The sums of some nodes of the tree.

    Attributes
    ----------
    positions : array of shape (nodes,)
        A position in each node, in order.
    vectors : mapping of str to array of shape (nodes, n)
        The sums by name, one row per node.
    """

    positions: Positions
    vectors: Mapping[str, Float64Array]


class TreeSums:
    """Sums of named vectors over agents; rows arrive in the order of the agents' positions.

    Parameters
    ----------
    first, stop : int, optional
        Only nodes inside this range of positions are summed, for `partial_sums`; by default all.

    Examples
    --------
    >>> import numpy as np
    >>> sums = TreeSums()
    >>> sums.add([0, 3], {"v": np.array([[1.0], [2.0]])})
    >>> sums.add([4], {"v": np.array([[3.0]])})
    >>> sums.totals()
    {'v': array([6.])}
    """

    def __init__(self, first: int = 0, stop: int | None = None) -> None:
        self._block_ends = [] if stop is None else _block_ends(first, stop)
        self._block = 0
        self._blocks: list[tuple[int, dict[str, Float64Array]]] = []
        self._slots: dict[str, Float64Array] = {}
        self._gaps, self._tags = np.zeros(MAX_DEPTH, np.intp), np.zeros(MAX_DEPTH, np.intp)
        self._merges = _empty_merges(MAX_DEPTH)
        self._size, self._last = 0, -1

    def add(self, positions: Sequence[int] | Positions, vectors: Mapping[str, Array]) -> None:
        """Add one row per position of every vector.

        Parameters
        ----------
        positions : sequence of int
            Increasing, and beyond those that were added before.
        vectors : mapping of str to array of shape (rows, n)
            float32 or float64; every call must have the same names.
        """
        where = np.asarray(positions, np.intp)
        if not where.size:
            return
        if not self._block_ends or where[-1] < self._block_ends[self._block]:
            self._add(where, vectors)
            return
        blocks = np.searchsorted(self._block_ends, where, side="right")
        ends = [*(np.flatnonzero(np.diff(blocks)) + 1).tolist(), where.size]
        for start, end in pairwise([0, *ends]):
            if blocks[start] != self._block:
                self._close_block()
                self._block = int(blocks[start])
            self._add(where[start:end], {name: rows[start:end] for name, rows in vectors.items()})

    def _add(self, where: Positions, vectors: Mapping[str, Array]) -> None:
        """Add rows that are in one block of the range."""
        if len(where) + MAX_DEPTH > len(self._merges[0]):
            self._merges = _empty_merges(len(where) + MAX_DEPTH)
        tags, before = self._tags, self._last
        compiled = kernels.load("sums")
        if compiled is not None:
            arguments = where, before, self._gaps, tags, self._size
            merges, self._size = compiled.plan_merges()(*arguments, *self._merges)
        else:
            merges = self._plan(where, *self._merges)
        if merges == NOT_INCREASING:
            raise ValueError(
                f"TreeSums.add: positions must increase from call to call, got {where[:5]} after "
                f"{before}; sort the rows by position."
            )
        self._last = int(where[-1])
        for name, rows in vectors.items():
            slots = self._slots_of(name, rows.shape[1])
            if compiled is not None:
                merge_rows = compiled.merge_rows(rows.dtype)
                in_order = rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)
                merge_rows(slots, in_order, *self._merges, merges, tags, self._size)
            else:
                _merge_rows(slots, rows, *self._merges, merges, tags, self._size)

    def _plan(self, where: Positions, into: Positions, left: Positions, right: Positions) -> int:
        """Plan the additions without numba, on lists, which Python reads faster than arrays."""
        gaps, tags = self._gaps.tolist(), self._tags.tolist()
        lists = [[0] * len(into) for _ in range(3)]
        merges, self._size = plan_merges(where.tolist(), self._last, gaps, tags, self._size, *lists)
        self._gaps[:], self._tags[:] = gaps, tags
        into[:], left[:], right[:] = lists
        return merges

    def _slots_of(self, name: str, width: int) -> Float64Array:
        """Return the partial sums of a vector, with all slots that the positions so far need."""
        slots = self._slots.get(name)
        # Gaps decrease from the bottom of the stack to its top, and have no more bits than last.
        needed = self._last.bit_length() + 2
        if slots is None or len(slots) < needed:
            grown = np.empty((needed, width))
            if slots is not None:
                grown[: len(slots)] = slots
            slots = self._slots[name] = grown
        return slots

    def _sum_of_stack(self) -> dict[str, Float64Array]:
        """Return the sums of everything on the stack, as views on its lowest slots."""
        for slots in self._slots.values():
            for k in range(self._size - 1, 0, -1):
                slots[k - 1] += slots[k]
        return {name: slots[0] for name, slots in self._slots.items()}

    def _close_block(self) -> None:
        """Finish the sum of a block."""
        if self._size:
            sums = {name: total.copy() for name, total in self._sum_of_stack().items()}
            self._blocks.append((self._last, sums))
        self._size, self._last = 0, -1

    def partial_sums(self) -> PartialSums:
        """Return the sums of the largest nodes inside the range that are not empty, at the end.

        Without a range, that is the sum of all rows, if there are any.
        """
        if not self._block_ends:
            where = np.array([self._last] if self._size else [], np.intp)
            totals = self._sum_of_stack()
            return PartialSums(where, {name: total[None] for name, total in totals.items()})
        self._close_block()
        names = list(self._slots)
        vectors = {name: np.stack([sums[name] for _, sums in self._blocks]) for name in names}
        return PartialSums(np.array([last for last, _ in self._blocks], np.intp), vectors)

    def totals(self) -> dict[str, Float64Array]:
        """Return the sums of all rows by name, without −0, at the end; there must be no range."""
        totals = self._sum_of_stack()
        for total in totals.values():
            np.add(total, 0.0, out=total)
        return totals


def combined_totals(parts: Iterable[PartialSums]) -> dict[str, Float64Array]:
    """Return the sums over all agents, given those of ranges of positions, in order."""
    sums, received = TreeSums(), list(parts)
    if len(received) == 1 and len(received[0].positions) == 1:
        return {name: np.add(rows[0], 0.0) for name, rows in received[0].vectors.items()}
    for part in received:
        sums.add(part.positions, part.vectors)
    return sums.totals()


def tree_sum(rows: Array | Sequence[float]) -> Float64Array:
    """Return the sum over the first axis, whose entries are at the positions 0, 1, ….

    Examples
    --------
    >>> tree_sum(np.array([1.0, 2.0, 4.0]))
    array(7.)
    """
    wide = np.asarray(rows, np.float64)
    if wide.ndim == 2 and len(wide):
        sums = TreeSums()
        sums.add(np.arange(len(wide)), {"": wide})
        return sums.totals()[""]
    while len(wide) > 1:
        even = len(wide) // 2 * 2
        pairs = wide[0:even:2] + wide[1:even:2]
        wide = np.concatenate([pairs, wide[even:]]) if even < len(wide) else pairs
    return np.asarray(wide.sum(axis=0) + 0.0)


def tree_mean(rows: Array | Sequence[float]) -> Float64Array:
    """Return the mean over the first axis, whose entries are at the positions 0, 1, ….

    Examples
    --------
    >>> tree_mean(np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]]))
    array([3., 1.])
    """
    return np.asarray(tree_sum(rows) / len(rows))


def _block_ends(first: int, stop: int) -> list[int]:
    """Return the ends of the largest nodes that a range of positions consists of.

    Examples
    --------
    >>> _block_ends(3, 12)
    [4, 8, 12]
    """
    ends = []
    while first < stop:
        size = 1 << ((stop - first).bit_length() - 1)
        if first:
            size = min(size, first & -first)
        first += size
        ends.append(first)
    return ends


def _empty_merges(size: int) -> tuple[Positions, Positions, Positions]:
    """Return memory for so many planned additions."""
    return np.empty(size, np.intp), np.empty(size, np.intp), np.empty(size, np.intp)


def _merge_rows(
    slots: Float64Array,
    rows: Array,
    into: Positions,
    left: Positions,
    right: Positions,
    merges: int,
    tags: Positions,
    size: int,
) -> None:
    """Do the planned additions with NumPy, and store the rows that wait for others."""
    triples = zip(*(each[:merges].tolist() for each in (into, left, right)), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        for i, a, b in triples:
            first = rows[a] if a >= 0 else slots[i]
            second = rows[b] if b >= 0 else slots[i + 1]
            np.add(first, second, out=slots[i], dtype=np.float64)
    for k, tag in enumerate(tags[:size].tolist()):
        if tag >= 0:
            slots[k] = rows[tag]
