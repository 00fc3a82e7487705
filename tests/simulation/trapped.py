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
from pcfed.simulation.range_actor import RangeActor

M = 40
TRAP, SPRUNG, CALL = "trap", "sprung", "call"
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
        try:
            victim, argument = trap.read_text().split()
            if victim == "node":
                import ray

                if ray.get_runtime_context().get_node_id() == argument:
                    return
            trap.rename(self.folder / SPRUNG)  # only one process can
        except FileNotFoundError:
            return
        if victim == "sleep":
            time.sleep(int(argument))
            return
        pids = {"actor": os.getpid, "node": os.getppid, "process": lambda: int(argument)}
        os.kill(pids[victim](), signal.SIGKILL)
        time.sleep(60)  # a node takes its processes with it


class TrappedActor(RangeActor):
    """An actor that ends in a snapshot, once a trap is set beside the folder of snapshots."""

    def snapshot(self, accepted, path):
        trap = Path(path).parents[2] / TRAP
        if trap.exists():
            trap.unlink()
            os._exit(1)
        return super().snapshot(accepted, path)


class TrappedCalls(RangeActor):
    """An actor that ends before or after a call, if a file beside its agents names the method."""

    def call(self, method, *arguments, **options):
        trap = self._settings.agents[0].loss.folder / CALL
        is_named = self._settings.first > 0 and trap.exists()
        found, when = trap.read_text().split() if is_named else (None, None)
        if found == method:
            trap.rename(trap.with_name(SPRUNG))
            if when == "before":
                os._exit(1)
        answer = super().call(method, *arguments, **options)
        if found == method:
            os._exit(1)
        return answer


class SlowToFree(RangeActor):
    """An actor that takes a second to begin to free memory."""

    def call(self, method, *arguments, **options):
        if method == "free":
            time.sleep(1)
        return super().call(method, *arguments, **options)


class CarelessActor(RangeActor):
    """An actor that keeps no snapshots of others."""

    def keep(self, k, snapshot):
        raise ValueError("keep: no memory; free some.")


class Mortal(LeastSquares):
    """Least squares whose gradient ends the process for the first so many times."""

    def __init__(self, *data, file: Path, deaths: int) -> None:
        self.file, self.deaths = file, deaths
        super().__init__(*data)

    def gradient(self, x, rows=None, *, out=None):
        if self.file.stat().st_size < self.deaths:
            with self.file.open("a") as file:
                file.write("x")
            os._exit(1)
        return super().gradient(x, rows, out=out)


class Slow(LeastSquares):
    """Least squares whose gradient takes time, and ends the process once a trap is set."""

    def __init__(self, *data, folder: Path) -> None:
        self.folder = folder
        super().__init__(*data)

    def gradient(self, x, rows=None, *, out=None):
        time.sleep(0.6)
        if (self.folder / TRAP).exists():
            (self.folder / TRAP).rename(self.folder / SPRUNG)
            os._exit(1)
        return super().gradient(x, rows, out=out)


class PathError(OSError):
    """An error that cannot be made from its text."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not there: {reason}")


def problem_of(folder: Path, agents: int = M, n: int = 5, samples: int = 6) -> Problem:
    def make_agent(i):
        rng = np.random.default_rng(i)
        loss = Trapped(rng.normal(size=(samples, n)), rng.normal(size=samples), folder=folder)
        return Agent(loss, Box(-0.1 - 0.01 * (i % 7), 0.05), personalization=i % 2 / 2)

    return Problem([make_agent(i) for i in range(agents)])


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
