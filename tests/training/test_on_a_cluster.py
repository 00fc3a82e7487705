"""``pcfed train --ray``: the models of one process, and one sentence if it cannot run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pcfed.cli import train
from pcfed.errors import ClusterError
from pcfed.simulation import Ray
from tests.training.folders import folder_with
from tests.training.test_bad_command import run

pytest.importorskip("ray")


@pytest.fixture
def files(tmp_path, monkeypatch):
    folder_with(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ray", "train.toml"], Ray()),
        (["train.toml", "--ray"], Ray()),
        (["train.toml", "--ray", "auto", "--actors", "3"], Ray("auto", 3)),
        (["--ray", "10.0.0.1:6379", "train.toml"], Ray("10.0.0.1:6379")),
        (["train.toml"], None),
    ],
)
def test_the_address_may_be_left_out(arguments, expected, monkeypatch):
    seen = []

    def prepare(path, out, *, backend, **options):
        seen.append((str(path), backend))
        raise ValueError("enough")

    monkeypatch.setattr(train, "prepare", prepare)
    assert run(arguments, monkeypatch) == 2
    assert seen == [("train.toml", expected)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--actors", "2"], "--actors must be given with --ray, got 2 without; add --ray."),
        (
            ["--ray", "ray://h:10001"],
            'Ray: address must be "auto" or HOST:PORT, got \'ray://h:10001',
        ),
    ],
)
def test_one_sentence_if_it_cannot_run(arguments, message, files, monkeypatch, capsys):
    assert run(["train.toml", *arguments], monkeypatch) == 2
    assert " ".join(capsys.readouterr().err.split()).startswith(message)


def test_one_sentence_if_the_cluster_fails(files, monkeypatch, capsys):
    def prepare(*arguments, **options):
        raise ClusterError("Ray: the actor of the agents 0 to 4 has died; give it more memory.")

    monkeypatch.setattr(train, "prepare", prepare)
    assert run(["train.toml", "--ray"], monkeypatch) == 2
    assert capsys.readouterr().err.startswith("Ray: the actor of the agents 0 to 4 has died;")


@pytest.mark.federation
def test_models_are_those_of_one_process(files, tmp_path):
    start = [sys.executable, "-m", "pcfed", "train", "train.toml", "--out"]
    subprocess.run([*start, "one"], check=True, capture_output=True)
    subprocess.run([*start, "two", "--ray", "--actors", "2"], check=True, capture_output=True)
    models = [(tmp_path / name / "models.npz").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1]
