"""Memory and seconds per round during a long run: both must stay constant.

    python -m benchmarks.long_run [rounds]

100,000 rounds of a small problem: four agents, least squares with 20 parameters, l1 balls, two
local steps on half of the data, half of the agents absent, an evaluation in every round, a journal,
and a checkpoint every 1,000 rounds. Reported are the memory of the process after 1, 10, 50 and
100 % of the rounds, and the seconds per round in the first and in the last tenth.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, Checkpointing, FedAvg, PCFedSplit, Problem, run
from pcfed.algorithms import Algorithm
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball
from pcfed.simulation import Evaluation

ALGORITHMS = {
    "PCFedSplit": PCFedSplit(),
    "FedAvg": FedAvg(step=0.02, penalty=2.0),
}


class Monitor:
    """Callback that records memory and time at given rounds."""

    def __init__(self, rounds: int) -> None:
        self._memory = {max(1, rounds * percent // 100): percent for percent in (1, 10, 50, 100)}
        self._times = {rounds // 10: "first", rounds - rounds // 10: "middle", rounds: "last"}
        self._since = time.perf_counter()
        self.bytes: dict[int, int] = {}
        self.seconds: dict[str, float] = {}

    def __call__(self, evaluation: Evaluation) -> None:
        """Record memory and time if the round is one of the given ones."""
        round_ = evaluation.record.round
        if round_ in self._memory:
            self.bytes[self._memory[round_]] = memory()
        if round_ in self._times:
            now = time.perf_counter()
            self.seconds[self._times[round_]] = now - self._since
            self._since = now


def memory() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def problem() -> Problem:
    """Return a small problem in which every budget binds."""
    rng = np.random.default_rng(0)
    agents = []
    for i in range(4):
        X = rng.normal(size=(40, 20))
        y = X @ rng.normal(size=20) + 0.1 * rng.normal(size=40)
        agents.append(Agent(LeastSquares(X, y), L1Ball(1.0 + i), coupling=0.1))
    return Problem(agents)


def measure(algorithm: Algorithm, rounds: int) -> Monitor:
    """Run an algorithm, with its files in a temporary directory."""
    run(problem(), algorithm, rounds=2, local_steps=2, batch=0.5)  # compile before measuring
    with TemporaryDirectory() as folder:
        monitor = Monitor(rounds)
        run(
            problem(),
            algorithm,
            rounds=rounds,
            local_steps=2,
            participation=0.5,
            batch=0.5,
            callbacks=[monitor],
            checkpoint=Checkpointing(Path(folder) / "run.ckpt", every=1000),
            journal=Path(folder) / "history.jsonl",
        )
    return monitor


def main(rounds: int) -> None:
    for name, algorithm in ALGORITHMS.items():
        monitor = measure(algorithm, rounds)
        sizes = ", ".join(f"{b / 2**20:.2f} MB at {part} %" for part, b in monitor.bytes.items())
        first, last = (monitor.seconds[part] / (rounds // 10) * 1e6 for part in ("first", "last"))
        print(f"{name}, {rounds} rounds: {sizes}")
        print(f"  {first:.0f} µs per round in the first tenth, {last:.0f} µs in the last")


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
