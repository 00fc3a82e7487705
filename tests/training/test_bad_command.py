"""Broken configurations and data through the command line: one sentence, code 2, nothing written.

All run in this process, through the function that the command calls, and a few as real processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pcfed.__main__ import main
from tests.training.folders import OWN_CONFIG, SHARED, SHARED_CONFIG, folder_with
from tests.training.test_bad_input import CONFIGS, DATA, more, shared

TORCH = SHARED_CONFIG.replace('"softmax"', '"torch"\nmodule = "nets:Net"\nloss = "mse"')
OTHERS = {
    "no consent": ({"config": TORCH}, "must be allowed to run nets.py, which is code; look at it"),
    "standardize": (
        shared('"load"', '"load"\nstandardize = "yes"'),
        "data.standardize must be true or false, got 'yes'",
    ),
    "set to standardize": (
        {
            "config": SHARED_CONFIG.replace("{l1 = 5}", '"nuclear((2, 2), 1)"').replace(
                '"load"', '"load"\nstandardize = true'
            )
        },
        "agents.north: NuclearBall: no projection onto it is known where entries have different",
    ),
    "local only": (more("[training]\nlocal_only = 1"), "training.local_only must be true or false"),
    "a folder in the way": ({}, "must be a new directory or one of a training, and is neither"),
}
CASES = CONFIGS | DATA | OTHERS


def written(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(arguments, monkeypatch):
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["pcfed", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_nothing_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files, expected = CASES[name]
    folder_with(tmp_path, **files)
    if name == "a folder in the way":
        (tmp_path / "runs" / "train").mkdir(parents=True)
        (tmp_path / "runs" / "train" / "mine.txt").write_text("mine")
    before = written(tmp_path)
    assert run(["train.toml"], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert out == ""
    sentences = err.splitlines()
    assert len(sentences) == (2 if name == "agent without target" else 1)  # there are two agents
    assert all(sentence.endswith((".", "?")) for sentence in sentences)
    assert "Traceback" not in err
    assert re.search(expected, err)
    assert written(tmp_path) == before


def test_all_errors_of_a_file_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = SHARED_CONFIG.replace('"softmax"', '"sofmax"').replace("l1 = 5", "l1 = -5")
    folder_with(tmp_path, config=text + "[training]\nrounds = 'x'\nround = 3\n")
    assert run(["train.toml"], monkeypatch) == 2
    kind, rounds, round_, constraint = capsys.readouterr().err.splitlines()
    assert kind.startswith("train.toml: model.kind must be one of softmax, ")
    assert rounds.startswith("train.toml: training.rounds must be an integer ≥ 1, got 'x'; give")
    assert round_.startswith("train.toml: training has no key 'round'; did you mean 'rounds'? V")
    assert constraint.startswith("train.toml: agents.north.constraint: L1Ball: radius must be ≥ 0")


def test_there_are_enough_of_them():
    assert len(CONFIGS) >= 30
    assert len(DATA) >= 30


def test_a_configuration_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reasons = {"gone.toml": "got none here", ".": "but it is a directory, not a file"}
    for path, reason in reasons.items():
        assert run([path], monkeypatch) == 2
        (sentence,) = capsys.readouterr().err.splitlines()
        assert sentence == f"{path}: there must be a file, {reason}; check the path."
    assert not list(tmp_path.iterdir())


DOUBTFUL = {
    "a constant column": (
        {
            "config": OWN_CONFIG.replace("batch = 1.0", "rounds = 2"),
            "north": "a,c,load\n1,3,1\n2,3,2\n4,3,1\n",
            "south": "a,c,load\n1,3,1\n2,3,2\n",
        },
        "columns with the same number in all rows contain no information, got 'c'",
    ),
    "a label of one agent": (
        {"all": SHARED.replace("south,1,4,b", "south,1,4,z")},
        "some labels occur with one agent only, 'z' (south)",
    ),
    "columns of other sizes": (
        {
            "all": SHARED.replace("area,", "area,power,")
            .replace("north,", "north,9e5,")
            .replace("south,", "south,1e5,")
        },
        "makes training slow; set data.standardize = true.",
    ),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_may_be_a_mistake_is_told_and_trained(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files, expected = DOUBTFUL[name]
    usual = SHARED_CONFIG + "[training]\nrounds = 2\n"
    folder_with(tmp_path, **{"config": usual, **files})
    assert run(["train.toml"], monkeypatch) == 0
    err = capsys.readouterr().err
    assert expected in err
    assert expected in (tmp_path / "runs" / "train" / "log.txt").read_text()


@pytest.mark.parametrize("name", ["section", "text", "column less"])
def test_as_real_processes(name, tmp_path):
    files, expected = CASES[name]
    folder_with(tmp_path, **files)
    before = written(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pcfed", "train", "train.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "40"},  # a narrow terminal breaks no sentence
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert re.search(expected, sentence)
    assert written(tmp_path) == before


def values(**changes):
    """Return OWN_CONFIG with other values of [training]."""
    lines = "".join(f"{key} = {value}\n" for key, value in changes.items())
    return OWN_CONFIG.replace("[training]\n", f"[training]\n{lines}")


@pytest.mark.parametrize(
    ("config", "north", "expected"),
    [
        (values(local_steps=2**63 - 1), None, "local_steps must be an integer from 1 to 1,000,000"),
        (
            OWN_CONFIG,
            "area,rooms,load\n1,2,1e200\n2,1,2\n",
            "'load' must stay below 1e+100, got 1e",
        ),
        (".".join(["a"] * 100_000) + " = 1", None, "keys and lists that are more than 64 deep"),
    ],
)
def test_absurd_files_are_refused(config, north, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path, config=config, **({} if north is None else {"north": north}))
    before = written(tmp_path)
    assert run(["train.toml"], monkeypatch) == 2
    error = capsys.readouterr().err
    assert expected in " ".join(error.split())
    assert error.count("\n") == 1
    assert written(tmp_path) == before


@pytest.mark.parametrize("name", ["train.toml", "north.csv"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_directory_instead_of_a_file(make, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path, config=OWN_CONFIG)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    before = written(tmp_path)
    assert run(["train.toml"], monkeypatch) == 2
    assert f"{name}: there must be a file, but it is a " in capsys.readouterr().err
    assert written(tmp_path) == before


@pytest.mark.parametrize("error", [MemoryError(), SystemError("no more frames")])
def test_errors_of_python_itself_are_one_sentence(error, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("pcfed.cli.train.prepare", fail)
    assert run(["train.toml"], monkeypatch) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert message.endswith(".\n")


@pytest.mark.parametrize("name", ["outcome.json", "checkpoint.npz", "checkpoint.npz.previous"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_something_else_in_place_of_a_file_of_a_training(name, make, tmp_path):
    folder_with(tmp_path)
    line = [sys.executable, "-m", "pcfed", "train", "train.toml", "--out", "run"]
    line += ["--set", "training.rounds=2"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "run" / name
    file.unlink(missing_ok=True)
    make(file)
    before = {path.name: path.lstat().st_mtime_ns for path in file.parent.iterdir()}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "must be a file of the training, and is something else" in " ".join(done.stderr.split())
    assert before == {path.name: path.lstat().st_mtime_ns for path in file.parent.iterdir()}
