"""Actors against threads: seconds per round of the same runs, and of Flower's simulation engine.

    python -m benchmarks.cluster.overhead [B C] [--repeats 3]

The works B and C of ``benchmarks/peers`` on two cores: FedAvg, and PCFedSplit with an l1 budget per
agent, in one process with ``workers=2`` and in two Ray actors with one thread each. The two
alternate in one process, whose cluster is started before; a round is the time between two calls of
the function that gives the local steps, so that neither start-up nor evaluations count. The median
over all rounds of all repetitions but the first three of each is given, and the ratio is the median
of those of the pairs; beside it, the smallest and the largest. Flower runs FedAvg with one client
process per core, in its own process, once for every work.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peers.__main__ import exported
from benchmarks.peers.environments import PEERS, measured
from benchmarks.peers.workload import SHAPE, STEP, WORKLOADS, Workload, load
from pcfed import Agent, FedAvg, PCFedSplit, Problem, Ray, Result, run
from pcfed.algorithms import Algorithm
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball, WholeSpace

from .measure import RoundClock, cluster

ROUNDS = {"A": 400, "B": 400, "C": 100}
WARM_UP = 3
BUDGETS = (0.3, 1.2)
"""Budgets of the first and the last agent, as fractions of the l1 norm of FedAvg's model."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    work, algorithm : str
        What was run.
    threads, actors : float
        Milliseconds per round.
    ratios : list of float
        Actors to threads in every repetition, in increasing order.
    """

    work: str
    algorithm: str
    threads: float
    actors: float
    ratios: list[float]


def trained(
    workload: Workload,
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    backend: Ray | None,
) -> tuple[list[float], Result]:
    """Run so many rounds; return the seconds of each of them, and the result."""
    clock = RoundClock(workload.steps)
    result = run(
        problem,
        algorithm,
        rounds=rounds,
        local_steps=clock,
        batch=workload.batch,
        sampling="blocks",
        eval_every=rounds,
        workers=1 if backend else 2,
        backend=backend,
    )
    return clock.seconds(WARM_UP), result


def runs_of(workload: Workload, path: Path) -> dict[str, tuple[Problem, Algorithm]]:
    """Return the problem and the algorithm of every run of a work."""
    labels = load(str(path))[1]
    with np.load(path) as file:
        shares = zip(file["images"], labels, strict=True)
    losses = [SoftmaxRegression(x, y, classes=SHAPE[0]) for x, y in shares]
    free = Problem([Agent(f, WholeSpace(), coupling=0.0) for f in losses])
    average = trained(workload, free, FedAvg(STEP), 5, None)[1].average
    radii = np.abs(average).sum() * np.linspace(*BUDGETS, workload.agents)
    coupling = 0.1 / (STEP * workload.agents)
    bounded = Problem([Agent(f, L1Ball(r), coupling) for f, r in zip(losses, radii, strict=True)])
    return {"FedAvg": (free, FedAvg(STEP)), "PCFedSplit": (bounded, PCFedSplit())}


def compare(name: str, path: Path, repeats: int) -> list[Row]:
    """Measure the runs of a work in threads and actors, in turn."""
    workload, rounds, rows = WORKLOADS[name], ROUNDS[name], []
    for title, (problem, algorithm) in runs_of(workload, path).items():
        pairs: list[tuple[list[float], list[float]]] = []
        for _ in range(repeats):
            here, one = trained(workload, problem, algorithm, rounds, None)
            there, two = trained(workload, problem, algorithm, rounds, Ray(actors=2))
            if not np.array_equal(one.models, two.models):
                raise SystemExit(f"{name} {title}: actors give other models than threads.")
            pairs.append((here, there))
        threads, actors = (1e3 * median(t for pair in pairs for t in pair[k]) for k in (0, 1))
        ratios = sorted(median(two) / median(one) for one, two in pairs)
        rows.append(Row(name, title, threads, actors, ratios))
        print(rows[-1], flush=True)
    return rows


def flower(name: str, path: Path) -> float:
    """Return the milliseconds per round of Flower's simulation engine in this environment."""
    peer = replace(PEERS["flower"], environment="", packages=())
    return 1e3 * float(measured(peer, name, path)["seconds_per_round"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.overhead")
    parser.add_argument("works", nargs="*", default=["B", "C"])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = exported(given.works, Path(folder))
        with cluster():
            rows = [
                row for name in given.works for row in compare(name, files[name], given.repeats)
            ]
        others = {name: flower(name, files[name]) for name in given.works}
    print(f"\nload after the runs: {os.getloadavg()[0]:.1f}\n")
    print("| work | algorithm | threads, ms | actors, ms | actors / threads | range | Flower, ms |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        other = f"{others[row.work]:,.0f}" if row.algorithm == "FedAvg" else ""
        print(
            f"| {row.work} | {row.algorithm} | {row.threads:.1f} | {row.actors:.1f} "
            f"| {median(row.ratios):.2f} | {row.ratios[0]:.2f} to {row.ratios[-1]:.2f} | {other} |"
        )


if __name__ == "__main__":
    main()
