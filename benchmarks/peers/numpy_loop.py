"""A plain loop over agents and steps with NumPy.

Small products can be slower on all cores than on one; both are measured, the faster is reported.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits

from .local_steps import local_steps
from .workload import CORES, SHAPE, Floats, arguments, best, load, loss, measure, report, time_limit


def main() -> None:
    workload, path, _ = arguments()
    images, labels = load(path)
    own = np.empty(SHAPE, dtype=np.float32)

    def run_round(weights: Floats) -> Floats:
        total = np.zeros_like(weights)
        for agent in range(workload.agents):
            own[:] = weights
            local_steps(workload, own, images[agent], labels[agent])
            total += own
        total /= workload.agents
        return total

    start = np.zeros(SHAPE, dtype=np.float32)
    runs: dict[str, tuple[list[float], Floats]] = {}
    for threads in sorted({1, CORES}):
        with threadpool_limits(threads):
            runs[f"BLAS threads: {threads}"] = measure(
                workload.rounds, run_round, start, limit=time_limit(runs)
            )
    note, times, weights = best(runs)
    report(times, loss(weights, images, labels), note)


if __name__ == "__main__":
    main()
