"""A real `pcfed train`, killed at random moments, resumes to the bits of one that was not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pcfed import Result, read_journal
from pcfed.training import prepare
from tests.simulation.test_run import same

KILLS = 10
"""Kills of each training."""

CONFIG = """
[model]
kind = "softmax"

[data]
target = "kind"

[algorithm]
{algorithm}

[training]
rounds = 400
local_steps = 3
batch = 0.3
participation = 0.7
save_every = 1

[agents.north]
file = "north.csv"
constraint = {{l1 = 3}}

[agents.south]
file = "south.csv"
constraint = "l2(1)"

[agents.west]
file = "west.csv"
"""

LONG = pytest.mark.federation
ALWAYS = ("PCFedSplit", "PCFedAvg")
"""Those that every test run kills; they save all kinds of private state."""

ALGORITHMS = {
    "PCFedSplit": 'name = "PCFedSplit"',
    "PCFedAvg": 'name = "PCFedAvg"\nstep = 0.1\npenalty = 1.0',
    "FedAvg": 'name = "FedAvg"\nstep = 0.1\npenalty = 1.0',
    "FedProx": 'name = "FedProx"\nstep = 0.1\nprox = 0.1',
    "Scaffold": 'name = "Scaffold"\nstep = 0.1',
    "FedDualAvg": 'name = "FedDualAvg"\nstep = 0.1',
    "ProxAL": 'name = "ProxAL"\nstep = 0.1\npenalty = 1.0\nprox = 1.0\ninner_rounds = 3',
}


def folder_of(folder: Path, algorithm: str) -> Path:
    rng = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        X = rng.normal(size=(40, 5))
        rows = [",".join([*(f"{x:.4f}" for x in row), "abc"[row[:3].argmax()]]) + "\n" for row in X]
        (folder / f"{name}.csv").write_text("a,b,c,d,e,kind\n" + "".join(rows))
    (folder / "train.toml").write_text(CONFIG.format(algorithm=ALGORITHMS[algorithm]))
    return folder / "train.toml"


def progress(run: Path) -> int:
    """Return when the last checkpoint was written; 0 if there is none at the moment."""
    try:
        return (run / "checkpoint.npz").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=() if name in ALWAYS else LONG) for name in ALGORITHMS],
)
def test_killed_at_random_moments(algorithm, tmp_path):
    path, run = folder_of(tmp_path, algorithm), tmp_path / "run"
    chance = random.Random(algorithm)
    line = [sys.executable, "-m", "pcfed", "train", "train.toml", "--out", "run"]
    while_writing = 0
    for _ in range(KILLS):
        before = progress(run)
        with subprocess.Popen(
            line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while progress(run) == before and process.poll() is None:
                time.sleep(0.001)
            time.sleep(chance.uniform(0.0, 0.1))
            process.kill()
        assert process.returncode == -9, "it must not end by itself"
        while_writing += any(name.endswith(".draft") for name in os.listdir(run))
    rounds = [record.round for record in read_journal(run / "history.jsonl")]
    assert rounds == [*range(1, len(rounds) + 1)]
    assert 0 < len(rounds) < 400
    end = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert end.returncode == 0, end.stderr
    whole = prepare(path, tmp_path / "whole").run()
    same(Result.load(run / "result.npz"), whole)
    for mine, other in zip(
        read_journal(run / "history.jsonl"),
        read_journal(tmp_path / "whole" / "history.jsonl"),
        strict=True,
    ):
        mine, other = ({**vars(each), "seconds": 0.0} for each in (mine, other))
        np.testing.assert_equal(mine, other)
    assert not any(name.endswith(".draft") for name in os.listdir(run))
    print(f"{while_writing} of {KILLS} kills were while a file was written")
