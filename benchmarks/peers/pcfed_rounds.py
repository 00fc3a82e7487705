"""pcfed: FedAvg, or PC-FedAvg with another l1 budget for each agent, on so many workers.

A round takes what a run of many rounds takes longer than a run of one: both prepare the same and
evaluate before and after. PC-FedAvg goes on from models of which a part has met its budgets. Its
gradients are those of the average, an m-th of FedAvg's, so its step is m times FedAvg's, with a
coupling and a penalty for which that step is stable. Measured with one thread of BLAS and with all
cores, as the loops of NumPy and PyTorch are; the better is taken. pcfed gets the images as 8-bit
pixels, which is how they are kept; all others get them in float32, as they want them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, FedAvg, PCFedAvg, Problem, Result, run
from pcfed.algorithms import Algorithm
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball, WholeSpace

from .work import CORES, SECONDS, SHAPE, STEP, Work, arguments, best, load, loss, patience, report

BUDGETS = (0.3, 1.2)
"""Of the first and the last agent, as shares of the l1 norm of FedAvg's model."""

Play = Callable[[int], Result]
"""Trains for so many rounds."""


def player(
    work: Work, workers: int, problem: Problem, method: Algorithm, x0: Result | None = None
) -> Play:
    return lambda rounds: run(
        problem,
        method,
        rounds=rounds,
        local_steps=work.steps,
        batch=work.batch,
        sampling="blocks",
        x0=x0,
        eval_every=rounds,
        workers=workers,
    )


def one_round(play: Play, rounds: int) -> float:
    """Return the seconds of a round, from a run of one and a run of many."""
    stamps = [time.perf_counter()]
    for number in (1, rounds):
        play(number)
        stamps.append(time.perf_counter())
    return (stamps[2] - 2 * stamps[1] + stamps[0]) / (rounds - 1)


def seconds(play: Play, rounds: int) -> tuple[list[float], str]:
    """Return the seconds of a round, several times, and with how many threads of BLAS."""
    runs: dict[str, tuple[list[float], None]] = {}
    for threads in sorted({1, CORES}):
        times: list[float] = []
        with threadpool_limits(threads):
            while len(times) < 3 or sum(times) * rounds < SECONDS:
                times.append(one_round(play, rounds))
                if min(times) > patience(runs):
                    break
        runs[f"BLAS threads: {threads}"] = times, None
    note, times, _ = best(runs)
    return times, note


def main() -> None:
    work, path, (method, number) = arguments()
    images, labels = load(path)
    workers = int(number)
    with np.load(path) as file:
        shares = zip(file["images"], labels, strict=True)
    losses = [SoftmaxRegression(x, y, classes=SHAPE[0]) for x, y in shares]
    free = Problem([Agent(f, WholeSpace(), coupling=0.0) for f in losses])
    play = player(work, workers, free, FedAvg(STEP))
    average = play(work.rounds).average
    if method == "FedAvg":
        final = loss(average.reshape(SHAPE), images, labels)
        times, note = seconds(play, work.rounds)
        report(times, final, note)
        return
    step = STEP * work.agents
    radii = np.abs(average).sum() * np.linspace(*BUDGETS, work.agents)
    agents = [Agent(f, L1Ball(r), 0.1 / step) for f, r in zip(losses, radii, strict=True)]
    problem, pcfedavg = Problem(agents), PCFedAvg(step, penalty=min(1.25 / work.steps, 0.4) / step)
    before = player(work, workers, problem, pcfedavg)(work.rounds)
    binding = np.mean(np.abs(before.models).sum(axis=1) >= radii)
    play = player(work, workers, problem, pcfedavg, before)
    times, note = seconds(play, work.rounds)
    report(times, None, f"{note}, {binding:.0%} of the budgets bind")


if __name__ == "__main__":
    main()
