"""Seconds and memory of a round against the number of agents and of parameters.

    python -m benchmarks.scale

"agents": m = 10 … 10,000 agents with six MNIST images each, softmax regression with 7,840
parameters, PC-FedAvg with m different l1 budgets, five local steps on three of the six images.
"m blocks": the algorithm as printed in the paper, with m blocks at every agent, as long as its m²·n
numbers fit into memory. "parameters": n = 10⁴ … 10⁷ for four agents, logistic regression on sparse
features. Every point is measured in a separate process, so that its peak memory can be measured.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from pcfed import Agent, PCFedAvg, Problem, run
from pcfed.data import mnist
from pcfed.losses import LogisticRegression, SoftmaxRegression
from pcfed.reference import reference
from pcfed.sets import L1Ball

SIZES = {
    "agents": (10, 30, 100, 300, 1_000, 3_000, 10_000),
    "m blocks": (10, 30, 100),  # 300 agents need 5.6 GB and minutes per round
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000),
}
STEPS = 5


@dataclass(frozen=True)
class Point:
    """The measurement for one number of agents or parameters.

    Attributes
    ----------
    kind, size
        The curve, and the number of agents or parameters.
    seconds : float
        Time per round, the fastest of three runs.
    peak, base : int
        Peak memory of the process in bytes, after and before the run.
    state : int
        Bytes of the private state of all agents, which must be stored.
    """

    kind: str
    size: int
    seconds: float
    peak: int
    base: int
    state: int


def images(m: int) -> Problem:
    """Return m agents with six MNIST images and a different l1 budget each."""
    data = mnist()
    X = data.train_images[: 6 * m].reshape(m, 6, -1).copy()
    y = data.train_labels[: 6 * m].reshape(m, 6)
    return Problem(
        Agent(SoftmaxRegression(X_i, y_i, classes=10), L1Ball(budget), coupling=0.1)
        for X_i, y_i, budget in zip(X, y, np.linspace(1.0, 20.0, m), strict=True)
    )


def texts(n: int) -> Problem:
    """Return logistic regression with n parameters on sparse features, for four agents."""
    rng = np.random.default_rng(0)

    def agent(budget: float) -> Agent:
        rows, filled = 200, 100
        columns = rng.integers(n, size=rows * filled)
        values = rng.random(rows * filled, dtype=np.float32)
        ends = np.arange(0, rows * filled + 1, filled)
        X = sparse.csr_array((values, columns, ends), shape=(rows, n))
        y = rng.integers(2, size=rows)
        return Agent(LogisticRegression(X, y), L1Ball(budget), coupling=0.1)

    return Problem(agent(budget) for budget in (1.0, 2.0, 4.0, 8.0))


def measured(kind: str, size: int) -> Point:
    """Measure one point in this process."""
    problem = texts(size) if kind == "parameters" else images(size)
    algorithm = PCFedAvg(step=0.1, penalty=1.0)
    base = _memory()

    def seconds_of(rounds: int) -> float:
        start = time.perf_counter()
        if kind == "m blocks":
            reference(problem, algorithm, rounds=rounds, local_steps=STEPS, batch=0.5)
        else:
            run(
                problem,
                algorithm,
                rounds=rounds,
                local_steps=STEPS,
                batch=0.5,
                eval_every=rounds,
                workers=2,
            )
        return time.perf_counter() - start

    with threadpool_limits(1):
        first = min(seconds_of(1) for _ in range(4))  # includes preparation and evaluation
        rounds = 4 if first > 0.5 else 40
        seconds = (min(seconds_of(rounds) for _ in range(3)) - first) / (rounds - 1)
    return Point(kind, size, seconds, _memory(), base, problem.m * problem.n * 8)


def measure(kinds: Sequence[str] = tuple(SIZES)) -> list[Point]:
    """Measure all points, one process at a time."""
    points = []
    for kind in kinds:
        for size in SIZES[kind]:
            command = [sys.executable, "-m", "benchmarks.scale", kind, str(size)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            points.append(Point(**json.loads(out)))
            print(points[-1], flush=True)
    return points


def table(points: Sequence[Point]) -> str:
    """Return the measurements as a table."""
    lines = [
        "| curve | size | ms per round | µs per agent | peak, MB | peak / private state |",
        "|---|---|---|---|---|---|",
    ]
    for p in points:
        agents = 4 if p.kind == "parameters" else p.size
        lines.append(
            f"| {p.kind} | {p.size:,} | {1e3 * p.seconds:,.1f} | {1e6 * p.seconds / agents:,.0f} "
            f"| {p.peak / 1e6:,.0f} | {p.peak / p.state:,.2f} |"
        )
    return "\n".join(lines)


def picture(points: Sequence[Point], path: Path) -> None:
    """Draw seconds and memory against agents, and seconds against parameters."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, figsize=(5.2, 9.6), layout="constrained")
    panels: list[tuple[str, str, tuple[str, ...], Callable[[Point], float]]] = [
        ("agents m", "seconds per round", ("agents", "m blocks"), lambda p: p.seconds),
        ("agents m", "peak memory, GB", ("agents", "m blocks"), lambda p: p.peak / 1e9),
        ("parameters n, four agents", "seconds per round", ("parameters",), lambda p: p.seconds),
    ]
    names = {"agents": "pcfed", "m blocks": "Algorithm 1, m blocks", "parameters": "pcfed"}
    for axis, (xlabel, ylabel, kinds, value) in zip(axes, panels, strict=True):
        for kind, style in zip(kinds, ("o-", "s--"), strict=False):
            chosen = [p for p in points if p.kind == kind]
            sizes = [p.size for p in chosen]
            axis.loglog(sizes, [value(p) for p in chosen], style, label=names[kind])
        if ylabel.startswith("seconds"):
            last = [p for p in points if p.kind == kinds[0]][-1]
            line = [last.seconds * p.size / last.size for p in points if p.kind == kinds[0]]
            axis.loglog(
                [p.size for p in points if p.kind == kinds[0]],
                line,
                ":",
                color="grey",
                label="linear",
            )
        else:
            chosen = [p for p in points if p.kind == "agents"]
            axis.loglog(
                [p.size for p in chosen],
                [p.state / 1e9 for p in chosen],
                ":",
                color="grey",
                label="private state",
            )
        axis.set(xlabel=xlabel, ylabel=ylabel)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _memory() -> int:
    """Return the peak memory of this process so far in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(vars(measured(sys.argv[1], int(sys.argv[2])))))
    else:
        print(table(measure()))
