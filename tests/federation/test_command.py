"""What ``pcfed federation`` shows while a training runs, and in the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pcfed.cli import federation
from pcfed.federation.local_federation import LocalFederation

ENTRY = {"round": 0, "counted": ["a", "b"], "refused": {}, "missing": [], "told": {}}


@pytest.fixture
def training(tmp_path):
    LocalFederation(tmp_path).write_example(2)
    found = LocalFederation(tmp_path).training
    found.mkdir()
    return found


def write(training, entries, **facts):
    lines = "".join(json.dumps({**ENTRY, **entry}) + "\n" for entry in entries)
    (training / "history.jsonl").write_text(lines + '{"round": 9, "coun')
    known = {"stage": "training", "rounds": 3, "first": 1, "began": 0.0, "updated": 1.0}
    (training / "progress.json").write_text(json.dumps({**known, **facts}))


def test_without_a_terminal_there_is_a_line_a_round(training, capsys):
    with federation.View(training) as view:
        view.look()
        write(training, [{}])
        view.look()
        assert capsys.readouterr().out == ""  # that round was before this run
        more = {"counted": ["a"], "refused": {"b": "it is not finite"}}
        write(training, [{}, {"round": 1, **more}])
        view.look()
        view.look()
        write(training, [{}, {"round": 1, **more}, {"round": 2, "counted": [], "missing": ["a"]}])
        view.look()
    assert capsys.readouterr().out.splitlines() == [
        "round 2 of 3: counted a; refused b: it is not finite",
        "round 3 of 3: counted ; missing a",
    ]


def test_what_an_older_run_left_is_not_shown_as_news(training, capsys):
    write(training, [{"round": 1}])
    with federation.View(training) as view:
        view.look()
    assert capsys.readouterr().out == ""


def pcfed(folder, *words):
    line = [sys.executable, "-m", "pcfed", "federation", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_the_status_of_a_training_that_has_ended(tmp_path, training):
    write(
        training,
        [{"told": {"a": {"loss": 0.25}}}],
        stage="done",
        round=1,
        roster=["a", "b"],
        here=["a"],
        late=["b"],
    )
    certificate = {"round": 1, "objective": 2.0, "gap": 0.5, "reason": None}
    result = {"rounds": 1, "finished": ["a"], "told": {}, "certificate": certificate}
    (training / "result.json").write_text(json.dumps({**result, "audit": {"w_mean": 1e-16}}))
    done = pcfed(tmp_path, "status", "--folder", ".")
    assert done.returncode == 0, done.stderr
    for said in (
        "done: 1 of 3 rounds done",
        "here: a",
        "away: b",
        "late: b",
        "a loss 0.25",
        "the models have objective 2, at most 0.5 (25 %) above the optimum",
        "off from the server's by 1.0e-16 at most",
        "now have their own models: a.",
    ):
        assert said in done.stdout


@pytest.mark.parametrize("command", ["status", "audit", "run"])
def test_a_folder_without_a_federation_is_told_in_a_sentence(tmp_path, command):
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
