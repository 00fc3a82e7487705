"""One call of all actors of a Ray cluster at once, compiled.

A single call of an actor takes half a millisecond, more with vectors. In a compiled graph, calls
and answers pass through buffers in shared memory, which Ray copies between machines, and that is
several times as fast. A graph ends when one of its actors does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.tree_sums import PartialSums

MAX_BYTES = 2**24
"""Larger messages are sent as single calls, whose states the object store shares."""

FOREVER = -1
"""The timeout of Ray's that never ends; its default is ten seconds."""


class RoundGraph:
    """The calls of a round, compiled for some actors.

    Parameters
    ----------
    actors : sequence of ray.actor.ActorHandle
        One `pcfed.simulation.range_actor.RangeActor` per range, in order.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        dag: Any = import_module("ray.dag")
        # The end of an actor is expected; Ray would print tracebacks.
        logging.getLogger("ray.dag.compiled_dag_node").setLevel(logging.CRITICAL)
        with dag.InputNode() as message:
            server = message[len(actors)]
            answers = [
                actor.run_compiled_round.bind(message[k], server) for k, actor in enumerate(actors)
            ]
        self._ray: Any = import_module("ray")
        self._graph = dag.MultiOutputNode(answers).experimental_compile(_submit_timeout=FOREVER)

    def run_round(self, accepted: Sequence[int], calls: Sequence[RoundCall]) -> list[RangeSums]:
        """Run a round; raise a RayError if an actor has ended.

        Arrays that are received are views of the buffers, which change in the next round, so that
        they are copied here and in `RangeActor.run_compiled_round`.

        Parameters
        ----------
        accepted : sequence of int
            The last round that was aggregated, for every range.
        calls : sequence of RoundCall
            One per range, with the same server's state.
        """
        own = [
            (index, replace(call, server={})) for index, call in zip(accepted, calls, strict=True)
        ]
        found = self._graph.execute(*own, calls[0].server)
        return [_copied(each) for each in self._ray.get(found, timeout=FOREVER)]

    def close(self) -> None:
        """End the graph; its actors stay."""
        self._graph.teardown()


def _copied(received: RangeSums) -> RangeSums:
    """Return sums in arrays of their own."""
    sums = received.sums
    vectors = {name: rows.copy() for name, rows in sums.vectors.items()}
    integers = {name: row.copy() for name, row in received.integers.items()}
    return replace(received, sums=PartialSums(sums.positions.copy(), vectors), integers=integers)


def fits(calls: Sequence[RoundCall], answer_bytes: int) -> bool:
    """Return whether the messages of a round are small enough for a graph.

    Parameters
    ----------
    calls : sequence of RoundCall
        One per range.
    answer_bytes : int
        The size of the largest answer to expect.
    """
    state = sum(vector.nbytes for vector in calls[0].server.values())
    # A position and a number of steps; every actor reads those of all.
    participants = sum(len(call.positions) for call in calls)
    return max(state + 16 * participants * len(calls), answer_bytes) <= MAX_BYTES
