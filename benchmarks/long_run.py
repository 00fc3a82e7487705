"""Memory and seconds of a round in the course of a long run: neither may grow.

    python -m benchmarks.long_run [rounds]

A hundred thousand rounds of a small problem: four agents, least squares with 20 parameters, l1
balls, two local steps on half of the data, half of the agents absent, every round evaluated, a
journal, and a checkpoint every thousand rounds. Memory is what the process has at 1, 10, 50 and
100 % of the rounds; seconds are those of a round in the first and in the last tenth.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, Checkpointing, FedAvg, PCFedAvg, Problem, run
from pcfed.algorithms import Algorithm
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball
from pcfed.simulation import Evaluation

METHODS = {
    "PCFedAvg, exact": PCFedAvg(step=0.02, penalty=2.0, exact=True),
    "FedAvg": FedAvg(step=0.02, penalty=2.0),
}


class Watch:
    """Notes memory and time as rounds go by; it keeps nothing else."""

    def __init__(self, rounds: int) -> None:
        self._memory = {max(1, rounds * share // 100): share for share in (1, 10, 50, 100)}
        self._times = {rounds // 10: "first", rounds - rounds // 10: "middle", rounds: "last"}
        self._since = time.perf_counter()
        self.bytes: dict[int, int] = {}
        self.seconds: dict[str, float] = {}

    def __call__(self, seen: Evaluation) -> None:
        """Look at the clock and at the memory where it is time to."""
        done = seen.record.round
        if done in self._memory:
            self.bytes[self._memory[done]] = memory()
        if done in self._times:
            now = time.perf_counter()
            self.seconds[self._times[done]] = now - self._since
            self._since = now


def memory() -> int:
    """Return the bytes that this process has in memory."""
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


def measure(algorithm: Algorithm, rounds: int) -> Watch:
    """Run a method, its files in a folder that goes away."""
    run(problem(), algorithm, rounds=2, local_steps=2, batch=0.5)  # compiles what is compiled
    with TemporaryDirectory() as folder:
        watch = Watch(rounds)
        run(
            problem(),
            algorithm,
            rounds=rounds,
            local_steps=2,
            participation=0.5,
            batch=0.5,
            callbacks=[watch],
            checkpoint=Checkpointing(Path(folder) / "run.ckpt", every=1000),
            journal=Path(folder) / "history.jsonl",
        )
    return watch


def main(rounds: int) -> None:
    for name, algorithm in METHODS.items():
        watch = measure(algorithm, rounds)
        grown = ", ".join(f"{b / 2**20:.2f} MB at {share} %" for share, b in watch.bytes.items())
        first, last = (watch.seconds[part] / (rounds // 10) * 1e6 for part in ("first", "last"))
        print(f"{name}, {rounds} rounds: {grown}")
        print(f"  a round took {first:.0f} µs in the first tenth, {last:.0f} µs in the last")


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
