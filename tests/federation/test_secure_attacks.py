"""What a dishonest server can try in whole trainings: sums whose difference is one agent's."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from pcfed.algorithms.grid import Grid
from pcfed.federation import Client, Message, Server, ServerConfig
from pcfed.federation.identity import Identity, Roster
from pcfed.federation.masking import Announcement
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.secure_sums import integers_of
from pcfed.sets import L1Ball
from tests.federation.in_process import RefusingTransport
from tests.federations import ALGORITHMS, classifiers

VICTIM = "agent 2"


@contextmanager
def attacked(folder, algorithm, m, problem=None):
    """Yield a server that sends what it likes; all agents must be in every sum."""
    problem = problem or classifiers(m)
    names = tuple(f"agent {i + 1}" for i in range(m))
    identities = {name: Identity.create() for name in names}
    roster = Roster({name: each.public for name, each in identities.items()}, 1, minimum=m)
    clients = {}
    for name, agent in zip(names, problem.agents, strict=True):
        secure = SecureAgent(name, identities[name], folder / name / "secrets.json", roster)
        clients[name] = Client(name, agent, folder / name, secure=secure, only_secure=True)
    config = ServerConfig("a test", names, problem.n, algorithm, 99, secure=True, local_steps=3)
    with Server(config, RefusingTransport(clients), folder / "server") as server:
        yield Attacker(server, clients)


class Attacker:
    """A server that sends what it likes."""

    def __init__(self, server, clients):
        self.server, self.clients = server, clients
        self.reasons = []
        self.contexts = {}

    def ask(self, name, kind, vectors=None, **metadata):
        asked = self.server._message(name, kind, vectors or {}, metadata)
        asked = Message(kind, {**asked.metadata, **metadata}, {**asked.vectors, **(vectors or {})})
        reply = self.server.transport.answer(name, asked)
        if reply.kind == "error":
            self.reasons.append((name, reply.metadata["reason"]))
        return reply

    def announced(self, kind):
        group = [
            json.loads(self.ask(n, "introduce").metadata["introduction"]) for n in self.clients
        ]
        place = str(self.server._place)
        options = {"group": json.dumps(group), "next_place": place}
        replies = [self.ask(name, "announce", **options) for name in self.clients]
        texts = [json.loads(reply.metadata["announcements"])[kind] for reply in replies]
        return json.dumps([Announcement(**text).public for text in texts])

    def models(self):
        """Return the sum of the feasible models, as far as masks cancel, and whether they do."""
        options = {"participants": self.announced("complete")}
        options["next_place"] = str(self.server._place)
        replies = [self.ask(name, "feasible_model", **options) for name in self.clients]
        if any(reply.kind == "error" for reply in replies):
            return None, False
        total = np.sum([integers_of(reply) for reply in replies], axis=0, dtype=np.uint64)
        config = self.server.config
        return Grid(config.grid, len(self.clients)).decode_wide(total[:-1]), total[-1] == 0

    def round(self, of_victim, of_others, vectors=None):
        """Run a round in which the victim is asked one thing and all others another; open nothing.

        The server says that all updates counted.
        """
        listed, index = self.announced("shared"), self.server.state.round
        for name in self.clients:
            more = of_victim if name == VICTIM else of_others
            sent = None if name == VICTIM else vectors
            reply = self.ask(name, "train", sent, participants=listed, **more)
            self.contexts[name] = str(reply.metadata["context"])
        accepted = dict.fromkeys(self.clients, index)
        self.server.state = replace(self.server.state, round=index + 1, accepted=accepted)

    def name_sums(self, survivors=None):
        """Tell every agent its own sum as the accepted one."""
        original, names = self.server._message, sorted(survivors or self.clients)

        def message(name, *arguments):
            asked = original(name, *arguments)
            found = {"context": self.contexts[name], "survivors": names}
            return replace(asked, metadata={**asked.metadata, "accepted_sum": json.dumps(found)})

        self.server._message = message


@pytest.mark.parametrize("m", [3, 5])
def test_the_change_of_one_model_is_not_in_a_difference_of_sums(m, tmp_path):
    """All but the victim are asked for empty updates; all are told that theirs counted."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], m) as server:
        before, cancels = server.models()
        assert cancels
        server.round({"step": 1.0}, {"step": 1e-200})
        server.name_sums()
        after, cancels = server.models()
        assert not server.reasons
        assert not cancels
        assert np.abs(after - before).max() > 1e6  # masks are left
        # The state of the victim alone has changed: this is what the sums must not show.
        changed = [
            np.abs(each.model(server.server.state.vectors, server.server.config.algorithm)).max()
            for each in server.clients.values()
        ]
        assert [change > 1e-3 for change in changed] == [name == VICTIM for name in server.clients]


def test_the_same_for_all_is_a_sum(tmp_path):
    """The control for the other tests: without a lie the masks cancel."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        before, _ = server.models()
        server.round({"step": 1.0}, {"step": 1.0})
        server.name_sums()
        after, cancels = server.models()
        assert cancels
        assert np.abs(after - before).max() > 1e-3


def test_nor_in_the_middle_of_an_honest_training(tmp_path):
    with attacked(tmp_path, ALGORITHMS["PCFedSplit"], 3) as server:
        for _ in range(3):
            server.server.run_round()
        assert server.models()[1]
        server.round({}, {}, {"prox": np.zeros(1)})
        server.name_sums()
        assert not server.models()[1]
        assert not server.reasons


def test_the_sum_must_be_named_with_enough_agents(tmp_path):
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 5) as server:
        server.round({}, {})
        server.name_sums(["agent 1", VICTIM, "agent 4", "agent 5"])
        server.ask(VICTIM, "introduce")
        assert server.reasons == [(VICTIM, "4 updates count, and 5 must")]


def test_the_sum_must_be_that_of_the_update(tmp_path):
    """The victim is told the context of the others, which went into another sum."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        server.round({"step": 1.0}, {"step": 1e-200})
        server.contexts[VICTIM] = server.contexts["agent 1"]
        server.name_sums()
        server.ask(VICTIM, "introduce")
        assert server.reasons == [(VICTIM, "its update of round 0 went into another sum")]


def test_a_question_that_is_repeated_does_not_show_what_an_owner_has_changed(tmp_path):
    problem = classifiers(4)
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 4) as server:
        center = np.zeros(problem.n)
        center[0] = 100.0
        vectors = {**server.server.state.vectors, "C": center}
        server.server.state = replace(server.server.state, vectors=vectors)
        first, _ = server.models()
        again, _ = server.models()
        np.testing.assert_array_equal(first, again)
        client = server.clients[VICTIM]
        client.agent = replace(client.agent, constraint=L1Ball(2.5))
        assert server.models()[0] is None
        assert [name for name, _ in server.reasons] == [VICTIM]
        assert "its answer to feasible_model has changed since it gave one" in server.reasons[0][1]
