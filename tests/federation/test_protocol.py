"""Messages that are lost, late or repeated, and sides that die: the numbers of the simulator."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import run
from pcfed.federation import Message, Node, Server
from pcfed.federation.paths import CHECKPOINT, HISTORY
from pcfed.federation.server import TooFew
from pcfed.federation.server_state import ServerState
from pcfed.storage.archive import load_arrays
from tests.federation.in_process import NAMES, OPTIONS, Post, federation, history, models
from tests.federations import ALGORITHMS

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@every_algorithm
def test_the_numbers_of_the_simulator(algorithm, tmp_path):
    with federation(tmp_path, algorithm, 5) as (problem, nodes, server):
        server.run()
        server.finish()
        expected = run(problem, algorithm, rounds=5, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(nodes, server), expected.models)
        assert all(off < 1e-14 for off in server.audit().values())


FATES = st.sampled_from(["delivered", "lost", "reply lost", "twice", "dies before", "dies after"])
ROUNDS = 6


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(list(ALGORITHMS.values())),
    fates=st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, FATES)), max_size=12),
    dies=st.sets(st.integers(0, ROUNDS)),
)
def test_exactly_once_whatever_happens(algorithm, fates, dies):
    """The model equals the simulator's with those absences, and every audit holds."""
    with (
        tempfile.TemporaryDirectory() as home,
        federation(Path(home), algorithm, ROUNDS, fates, attempts=99) as (problem, nodes, server),
    ):
        while server.state.round < ROUNDS:
            server.play()
            if server.state.round in dies:  # the server and its post start again
                server.__exit__(None, None, None)
                post = Post(nodes, fates[server.state.round :])
                server = Server(server.terms, post, server.folder)
        server.transport.fates = iter(())
        with server:
            server.finish()
            absent = [
                [i for i, name in enumerate(NAMES) if name not in entry["counted"]]
                for entry in history(server)
            ]
            expected = run(
                problem, algorithm, rounds=ROUNDS, batch=0.3, participation=absent, **OPTIONS
            )
            np.testing.assert_array_equal(models(nodes, server), expected.models)
            assert all(off < 1e-13 for off in server.audit().values())


def test_a_server_that_dies_before_its_checkpoint_plays_the_round_again(tmp_path, monkeypatch):
    algorithm = ALGORITHMS["exact PCFedAvg"]
    with federation(tmp_path, algorithm, 4) as (_, _, server):
        server.play()
        monkeypatch.setattr(
            ServerState, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            server.play()
        monkeypatch.undo()
        assert len(history(server)) == 2  # the second line is of a round that does not count
    with federation(tmp_path, algorithm, 4) as (problem, nodes, again):
        assert again.state.round == len(history(again)) == 1
        again.run()
        again.finish()
        expected = run(problem, algorithm, rounds=4, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(nodes, again), expected.models)
        assert [entry["round"] for entry in history(again)] == [0, 1, 2, 3]


def test_the_checkpoint_does_not_grow_with_the_rounds(tmp_path):
    sizes = []
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 40) as (_, _, server):
        for _ in range(40):
            server.play()
            sizes.append((server.folder / CHECKPOINT).stat().st_size)
    assert max(sizes) - min(sizes) < 64  # a digit here and there
    assert (tmp_path / "server" / HISTORY).read_text().count("\n") == 40


def test_a_history_that_is_not_the_checkpoints_is_refused(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9) as (_, _, server):
        server.play()
    path = tmp_path / "server" / HISTORY
    path.write_text(path.read_text().replace("north", "North"))
    with (
        pytest.raises(ValueError, match=r"must begin with the .* bytes that the checkpoint knows"),
        federation(tmp_path, ALGORITHMS["PCFedAvg"], 9),
    ):
        pass


BAD = {
    "not finite": (lambda v: v * np.nan, {}, "it is not finite"),
    "too long": (lambda v: v * 1e9, {}, "its norm is above the limit 1000"),
    "shape": (lambda v: v[:-1], {}, "its vectors must be"),
    "type": (lambda v: v.astype(int), {}, "its vectors must be"),
    "stranger": (lambda v: v, {"name": "east"}, "it is not in the roster"),
    "round": (lambda v: v, {"round": 7}, "it is of another round"),
    "training": (lambda v: v, {"training": "x"}, "it is of another training"),
    "taken": (lambda v: v, {"name": "south"}, "its name is taken"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_updates_are_refused_and_count_as_absent(case, tmp_path):
    change, facts, why = BAD[case]

    class Liar(Node):
        def answer(self, message):
            reply = super().answer(message)
            if message.kind == "train" and message.facts["round"] == 1:
                vectors = {name: change(vector) for name, vector in reply.vectors.items()}
                reply = Message(reply.kind, {**reply.facts, **facts}, vectors)
            return reply

    algorithm = ALGORITHMS["PCFedAvg"]
    with federation(tmp_path, algorithm, 3, norm_limit=1000.0) as (problem, nodes, server):
        nodes["north"] = Liar("north", problem.agents[0], tmp_path / "north", batch=0.3)
        server.run()
        server.finish()
        refused = history(server)[1]["refused"]
        assert list(refused.values()) == [refused[facts.get("name", "north")]]
        assert why in refused[facts.get("name", "north")]
        absent = [[], [0, 1] if case == "taken" else [0], []]
        expected = run(problem, algorithm, rounds=3, batch=0.3, participation=absent, **OPTIONS)
        np.testing.assert_array_equal(models(nodes, server), expected.models)


def test_a_round_with_too_few_is_repeated_not_averaged_with_nothing(tmp_path):
    algorithm, nobody = ALGORITHMS["PCFedAvg"], dict.fromkeys(NAMES, "lost")
    fates = [nobody, {"north": "lost", "south": "reply lost"}, {}]
    few = {"minimum": 2, "attempts": 3}
    with federation(tmp_path, algorithm, 2, fates, **few) as (problem, nodes, server):
        server.run()
        server.finish()
        expected = run(problem, algorithm, rounds=2, batch=0.3, **OPTIONS)
        np.testing.assert_array_equal(models(nodes, server), expected.models)
    with federation(tmp_path / "other", algorithm, 2, [nobody] * 3, **few) as (_, _, server):
        with pytest.raises(TooFew, match="Round 0 had fewer than 2 agents 3 times; start more"):
            server.run()
        server.run()  # now they answer
        assert server.state.round == 2


def test_an_agent_with_an_old_state_says_so(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9) as (_, nodes, server):
        server.play()
        server.play()
        state = nodes["north"].path
        old = state.read_bytes()
        server.play()
        server.play()
        state.write_bytes(old)
        with pytest.raises(ValueError, match=r"which the state in .* does not know; put the newe"):
            server.play()
        state.unlink()
        with pytest.raises(ValueError, match="counted up to round 3, but there is no state"):
            server.play()


def test_messages_that_come_too_late_change_nothing(tmp_path):
    """A message of an older round, delivered after a newer one, must not undo what is pending."""
    with federation(tmp_path, ALGORITHMS["exact PCFedAvg"], 5) as (problem, nodes, server):
        server.play()
        old = server._messages("train", {}, {})["north"]
        server.transport.fates = iter([{"north": "lost"}])
        server.play()  # round 1, without north
        server.play()
        pending = nodes["north"].path.read_bytes()
        with pytest.raises(ValueError, match="a message of round 1 came after one of round 2"):
            nodes["north"].answer(old)
        assert nodes["north"].path.read_bytes() == pending
        server.run()
        with pytest.raises(ValueError, match="round 3 was counted, and the server knows them up"):
            nodes["north"].answer(old)
        server.finish()
        assert all(off < 1e-14 for off in server.audit().values())
        absent = [[], [0], [], [], []]
        expected = run(
            problem, server.terms.algorithm, rounds=5, batch=0.3, participation=absent, **OPTIONS
        )
        np.testing.assert_array_equal(models(nodes, server), expected.models)


def test_the_terms_of_a_training_do_not_change(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2) as (_, _, server):
        server.run()
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 3, minimum=3, attempts=2) as (_, _, server):
        server.play()  # for how long is another matter
        assert server.state.round == 3
    for change in ({"seed": 5}, {"local_steps": 4}):
        with (
            pytest.raises(ValueError, match="of one with other terms; give the training another"),
            federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, **change),
        ):
            pass
    with (
        pytest.raises(ValueError, match="other terms"),
        federation(tmp_path, ALGORITHMS["FedAvg"], 2),
    ):
        pass
    about, _ = load_arrays(tmp_path / "server" / CHECKPOINT)
    assert about["round"] == 3


def test_an_update_is_computed_once_even_if_its_owner_changes_something(tmp_path):
    """What was sent in an attempt that failed may be what the server counts: it must stay so."""
    first = [dict.fromkeys(NAMES, "lost") | {"north": "reply lost"}]
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, first) as (problem, nodes, server):
        server.play()  # in the second attempt
        sent = server.transport.replies[0]
    with federation(tmp_path / "other", ALGORITHMS["PCFedAvg"], 2, first) as (_, nodes, server):
        folder = nodes["north"].folder

        class Changed(Post):
            def exchange(self, messages, least):
                replies = list(super().exchange(messages, least))
                nodes["north"] = Node("north", problem.agents[0], folder, batch=0.9)
                return replies

        server.transport = Changed(nodes, first)
        server.play()
        again = server.transport.replies[0]
        server.play()
        server.finish()
        assert all(off < 1e-14 for off in server.audit().values())
    for key, vector in sent.vectors.items():
        np.testing.assert_array_equal(again.vectors[key], vector)
