"""The output of ``pcfed federation`` during and after a training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import typer

from pcfed.cli import federation, federation_machines
from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.processes import Processes
from pcfed.federation.server_state import ServerResult
from pcfed.federation.status_file import Status
from pcfed.guarantees import FederatedCertificate

ENTRY = {"round": 0, "accepted": ["a", "b"], "refused": {}, "missing": [], "metrics": {}}


@pytest.fixture
def training(tmp_path):
    LocalFederation(tmp_path).write_example(2)
    found = LocalFederation(tmp_path).training_directory
    found.mkdir()
    return found


def write(training, entries, **changes):
    lines = "".join(json.dumps({**ENTRY, **entry}) + "\n" for entry in entries)
    (training / "history.jsonl").write_text(lines + '{"round": 9, "coun')
    status = Status("example", rounds=3, stage="training", first_round=1, updated_at=1.0)
    replace(status, **changes).save(training / "status.json")


def test_without_a_terminal_there_is_one_line_per_round(training, capsys):
    with federation.ProgressView(training) as view:
        view.refresh()
        write(training, [{}])
        view.refresh()
        assert capsys.readouterr().out == ""  # that round was before this run
        more = {"accepted": ["a"], "refused": {"b": "it is not finite"}}
        write(training, [{}, {"round": 1, **more}])
        view.refresh()
        view.refresh()
        write(training, [{}, {"round": 1, **more}, {"round": 2, "accepted": [], "missing": ["a"]}])
        view.refresh()
    assert capsys.readouterr().out.splitlines() == [
        "round 2 of 3: accepted a; refused b: it is not finite",
        "round 3 of 3: accepted ; missing a",
    ]


def test_the_status_of_an_earlier_command_is_not_shown(training, capsys):
    write(training, [{"round": 1}])
    with federation.ProgressView(training) as view:
        view.refresh()
    assert capsys.readouterr().out == ""


def pcfed(folder, *words):
    line = [sys.executable, "-m", "pcfed", "federation", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_the_status_of_a_training_that_has_ended(tmp_path, training):
    write(
        training,
        [{"metrics": {"a": {"loss": 0.25}}}],
        stage="done",
        round=1,
        roster=["a", "b"],
        present=["a"],
        late=["b"],
    )
    certificate = FederatedCertificate(1, objective=2.0, gap=0.5, reason=None)
    result = ServerResult(1, ["a"], certificate=certificate, audit={"w_mean": 1e-16})
    result.save(training / "result.json")
    done = pcfed(tmp_path, "status", "--folder", ".")
    assert done.returncode == 0, done.stderr
    for said in (
        "done: 1 of 3 rounds done",
        "present: a",
        "absent: b",
        "late: b",
        "a loss 0.25",
        "the models have objective 2, at most 0.5 (25 %) above the optimum",
        "private vectors by at most 1.0e-16.",
        "have written their models: a.",
    ):
        assert said in done.stdout


@pytest.mark.parametrize("command", ["status", "audit", "run"])
def test_a_folder_without_a_federation_is_one_sentence(tmp_path, command):
    done = pcfed(tmp_path, command, "--folder", "nowhere")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "nowhere" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_keys_of_a_server_whose_agents_make_their_own(tmp_path):
    done = pcfed(tmp_path, "keys", "--host", "example.org")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "keys").iterdir()}
    assert names == {"ca.crt", "server.crt", "server.key"}


def test_a_run_that_fails_says_which_agents_were_refused(tmp_path, training, monkeypatch, capsys):
    write(training, [], stage="failed", error="Too few agents.", refused={"a": "its log says why"})
    monkeypatch.setattr(LocalFederation, "processes", Processes(1, False, {}))
    monkeypatch.setattr(LocalFederation, "run", lambda self, *line, **options: False)
    with pytest.raises(typer.Exit):
        federation.run_training(LocalFederation(tmp_path), tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert "Too few agents. a was refused: its log says why. Rerun the command to resume" in said


def test_what_may_go_wrong_is_said_before_a_run_and_after_it(
    tmp_path, training, monkeypatch, capsys
):
    write(training, [], stage="done", warning="The losses get worse.")
    monkeypatch.setattr(LocalFederation, "processes", Processes(1, False, {}))
    monkeypatch.setattr(LocalFederation, "run", lambda self, *line, **options: True)
    changes = ["algorithm.name=PCFedAvg", "algorithm.step=0.5", "algorithm.penalty=1"]
    changes += ["center=average"]
    text = (tmp_path / "server.toml").read_text().replace('prox = "auto"\n', "")
    (tmp_path / "server.toml").write_text(text)
    federation.run_training(LocalFederation(tmp_path, changes), tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "PCFedAvg: step × penalty × local steps is 10; above 2.5 models may leave" in said
    assert "The losses get worse." in said


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("INFO :      SuperNode ID: 17", "north is connected."),
        ("north: data.csv: there must be a file", "north: data.csv: there must be a file"),
        ("\x1b[91mERROR\x1b[0m: no route", "ERROR: no route"),
        ("north: \x1b[2Jforged\x07\rINFO: all is well", "north: [2Jforged INFO: all is well"),
        ("INFO :      Received successfully", ""),
    ],
)
def test_the_terminal_of_an_agent_shows_its_connection_and_errors(line, shown, capsys):
    federation_machines._show_line("north", line)
    said = capsys.readouterr()
    plain = re.sub("\x1b\\[[0-9]+m", "", said.out + said.err)
    assert plain.strip() == shown
