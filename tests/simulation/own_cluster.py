"""Runs on clusters of their own: ``python -m tests.simulation.own_cluster token FOLDER ADDRESS``.

Ray leaves files and processes to the garbage collector, for which pytest would warn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ray

from pcfed import Agent, FedAvg, PCFedSplit, Problem, Ray, run
from pcfed.errors import ClusterError
from pcfed.losses import LeastSquares
from pcfed.sets import Box
from tests.simulation.test_ranges import assert_same_bits
from tests.simulation.trapped import OPTIONS, problem_of

CONNECT = "import ray; ray.init('{}', log_to_driver=False); print('connected')"


def run_with_intruder(folder: Path, address: str) -> None:
    """Let a process that only knows the address of the cluster of a run connect to it."""
    problem, found = problem_of(folder), []

    def variables():
        return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}

    def intrude(evaluation):
        if evaluation.record.round == OPTIONS["rounds"]:
            assert variables() == before
            command = [sys.executable, "-c", CONNECT.format(ray_address())]
            found.append(subprocess.run(command, capture_output=True, text=True, check=False))

    def ray_address():
        return ray.get_runtime_context().gcs_address

    before = variables()
    result = run(problem, PCFedSplit(), **OPTIONS, backend=Ray(actors=2), callbacks=[intrude])
    assert_same_bits(result, run(problem, PCFedSplit(), **OPTIONS))
    assert variables() == before
    assert "connected" not in found[0].stdout
    assert "token" in found[0].stderr
    # Afterwards, this process can connect to a cluster without a token.
    result = run(problem, PCFedSplit(), **OPTIONS, backend=Ray(address, 2))
    assert result.status == "finished"


class Slow(LeastSquares):
    """Least squares whose gradient takes long enough for Ray to look at the memory."""

    def gradient(self, x, rows=None, *, out=None):
        time.sleep(20)
        return super().gradient(x, rows, out=out)


def run_without_memory() -> None:
    """Let Ray end every actor, because more than 1 % of the memory is in use."""
    os.environ |= {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "50"}
    problem = Problem([Agent(Slow(np.eye(2), np.ones(2)), Box(0, 1))])
    with pytest.raises(ClusterError, match="has died 4 times in one call; give its machine more"):
        run(problem, FedAvg(0.1), rounds=1, backend=Ray(actors=1))


if __name__ == "__main__":
    if sys.argv[1] == "token":
        run_with_intruder(Path(sys.argv[2]), sys.argv[3])
    else:
        run_without_memory()
    print("as expected")
