"""`pcfed train`: trains, resumes, and refuses files of something else in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from pcfed import Result, read_journal
from pcfed.storage.locks import exclusive_lock
from pcfed.training import Outcome, prepare
from pcfed.training.directory import RunMetadata
from pcfed.training.example import write_example
from tests.simulation.test_run import same
from tests.training.folders import OWN_CONFIG, folder_with, without_intercept

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 30\nbatch = 0.5\nsave_every = 4")


def command(folder, *arguments, name="train"):
    """Run the real command in a folder."""
    line = [sys.executable, "-m", "pcfed", name, *arguments]
    wide = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, env=wide)


def test_the_command_trains_and_prints_a_summary(tmp_path):
    folder_with(tmp_path, config=CONFIG)
    done = command(tmp_path, "train.toml")
    assert done.returncode == 0, done.stderr
    assert "north" in done.stdout
    assert "of 5 (l1 norm)" in done.stdout
    assert "north: too few held-out rows to compare with training alone" in done.stdout
    assert "30 rounds done. Everything is in runs/train." in done.stdout
    run = tmp_path / "runs" / "train"
    names = {path.name for path in run.iterdir()}
    assert names == {
        "checkpoint.npz",
        "checkpoint.npz.lock",
        "checkpoint.npz.previous",
        "config.json",
        "history.jsonl",
        "lock",
        "log.txt",
        "outcome.json",
        "models.npz",
        "result.npz",
    }
    result = Result.load(run / "result.npz")
    assert [record.round for record in read_journal(run / "history.jsonl")] == [*range(1, 31)]
    facts = json.loads((run / "config.json").read_text())
    assert facts["config"]["training"]["rounds"] == 30
    assert facts["versions"].keys() == {"pcfed", "Python", "NumPy", "SciPy"}
    same(result, prepare(tmp_path / "train.toml", tmp_path / "again").run())


def test_features_that_are_all_zero_change_no_model(tmp_path):
    config = CONFIG.replace("constraint = {l1 = 5}", "constraint = {l1 = 5}\ncoupling = 0")
    config = without_intercept(config)
    zeros = dict.fromkeys(("north", "south"), "area,rooms,load\n0,0,1\n0,0,2\n0,0,4\n")
    trainer = prepare(folder_with(tmp_path, config=config, **zeros), tmp_path / "run")
    result = trainer.run()
    assert result.status == "finished"
    assert np.all(result.models == 0)
    assert trainer.directory.outcome.exists()


def test_more_rounds_resume_from_the_checkpoint(tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    prepare(path, tmp_path / "run").run()
    path.write_text(CONFIG.replace("rounds = 30", "rounds = 45"))
    rounds = []
    longer = prepare(path, tmp_path / "run").run(
        callbacks=[lambda e: rounds.append(e.record.round)]
    )
    assert rounds == [*range(31, 46)]
    same(longer, prepare(path, tmp_path / "other").run())


def test_fewer_rounds_than_are_done_change_nothing_and_are_reported(tmp_path):
    folder_with(tmp_path, config=CONFIG)
    assert command(tmp_path, "train.toml").returncode == 0
    models = (tmp_path / "runs" / "train" / "models.npz").read_bytes()
    (tmp_path / "train.toml").write_text(CONFIG.replace("rounds = 30", "rounds = 20"))
    done = command(tmp_path, "train.toml")
    assert done.returncode == 0
    assert "20 rounds done" not in done.stdout
    assert (
        "30 rounds are done already, more than the 20 of train.toml; the models are those of round "
        "30. To train 20 rounds, choose another directory with --out."
    ) in done.stdout
    assert (tmp_path / "runs" / "train" / "models.npz").read_bytes() == models
    saved = RunMetadata.load(tmp_path / "runs" / "train" / "config.json")
    assert saved.config["training"]["rounds"] == 30


def test_a_finished_training_says_since_when(tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    assert prepare(path, tmp_path / "run").run().message == "30 rounds done."
    outcome = tmp_path / "run" / "outcome.json"
    os.utime(outcome, (0, 86400 * 365))
    for _ in range(2):
        result = prepare(path, tmp_path / "run").run()
        assert result.message.startswith("Already finished on 1971-01-01 ")
        assert "it has 30 rounds, and nothing was trained now. To train longer, raise" in (
            result.message
        )
    path.write_text(CONFIG.replace("rounds = 30", "rounds = 31"))
    assert prepare(path, tmp_path / "run").run().message == "31 rounds done."
    assert outcome.stat().st_mtime > 86400 * 365


def test_one_round_is_in_the_singular(tmp_path):
    path = write_example(tmp_path)[0]
    path.write_text(path.read_text().replace("rounds = 30", "rounds = 1"))
    assert prepare(path, tmp_path / "run").run().message == "1 round done."
    assert "it has 1 round, and nothing" in prepare(path, tmp_path / "run").run().message


def test_a_training_that_reached_its_gap_says_what_to_change(tmp_path):
    path = write_example(tmp_path)[0]
    path.write_text(path.read_text().replace("# gap = 0.001", "gap = 0.1"))
    first = prepare(path, tmp_path / "run").run()
    assert first.status == "stopped"
    again = prepare(path, tmp_path / "run").run()
    assert again.state.round == first.state.round < 30
    assert "To train longer, lower training.gap; to train again" in again.message


def test_keys_that_change_no_number_may_change_in_one_directory(tmp_path):
    path, run = folder_with(tmp_path, config=CONFIG), tmp_path / "run"
    prepare(path, run).run()
    assert Outcome.load(run / "outcome.json").notes == ()
    changed = CONFIG.replace("rounds = 30", "rounds = 40\neval_every = 4\nlocal_only = false")
    path.write_text(changed.replace("save_every = 4", "save_every = 7\nmax_refusals = 3"))
    same(prepare(path, run).run(), prepare(path, tmp_path / "other").run())
    rounds = [record.round for record in read_journal(run / "history.jsonl")]
    assert rounds == [*range(1, 31), 32, 36, 40]
    assert "training.local_only is false" in Outcome.load(run / "outcome.json").notes[0]
    training = RunMetadata.load(run / "config.json").config["training"]
    keys = ("rounds", "eval_every", "local_only", "save_every", "max_refusals")
    assert [training[key] for key in keys] == [40, 4, False, 7, 3]


REFUSED = {
    "another training": (
        lambda path, run: path.write_text(CONFIG.replace("0.5", "0.25")),
        "contains another training: training.batch was 0.5 and is 0.25; give another",
    ),
    "other data": (
        lambda path, run: (path.parent / "north.csv").write_text(
            "area,rooms,load\n1,2,1\n2,1,2\n3,1,1\n"
        ),
        r"training: model.intercept_bound \(computed from the data if it is not given\) was",
    ),
    "something else": (
        lambda path, run: (run / "config.json").unlink(),
        "must be a new directory or one of a training",
    ),
    "damaged": (
        lambda path, run: (run / "config.json").write_text("{"),
        "config.json is not a valid description of a training: it is not JSON",
    ),
    "another version": (
        lambda path, run: (run / "config.json").write_text('{"format": 9, "digest": ""}'),
        "it has format 9, and this version reads 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_directory_of_something_else_is_refused_and_unchanged(name, tmp_path):
    path, run = folder_with(tmp_path, config=CONFIG), tmp_path / "run"
    prepare(path, run).run()
    change, expected = REFUSED[name]
    change(path, run)
    before = {file: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(ValueError, match=expected):
        prepare(path, run).run()
    assert {file: file.read_bytes() for file in run.iterdir()} == before


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ValueError, match="must be a new directory or one of a training"):
        prepare(folder_with(tmp_path, config=CONFIG), tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path):
    folder_with(tmp_path, config=CONFIG.replace("rounds", "round"))
    before = sorted(tmp_path.rglob("*"))
    done = command(tmp_path, "train.toml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "round" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_process_is_refused(tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    prepare(path, tmp_path / "run").run()
    with exclusive_lock(tmp_path / "run" / "lock"):
        done = command(tmp_path, "train.toml", "--out", "run")
    assert done.returncode == 2
    assert f"another process ({os.getpid()}) is using these files" in done.stderr


def test_a_full_disk_is_reported(tmp_path):
    folder_with(tmp_path, config=CONFIG)
    line = f"ulimit -f 4; exec {sys.executable} -m pcfed train train.toml"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "could not be written: File too large; its earlier contents are unchanged" in done.stderr
    assert command(tmp_path, "train.toml").returncode == 0  # with enough space
    result = Result.load(tmp_path / "runs" / "train" / "result.npz")
    same(result, prepare(tmp_path / "train.toml", tmp_path / "other").run())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_finish_the_round_and_print_how_to_resume(number, tmp_path):
    folder_with(tmp_path, config=CONFIG.replace("rounds = 30", "rounds = 100000"))
    line = [sys.executable, "-m", "pcfed", "train", "train.toml", "--out", "my run"]
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        checkpoint = tmp_path / "my run" / "checkpoint.npz"
        while not checkpoint.exists():
            assert process.poll() is None
        process.send_signal(number)
        message = process.stderr.read()
    assert process.returncode == 130
    assert "all are saved. Resume with: pcfed train train.toml --out 'my run'" in message


def test_refusals_are_shown_and_logged(tmp_path):
    config = CONFIG.replace("save_every", "norm_limit = 1e-12\nmax_refusals = 5\nsave_every")
    messages = []
    result = prepare(folder_with(tmp_path, config=config), tmp_path / "run").run(
        notify=messages.append
    )
    assert result.status == "diverged"
    assert len(result.refusals) == 6
    assert "is above the limit 1e-12" in messages[0]
    assert "diverged" in (tmp_path / "run" / "log.txt").read_text()
    assert np.all(result.models == 0)


def test_an_unstable_step_and_penalty_are_warned_of(tmp_path):
    """The product of step, penalty and local steps is 10, above 2.5."""
    table = '[algorithm]\nname = "PCFedAvg"\nstep = 0.5\npenalty = 1.0\n\n'
    config = CONFIG.replace("[training]", f"{table}[training]", 1)
    messages = []
    path = folder_with(tmp_path, config=config.replace("rounds = 30", "rounds = 1"))
    prepare(path, tmp_path / "run", overrides=["training.local_steps=20"]).run(
        notify=messages.append
    )
    assert any("step × penalty × local steps is 10; above 2.5 models may" in m for m in messages)
