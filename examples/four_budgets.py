"""Four agents with four memory budgets learn one task; each keeps its own sparse model.

Run it with ``python examples/four_budgets.py``; it takes a few seconds.
"""

import numpy as np

from pcfed import Agent, FedAvg, PCFedAvg, Problem, run
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball

BUDGETS = (4.0, 8.0, 16.0, 64.0)
CLASSES = 5


def make_problem(seed: int = 0) -> Problem:
    """Return four agents; each sees mostly its own classes, and its budget is its own."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(CLASSES, 30))
    agents = []
    for i, budget in enumerate(BUDGETS):
        likely = np.where(np.arange(CLASSES) % 4 == i, 4.0, 1.0)
        labels = rng.choice(CLASSES, size=500, p=likely / likely.sum())
        features = centers[labels] + 1.5 * rng.normal(size=(500, 30))
        train = SoftmaxRegression(features[:400], labels[:400], classes=CLASSES)
        test = SoftmaxRegression(features[400:], labels[400:], classes=CLASSES)
        agents.append(Agent(train, L1Ball(budget), coupling=0.01, test=test))
    return Problem(agents)


def main() -> None:
    """Train with PC-FedAvg and with penalised FedAvg, and print who keeps its budget."""
    problem = make_problem()
    for algorithm in (PCFedAvg(step=0.05, penalty=10.0), FedAvg(step=0.05, penalty=10.0)):
        result = run(
            problem, algorithm, rounds=300, local_steps=10, batch=0.1, eval_every=20, progress=True
        )
        last = result.history[-1]
        norms = np.abs(result.models).sum(axis=1)
        print(f"\n{type(algorithm).__name__}: average loss {last.loss:.3f} ({result.status})")
        print("  budget   ‖x‖₁   infeasibility   accuracy of the agent's own model")
        for budget, norm, out, accuracy in zip(
            BUDGETS, norms, last.infeasibility, last.test_accuracy, strict=True
        ):
            print(f"  {budget:6.1f} {norm:6.1f} {out:15.3f} {accuracy:12.2f}")
        print()


if __name__ == "__main__":
    main()
