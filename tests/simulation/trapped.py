"""Agents whose loss kills a process in the middle of a round, once a test has set the trap.

Run as a program, it trains them with a checkpoint: ``python -m tests.simulation.trapped FOLDER``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from pcfed import Agent, Checkpointing, PCFedSplit, Problem, Ray, run
from pcfed.losses import LeastSquares
from pcfed.sets import Box

M = 40
TRAP, SPRUNG = "trap", "sprung"
OPTIONS = {"rounds": 12, "local_steps": 2, "participation": 0.5, "batch": 3, "seed": 5}


class Trapped(LeastSquares):
    """Least squares whose gradient looks for a trap."""

    def __init__(self, *data, folder: Path) -> None:
        self.folder = folder
        super().__init__(*data)

    def gradient(self, x, rows=None, *, out=None):
        trap = self.folder / TRAP
        if trap.exists():
            self.spring(trap)
        return super().gradient(x, rows, out=out)

    def spring(self, trap: Path) -> None:
        """Kill what the trap names: the actor, its node unless it is the head, or a process."""
        victim, argument = trap.read_text().split()
        if victim == "node":
            import ray

            if ray.get_runtime_context().get_node_id() == argument:
                return
        try:
            trap.rename(self.folder / SPRUNG)  # only one process can
        except FileNotFoundError:
            return
        if victim == "sleep":
            time.sleep(int(argument))
            return
        pids = {"actor": os.getpid, "node": os.getppid, "process": lambda: int(argument)}
        os.kill(pids[victim](), signal.SIGKILL)
        time.sleep(60)  # a node takes its processes with it


def problem_of(folder: Path) -> Problem:
    def make_agent(i):
        rng = np.random.default_rng(i)
        loss = Trapped(rng.normal(size=(6, 5)), rng.normal(size=6), folder=folder)
        return Agent(loss, Box(-0.1 - 0.01 * (i % 7), 0.05), personalization=i % 2 / 2)

    return Problem([make_agent(i) for i in range(M)])


def main() -> None:
    folder = Path(sys.argv[1])

    def set_trap(evaluation):
        if evaluation.record.round == 5:
            (folder / TRAP).write_text(f"process {os.getpid()}")

    run(
        problem_of(folder),
        PCFedSplit(),
        **OPTIONS,
        backend=Ray(sys.argv[2], actors=2),
        checkpoint=Checkpointing(folder / "run", every=2),
        callbacks=[set_trap],
    )


if __name__ == "__main__":
    main()
