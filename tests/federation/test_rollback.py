"""Going back to an earlier round: agents follow, and every update still counts exactly once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pcfed import run
from pcfed.cli.app import app
from pcfed.federation import Message, Server
from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.paths import CHECKPOINT, EARLIER, STATE
from pcfed.federation.rollback import kept_rounds, roll_back
from tests.federation.in_process import (
    NAMES,
    OPTIONS,
    FaultyTransport,
    federation,
    history,
    models,
    without_secure_sum,
)
from tests.federations import ALGORITHMS

FAULTS = st.sampled_from(["delivered", "lost", "reply lost", "twice", "dies before", "dies after"])
KEPT = {"keep_every": 2, "keep": 3}


def restarted(server, clients, faults=()):
    """Return a server that resumes from the files of another one."""
    server.__exit__(None, None, None)
    return Server(server.config, FaultyTransport(clients, faults), server.folder)


def expected_models(problem, server):
    """Return the simulator's models with the absences in the server's history."""
    absences = [
        [i for i, name in enumerate(NAMES) if name not in entry["accepted"]]
        for entry in history(server)
    ]
    rounds = server.state.round
    options = {**OPTIONS, "participation": absences}
    return run(problem, server.config.algorithm, rounds=rounds, batch=0.3, **options).models


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from([ALGORITHMS["PCFedAvg"], ALGORITHMS["PCFedSplit"]]),
    faults=st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, FAULTS)), min_size=8, max_size=24),
    course=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
)
def test_exactly_once_with_rollbacks(algorithm, faults, course, data):
    with (
        tempfile.TemporaryDirectory() as home,
        federation(Path(home), algorithm, 99, faults, attempts=99, **KEPT) as (
            problem,
            clients,
            server,
        ),
    ):
        for rounds in course:
            for _ in range(rounds):
                server.run_round()
            earlier = [int(path.stem) for path in (server.folder / EARLIER).iterdir()]
            earlier = [each for each in earlier if each < server.state.round]
            if earlier:
                server.__exit__(None, None, None)
                target = data.draw(st.sampled_from(sorted(earlier)))
                roll_back(server.folder, target)
                # What is left of the faults: messages of the next rounds may be lost, too.
                server = restarted(server, clients, faults[server.state.round :])
                assert server.state.round == target
        server = restarted(server, clients)
        server.run_round()
        server.finish()
        np.testing.assert_array_equal(models(clients, server), expected_models(problem, server))
        assert all(difference < 1e-13 for difference in server.audit().values())
        assert [entry["round"] for entry in history(server)] == list(range(server.state.round))
        server.__exit__(None, None, None)


def test_the_same_rounds_again_have_the_same_bits(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedSplit"], 99, **KEPT) as (_, clients, server):
        for _ in range(7):
            server.run_round()
        before = {name: vector.copy() for name, vector in server.state.vectors.items()}
        assert roll_back(server.folder, 4).round == 7
        server = restarted(server, clients)
        assert (server.state.round, server.state.rollbacks) == (4, ((7, 4),))
        for _ in range(3):
            server.run_round()
        for name, vector in before.items():
            np.testing.assert_array_equal(server.state.vectors[name], vector)
        server.__exit__(None, None, None)


def test_replies_from_before_a_rollback_are_refused_on_both_sides(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 99, **KEPT) as (_, clients, server):
        for _ in range(4):
            server.run_round()
        old_message = server._messages("train", {}, {})["north"]
        old_reply = clients["north"].handle(old_message)
        roll_back(server.folder, 2)
        server = restarted(server, clients)
        for _ in range(2):
            server.run_round()
        assert server.state.round == 4 == old_message.metadata["round"]

        class Late(FaultyTransport):
            def exchange(self, messages, min_present):
                for reply in super().exchange(messages, min_present):
                    late = reply.metadata["name"] == "north"
                    yield (
                        Message(old_reply.kind, old_reply.metadata, old_reply.vectors)
                        if (late)
                        else reply
                    )

        server.transport = Late(clients)
        server.run_round()
        assert history(server)[4]["refused"] == {"north": "its reply is for another round"}
        with pytest.raises(ValueError, match="before rollback 1 of the training arrived after it"):
            clients["north"].handle(old_message)
        server.__exit__(None, None, None)


def test_files_do_not_grow_with_the_rounds(tmp_path):
    absent = [{"west": "lost"} if index % 3 else {} for index in range(60)]
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 60, absent, **KEPT) as (_, _, server):
        server.run()
        kept = sorted(int(path.stem) for path in (server.folder / EARLIER).iterdir())
        assert kept == [56, 58, 60] == list(kept_rounds(60, 2, 3))
        for name in NAMES:
            assert 0 < len(list((tmp_path / name / EARLIER).iterdir())) <= 3
            assert (tmp_path / name / EARLIER).stat().st_mode & 0o077 == 0


def test_rounds_that_are_not_kept_are_refused_with_those_that_are(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9, **KEPT) as (_, _, server):
        server.run()
    saved = (server.folder / CHECKPOINT).read_bytes()
    for wrong in (None, 3, 9, 10, 2):
        with pytest.raises(ValueError, match=r"9 rounds are done, .* before are: 4, 6, 8"):
            roll_back(server.folder, wrong)
    assert (server.folder / CHECKPOINT).read_bytes() == saved
    with pytest.raises(ValueError, match="there is no training in"):
        roll_back(tmp_path / "nothing", 0)


def test_a_state_that_is_gone_is_said(tmp_path):
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 9, minimum=2, **KEPT) as (_, clients, server):
        server.run()
        roll_back(server.folder, 6)
        for path in (tmp_path / "west" / EARLIER).iterdir():
            path.unlink()
        state = (tmp_path / "west" / STATE).read_bytes()
        server = restarted(server, clients)
        with pytest.raises(ValueError, match="west: the training has gone back to its update of"):
            server.run_round()
        assert (tmp_path / "west" / STATE).read_bytes() == state
        server.__exit__(None, None, None)


def test_the_command(tmp_path):
    LocalFederation(tmp_path).write_example(3)
    without_secure_sum(tmp_path)
    found = CliRunner().invoke(app, ["federation", "rollback", "--folder", str(tmp_path)])
    assert found.exit_code != 0
    assert "there is no training in" in str(found.output) + str(found.exception)
