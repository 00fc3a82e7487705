"""The workloads of all peers, and how they are measured; needs only NumPy.

A round is federated averaging of softmax regression, 784 features to 10 classes, without an
intercept, in float32: every agent takes ``steps`` steps of plain gradient descent from the shared
model, each on the next ``batch`` of its images, and the models are averaged with equal weights.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.intp]
State = TypeVar("State")

CORES = os.cpu_count() or 1
SHAPE = (10, 784)
STEP = 0.02
"""A small step: pcfed samples its batches while the peers take them in order, which changes the
loss by at most 0.3 % (2.4 % with steps of 0.1)."""
SECONDS = 2.0
"""Minimum duration of a measurement, so that fast peers have enough rounds for a median."""


@dataclass(frozen=True)
class Workload:
    """The size of a round.

    Attributes
    ----------
    agents, images : int
        Number of agents, and of images per agent.
    steps, batch : int
        Local steps per agent and round, and images per step.
    rounds : int
        Rounds before the loss is evaluated; the first one is a warm-up.
    """

    agents: int
    images: int
    steps: int
    batch: int
    rounds: int

    @property
    def epochs(self) -> int:
        """Epochs per agent and round."""
        return self.steps * self.batch // self.images

    @property
    def batches(self) -> list[slice]:
        """The rows of images of each step."""
        starts = (step * self.batch % self.images for step in range(self.steps))
        return [slice(start, start + self.batch) for start in starts]

    def __str__(self) -> str:
        agents = f"{self.agents:,} agents × {self.images:,} images"
        return f"{agents}, {self.steps} steps of {self.batch:,}"


WORKLOADS = {
    "A": Workload(agents=4, images=15_000, steps=20, batch=1_500, rounds=9),
    "B": Workload(agents=100, images=100, steps=5, batch=20, rounds=21),
    "C": Workload(agents=1_000, images=60, steps=5, batch=12, rounds=5),
}


def load(path: str) -> tuple[Floats, Labels]:
    """Return the images, agents × images × pixels in [0, 1], and their labels."""
    with np.load(path) as file:
        images: Floats = file["images"].astype(np.float32)
        labels: Labels = file["labels"].astype(np.intp)
    images /= 255
    return images, labels


def loss(weights: NDArray[Any], images: Floats, labels: Labels) -> float:
    """Return the average training loss of a model, classes × pixels."""
    logits = images.reshape(-1, SHAPE[1]) @ weights.astype(np.float32).T
    logits -= logits.max(axis=1, keepdims=True)
    own = logits[np.arange(len(logits)), labels.ravel()]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - own, dtype=np.float64))


def measure(
    rounds: int,
    run_round: Callable[[State], State],
    start: State,
    *,
    seconds: float = SECONDS,
    limit: float = math.inf,
) -> tuple[list[float], State]:
    """Run and time rounds, and return their seconds and the final state.

    Parameters
    ----------
    rounds : int
        Minimum number of rounds. The first one is a warm-up and is not timed. The returned state is
        the one after this number of rounds.
    run_round : callable
        Returns the state after a round.
    start : State
        The initial state.
    seconds : float
        Minimum duration.
    limit : float
        Stop early if all rounds took longer than this many seconds.
    """
    times: list[float] = []
    last = state = run_round(start)
    while len(times) < rounds - 1 or sum(times) < seconds:
        begin = time.perf_counter()
        state = run_round(state)
        times.append(time.perf_counter() - begin)
        if len(times) == rounds - 1:
            last = state
        if min(times) > limit:
            break
    return times, last


def time_limit(runs: Mapping[str, tuple[list[float], Any]]) -> float:
    """Return the maximum seconds per round: twice the smallest median of other runs."""
    return min((2 * statistics.median(times) for times, _ in runs.values()), default=math.inf)


def best(runs: Mapping[str, tuple[list[float], State]]) -> tuple[str, list[float], State]:
    """Return the run with the smallest median: its name, its seconds, its final state."""
    name = min(runs, key=lambda name: statistics.median(runs[name][0]))
    return name, *runs[name]


def report(times: Sequence[float], final: float | None, note: str = "") -> None:
    """Print the measurement as the one line that the caller parses."""
    line = {"seconds_per_round": statistics.median(times), "loss": final, "rounds": len(times)}
    print(json.dumps({**line, "note": note}), flush=True)


def arguments() -> tuple[Workload, str, list[str]]:
    """Return the workload, the path of the data, and the other command-line arguments."""
    name, path, *rest = sys.argv[1:]
    return WORKLOADS[name], path, rest
