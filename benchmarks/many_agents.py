"""Rounds and seconds until the models of 1,000 agents are near the optimum.

    python -m benchmarks.many_agents [agents]

The 60,000 images of MNIST are divided among the agents with Dirichlet(0.3) labels. Every agent has
an l1 budget of its own, from 5 to 150, and a coupling of 0.1. PCFedSplit runs with its defaults, 20
local steps and full batches, on two workers. The models are feasible in every round; the gap of a
round is the distance of their objective from the lower bound that the certificate of the last round
proves.
"""

from __future__ import annotations

import sys

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import Agent, PCFedSplit, Problem, certify, run
from pcfed.data import dirichlet, mnist
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball

GAPS = (1e-1, 1e-2, 1e-3)
ROUNDS = 100
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
        result = run(problem, PCFedSplit(), rounds=ROUNDS, local_steps=LOCAL_STEPS, workers=2)
        seconds = result.history[-1].seconds
        print(f"{problem!r}: {ROUNDS} rounds in {seconds:.0f} s", flush=True)
        certificate = certify(problem, result)
    if certificate.gap is None:
        sys.exit(certificate.reason)
    bound = certificate.objective - certificate.gap
    print(certificate.sentence)
    for gap in GAPS:
        found = next((r for r in result.history if r.objective <= (1 + gap) * bound), None)
        took = f"{found.round} rounds, {found.seconds:.0f} s" if found else "not reached"
        print(f"gap {gap:g}: {took}")


if __name__ == "__main__":
    main()
