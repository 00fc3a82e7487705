"""Draw the picture of pcfedsplit.md: python docs/pcfedsplit_pictures.py."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.lines import Line2D

from pcfed import Agent, PCFedAvg, PCFedSplit, Problem, certify, run
from pcfed.algorithms import Algorithm
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball

AGENTS = (4, 16, 64, 256)
BLUES = ("#9ecae1", "#6baed6", "#2171b5", "#08306b")
ORANGES = ("#fdbe85", "#fd8d3c", "#d94701", "#7f2704")
LOCAL_STEPS = 10


def agents(m: int) -> Problem:
    """Return m agents with 30 samples of 10 features each, and l1 budgets from 0.5 to 8."""
    rng = np.random.default_rng(1)
    shared = rng.normal(size=10)
    radii = np.geomspace(0.5, 8, 4)
    roster = []
    for i in range(m):
        X = rng.normal(size=(30, 10))
        y = X @ (shared + 0.3 * rng.normal(size=10)) + 0.3 * rng.normal(size=30)
        roster.append(Agent(LeastSquares(X, y), L1Ball(radii[i % 4]), coupling=0.1))
    return Problem(roster)


def gaps(
    problem: Problem, algorithm: Algorithm, *, rounds: int, eval_every: int, best: float
) -> tuple[list[int], list[float]]:
    """Return rounds, and the relative gaps of the feasible models in these rounds."""
    seen: list[int] = []
    found: list[float] = []

    def record(evaluation) -> None:
        seen.append(evaluation.record.round)
        feasible = certify(problem, evaluation.models, tightening=0)
        found.append(feasible.objective / best - 1)

    run(
        problem,
        algorithm,
        rounds=rounds,
        local_steps=LOCAL_STEPS,
        eval_every=eval_every,
        callbacks=[record],
    )
    return seen, found


def main() -> None:
    """Draw the gap over rounds of PCFedSplit and PC-FedAvg, for several numbers of agents."""
    figure, axis = pyplot.subplots(figsize=(6.2, 4.4), layout="constrained")
    for m, blue, orange in zip(AGENTS, BLUES, ORANGES, strict=True):
        problem = agents(m)
        solved = run(problem, PCFedSplit(), rounds=400, local_steps=20, eval_every=400)
        best = solved.history[-1].objective
        split = gaps(problem, PCFedSplit(), rounds=40, eval_every=1, best=best)
        axis.loglog(*split, color=blue, lw=2)
        average = gaps(problem, PCFedAvg("auto", "auto"), rounds=2000, eval_every=10, best=best)
        axis.loglog(*average, "--", color=orange, lw=2)
    handles = [
        *(Line2D([], [], color=color, lw=2, label=" ") for color in BLUES),
        *(
            Line2D([], [], color=color, lw=2, ls="--", label=f"{m} agents")
            for m, color in zip(AGENTS, ORANGES, strict=True)
        ),
    ]
    axis.legend(
        handles=handles,
        ncols=2,
        columnspacing=0.2,
        fontsize=11,
        title="PCFedSplit / PC-FedAvg",
        title_fontsize=11,
        loc="lower right",
    )
    axis.set_ylim(2e-8, 20)
    axis.set_title("The gap over rounds", fontsize=13)
    axis.set_xlabel("round", fontsize=12)
    axis.set_ylabel("relative distance from the optimum", fontsize=12)
    axis.tick_params(labelsize=11)
    figure.savefig(Path(__file__).with_name("pcfedsplit.png"), dpi=110)


if __name__ == "__main__":
    main()
