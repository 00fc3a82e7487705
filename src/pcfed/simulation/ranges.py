"""All ranges of a problem together, wherever they are, and those of one process.

`pcfed.simulation.ray_ranges` has those in the actors of a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from pcfed.simulation.agent_range import AgentRange
from pcfed.simulation.aggregation import RangeSums, RoundCall


class Ranges(Protocol):
    """The ranges of a problem, in the order of their positions.

    ``accepted`` is the index of the last round that was aggregated.
    """

    is_local: bool
    """Whether they are in this process, so that calls may return their own memory."""

    @property
    def edges(self) -> Sequence[int]:
        """The first position of every range, and the number of agents."""

    def call(self, method: str, accepted: int, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Call a method of every `AgentRange` that does not change its state.

        Results are in order, and may be computed when they are read.
        """

    def change(self, method: str, accepted: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method that changes the state, with arguments for every range."""

    def run_round(self, accepted: int, calls: Sequence[RoundCall]) -> list[RangeSums]:
        """Run a round: one call for every range."""

    def close(self) -> None:
        """Free everything."""


class LocalRanges:
    """Ranges in this process, of which there is usually one.

    Parameters
    ----------
    ranges : sequence of AgentRange
        The ranges, in order.
    """

    is_local = True

    def __init__(self, ranges: Sequence[AgentRange]) -> None:
        self._ranges = tuple(ranges)
        self.edges = (0, *(each.stop for each in ranges))

    def call(self, method: str, accepted: int, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Call a method of every range that does not change its state."""
        functions = [getattr(each, method) for each in self._ranges]
        return iter([function(accepted, *arguments, **options) for function in functions])

    def change(self, method: str, accepted: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method that changes the state, with arguments for every range."""
        for each, own in zip(self._ranges, arguments, strict=True):
            getattr(each, method)(accepted, *own)

    def run_round(self, accepted: int, calls: Sequence[RoundCall]) -> list[RangeSums]:
        """Run a round: one call for every range."""
        pairs = zip(self._ranges, calls, strict=True)
        return [each.run_round(accepted, call) for each, call in pairs]

    def close(self) -> None:
        """End the threads."""
        for each in self._ranges:
            each.close()
