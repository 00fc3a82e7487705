"""A plain loop over agents and steps with NumPy.

Small products can be slower on all cores than on one, so both are measured and the better is taken.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits

from .numpy_steps import local_steps
from .work import CORES, SHAPE, Floats, arguments, best, load, loss, measure, patience, report


def main() -> None:
    work, path, _ = arguments()
    images, labels = load(path)
    own = np.empty(SHAPE, dtype=np.float32)

    def play(weights: Floats) -> Floats:
        total = np.zeros_like(weights)
        for agent in range(work.agents):
            own[:] = weights
            local_steps(work, own, images[agent], labels[agent])
            total += own
        total /= work.agents
        return total

    start = np.zeros(SHAPE, dtype=np.float32)
    runs: dict[str, tuple[list[float], Floats]] = {}
    for threads in sorted({1, CORES}):
        with threadpool_limits(threads):
            runs[f"BLAS threads: {threads}"] = measure(
                work.rounds, play, start, limit=patience(runs)
            )
    note, times, weights = best(runs)
    report(times, loss(weights, images, labels), note)


if __name__ == "__main__":
    main()
