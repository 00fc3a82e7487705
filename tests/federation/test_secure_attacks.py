"""What a dishonest server can try in whole trainings: sums whose difference is one agent's."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest

from pcfed.algorithms.grid import Grid
from pcfed.federation import Client, Message, Server, ServerConfig
from pcfed.federation.client_state import ClientState
from pcfed.federation.identity import Identity, Roster
from pcfed.federation.masking import Announcement
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.secure_sums import integers_of
from pcfed.federation.server import MissingAgents
from pcfed.sets import L1Ball
from tests.federation.in_process import RefusingTransport
from tests.federations import ALGORITHMS, classifiers

VICTIM = "agent 2"


@contextmanager
def attacked(folder, algorithm, m, problem=None, **owner):
    """Yield a server that sends what it likes; all agents must be in every sum."""
    problem = problem or classifiers(m)
    names = tuple(f"agent {i + 1}" for i in range(m))
    identities = {name: Identity.create() for name in names}
    roster = Roster({name: each.public for name, each in identities.items()}, 1, minimum=m)
    clients = {}
    for name, agent in zip(names, problem.agents, strict=True):
        secure = SecureAgent(name, identities[name], folder / name / "secrets.json", roster)
        clients[name] = Client(name, agent, folder / name, secure=secure, only_secure=True, **owner)
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
        return Grid(config.grid, len(self.clients)).decode_wide(total[:-2]), total[-1] == 0

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


def test_all_commit_a_sum_in_the_same_way(tmp_path):
    """All train alike; then the others alone are told of an algorithm that commits nothing."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        server.round({"step": 1.0}, {"step": 1.0})
        server.name_sums()
        fedavg = {"algorithm": "FedAvg", "parameters": json.dumps({"penalty": 0.0})}
        for kind, changed in (("introduce", fedavg), ("train", {"grid": 2.0**40})):
            for name in server.clients.keys() - {VICTIM}:
                assert server.ask(name, kind, participants="[]", **changed).kind == "error"
        assert all("the server has changed the setting" in reason for _, reason in server.reasons)
        _, cancels = server.models()
        assert cancels
        for client in server.clients.values():
            state = ClientState.load(client.state_path)
            assert np.abs(state.private["w"]).max() > 0
            assert any(total.any() for total in state.totals.values())


def test_an_update_is_committed_as_it_was_computed(tmp_path):
    """Whatever the message says that tells that it counts; without a secure sum, too."""
    problem = classifiers(3)
    names = ("agent 1", VICTIM, "agent 3")
    algorithm = ALGORITHMS["PCFedAvg"]
    config = ServerConfig("a test", names, problem.n, algorithm, 9, local_steps=3)
    client = Client(VICTIM, problem.agents[1], tmp_path / VICTIM)
    with Server(config, RefusingTransport({VICTIM: client}), tmp_path / "server") as server:
        asked = server._message(VICTIM, "train", {}, {})
        client.handle(replace(asked, metadata={**asked.metadata, "step": 1.0}))
        pending = ClientState.load(client.state_path).pending
        server.state = replace(server.state, round=1, accepted=dict.fromkeys(names, 0))
        other = server._message(VICTIM, "finish", {}, {})
        other = replace(other, metadata={**other.metadata, "parameters": '{"exact": false}'})
        with suppress(ValueError):  # the other algorithm itself may be refused
            client.handle(other)
        client.handle(server._message(VICTIM, "finish", {}, {}))
        found = ClientState.load(client.state_path).private
        start = algorithm.start(np.zeros((1, problem.n)))[1]
        new = algorithm.commit(start, pending.kept, pending.received, pending.round_info)
        assert np.abs(new["w"]).max() > 0
        np.testing.assert_array_equal(found["w"], new["w"])


@pytest.mark.parametrize("limit", [1e-9, 0.05, 1e9])
def test_a_limit_on_norms_shows_only_how_many_are_above_it(limit, tmp_path):
    """A refusal of one agent, asked again and again with other limits, would tell its norm."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        listed = server.announced("shared")
        replies = [
            server.ask(name, "train", participants=listed, norm_limit=limit)
            for name in server.clients
        ]
        assert {reply.kind for reply in replies} == {"train"}
        assert len({reply.vectors["masked"].shape for reply in replies}) == 1
        pending = ClientState.load(server.clients[VICTIM].state_path).pending
        assert pending.withheld == (limit < 1)
        assert any(map(np.any, pending.sent.values())) != pending.withheld


@pytest.mark.parametrize(("size", "withheld"), [(1.0, False), (1e30, True)])
def test_numbers_of_certificates_outside_the_grid_are_withheld(size, withheld, tmp_path, caplog):
    """A refusal of one agent, with larger and larger gradients, would tell the size of its set."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        n = server.server.config.n
        vectors = {"feasible_center": np.zeros(n), "feasible_gradient": np.full(n, size)}
        options = {"participants": server.announced("complete")}
        options["next_place"] = str(server.server._place)
        reply = server.ask(VICTIM, "gap_term", vectors, **options)
        assert reply.kind == "gap_term"
        assert ("random numbers take the place of its part of gap_term" in caplog.text) == withheld


def test_the_server_hears_how_many_agents_could_not_answer(tmp_path):
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        center = np.zeros(server.server.config.n)
        center[0] = 1e300  # the losses there are not finite
        vectors = {**server.server.state.vectors, "C": center}
        server.server.state = replace(server.server.state, vectors=vectors)
        with pytest.raises(MissingAgents, match="3 of 3 agents could not compute their part"):
            server.server.certificate()


def test_the_end_of_a_training_binds_its_settings_too(tmp_path):
    """With another algorithm, the agent would start in another state, and never have an answer."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        other = {"algorithm": "FedAvg", "parameters": json.dumps({"penalty": 0.0})}
        assert server.models()[1]
        assert server.ask(VICTIM, "finish", **other).kind == "error"
        assert "changed the setting algorithm" in server.reasons[-1][1]
        assert server.ask(VICTIM, "finish").kind == "finish"


@pytest.mark.parametrize("kind", ["U32", "complex128", "float32", "matrix"])
def test_vectors_of_other_types_are_refused(kind, tmp_path):
    """The same numbers as text have the same hash, and only this agent could not answer."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        C = server.server.state.vectors["C"]
        C = C[None] if kind == "matrix" else C.astype(kind)
        options = {"participants": server.announced("shared")}
        assert server.ask(VICTIM, "train", {"C": C}, **options).kind == "error"
        assert "must be one-dimensional and in float64" in server.reasons[-1][1]


def test_metrics_are_reported_once_for_every_accepted_update(tmp_path):
    """At any vectors and any number of times, they would be the agent's whole loss."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3, report=("loss",)) as server:
        n = server.server.config.n
        first = server.ask(VICTIM, "finish").metadata["metric_loss"]
        again = server.ask(VICTIM, "finish", {"C": np.arange(n) * 1.0}).metadata["metric_loss"]
        assert first == again
        server.round({}, {})
        server.name_sums()
        assert (
            server.ask(VICTIM, "finish", {"C": np.arange(n) * 1.0}).metadata["metric_loss"] != first
        )


def test_metrics_that_can_not_be_computed_are_left_out(tmp_path, monkeypatch, caplog):
    """Whether they can be, at vectors that a server chooses, says something about the data."""

    def fail(*arguments):
        raise ValueError("a projection failed")

    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3, report=("loss",)) as server:
        monkeypatch.setattr("pcfed.federation.client.local_metrics", fail)
        reply = server.ask(VICTIM, "train", participants=server.announced("shared"))
        assert reply.kind == "train"
        assert "metric_loss" not in reply.metadata
        assert "its metrics are not reported: a projection failed" in caplog.text


def test_what_an_owner_changes_is_not_in_a_difference_of_sums(tmp_path):
    """The limit is changed, an empty update counts, and the same question is asked again."""
    with attacked(tmp_path, ALGORITHMS["PCFedAvg"], 3) as server:
        assert server.models()[1]
        client = server.clients[VICTIM]
        client.agent = replace(client.agent, constraint=L1Ball(2.5))
        assert server.models()[0] is None
        reply = server.ask(VICTIM, "train", participants=server.announced("shared"))
        assert reply.kind == "error"
        assert all("its owner has changed the data" in reason for _, reason in server.reasons)


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
        assert "its owner has changed the data, the constraint" in server.reasons[0][1]
