"""A training that is killed and resumed spends no more than one that is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from pcfed import FedAvg, Result, run
from tests.privacy.test_run import OPTIONS, private

ROUNDS = 12
SCRIPT = """
import os, signal, sys
from hashlib import sha256
from pcfed import Checkpointing, FedAvg, run
from pcfed.privacy import PrivateGradients
from tests.privacy.test_run import OPTIONS, private

path, log, dies_at = sys.argv[1], open(sys.argv[2], "ab", 0), int(sys.argv[3])
write, number = PrivateGradients.write, [0]

def writing(self, loss, x, out):
    write(self, loss, x, out)
    log.write((sha256(x.tobytes() + out.tobytes()).hexdigest() + "\\n").encode())
    number[0] += 1
    if number[0] == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)

PrivateGradients.write = writing
options = {**OPTIONS, "rounds": int(sys.argv[5])}
checkpoint = Checkpointing(path, every=2, resume=True)
run(private(), FedAvg(step=0.1), **options, checkpoint=checkpoint).save(sys.argv[4])
"""


def test_a_training_that_is_killed_and_resumed_spends_its_budget_once(tmp_path):
    log, saved = tmp_path / "log", tmp_path / "result.npz"

    def start(dies_at):
        command = [
            sys.executable,
            "-c",
            SCRIPT,
            tmp_path / "run",
            log,
            str(dies_at),
            saved,
            str(ROUNDS),
        ]
        return subprocess.run(command, cwd=Path(__file__).parents[2]).returncode

    assert start(29) == -signal.SIGKILL
    assert start(0) == 0
    whole = run(private(), FedAvg(step=0.1), **{**OPTIONS, "rounds": ROUNDS})
    result = Result.load(saved)
    np.testing.assert_array_equal(result.models, whole.models)
    assert result.privacy == whole.privacy
    answers = log.read_text().split()
    planned = sum(each.gradients for each in result.privacy if each)
    assert len(answers) > planned  # some were computed again, with the same points and noise
    assert len(set(answers)) == planned
