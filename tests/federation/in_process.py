"""A federation in this process, whose post is as bad as it is told to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pcfed.federation import Node, Server, Terms
from pcfed.federation.paths import HISTORY
from tests.federations import classifiers

NAMES = ("north", "south", "west")
OPTIONS = {"local_steps": 3, "seed": 4}


class Post:
    """Carries messages in this process, as badly as it is told to.

    ``fates`` says for each exchange what becomes of each agent's message: it is delivered, it is
    lost on the way, its reply is lost, it is delivered twice, or the agent dies before it has
    written its state, or after that and before it replies. All replies are kept for the tests.
    """

    def __init__(self, nodes, fates=()):
        self.nodes, self.fates = nodes, iter(fates)
        self.replies = []

    def exchange(self, messages, least):
        fate = next(self.fates, {})
        for name, message in messages.items():
            what = fate.get(name, "delivered")
            if what in ("lost", "dies before"):
                continue
            reply = self.nodes[name].answer(message)
            if what in ("reply lost", "dies after"):
                continue
            if what == "twice":
                again = self.nodes[name].answer(message)
                for key, vector in reply.vectors.items():
                    np.testing.assert_array_equal(vector, again.vectors[key])
            self.replies.append(reply)
            yield reply


@contextmanager
def federation(
    folder: Path, algorithm, rounds, fates=(), *, problem=None, owner=None, **options
) -> Iterator[tuple]:
    """Yield a problem, its nodes and a coordinator; ``owner`` is what all agents' files say."""
    problem = problem or classifiers()
    nodes = {
        name: Node(name, agent, folder / name, batch=0.3, **(owner or {}))
        for name, agent in zip(NAMES, problem.agents, strict=True)
    }
    terms = Terms("a test", NAMES, problem.n, algorithm, rounds, **{**OPTIONS, **options})
    with Server(terms, Post(nodes, fates), folder / "server") as server:
        yield problem, nodes, server


def models(nodes, server):
    vectors, algorithm = server.state.server, server.terms.algorithm
    return np.stack([node.model(vectors, algorithm) for node in nodes.values()])


def history(server):
    return [json.loads(line) for line in (server.folder / HISTORY).read_text().splitlines()]
