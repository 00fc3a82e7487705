"""The history in CSV, TensorBoard and MLflow: every round once, also of a resumed training."""

from __future__ import annotations

import csv
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pcfed import read_journal
from pcfed.training import prepare
from pcfed.training.trackers import TrackerGroup, open_trackers
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 12\nbatch = 0.5\nsave_every = 5")


class Killed(Exception):
    """Stands for the end of a process that is killed."""


def dying_at(number: int):
    """Return a callback that raises `Killed` in a round."""

    def die(evaluation) -> None:
        if evaluation.record.round == number:
            raise Killed

    return die


def train(path: Path, dies_at: int = 99, **where: object) -> None:
    """Train with trackers, until a round in which the process is killed."""
    trainer = prepare(path, path.parent / "run")

    with open_trackers(trainer, **where) as tracking:
        tracking.status = trainer.run(callbacks=[tracking.on_evaluation, dying_at(dies_at)]).status


def check_rounds_of_resumed_training(tmp_path: Path, rounds_of, **where: object) -> None:
    """Check that rounds are complete after a kill, after resuming, and after more rounds."""
    path = folder_with(tmp_path, config=CONFIG)
    with pytest.raises(Killed):
        train(path, dies_at=8, **where)
    assert rounds_of() == [*range(1, 9)]
    train(path, **where)  # again from round 5 on
    assert rounds_of() == [*range(1, 13)]
    path.write_text(CONFIG.replace("rounds = 12", "rounds = 15"))
    train(path, **where)
    assert rounds_of() == [*range(1, 16)]
    train(path, **where)  # all rounds are done
    assert rounds_of() == [*range(1, 16)]


def test_a_csv_file_has_every_round_once(tmp_path):
    file = tmp_path / "new" / "history.csv"

    def rows() -> list[dict[str, str]]:
        with file.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    check_rounds_of_resumed_training(
        tmp_path, lambda: [int(row["round"]) for row in rows()], csv=file
    )
    for row, record in zip(rows(), read_journal(tmp_path / "run" / "history.jsonl"), strict=True):
        assert float(row["loss"]) == record.loss
        assert float(row["infeasibility[north]"]) == record.infeasibility[0]
        assert float(row["test_accuracy[south]"]) == record.test_accuracy[1]


def test_repeated_rounds_replace_the_old_ones(tmp_path):
    trainer = prepare(folder_with(tmp_path, config=CONFIG), tmp_path / "run")
    with open_trackers(trainer, csv=tmp_path / "history.csv") as tracking:
        with pytest.raises(Killed):
            trainer.run(callbacks=[tracking.on_evaluation, dying_at(8)])
        trainer.run(callbacks=[tracking.on_evaluation])  # from the checkpoint of round 5
    lines = (tmp_path / "history.csv").read_text().splitlines()[1:]
    assert [int(line.partition(",")[0]) for line in lines] == [*range(1, 13)]


def test_tensorboard_has_every_round_once(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    def rounds() -> list[int]:
        found = []
        for file in (tmp_path / "board").glob("events.*"):
            content = file.read_bytes()
            while content:  # length, checksum, event, checksum
                (length,) = struct.unpack("<Q", content[:8])
                event = Event.FromString(content[12 : 12 + length])
                found += [event.step for value in event.summary.value if value.tag == "loss"]
                content = content[16 + length :]
        return found

    check_rounds_of_resumed_training(tmp_path, rounds, tensorboard=tmp_path / "board")


@pytest.mark.filterwarnings("ignore")  # MLflow has warnings of its own
def test_mlflow_has_every_round_once(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")

    def the_run():
        client = MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
        return client, run

    def rounds() -> list[int]:
        client, run = the_run()
        return [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]

    check_rounds_of_resumed_training(tmp_path, rounds, mlflow=True)
    run = the_run()[1]
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.name"] == "PCFedSplit"
    last = read_journal(tmp_path / "run" / "history.jsonl")[-1]
    assert run.data.metrics["infeasibility/north"] == last.infeasibility[0]


def test_a_tracker_that_fails_is_dropped_and_the_training_continues(tmp_path):
    class Broken:
        def start(self, earlier):
            raise OSError("disk\nfull")

    trainer = prepare(folder_with(tmp_path, config=CONFIG), tmp_path / "run")
    messages = []
    with TrackerGroup({"csv": Broken()}, trainer.directory.history) as tracking:
        tracking.notify = messages.append
        result = trainer.run(callbacks=[tracking.on_evaluation])
    assert result.status == "finished"
    assert messages == ["csv gets no more records (OSError: disk full)"]


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pcfed", "train", "train.toml", *arguments]
    wide = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, env=wide)


def test_the_command_refuses_another_file_and_does_not_change_it(tmp_path):
    folder_with(tmp_path, config=CONFIG)
    before = (tmp_path / "north.csv").read_bytes()
    done = command(tmp_path, "--csv", "north.csv")
    assert done.returncode == 2
    assert "must be new or a history that pcfed wrote, got another file" in done.stderr
    assert (tmp_path / "north.csv").read_bytes() == before
    assert not (tmp_path / "runs").exists()
    assert command(tmp_path, "--csv", "history.csv").returncode == 0
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 13
