"""Secure sums where agents and servers fail at any moment: every sum is exact, or there is none."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import run
from pcfed.federation import Server
from pcfed.federation.paths import OPEN_SUM
from pcfed.federation.server import MissingAgents
from tests.federation.in_process import OPTIONS, RefusingTransport, federation, history, models
from tests.federations import ALGORITHMS, classifiers

KINDS = ["introduce", "announce", "train", "confirm", "unmask"]
FAULTS = ["lost", "reply lost", "dies between", "twice"]
PROBLEM = classifiers(4)
NAMES = [f"agent {i + 1}" for i in range(4)]
ALGORITHM = ALGORITHMS["PCFedAvg"]
T = 3


class Killed(Exception):
    """The server's process ends."""


class Chaos(RefusingTransport):
    """Asks a function for the fault of every message.

    ``fault`` gets the kind, the agent, the round and how many messages of this kind the agent has
    had in the round. Beside the usual faults there is "dies between": the agent has written its
    secrets and not its state. "killed" ends the server before any message of the exchange leaves,
    and "killed after" when all agents have replied.
    """

    def __init__(self, clients, fault=None):
        super().__init__(clients)
        self.fault = fault or (lambda *about: "delivered")
        self.sent = Counter()

    def exchange(self, messages, min_present):
        faults = {}
        for name, message in messages.items():
            about = message.kind, name, message.metadata["round"]
            faults[name] = self.fault(*about, self.sent[about])
            self.sent[about] += 1
        if "killed" in faults.values():
            raise Killed
        self.faults = iter([faults])
        replies = list(super().exchange(messages, min_present))
        between = [name for name, fault in faults.items() if fault == "dies between"]
        if "killed after" in faults.values():
            raise Killed
        return [reply for reply in replies if reply.metadata["name"] not in between]

    def answer(self, name, message):
        path = self.clients[name].state_path
        before = path.read_bytes() if path.exists() else None
        reply = super().answer(name, message)
        number = self.sent[message.kind, name, message.metadata["round"]] - 1
        about = message.kind, name, message.metadata["round"], number
        if self.fault(*about) == "dies between":
            path.unlink(missing_ok=True)
            if before is not None:
                path.write_bytes(before)
        return reply


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """No power failure is played here, so that files need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def at(kind, fault, names=NAMES[:1], rounds=(0, 1, 2), first=0, last=0):
    """Return a function for Chaos: the first to last messages of a kind have a fault."""

    def found(sent, name, index, count):
        hit = sent == kind and name in names and index in rounds and first <= count <= last
        return fault if hit else "delivered"

    return found


@contextmanager
def chaotic(folder, fault=None, rounds=3, problem=PROBLEM, **options):
    """Yield the clients and the server of a federation with faults."""
    options = {"problem": problem, "secure": True, "transport": Chaos, **options}
    with federation(folder, ALGORITHM, rounds, **options) as (_, clients, server):
        server.transport.fault = fault or server.transport.fault
        yield clients, server


def restarted(server, fault=None):
    """Return a server that resumes from the files of another one, with a new transport."""
    server.__exit__(None, None, None)
    return Server(server.config, Chaos(server.transport.clients, fault), server.folder)


def check_exact(clients, server, problem=PROBLEM):
    """Check the models and the audit against the simulator with the absences of the history."""
    server.transport.fault = lambda *about: "delivered"
    server.finish()
    absences = [
        [i for i, name in enumerate(clients) if name not in entry["accepted"]]
        for entry in history(server)
    ]
    assert len(absences) == server.state.round
    options = {"batch": 0.3, "grid": server.config.grid, "participation": absences, **OPTIONS}
    expected = run(problem, ALGORITHM, rounds=server.state.round, **options).models
    np.testing.assert_array_equal(models(clients, server), expected)
    assert set(server.audit().values()) == {0.0}
    assert not (server.folder / OPEN_SUM).exists()
    return absences


# -- agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_agent_fails_in_every_round(kind, fault, tmp_path):
    with chaotic(tmp_path, at(kind, fault)) as (clients, server):
        server.run()
        absences = check_exact(clients, server)
    # Without an announcement in an answer to unmask, it can't be in the next sum.
    absent = {"introduce": [0], "announce": [0], "train": [0, 1, 2], "confirm": [], "unmask": [1]}
    expected = [] if fault == "twice" else absent[kind]
    assert absences == [[0] if index in expected else [] for index in range(3)]


def test_absent_and_back_again(tmp_path):
    """An agent that comes later, and one that leaves for two rounds.

    In the round in which they come they announce keys, and from the next one on they take part.
    """
    away = {"agent 1": (0, 1), "agent 2": (4, 5)}

    def fault(kind, name, index, count):
        return "lost" if index in away.get(name, ()) else "delivered"

    with chaotic(tmp_path, fault, rounds=8) as (clients, server):
        server.run()
        absences = check_exact(clients, server)
    assert absences == [[0], [0], [0], [], [1], [1], [1], []]


def test_different_agents_fail_in_one_round(tmp_path):
    """With seven agents t is 5: one fails in training, and others when they sign and open."""
    problem = classifiers(7)

    def fault(kind, name, index, count):
        failing = {"train": "agent 1", "confirm": "agent 2", "unmask": "agent 3"}
        return "reply lost" if failing.get(kind) == name else "delivered"

    with chaotic(tmp_path, fault, problem=problem) as (clients, server):
        server.run()
        absences = check_exact(clients, server, problem)
    assert absences[0] == [0]


# -- too few agents -------------------------------------------------------------------------------


def secrets_in(server):
    """Return all shares that agents have revealed."""
    return [reply for reply in server.transport.replies if "mask_shares" in reply.metadata]


@pytest.mark.parametrize("fault", ["lost", "reply lost", "dies between"])
@pytest.mark.parametrize("kind", ["train", "confirm"])
def test_below_t_nothing_is_revealed_and_the_round_is_repeated(kind, fault, tmp_path):
    failing = at(kind, fault, NAMES[:2], rounds=(1,), last=99)
    with chaotic(tmp_path, failing, attempts=3) as (clients, server):
        server.run_round()
        server.transport.replies.clear()
        with pytest.raises(MissingAgents, match="Round 1 had fewer than"):
            server.run_round()
        assert server.transport.sent["train", "agent 3", 1] == 3
        assert not secrets_in(server)
        assert not (server.folder / OPEN_SUM).exists()
        server.transport.fault = lambda *about: "delivered"
        server.run()
        assert check_exact(clients, server)[1] == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_sum_that_too_few_open_is_opened_when_they_are_back(restart, tmp_path):
    """Two agents have revealed their shares, and may not help to open another sum."""
    failing = at("unmask", "lost", NAMES[:2], rounds=(1,), last=99)
    with chaotic(tmp_path, failing, attempts=2) as (clients, server):
        server.run_round()
        with pytest.raises(MissingAgents):
            server.run_round()
        assert (server.folder / OPEN_SUM).exists()
        assert server.transport.sent["train", "agent 3", 1] == 1
        if restart:
            server = restarted(server)
        server.transport.fault = lambda *about: "delivered"
        server.run()
        assert check_exact(clients, server) == [[], [], []]
        server.__exit__(None, None, None)


# -- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["killed", "killed after"])
@pytest.mark.parametrize(
    ("index", "kind"), [*((0, kind) for kind in KINDS), *((1, kind) for kind in KINDS[2:])]
)
def test_the_server_dies(index, kind, fault, tmp_path):
    with chaotic(tmp_path, at(kind, fault, rounds=(index,))) as (clients, server):
        with pytest.raises(Killed):
            server.run()
        assert server.state.round == index
        asked_to_open = kind == "unmask"
        assert (server.folder / OPEN_SUM).exists() == asked_to_open
        server = restarted(server)
        server.run()
        assert check_exact(clients, server) == [[], [], []]
        trained = server.transport.sent["train", "agent 1", index]
        assert trained == (0 if asked_to_open else 1)
        server.__exit__(None, None, None)


@pytest.mark.parametrize("written", [False, True])
def test_the_server_dies_at_its_checkpoint(written, tmp_path, monkeypatch):
    """The sum is known, and the checkpoint is just not written, or just written."""
    with chaotic(tmp_path) as (clients, server):
        server.run_round()
        save = Server._save

        def killed(self, state):
            if written:
                save(self, state)
            raise Killed

        monkeypatch.setattr(Server, "_save", killed)
        with pytest.raises(Killed):
            server.run_round()
        monkeypatch.setattr(Server, "_save", save)
        assert (server.folder / OPEN_SUM).exists()
        server = restarted(server)
        assert server.state.round == 1 + written
        assert (server.folder / OPEN_SUM).exists() != written
        server.run()
        assert check_exact(clients, server) == [[], [], []]
        server.__exit__(None, None, None)


def test_a_sum_that_was_opened_is_not_left_out(tmp_path):
    """A server that loses the masked sum can't get another one of the same round."""
    with chaotic(tmp_path, at("unmask", "killed after", rounds=(1,)), attempts=2) as (_, server):
        with pytest.raises(Killed):
            server.run()
        (server.folder / OPEN_SUM).unlink()
        server = restarted(server)
        with pytest.raises(MissingAgents):
            server.run()
        reasons = [str(r.metadata.get("reason")) for r in server.transport.replies]
        assert any("sits out repeats" in reason for reason in reasons)
        assert not secrets_in(server)
        server.__exit__(None, None, None)


# -- anything -------------------------------------------------------------------------------------


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), m=st.sampled_from([4, 5]), often=st.sampled_from([0.05, 0.15]))
def test_random_faults(seed, m, often):
    problem, rng = classifiers(m), np.random.default_rng(seed)
    drawn = {}

    def fault(*about):
        if about not in drawn:
            kind = rng.random()
            choice = [*FAULTS, "reply lost", "killed", "killed after"]
            drawn[about] = rng.choice(choice) if kind < often else "delivered"
        return drawn[about]

    with (
        tempfile.TemporaryDirectory() as home,
        chaotic(Path(home), fault, 4, problem, attempts=5) as (clients, server),
    ):
        for _ in range(200):
            if server.state.round == 4:
                break
            try:
                server.run()
            except Killed:
                drawn.clear()  # the same messages have other faults after a restart
                server = restarted(server, fault)
            except MissingAgents:
                drawn.clear()
                server.transport.sent.clear()
        assert server.state.round == 4
        check_exact(clients, server, problem)
        server.__exit__(None, None, None)


def test_agents_that_stay_away_do_not_raise_the_threshold(tmp_path):
    """Of six agents two drop out for good, then one more: four are enough, then three."""
    leaves = {"agent 1": 1, "agent 2": 1, "agent 3": 3}

    def fault(kind, name, index, number):
        return "lost" if index >= leaves.get(name, 99) else "delivered"

    with chaotic(tmp_path, fault, 6, classifiers(6), attempts=1) as (_, server):
        server.run()
        accepted = [entry["accepted"] for entry in history(server)]
    assert [len(names) for names in accepted] == [6, 4, 4, 3, 3, 3]
