"""Rounds and seconds until the models of 1,000 agents are near the optimum.

    python -m benchmarks.many_agents [agents]

The 60,000 images of MNIST are divided among the agents with Dirichlet(0.3) labels. Every agent has
an l1 budget of its own, from 5 to 150, and a coupling of 0.1. PCFedSplit runs with its defaults, 20
local steps and full batches, on two workers. Rounds are evaluated with the objective of the models,
which are feasible in every round, and certified now and then. The optimum is that of a run ten
times as long, with its own certificate.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, PCFedSplit, Problem, certify, run
from pcfed.data import dirichlet, mnist
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball

GAPS = (1e-1, 1e-2, 1e-3)
ROUNDS, LONG = 60, 600
LOCAL_STEPS = 20


def problem_of(agents: int) -> Problem:
    """Return MNIST divided among agents with budgets of their own."""
    data = mnist()
    parts = dirichlet(data.train_labels, agents, alpha=0.3, seed=0)
    budgets = np.random.default_rng(0).permutation(np.geomspace(5, 150, agents))
    return Problem(
        Agent(
            SoftmaxRegression(data.train_images[rows], data.train_labels[rows], classes=10),
            L1Ball(budget),
            coupling=0.1,
        )
        for rows, budget in zip(parts, budgets, strict=True)
    )


def main() -> None:
    """Run, and print what it took to reach each gap."""
    problem = problem_of(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    with threadpool_limits(1):
        begin = time.perf_counter()
        short = run(problem, PCFedSplit(), rounds=ROUNDS, local_steps=LOCAL_STEPS, workers=2)
        print(f"{problem!r}: {ROUNDS} rounds in {time.perf_counter() - begin:.0f} s", flush=True)
        long = run(
            problem,
            PCFedSplit(),
            rounds=LONG - ROUNDS,
            local_steps=LOCAL_STEPS,
            x0=short,
            eval_every=20,
            workers=2,
        )
        best = min(record.objective for record in long.history)
        certificate = certify(problem, long)
        print(f"optimum: {best:.6f}, certified to {certificate.relative_gap:.1e}", flush=True)
        for gap in GAPS:
            found = next((r for r in long.history if r.objective <= (1 + gap) * best), None)
            if found is None:
                print(f"gap {gap:g}: not reached")
                continue
            print(f"gap {gap:g}: {found.round} rounds, {found.seconds:.0f} s")
        print(f"certified after {ROUNDS} rounds: {certify(problem, short).relative_gap:.1e}")


if __name__ == "__main__":
    main()
