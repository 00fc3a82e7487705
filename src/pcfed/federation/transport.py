"""What carries messages over Flower, and finds out which node is which agent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx
from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.serverapp import Grid

from pcfed.config.fields import check_agent_name
from pcfed.federation.protocol import Message
from pcfed.federation.records import from_records, to_records
from pcfed.federation.server import TooFew
from pcfed.federation.server_config import Watcher, silent
from pcfed.federation.server_state import ServerState
from pcfed.federation.settings import Schema

PATIENCE = 1.0
"""Seconds between two looks for agents."""
PAUSE = 0.5
"""Seconds between two looks for replies."""


class FlowerTransport:
    """Carries messages over Flower; learns by asking which node is which agent.

    A reply is that of the agent whose node was asked, whatever name it gives itself.

    Parameters
    ----------
    grid : Grid
        Flower's nodes.
    schema : Schema
        What is trained; every agent is told.
    deadline : float
        Seconds that agents have to answer, and to come if they are not here.
    watch : callable
        What is told who is here, who has answered and who is late.
    """

    def __init__(
        self, grid: Grid, schema: Schema, deadline: float, watch: Watcher = silent
    ) -> None:
        self._grid, self._schema, self._deadline = grid, schema, deadline
        self._watch = watch
        self._names: dict[int, str] = {}
        self._late: set[int] = set()

    def exchange(self, messages: Mapping[str, Message], least: int) -> Iterable[Message]:
        """Send messages to agents by name and return the replies that came in time.

        Parameters
        ----------
        messages : mapping of str to Message
            What to send to whom.
        least : int
            How many agents to wait for before anything is sent, if they are not here.
        """
        present = self._wait_for(least, set(messages))
        schema = self._schema.to_text()
        asked = {node: name for node, name in present.items() if name in messages}
        records = {node: to_records(messages[name], schema=schema) for node, name in asked.items()}
        found = []
        for node, reply in self._ask(records, asked):
            try:
                said = from_records(reply.content)
            except ValueError as error:
                said = Message("error", {"why": str(error)})
            found.append(Message(said.kind, {**said.facts, "name": asked[node]}, said.vectors))
        return found

    def first(self, size: int) -> tuple[str, ...]:
        """Return the names of the first agents that come, in alphabetical order.

        Parameters
        ----------
        size : int
            How many.

        Raises
        ------
        TooFew
            If they do not come in time.
        """
        names = list(dict.fromkeys(self._wait_for(size).values()))
        if len(names) < size:
            raise TooFew(
                f"The roster needs {size} agents, and in {self._deadline:g} seconds only "
                f"{', '.join(names) or 'nobody'} came; start more agents, then go on."
            )
        return tuple(sorted(names[:size]))

    def _wait_for(self, least: int, wanted: set[str] | None = None) -> dict[int, str]:
        """Return who is here, by node, once enough of them are or the time is over."""
        end = time.monotonic() + self._deadline
        while True:
            present = self._present(wanted)
            here = set(present.values()) if wanted is None else wanted & set(present.values())
            if len(here) >= least or time.monotonic() > end:
                return present
            time.sleep(PATIENCE)

    def _present(self, wanted: set[str] | None) -> dict[int, str]:
        """Return who is here, by node; if somebody is missing or late, strangers are asked."""
        nodes = set(self._grid.get_node_ids())
        self._names = {node: name for node, name in self._names.items() if node in nodes}
        prompt = {name for node, name in self._names.items() if node not in self._late}
        if wanted is None or not wanted <= prompt:
            hello = to_records(Message("hello", {}))
            for node, reply in self._ask(dict.fromkeys(nodes - set(self._names), hello)):
                try:
                    said = from_records(reply.content)
                    if said.kind == "hello":
                        self._names[node] = check_agent_name(str(said.facts.get("name")))
                except ValueError:
                    continue  # it is none of ours
        self._watch(here=sorted(set(self._names.values())))
        return self._names

    def _ask(
        self, records: Mapping[int, RecordDict], names: Mapping[int, str] | None = None
    ) -> list[tuple[int, FlowerMessage]]:
        """Send records to nodes and return the replies that came in time, with their nodes.

        A node whose reply is an error has to say its name again.
        """
        if not records:
            return []
        end = time.monotonic() + self._deadline
        posted = [
            FlowerMessage(each, node, "query", ttl=self._deadline)  # later is too late
            for node, each in records.items()
        ]
        numbers = self._grid.push_messages(posted)
        open_ = {number: node for number, node in zip(numbers, records, strict=False) if number}
        found: list[tuple[int, FlowerMessage]] = []
        while True:
            for reply in self._pull(list(open_)):
                node = open_.pop(reply.metadata.reply_to_message_id)
                self._late.discard(node)
                if reply.has_content():
                    found.append((node, reply))
                else:
                    self._names.pop(node, None)
            if names is not None:
                answered = sorted(names[node] for node, _ in found)
                waiting = sorted(names[node] for node in open_.values())
                self._watch(answered=answered, waiting=waiting)
            if not open_ or time.monotonic() > end:
                break
            time.sleep(PAUSE)
        if names is not None:
            self._watch(waiting=[], late=sorted(names[node] for node in open_.values()))
        self._late.update(open_.values())
        return found

    def _pull(self, numbers: list[str]) -> Iterable[FlowerMessage]:
        """Return the replies that are there; if the line is down, the next look may find them."""
        try:
            replies: Iterable[FlowerMessage] = self._grid.pull_messages(numbers)
        except httpx.TransportError:
            return []
        return replies


def roster_of(checkpoint: Path, size: int, post: FlowerTransport) -> tuple[str, ...]:
    """Return the roster of a training that is known by its size only.

    It is settled by who comes first, and then kept in the checkpoint.

    Parameters
    ----------
    checkpoint : Path
        That of the training, if it has begun.
    size : int
        Number of agents.
    post : FlowerTransport
        What finds agents.
    """
    if not checkpoint.exists():
        return post.first(size)
    roster = tuple(ServerState.load(checkpoint).terms["roster"])
    if len(roster) != size:
        raise ValueError(
            f"roster must be {len(roster)}, as many as the training began with, got {size}; give "
            "that number, or the training another name."
        )
    return roster
