"""Messages that are lost, late or repeated, and sides that die: the numbers of the simulator."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import run
from pcfed.flower import Coordinator, Message, Node, Terms
from pcfed.flower.coordinator import TooFew
from tests.federations import ALGORITHMS, classifiers

NAMES = ("north", "south", "west")
OPTIONS = {"local_steps": 3, "seed": 4}


class Post:
    """Carries messages in this process, as badly as it is told to.

    ``fates`` says for each exchange what becomes of each agent's message: it is delivered, it is
    lost on the way, its reply is lost, it is delivered twice, or the agent dies before it has
    written its state, or after that and before it replies.
    """

    def __init__(self, nodes, fates=()):
        self.nodes, self.fates = nodes, iter(fates)

    def exchange(self, messages):
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
            yield reply


def federation(folder: Path, algorithm, rounds, fates=(), **options):
    problem = classifiers()
    nodes = {
        name: Node(name, agent, folder / f"{name}.npz", batch=0.3)
        for name, agent in zip(NAMES, problem.agents, strict=True)
    }
    terms = Terms("a test", NAMES, problem.n, algorithm, rounds, **{**OPTIONS, **options})
    return problem, nodes, Coordinator(terms, Post(nodes, fates), folder / "server.npz")


def models(nodes, coordinator):
    server, algorithm = coordinator.standing.server, coordinator.terms.algorithm
    return np.stack([node.model(server, algorithm) for node in nodes.values()])


every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@every_algorithm
def test_the_numbers_of_the_simulator(algorithm, tmp_path):
    problem, nodes, server = federation(tmp_path, algorithm, 5)
    server.run()
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
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        problem, nodes, server = federation(folder, algorithm, ROUNDS, fates, attempts=99)
        while server.standing.round < ROUNDS:
            server.play()
            if server.standing.round in dies:  # the server and its post start again
                server = Coordinator(
                    server.terms, Post(nodes, fates[server.standing.round :]), server.path
                )
        server.transport.fates = iter(())
        server.finish()
        absent = [
            [i for i, name in enumerate(NAMES) if name not in entry["counted"]]
            for entry in server.standing.history
        ]
        expected = run(
            problem, algorithm, rounds=ROUNDS, batch=0.3, participation=absent, **OPTIONS
        )
        np.testing.assert_array_equal(models(nodes, server), expected.models)
        assert all(off < 1e-13 for off in server.audit().values())


def test_a_server_that_dies_before_its_checkpoint_plays_the_round_again(tmp_path, monkeypatch):
    algorithm = ALGORITHMS["exact PCFedAvg"]
    problem, nodes, server = federation(tmp_path, algorithm, 4)
    server.play()
    monkeypatch.setattr(Coordinator, "_save", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        server.play()
    monkeypatch.undo()
    again = Coordinator(server.terms, server.transport, server.path)
    assert again.standing.round == 1
    again.run()
    expected = run(problem, algorithm, rounds=4, batch=0.3, **OPTIONS)
    np.testing.assert_array_equal(models(nodes, again), expected.models)


BAD = {
    "not finite": (lambda v: v * np.nan, {}, "it is not finite"),
    "too long": (lambda v: v * 1e9, {}, "its norm is above the limit 1000"),
    "shape": (lambda v: v[:-1], {}, "its vectors must be"),
    "type": (lambda v: v.astype(int), {}, "its vectors must be"),
    "stranger": (lambda v: v, {"name": "east"}, "it is not in the roster"),
    "round": (lambda v: v, {"round": 7}, "it is of another round"),
    "attempt": (lambda v: v, {"attempt": 7}, "it is of another round"),
    "training": (lambda v: v, {"training": "x"}, "it is of another training"),
    "taken": (lambda v: v, {"name": "south"}, "its name is taken"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_updates_are_refused_and_count_as_absent(case, tmp_path):
    change, facts, why = BAD[case]
    problem, nodes, server = federation(
        tmp_path, ALGORITHMS["PCFedAvg"], 3, norm_limit=1000.0, minimum=1
    )

    class Liar(Node):
        def answer(self, message):
            reply = super().answer(message)
            if message.kind == "train" and message.facts["round"] == 1:
                vectors = {name: change(vector) for name, vector in reply.vectors.items()}
                reply = Message(reply.kind, {**reply.facts, **facts}, vectors)
            return reply

    nodes["north"] = Liar("north", problem.agents[0], tmp_path / "north.npz", batch=0.3)
    server.run()
    refused = server.standing.history[1]["refused"]
    assert list(refused.values()) == [refused[facts.get("name", "north")]]
    assert why in refused[facts.get("name", "north")]
    away = [0, 1] if case == "taken" else [0]
    absent = [[], away, []]
    expected = run(
        problem, ALGORITHMS["PCFedAvg"], rounds=3, batch=0.3, participation=absent, **OPTIONS
    )
    np.testing.assert_array_equal(models(nodes, server), expected.models)


def test_a_round_with_too_few_is_repeated_not_averaged_with_nothing(tmp_path):
    nobody = dict.fromkeys(NAMES, "lost")
    one = {"north": "lost", "south": "reply lost"}
    problem, nodes, server = federation(
        tmp_path, ALGORITHMS["PCFedAvg"], 2, [nobody, one, {}], minimum=2, attempts=3
    )
    server.run()
    expected = run(problem, ALGORITHMS["PCFedAvg"], rounds=2, batch=0.3, **OPTIONS)
    np.testing.assert_array_equal(models(nodes, server), expected.models)
    problem, nodes, server = federation(
        tmp_path / "other", ALGORITHMS["PCFedAvg"], 2, [nobody] * 3, minimum=2, attempts=3
    )
    with pytest.raises(TooFew, match="Round 0 had fewer than 2 agents 3 times; start more"):
        server.run()
    server.run()  # now they answer


def test_an_agent_with_an_old_state_says_so(tmp_path):
    server = federation(tmp_path, ALGORITHMS["PCFedAvg"], 9)[2]
    server.play()
    server.play()
    old = (tmp_path / "north.npz").read_bytes()
    server.play()
    server.play()
    (tmp_path / "north.npz").write_bytes(old)
    with pytest.raises(ValueError, match=r"which the state in .* does not know; put the newest"):
        server.play()
    (tmp_path / "north.npz").unlink()
    with pytest.raises(ValueError, match="counted up to round 3, but there is no state"):
        server.play()
