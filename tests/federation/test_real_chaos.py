"""Faults at random in a real federation, from a seed: `make test-federation`.

ClientApps die, are late, answer twice, lie and send nonsense (faults/chaos.py); SuperNodes are
killed and stopped; the SuperLink is killed. In the end every audit is exact, and every model has
the bits of the simulator with the same absences.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import numpy as np
import pytest

from pcfed.federation.paths import RESULT
from tests.federation.processes import Federation, federation

pytestmark = pytest.mark.federation

ROUNDS = 30
NUM_FAULTS = 5
"""Faults of whole processes."""


class Faults:
    """Kills and stops whole processes; ``tick`` is called a few times a second."""

    def __init__(self, real: Federation, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rounds = sorted(rng.choice(np.arange(2, ROUNDS - 3), NUM_FAULTS, replace=False).tolist())
        kinds = rng.permutation(["kill", "kill", "stop", "stop", "server"]).tolist()
        names = rng.choice(real.names, NUM_FAULTS).tolist()
        self.left = list(zip(rounds, kinds, names, strict=True))
        self.done: list[tuple[int, str, str]] = []
        self._real = real
        self._stopped: list[tuple[int, int]] = []  # process, round

    def tick(self) -> None:
        """Do what is due after the rounds that are done."""
        rounds = len(self._real.history())
        for pid, since in list(self._stopped):
            if rounds > since:
                os.kill(pid, signal.SIGCONT)
                self._stopped.remove((pid, since))
        if not self.left or rounds < self.left[0][0]:
            return
        _, kind, name = fault = self.left.pop(0)
        self.done.append(fault)
        if kind == "kill":
            self._real.kill(name)
            self._real.up(tls=False)
        elif kind == "stop":
            pid = self._real.processes.pids[name]
            os.kill(pid, signal.SIGSTOP)
            self._stopped.append((pid, rounds))
        else:
            self._real.kill("SuperLink")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_faults_at_random(seed, tmp_path):
    with federation(tmp_path / "federation", 4, tls=False) as real:
        real.begin("chaos", rounds=ROUNDS, minimum=2)
        text = real.server_file.read_text().replace("deadline = 60.0", "deadline = 15.0")
        real.server_file.write_text(text)
        real.faults.mkdir()
        (real.faults / "chaos.json").write_text(json.dumps({"seed": seed}))
        faults = Faults(real, seed)
        for _ in range(20):
            if not real.alive()["SuperLink"]:
                real.up(tls=False)
            real.run(on_tick=faults.tick)
            if (real.training_directory / RESULT).exists():
                break
        assert not faults.left
        (real.faults / "chaos.json").unlink()  # the end is without faults
        real.train()
        accepted = real.check(exact=True)
        met = Counter(path.read_text() for path in real.faults.glob("agent-*"))
        refused = Counter(name for entry in real.history() for name in entry["refused"])
    print(f"seed {seed}: {dict(met)}; {faults.done}; refused {dict(refused)}")
    assert len(met) >= 8
    assert sum(map(len, accepted)) < 4 * ROUNDS
    assert refused
