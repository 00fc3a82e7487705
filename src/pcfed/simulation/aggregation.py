"""A round of a range: what its agents are called to do, and the sums of their updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pcfed.algorithms import RoundInfo, Update, Vectors
from pcfed.algorithms.grid import Grid, Integers, add_integers, encode_all
from pcfed.arrays import Float64Array, Workspace
from pcfed.simulation.plan import MAX_GROUP_AGENTS
from pcfed.simulation.result import Refusal
from pcfed.tree_sums import PartialSums, TreeSums


@dataclass(frozen=True, eq=False)
class RoundCall:
    """What the agents of a range do in a round.

    Attributes
    ----------
    info : RoundInfo
        The public information on the round.
    server : Vectors
        The server's state, as it is broadcast.
    positions, steps : sequence of int
        The participants of the range, in order, and their numbers of local steps.
    """

    info: RoundInfo
    server: Vectors
    positions: Sequence[int]
    steps: Sequence[int]


@dataclass(frozen=True, eq=False)
class RangeSums:
    """What a range returns after a round.

    Attributes
    ----------
    sums : PartialSums
        The sums of the accepted updates; empty on a grid.
    integers : mapping of str to Array
        The sums on a grid.
    num_accepted : int
        Number of agents in the sums.
    refusals : tuple of Refusal
        Updates that were not accepted.
    bytes_up : int
        Sent by all agents of the range together.
    """

    sums: PartialSums
    integers: Mapping[str, Integers]
    num_accepted: int
    refusals: tuple[Refusal, ...]
    bytes_up: int


@dataclass(eq=False)
class Aggregation:
    """The updates of a round while they arrive, until they are committed."""

    call: RoundCall
    grid: Grid | None
    workspace: Workspace
    sums: TreeSums
    integers: dict[str, Integers] = field(default_factory=dict)
    """The sums on a grid."""
    accepted: list[tuple[list[int], Vectors]] = field(default_factory=list)
    """Groups, and what their agents need to commit."""
    refusals: list[Refusal] = field(default_factory=list)
    bytes_up: int = 0
    waiting: list[tuple[list[int], Update]] = field(default_factory=list)
    """Updates of a window whose groups are not in the order of their positions."""

    def add(self, group: list[int], update: Update, *, in_order: bool) -> None:
        """Add the update of a group to the sums, or keep it for `end_window`."""
        self.accepted.append((group, update.pending))
        if self.grid is not None:
            encoded = encode_all(self.grid, update.sent)
            self.bytes_up += sum(rows.nbytes for rows in encoded.values())
            add_integers(self.integers, encoded)
            return
        self.bytes_up += sum(rows.nbytes for rows in update.sent.values())
        if in_order:
            self.sums.add(group, update.sent)
            self._release(update)
        else:
            self.waiting.append((group, update))

    def end_window(self) -> None:
        """Add the updates that wait, in the order of their positions."""
        waiting, self.waiting = self.waiting, []
        places = sorted((i, k, row) for k, (g, _) in enumerate(waiting) for row, i in enumerate(g))
        for first in range(0, len(places), MAX_GROUP_AGENTS):
            part = places[first : first + MAX_GROUP_AGENTS]
            sent: dict[str, Float64Array] = {}
            for name, some in waiting[0][1].sent.items():
                sent[name] = np.empty((len(part), some.shape[1]))
                for to, (_, k, row) in zip(sent[name], part, strict=True):
                    to[...] = waiting[k][1].sent[name][row]
            self.sums.add([i for i, _, _ in part], sent)
        for _, update in waiting:
            self._release(update)

    def _release(self, update: Update) -> None:
        """Return the memory of what is not needed to commit."""
        for name, rows in update.sent.items():
            if name not in update.pending:
                self.workspace.release(rows)

    def result(self) -> RangeSums:
        """Return what the driver receives."""
        number = sum(len(group) for group, _ in self.accepted)
        found = (number, tuple(self.refusals), self.bytes_up)
        return RangeSums(self.sums.partial_sums(), self.integers, *found)
