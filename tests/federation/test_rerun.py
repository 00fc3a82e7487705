"""A training that has ended: rerunning it starts nothing, unless something is left to do."""

from __future__ import annotations

import sys

import pytest

from pcfed.__main__ import main
from pcfed.federation.local_federation import LocalFederation
from tests.federation.test_server import NAMES, change, folder, grid_of, train

__all__ = ["folder"]


def pcfed(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["pcfed", "federation", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_training_that_has_ended_is_not_started_again(folder, monkeypatch, capsys):
    train(folder, grid_of(folder))

    def run(self, *arguments, **options):
        raise AssertionError("a Flower run has started")

    monkeypatch.setattr(LocalFederation, "run", run)
    assert pcfed(monkeypatch, "run", "--folder", str(folder)) == 0  # no process is needed
    said = capsys.readouterr().out.replace("\n", " ")
    assert "The training has ended after 2 rounds." in said
    assert "written their models: agent-1, agent-2, agent-3." in said
    assert "To go on, raise rounds.rounds in server.toml and run it again." in said


def test_what_is_left_to_do_starts_a_run(folder, monkeypatch, capsys):
    federation = LocalFederation(folder)
    assert federation.ended_result() is None
    change(folder, "minimum = 3", "minimum = 2")
    train(folder, grid_of(folder, NAMES[:2]))
    assert federation.ended_result() is None  # agent-3 was offline
    assert pcfed(monkeypatch, "run", "--folder", str(folder)) == 2
    assert "no processes run in" in capsys.readouterr().err
    pcfed(monkeypatch, "status", "--folder", str(folder))
    said = capsys.readouterr().out.replace("\n", " ")
    assert "agent-3 did not answer at the end: start them and run it again." in said

    train(folder, grid_of(folder))
    assert federation.ended_result().finished == NAMES
    change(folder, "rounds = 2", "rounds = 3")
    assert federation.ended_result() is None
    pcfed(monkeypatch, "status", "--folder", str(folder))
    assert "Run it again for the remaining 1 rounds." in capsys.readouterr().out


def test_a_result_that_is_older_than_the_checkpoint_is_not_the_end(folder):
    train(folder, grid_of(folder))
    result = folder / "server.example" / "result.json"
    old = result.read_bytes()
    change(folder, "rounds = 2", "rounds = 3")
    train(folder, grid_of(folder))
    result.write_bytes(old)
    change(folder, "rounds = 3", "rounds = 2")
    assert LocalFederation(folder).ended_result() is None


def test_a_training_that_has_reached_its_gap_has_ended(folder, monkeypatch, capsys):
    change(folder, "rounds = 2", "rounds = 40\ngap = 0.9\ngap_every = 2")
    rounds = train(folder, grid_of(folder)).rounds
    assert rounds < 40
    assert pcfed(monkeypatch, "run", "--folder", str(folder)) == 0
    said = capsys.readouterr().out
    assert f"The training has ended after {rounds} rounds." in said
    assert "lower rounds.gap and run it again." in said


def test_an_audit_certifies_models_once_all_owners_agree(folder):
    change(folder, "certificate = true", "certificate = false", "agent-2")
    assert train(folder, grid_of(folder)).certificate is None
    change(folder, "certificate = false", "certificate = true", "agent-2")
    grid = grid_of(folder)
    result = train(folder, grid, "audit")
    assert result.certificate.gap is not None
    assert result.no_certificate is None
    assert "train" not in grid.kinds
