"""Draw the effects of σ, ρ and γ for choose-parameters.md: python docs/parameters_pictures.py."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot

from pcfed import Agent, PCFedAvg, Problem, Result, certify, run
from pcfed.algorithms import RunInfo
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SHADES = ("#9ecae1", "#6baed6", "#3182bd", GREEN)
RADII = (1.0, 2.0, 4.0, 8.0)
ROUNDS, LOCAL_STEPS, STEP = 200, 5, 0.03


def agents(coupling: float) -> Problem:
    """Return four agents with 30 samples of 8 features each, and budgets of 1, 2, 4 and 8."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=8)
    roster = []
    for radius in RADII:
        X = rng.normal(size=(30, 8))
        y = X @ (shared + 0.3 * rng.normal(size=8)) + 0.3 * rng.normal(size=30)
        roster.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling))
    return Problem(roster)


def train(problem: Problem, algorithm: PCFedAvg) -> Result:
    """Run the algorithm; a run that diverges ends with the last finite state."""
    return run(problem, algorithm, rounds=ROUNDS, local_steps=LOCAL_STEPS, eval_every=5)


def coupling(axis: pyplot.Axes) -> None:
    """Draw the loss of the average and the distance of models from it, at the optimum, over σ."""
    sigmas = np.geomspace(1e-3, 30, 13)
    losses, spreads = [], []
    for sigma in sigmas:
        problem = agents(float(sigma))
        models = certify(problem, train(problem, PCFedAvg("auto", "auto", exact=True))).models
        average = models.mean(axis=0)
        losses.append(problem.loss(average))
        spreads.append(np.linalg.norm(models - average, axis=1).mean())
    axis.semilogx(sigmas, losses, "o-", color=BLUE, ms=3, label="loss of the average")
    axis.semilogx(sigmas, spreads, "s--", color=ORANGE, ms=3, label="distance from the average")
    axis.set(title="Coupling σ: similarity against loss", xlabel="σ", ylim=(0, None))


def penalty(axis: pyplot.Axes) -> None:
    """Draw the largest distance of the final models from their sets over ρ."""
    problem = agents(0.1)
    rhos = np.geomspace(0.1, 100, 13)
    for exact, color, mark in ((False, ORANGE, "s--"), (True, BLUE, "o-")):
        distances = []
        for rho in rhos:
            result = train(problem, PCFedAvg(STEP, float(rho), exact=exact))
            worst = problem.infeasibility(result.models).max()
            distances.append(worst if result.status == "finished" and worst < 10 else np.nan)
        name = "exact=True" if exact else "the paper's algorithm"
        axis.loglog(rhos, distances, mark, color=color, ms=3, label=name)
    auto = 1.25 / (STEP * LOCAL_STEPS)
    axis.axvline(auto, color=GREEN, lw=1, ls=":", label='"auto", exact')
    axis.set(title="Penalty ρ: largest distance from a set", xlabel=f"ρ, with γ = {STEP}")


def step(axis: pyplot.Axes) -> None:
    """Draw the certified gap over rounds for several γ, and for "auto"."""
    problem = agents(0.1)
    auto = PCFedAvg("auto", "auto", exact=True).resolved(problem, RunInfo(ROUNDS, LOCAL_STEPS))
    steps = {"0.03": 0.03, "0.1": 0.1, "0.3": 0.3, f"{auto.step:.2f}, auto": auto.step}
    for (name, gamma), color in zip(steps.items(), SHADES, strict=True):
        rounds: list[int] = []
        gaps: list[float] = []

        def record(evaluation, rounds=rounds, gaps=gaps) -> None:
            rounds.append(evaluation.record.round)
            gaps.append(certify(evaluation.problem, evaluation.models, tightening=500).gap)

        algorithm = PCFedAvg(gamma, "auto", exact=True)
        options = {"rounds": ROUNDS, "local_steps": LOCAL_STEPS, "eval_every": 5}
        run(problem, algorithm, callbacks=[record], **options)
        axis.semilogy(rounds, gaps, color=color, label=f"γ = {name}", lw=1.3)
    axis.set(title="Step γ: certified gap over rounds", xlabel="round", ylim=(1e-8, 1e1))


def main() -> None:
    """Write the three panels."""
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    for draw, axis in zip((coupling, penalty, step), axes, strict=True):
        draw(axis)
        axis.title.set_fontsize(10)
        axis.legend(fontsize=7)
    figure.savefig(Path(__file__).with_name("parameters.png"), dpi=100)


if __name__ == "__main__":
    main()
