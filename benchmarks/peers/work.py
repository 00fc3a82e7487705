"""The works that all peers do, and how they measure themselves; needs nothing but NumPy.

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
"""Small, so that it matters little to the loss that pcfed draws its batches with replacement while
the peers take one after the other: 0.3 % at most, but 2.4 % with steps of 0.1."""
SECONDS = 2.0
"""For how long quick peers go on, to have more rounds to take the median of."""


@dataclass(frozen=True)
class Work:
    """How much there is to do in a round.

    Attributes
    ----------
    agents, images : int
        Number of agents, and of images that each of them has.
    steps, batch : int
        Local steps of an agent in a round, and images in each of them.
    rounds : int
        Rounds before the loss is taken; the first one is a warm-up.
    """

    agents: int
    images: int
    steps: int
    batch: int
    rounds: int

    @property
    def epochs(self) -> int:
        """How often an agent sees all of its images in a round."""
        return self.steps * self.batch // self.images

    @property
    def batches(self) -> list[slice]:
        """The images of one step after the other."""
        starts = (step * self.batch % self.images for step in range(self.steps))
        return [slice(start, start + self.batch) for start in starts]

    def __str__(self) -> str:
        agents = f"{self.agents:,} agents × {self.images:,} images"
        return f"{agents}, {self.steps} steps of {self.batch:,}"


WORKS = {
    "A": Work(agents=4, images=15_000, steps=20, batch=1_500, rounds=9),
    "B": Work(agents=100, images=100, steps=5, batch=20, rounds=21),
    "C": Work(agents=1_000, images=60, steps=5, batch=12, rounds=5),
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
    play: Callable[[State], State],
    start: State,
    *,
    seconds: float = SECONDS,
    limit: float = math.inf,
) -> tuple[list[float], State]:
    """Play rounds until it is enough, and return their seconds and where they led.

    Parameters
    ----------
    rounds : int
        How many there are at least, the first included, whose seconds don't count; the state that
        is returned is the one after them.
    play : callable
        Returns the state after a round.
    start : State
        Where to begin.
    seconds : float
        For how long to go on.
    limit : float
        Give up when all rounds took longer than this.
    """
    times: list[float] = []
    last = state = play(start)
    while len(times) < rounds - 1 or sum(times) < seconds:
        begin = time.perf_counter()
        state = play(state)
        times.append(time.perf_counter() - begin)
        if len(times) == rounds - 1:
            last = state
        if min(times) > limit:
            break
    return times, last


def patience(runs: Mapping[str, tuple[list[float], Any]]) -> float:
    """Return how long a round may take to be worth measuring, given what others took: twice."""
    return min((2 * statistics.median(times) for times, _ in runs.values()), default=math.inf)


def best(runs: Mapping[str, tuple[list[float], State]]) -> tuple[str, list[float], State]:
    """Return the run with the smallest median: its name, the seconds, where it led."""
    name = min(runs, key=lambda name: statistics.median(runs[name][0]))
    return name, *runs[name]


def report(times: Sequence[float], final: float | None, note: str = "") -> None:
    """Print the one line that the driver reads."""
    line = {"seconds_per_round": statistics.median(times), "loss": final, "rounds": len(times)}
    print(json.dumps({**line, "note": note}), flush=True)


def arguments() -> tuple[Work, str, list[str]]:
    """Return the work, the path of the data, and what else was given on the command line."""
    name, path, *rest = sys.argv[1:]
    return WORKS[name], path, rest
