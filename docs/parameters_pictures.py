"""Draw the effects of parameters for choose-parameters.md: python docs/parameters_pictures.py."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from pcfed import Agent, PCFedAvg, PCFedSplit, Problem, certify, run
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SHADES = ("#9ecae1", "#6baed6", "#3182bd", "#08306b")
RADII = (1.0, 2.0, 4.0, 8.0)
ROUNDS, LOCAL_STEPS = 200, 5


def agents(coupling: float, smallest: float = 1.0) -> Problem:
    """Return four agents with 30 samples of 8 features each, and budgets of 1, 2, 4 and 8.

    The scales of the features are from ``smallest`` to 1.
    """
    rng = np.random.default_rng(0)
    shared = rng.normal(size=8)
    roster = []
    for radius in RADII:
        X = rng.normal(size=(30, 8)) * np.geomspace(1, smallest, 8)
        y = X @ (shared + 0.3 * rng.normal(size=8)) + 0.3 * rng.normal(size=30)
        roster.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling))
    return Problem(roster)


def optimal_models(problem: Problem) -> np.ndarray:
    """Return the models after enough rounds of PCFedSplit."""
    return run(problem, PCFedSplit(), rounds=400, local_steps=10, eval_every=400).models


def coupling(axis: pyplot.Axes) -> None:
    """Draw the loss of the average and the distance of models from it, at the optimum, over σ."""
    sigmas = np.geomspace(1e-3, 30, 13)
    losses, spreads = [], []
    for sigma in sigmas:
        problem = agents(float(sigma))
        models = optimal_models(problem)
        average = models.mean(axis=0)
        losses.append(problem.loss(average))
        spreads.append(np.linalg.norm(models - average, axis=1).mean())
    axis.semilogx(sigmas, losses, "o-", color=BLUE, ms=4, label="loss of the average")
    axis.semilogx(sigmas, spreads, "s--", color=ORANGE, ms=4, label="distance from the average")
    axis.set(title="Coupling σ", xlabel="σ", ylim=(0, None))


def gap_over_rounds(
    axis: pyplot.Axes, problem: Problem, name: str, values: Sequence[float]
) -> None:
    """Draw the relative gap of PCFedSplit over rounds, for several values of an option of run."""
    best = problem.objective(optimal_models(problem))
    for value, color in zip(values, SHADES, strict=True):
        options = {"local_steps": 10, name: value}
        result = run(problem, PCFedSplit(), rounds=60, **options)
        gaps = [record.objective / best - 1 for record in result.history]
        axis.semilogy(range(1, 61), gaps, color=color, lw=1.8, label=f"{value:g}")
    axis.set(xlabel="round", ylim=(1e-8, 1e1))
    axis.set_ylabel("relative gap", fontsize=11)


def local_steps(axis: pyplot.Axes) -> None:
    """Draw the gap for several numbers of local steps, on features of different scales."""
    gap_over_rounds(axis, agents(0.1, smallest=0.1), "local_steps", (1, 3, 10, 30))
    axis.set_title("Local steps in a round")


def batch(axis: pyplot.Axes) -> None:
    """Draw the gap for several batches."""
    gap_over_rounds(axis, agents(0.1), "batch", (0.1, 0.3, 0.7, 1.0))
    axis.set_title("Share of the data in a batch")


def penalty(axis: pyplot.Axes) -> None:
    """Draw the largest distance of PC-FedAvg's final models from their sets over ρ."""
    problem = agents(0.1)
    rhos = np.geomspace(0.1, 100, 13)
    distances = []
    for rho in rhos:
        algorithm = PCFedAvg("auto", float(rho))
        result = run(problem, algorithm, rounds=ROUNDS, local_steps=LOCAL_STEPS)
        distances.append(problem.infeasibility(result.models).max())
    axis.loglog(rhos, distances, "s-", color=ORANGE, ms=4, label="largest distance from a set")
    axis.axvline(ROUNDS**0.5, color=GREEN, lw=1.2, ls=":", label='"auto"')
    axis.set(title="PC-FedAvg: penalty ρ", xlabel="ρ")


def step(axis: pyplot.Axes) -> None:
    """Draw the gap of PC-FedAvg over rounds for several steps."""
    problem = agents(0.1)
    best = problem.objective(optimal_models(problem))
    for gamma, color in zip((0.01, 0.02, 0.05, 0.1), SHADES, strict=True):
        rounds: list[int] = []
        gaps: list[float] = []

        def record(evaluation, rounds=rounds, gaps=gaps) -> None:
            rounds.append(evaluation.record.round)
            feasible = certify(evaluation.problem, evaluation.models, tightening=0)
            gaps.append(feasible.objective / best - 1)

        options = {"rounds": ROUNDS, "local_steps": LOCAL_STEPS, "eval_every": 5}
        run(problem, PCFedAvg(gamma, 10.0), callbacks=[record], **options)
        axis.semilogy(rounds, gaps, color=color, lw=1.8, label=f"γ = {gamma}")
    axis.set(title="PC-FedAvg: step γ, with ρ = 10", xlabel="round", ylim=(5e-4, 5e1))
    axis.set_ylabel("relative gap", fontsize=11)


def draw(name: str, *panels: Callable[[pyplot.Axes], None]) -> None:
    """Write a picture with some panels, one below the other so that phones can show them."""
    figure, axes = pyplot.subplots(
        len(panels), figsize=(4.8, 3.3 * len(panels)), layout="constrained"
    )
    for panel, axis in zip(panels, np.atleast_1d(axes), strict=True):
        panel(axis)
        axis.title.set_fontsize(12)
        axis.xaxis.label.set_fontsize(11)
        axis.tick_params(labelsize=10)
        axis.legend(fontsize=10, framealpha=0.9)
    figure.savefig(FOLDER / name, dpi=110)


def main() -> None:
    """Write one picture per section of the page."""
    draw("parameters.png", coupling)
    draw("parameters_split.png", local_steps, batch)
    draw("parameters_average.png", penalty, step)


if __name__ == "__main__":
    main()
