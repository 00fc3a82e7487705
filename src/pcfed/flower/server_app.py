"""The server as a Flower ServerApp: a plain loop over the rounds.

It is started with ``flwr run … --run-config 'server="…/server.toml"'``. Its checkpoint lies beside
that file: after a SuperLink has died, the same command goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid, ServerApp

from pcfed.files import sole_user, write_atomically
from pcfed.flower.coordinator import Coordinator, TooFew
from pcfed.flower.messages import Message
from pcfed.flower.records import from_records, to_records
from pcfed.flower.settings import Schema, read_server

app = ServerApp()

PATIENCE = 1.0
"""Seconds between two looks for agents."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the server's file says, audit, and write what came out."""
    facts: dict[str, Any]
    path = Path(str(context.run_config["server"]))
    settings = read_server(path)
    with sole_user(path.with_suffix(".lock")):
        post = GridPost(grid, settings.schema, settings.deadline, settings.terms.minimum)
        server = Coordinator(settings.terms, post, path.with_suffix(".npz"))
        standing = server.run()
        facts = {"rounds": standing.round, "history": list(standing.history)}
        try:
            facts["audit"] = server.audit()
        except TooFew as missing:  # the next run asks again
            facts["no_audit"] = str(missing)
    write_atomically(path.with_suffix(".json"), json.dumps(facts, indent=1).encode())


class GridPost:
    """Carries messages over Flower; learns by asking which node is which agent.

    Parameters
    ----------
    grid : Grid
        Flower's nodes.
    schema : Schema
        What is trained; every agent is told.
    deadline : float
        Seconds that agents have to answer.
    minimum : int
        How many agents to wait for, at most as long as that.
    """

    def __init__(self, grid: Grid, schema: Schema, deadline: float, minimum: int) -> None:
        self._grid, self._schema = grid, schema
        self._deadline, self._minimum = deadline, minimum
        self._names: dict[int, str] = {}

    def exchange(self, messages: Mapping[str, Message]) -> Iterable[Message]:
        """Send messages to agents by name and return the replies that came in time."""
        end = time.monotonic() + self._deadline
        while True:
            present = self._present()
            wanted = {node: name for node, name in present.items() if name in messages}
            if len(wanted) >= min(self._minimum, len(messages)) or time.monotonic() > end:
                break
            time.sleep(PATIENCE)
        schema = self._schema.to_text()
        posted = [
            FlowerMessage(to_records(messages[name], schema=schema), node, "query")
            for node, name in wanted.items()
        ]
        return self._replies(posted)

    def _present(self) -> dict[int, str]:
        """Return who is here, by node; strangers are asked for their names."""
        nodes = set(self._grid.get_node_ids())
        self._names = {node: name for node, name in self._names.items() if node in nodes}
        hello = to_records(Message("hello", {}))
        asked = [FlowerMessage(hello, node, "query") for node in nodes - set(self._names)]
        if asked:
            for reply in self._grid.send_and_receive(asked, timeout=self._deadline):
                if reply.has_content():
                    name = from_records(reply.content).facts.get("name")
                    self._names[reply.metadata.src_node_id] = str(name)
        return self._names

    def _replies(self, posted: list[FlowerMessage]) -> list[Message]:
        found = []
        for reply in self._grid.send_and_receive(posted, timeout=self._deadline):
            if not reply.has_content():
                self._names.pop(reply.metadata.src_node_id, None)
                continue
            try:
                found.append(from_records(reply.content))
            except ValueError as error:
                found.append(Message("error", {"name": "?", "why": str(error)}))
        return found
