"""A federation in this process, with a transport that loses and repeats messages on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pcfed.federation import Client, Server, ServerConfig
from pcfed.federation.identity import Identity
from pcfed.federation.paths import HISTORY
from pcfed.federation.protocol import PROTOCOL_VERSION, Message
from pcfed.federation.secure_agent import SecureAgent
from tests.federations import classifiers

NAMES = ("north", "south", "west")
OPTIONS = {"local_steps": 3, "seed": 4}


class FaultyTransport:
    """Carries messages in this process, with faults.

    ``faults`` has a mapping for each exchange, which says for an agent that its message is
    delivered, is lost, loses its reply or is delivered twice, or that the agent dies before it has
    written its state, or after that and before it replies. All replies are kept for the tests.
    """

    def __init__(self, clients, faults=()):
        self.clients, self.faults = clients, iter(faults)
        self.replies = []

    def exchange(self, messages, min_present):
        faults = next(self.faults, {})
        for name, message in messages.items():
            fault = faults.get(name, "delivered")
            if fault in ("lost", "dies before"):
                continue
            reply = self.answer(name, message)
            if fault in ("reply lost", "dies after"):
                continue
            if fault == "twice":
                again = self.answer(name, message)
                for key, vector in reply.vectors.items():
                    np.testing.assert_array_equal(vector, again.vectors[key])
            self.replies.append(reply)
            yield reply

    def answer(self, name, message):
        return self.clients[name].handle(message)


class RefusingTransport(FaultyTransport):
    """A transport in which agents that refuse a message say so, as Flower's apps do."""

    def answer(self, name, message):
        try:
            return super().answer(name, message)
        except ValueError as error:
            metadata = {"name": name, "protocol": PROTOCOL_VERSION, "reason": str(error)}
            return Message("error", metadata)


@contextmanager
def federation(
    folder: Path,
    algorithm,
    rounds,
    faults=(),
    *,
    problem=None,
    owner=None,
    transport=FaultyTransport,
    **options,
) -> Iterator[tuple]:
    """Yield a problem, its clients and a server; ``owner`` has the options of all clients."""
    problem = problem or classifiers()
    names = NAMES if problem.m == len(NAMES) else [f"agent {i + 1}" for i in range(problem.m)]
    clients = {}
    for name, agent in zip(names, problem.agents, strict=True):
        more = dict(owner or {})
        if options.get("secure"):
            more["secure"] = SecureAgent(name, Identity.create(), folder / name / "secrets.json")
        clients[name] = Client(name, agent, folder / name, batch=0.3, **more)
    options = {**OPTIONS, **options}
    config = ServerConfig("a test", tuple(names), problem.n, algorithm, rounds, **options)
    with Server(config, transport(clients, faults), folder / "server") as server:
        yield problem, clients, server


def without_secure_sum(folder: Path) -> None:
    """Change the files of an example so that the server sees single updates."""
    for path in folder.glob("*.toml"):
        if path.name != "roster.toml":
            path.write_text(f"secure = false\n{path.read_text()}")


def models(clients, server):
    vectors, algorithm = server.state.vectors, server.config.algorithm
    return np.stack([client.model(vectors, algorithm) for client in clients.values()])


def history(server):
    return [json.loads(line) for line in (server.folder / HISTORY).read_text().splitlines()]
