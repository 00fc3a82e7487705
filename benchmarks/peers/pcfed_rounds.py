"""pcfed: FedAvg, or PC-FedAvg or PCFedSplit with an l1 budget per agent, with 1 or 2 workers.

The time of a round is the difference between a run of many rounds and a run of one, divided by the
number of additional rounds: both runs have the same preparation and evaluations. PC-FedAvg and
PCFedSplit start from models some of which have reached their budgets. Gradients of PC-FedAvg are
those of the average, 1/m of FedAvg's, so its step is m times FedAvg's, with a coupling and a
penalty for which that step is stable. Each is measured with one BLAS thread and with all cores,
like the NumPy and PyTorch loops, and the faster is reported. pcfed reads the images as 8-bit
pixels, the form in which they are stored; all others read them as float32, which they require.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, FedAvg, PCFedAvg, PCFedSplit, Problem, Result, run
from pcfed.algorithms import Algorithm
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball, WholeSpace

from .workload import (
    CORES,
    SECONDS,
    SHAPE,
    STEP,
    Workload,
    arguments,
    best,
    load,
    loss,
    report,
    time_limit,
)

BUDGETS = (0.3, 1.2)
"""Budgets of the first and the last agent, as fractions of the l1 norm of FedAvg's model."""

Train = Callable[[int], Result]
"""Trains for a given number of rounds."""


def training(
    workload: Workload,
    workers: int,
    problem: Problem,
    algorithm: Algorithm,
    x0: Result | None = None,
) -> Train:
    return lambda rounds: run(
        problem,
        algorithm,
        rounds=rounds,
        local_steps=workload.steps,
        batch=workload.batch,
        sampling="blocks",
        x0=x0,
        eval_every=rounds,
        workers=workers,
    )


def one_round(train: Train, rounds: int) -> float:
    """Return the seconds per round, from a run of one round and a run of many."""
    stamps = [time.perf_counter()]
    for number in (1, rounds):
        train(number)
        stamps.append(time.perf_counter())
    return (stamps[2] - 2 * stamps[1] + stamps[0]) / (rounds - 1)


def seconds(train: Train, rounds: int) -> tuple[list[float], str]:
    """Return several measurements of the seconds per round, and the number of BLAS threads."""
    runs: dict[str, tuple[list[float], None]] = {}
    for threads in sorted({1, CORES}):
        times: list[float] = []
        with threadpool_limits(threads):
            while len(times) < 3 or sum(times) * rounds < SECONDS:
                times.append(one_round(train, rounds))
                if min(times) > time_limit(runs):
                    break
        runs[f"BLAS threads: {threads}"] = times, None
    note, times, _ = best(runs)
    return times, note


def main() -> None:
    workload, path, (name, workers) = arguments()
    images, labels = load(path)
    with np.load(path) as file:
        shares = zip(file["images"], labels, strict=True)
    losses = [SoftmaxRegression(x, y, classes=SHAPE[0]) for x, y in shares]
    free = Problem([Agent(f, WholeSpace(), coupling=0.0) for f in losses])
    train = training(workload, int(workers), free, FedAvg(STEP))
    average = train(workload.rounds).average
    if name == "FedAvg":
        final = loss(average.reshape(SHAPE), images, labels)
        times, note = seconds(train, workload.rounds)
        report(times, final, note)
        return
    step = STEP * workload.agents
    radii = np.abs(average).sum() * np.linspace(*BUDGETS, workload.agents)
    agents = [Agent(f, L1Ball(r), 0.1 / step) for f, r in zip(losses, radii, strict=True)]
    problem = Problem(agents)
    algorithm: Algorithm = PCFedSplit()
    if name == "PCFedAvg":
        algorithm = PCFedAvg(step, penalty=min(1.25 / workload.steps, 0.4) / step)
    start = training(workload, int(workers), problem, algorithm)(workload.rounds)
    binding = np.mean(np.abs(start.models).sum(axis=1) >= (1 - 1e-6) * radii)
    train = training(workload, int(workers), problem, algorithm, start)
    times, note = seconds(train, workload.rounds)
    report(times, None, f"{note}, {binding:.0%} of the budgets bind")


if __name__ == "__main__":
    main()
