"""Lost, late and repeated messages, and processes that die: the simulator's numbers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import run
from pcfed.federation import Client, Message, Server
from pcfed.federation.client_state import ClientState
from pcfed.federation.paths import CHECKPOINT, HISTORY
from pcfed.federation.server import MissingAgents
from pcfed.federation.server_state import ServerState
from pcfed.storage.archive import load_arrays, save_arrays
from tests.federation.in_process import NAMES, OPTIONS, FaultyTransport, federation, history, models
from tests.federations import ALGORITHMS

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@every_algorithm
def test_the_numbers_of_the_simulator(algorithm, tmp_path):
    with federation(tmp_path, algorithm, 5) as (problem, clients, server):
        server.run()
        server.finish()
        expected = run(problem, algorithm, rounds=5, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(clients, server), expected.models)
        assert all(difference < 1e-14 for difference in server.audit().values())


FAULTS = st.sampled_from(["delivered", "lost", "reply lost", "twice", "dies before", "dies after"])
ROUNDS = 6


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(list(ALGORITHMS.values())),
    faults=st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, FAULTS)), max_size=12),
    dies=st.sets(st.integers(0, ROUNDS)),
)
def test_exactly_once_whatever_happens(algorithm, faults, dies):
    """The model equals the simulator's with those absences, and every audit holds."""
    with (
        tempfile.TemporaryDirectory() as home,
        federation(Path(home), algorithm, ROUNDS, faults, attempts=99) as (
            problem,
            clients,
            server,
        ),
    ):
        while server.state.round < ROUNDS:
            server.run_round()
            if server.state.round in dies:  # the server and its transport start again
                server.__exit__(None, None, None)
                transport = FaultyTransport(clients, faults[server.state.round :])
                server = Server(server.config, transport, server.folder)
        server.transport.faults = iter(())
        with server:
            server.finish()
            absent = [
                [i for i, name in enumerate(NAMES) if name not in entry["accepted"]]
                for entry in history(server)
            ]
            expected = run(
                problem, algorithm, rounds=ROUNDS, batch=0.3, participation=absent, **OPTIONS
            )
            np.testing.assert_array_equal(models(clients, server), expected.models)
            assert all(difference < 1e-13 for difference in server.audit().values())


def test_a_server_that_dies_before_its_checkpoint_repeats_the_round(tmp_path, monkeypatch):
    algorithm = ALGORITHMS["PCFedSplit"]
    with federation(tmp_path, algorithm, 4) as (_, _, server):
        server.run_round()
        monkeypatch.setattr(
            ServerState, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            server.run_round()
        monkeypatch.undo()
        assert len(history(server)) == 2  # the second line is of a round that was not accepted
    with federation(tmp_path, algorithm, 4) as (problem, clients, again):
        assert again.state.round == len(history(again)) == 1
        again.run()
        again.finish()
        expected = run(problem, algorithm, rounds=4, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(clients, again), expected.models)
        assert [entry["round"] for entry in history(again)] == [0, 1, 2, 3]


def test_the_checkpoint_does_not_grow_with_the_rounds(tmp_path):
    sizes = []
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 40) as (_, _, server):
        for _ in range(40):
            server.run_round()
            sizes.append((server.folder / CHECKPOINT).stat().st_size)
    sizes = sizes[3:]  # by then it contains the usual norm of every vector
    assert max(sizes) - min(sizes) < 64  # a digit here and there
    assert (tmp_path / "server" / HISTORY).read_text().count("\n") == 40


def test_a_history_of_another_checkpoint_is_refused(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9) as (_, _, server):
        server.run_round()
    path = tmp_path / "server" / HISTORY
    path.write_text(path.read_text().replace("north", "North"))
    with (
        pytest.raises(ValueError, match=r"must begin with the .* bytes that the checkpoint rec"),
        federation(tmp_path, ALGORITHMS["PCFedAvg"], 9),
    ):
        pass


@pytest.mark.parametrize("kind", [ServerState, ClientState])
def test_states_of_an_earlier_version_are_refused(kind, tmp_path):
    save_arrays(tmp_path / "state.npz", {"format": 2}, {})
    with pytest.raises(
        ValueError, match=r"it has format 2, which pcfed 0.1 reads, and this version"
    ):
        kind.load(tmp_path / "state.npz")


BAD = {
    "not finite": (lambda v: v * np.nan, {}, "its vectors are not finite"),
    "too long": (lambda v: v * 1e9, {}, "above the limit 1e+03; if it is right, raise"),
    "float16": (
        lambda v: v.astype(np.float16),
        {},
        "in float32 or float64, got the shape (48,) in",
    ),
    "longdouble": (lambda v: v.astype(np.longdouble), {}, "in float32 or float64, got"),
    "byte order": (lambda v: v.astype(">f8"), {}, "in float32 or float64, got"),
    "huge": (lambda v: v * 0 + 1e300, {}, "above the limit 1e+03"),
    "no array": (lambda v: v.tolist(), {}, "its reply can't be read (AttributeError)"),
    "shape": (lambda v: v[:-1], {}, "its vectors must be"),
    "type": (lambda v: v.astype(int), {}, "its vectors must be"),
    "stranger": (lambda v: v, {"name": "east"}, "it is not in the roster"),
    "rollback": (lambda v: v, {"rollbacks": 1}, "its reply is for another round"),
    "round": (lambda v: v, {"round": 7}, "its reply is for another round"),
    "training": (lambda v: v, {"training": "x"}, "its reply is for another training"),
    "taken": (lambda v: v, {"name": "south"}, "two nodes use this name"),
    "version": (lambda v: v, {"protocol": 1}, "it uses version 1 of the protocol and the server"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_updates_are_refused_and_treated_as_absent(case, tmp_path):
    change, metadata, reason = BAD[case]

    class Liar(Client):
        def handle(self, message):
            reply = super().handle(message)
            if message.kind == "train" and message.metadata["round"] == 1:
                vectors = {name: change(vector) for name, vector in reply.vectors.items()}
                reply = Message(reply.kind, {**reply.metadata, **metadata}, vectors)
            return reply

    algorithm = ALGORITHMS["PCFedAvg"]
    with federation(tmp_path, algorithm, 3, norm_limit=1000.0) as (problem, clients, server):
        clients["north"] = Liar("north", problem.agents[0], tmp_path / "north", batch=0.3)
        server.run()
        server.finish()
        refused = history(server)[1]["refused"]
        assert list(refused.values()) == [refused[metadata.get("name", "north")]]
        assert reason in refused[metadata.get("name", "north")]
        absent = [[], [0, 1] if case == "taken" else [0], []]
        expected = run(problem, algorithm, rounds=3, batch=0.3, participation=absent, **OPTIONS)
        np.testing.assert_array_equal(models(clients, server), expected.models)


def test_a_round_with_too_few_agents_is_repeated(tmp_path):
    algorithm, nobody = ALGORITHMS["PCFedAvg"], dict.fromkeys(NAMES, "lost")
    faults = [nobody, {"north": "lost", "south": "reply lost"}, {}]
    few = {"minimum": 2, "attempts": 3}
    with federation(tmp_path, algorithm, 2, faults, **few) as (problem, clients, server):
        server.run()
        server.finish()
        expected = run(problem, algorithm, rounds=2, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(clients, server), expected.models)
    with federation(tmp_path / "other", algorithm, 2, [nobody] * 3, **few) as (_, _, server):
        with pytest.raises(
            MissingAgents, match="Round 0 had fewer than 2 agents in 3 attempts; start"
        ):
            server.run()
        server.run()  # now they answer
        assert server.state.round == 2


def test_an_agent_with_an_old_state_says_so(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9) as (_, clients, server):
        server.run_round()
        server.run_round()
        state = clients["north"].state_path
        old = state.read_bytes()
        server.run_round()
        server.run_round()
        state.write_bytes(old)
        with pytest.raises(ValueError, match=r"which .* does not contain; restore the newest"):
            server.run_round()
        state.unlink()
        with pytest.raises(ValueError, match="accepted up to round 3, but there is no state"):
            server.run_round()


def test_messages_that_arrive_too_late_change_nothing(tmp_path):
    """A message of an older round must not replace the pending update of a newer one."""
    with federation(tmp_path, ALGORITHMS["PCFedSplit"], 5) as (problem, clients, server):
        server.run_round()
        old = server._messages("train", {}, {})["north"]
        server.transport.faults = iter([{"north": "lost"}])
        server.run_round()  # round 1, without north
        server.run_round()
        pending = clients["north"].state_path.read_bytes()
        with pytest.raises(ValueError, match="a message of round 1 arrived after one of round 2"):
            clients["north"].handle(old)
        assert clients["north"].state_path.read_bytes() == pending
        server.run()
        with pytest.raises(ValueError, match="round 3 was accepted, but the server knows of"):
            clients["north"].handle(old)
        server.finish()
        assert all(difference < 1e-14 for difference in server.audit().values())
        absent = [[], [0], [], [], []]
        expected = run(
            problem, server.config.algorithm, rounds=5, batch=0.3, participation=absent, **OPTIONS
        )
        np.testing.assert_array_equal(models(clients, server), expected.models)


def test_the_configuration_of_a_training_does_not_change(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2) as (_, _, server):
        server.run()
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 3, minimum=3, attempts=2) as (_, _, server):
        server.run_round()  # the number of rounds may change
        assert server.state.round == 3
    for change in ({"seed": 5}, {"local_steps": 4}):
        with (
            pytest.raises(
                ValueError, match=f"of a training with another {next(iter(change))}; rest"
            ),
            federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, **change),
        ):
            pass
    with (
        pytest.raises(ValueError, match="with another algorithm; restore the configuration"),
        federation(tmp_path, ALGORITHMS["FedAvg"], 2),
    ):
        pass
    about, _ = load_arrays(tmp_path / "server" / CHECKPOINT)
    assert about["round"] == 3


def test_an_update_is_computed_once_even_if_its_owner_changes_something(tmp_path):
    """The server may accept what was sent in an attempt that failed, so it must stay the same."""
    first = [dict.fromkeys(NAMES, "lost") | {"north": "reply lost"}]
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, first) as (problem, clients, server):
        server.run_round()  # in the second attempt
        sent = server.transport.replies[0]
    with federation(tmp_path / "other", ALGORITHMS["PCFedAvg"], 2, first) as (_, clients, server):
        folder = clients["north"].folder

        class Changed(FaultyTransport):
            def exchange(self, messages, min_present):
                replies = list(super().exchange(messages, min_present))
                clients["north"] = Client("north", problem.agents[0], folder, batch=0.9)
                return replies

        server.transport = Changed(clients, first)
        server.run_round()
        again = server.transport.replies[0]
        server.run_round()
        server.finish()
        assert all(difference < 1e-14 for difference in server.audit().values())
    for key, vector in sent.vectors.items():
        np.testing.assert_array_equal(again.vectors[key], vector)
