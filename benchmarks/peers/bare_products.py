"""What the hardware allows: only the two matrix products of each step, in the quickest order.

The images of each step lie in memory one agent after the other. Several agents go into one call of
``np.matmul``: how many, which factor is transposed, and whether BLAS has all cores, one, or one for
each Python thread is tried for a few rounds, then the best of them for longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from .work import CORES, SECONDS, SHAPE, Floats, Work, arguments, best, load, measure, report

STACKS = (1, 4, 10, 25)
FINALISTS = 4


@dataclass(frozen=True)
class Order:
    """One of the ways to do the products of a round."""

    stack: int
    samples_first: bool
    threads: int
    blas: int

    def seconds(self, batches: Sequence[Floats], rounds: int, seconds: float) -> list[float]:
        """Return the seconds of rounds."""
        agents = len(batches[0])
        weights = np.full((agents, *SHAPE), 0.01, dtype=np.float32)
        gradients = np.empty_like(weights)

        def products(first: int) -> None:
            some = slice(first, first + self.stack)
            w, g = weights[some], gradients[some]
            for x in (batch[some] for batch in batches):
                if self.samples_first:
                    slopes = np.matmul(x, w.transpose(0, 2, 1)).transpose(0, 2, 1)
                else:
                    slopes = np.matmul(w, x.transpose(0, 2, 1))
                np.matmul(slopes, x, out=g)

        def play(_: None) -> None:
            list(pool.map(products, range(0, agents, self.stack)))

        with threadpool_limits(self.blas), ThreadPoolExecutor(self.threads) as pool:
            return measure(rounds, play, None, seconds=seconds)[0]

    def __str__(self) -> str:
        first = "samples" if self.samples_first else "classes"
        threads = f"threads: {self.threads} Python × {self.blas} BLAS"
        return f"{self.stack} agents a call, {first} first, {threads}"


def gathered(work: Work, images: Floats) -> list[Floats]:
    """Return the images of each step, those of all agents together."""
    parts = {rows.start: np.ascontiguousarray(images[:, rows]) for rows in work.batches}
    return [parts[rows.start] for rows in work.batches]


def main() -> None:
    work, path, _ = arguments()
    batches = gathered(work, load(path)[0])
    stacks = [stack for stack in STACKS if stack <= work.agents]
    threads = {(1, 1), (1, CORES), (CORES, 1)}
    orders = [Order(s, f, *t) for s, f, t in product(stacks, (True, False), sorted(threads))]
    orders.sort(key=lambda order: min(order.seconds(batches, 4, 0.0)))
    runs = {str(o): (o.seconds(batches, work.rounds, SECONDS), None) for o in orders[:FINALISTS]}
    note, times, _ = best(runs)
    report(times, None, note)


if __name__ == "__main__":
    main()
