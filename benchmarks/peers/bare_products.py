"""A lower bound: only the two matrix products of each step, in the fastest layout.

The images of each step are contiguous in memory, one agent after the other. One call of
``np.matmul`` handles several agents. The number of agents per call, which factor is transposed, and
the numbers of Python and BLAS threads are varied for a few rounds; the fastest layouts are then
measured for longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from .workload import (
    CORES,
    SECONDS,
    SHAPE,
    Floats,
    Workload,
    arguments,
    best,
    load,
    measure,
    report,
)

STACKS = (1, 4, 10, 25)
FINALISTS = 4


@dataclass(frozen=True)
class Layout:
    """A way to compute the products of a round."""

    stack: int
    samples_first: bool
    threads: int
    blas: int

    def seconds(self, batches: Sequence[Floats], rounds: int, seconds: float) -> list[float]:
        """Return the seconds of each round."""
        agents = len(batches[0])
        weights = np.full((agents, *SHAPE), 0.01, dtype=np.float32)
        gradients = np.empty_like(weights)

        def products(first: int) -> None:
            agents_in_call = slice(first, first + self.stack)
            w, g = weights[agents_in_call], gradients[agents_in_call]
            for x in (batch[agents_in_call] for batch in batches):
                if self.samples_first:
                    slopes = np.matmul(x, w.transpose(0, 2, 1)).transpose(0, 2, 1)
                else:
                    slopes = np.matmul(w, x.transpose(0, 2, 1))
                np.matmul(slopes, x, out=g)

        def run_round(_: None) -> None:
            list(pool.map(products, range(0, agents, self.stack)))

        with threadpool_limits(self.blas), ThreadPoolExecutor(self.threads) as pool:
            return measure(rounds, run_round, None, seconds=seconds)[0]

    def __str__(self) -> str:
        first = "samples" if self.samples_first else "classes"
        threads = f"threads: {self.threads} Python × {self.blas} BLAS"
        return f"{self.stack} agents per call, {first} first, {threads}"


def gathered(workload: Workload, images: Floats) -> list[Floats]:
    """Return the images of each step, of all agents, as contiguous arrays."""
    parts = {rows.start: np.ascontiguousarray(images[:, rows]) for rows in workload.batches}
    return [parts[rows.start] for rows in workload.batches]


def main() -> None:
    workload, path, _ = arguments()
    batches = gathered(workload, load(path)[0])
    stacks = [stack for stack in STACKS if stack <= workload.agents]
    threads = {(1, 1), (1, CORES), (CORES, 1)}
    layouts = [Layout(s, f, *t) for s, f, t in product(stacks, (True, False), sorted(threads))]
    layouts.sort(key=lambda layout: min(layout.seconds(batches, 4, 0.0)))
    runs = {
        str(layout): (layout.seconds(batches, workload.rounds, SECONDS), None)
        for layout in layouts[:FINALISTS]
    }
    note, times, _ = best(runs)
    report(times, None, note)


if __name__ == "__main__":
    main()
