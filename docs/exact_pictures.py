"""Draw the pictures of exact-pc-fedavg.md: python docs/exact_pictures.py."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot

from pcfed import Agent, PCFedAvg, Problem, certify, run
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"


def penalty(axis: pyplot.Axes) -> None:
    """Draw f(x) = ½ (x − 2)² on x ≤ 1, and its minima with penalty and with multiplier."""
    x = np.linspace(0.4, 2.2, 400)
    f, rho = (x - 2) ** 2 / 2, 1.5
    multiplier = 1.0  # −f′(1)
    outside = np.maximum(x - 1, 0)
    shifted = np.maximum(x + multiplier / rho - 1, 0)
    curves = {
        "f": (f, GREY, "-"),
        "with penalty": (f + rho / 2 * outside**2, ORANGE, "--"),
        "with penalty and multiplier": (
            f + rho / 2 * shifted**2 - multiplier**2 / (2 * rho),
            BLUE,
            "-",
        ),
    }
    axis.axvspan(0.4, 1.0, color=GREEN, alpha=0.12, lw=0)
    for name, (y, color, dash) in curves.items():
        axis.plot(x, y, dash, color=color, label=name)
        if name != "f":
            axis.plot(x[y.argmin()], y.min(), "o", color=color)
    axis.set(title="Penalty: minimum outside the set", xlabel="model (feasible: green)")
    axis.legend(fontsize=8)


def drift(axis: pyplot.Axes) -> None:
    """Draw the local steps of two agents from the optimum of their mean."""
    curvatures = (np.diag([1.0, 0.1]), np.diag([0.1, 1.0]))
    centers = (np.array([1.0, 1.0]), np.array([-1.0, 0.5]))
    total = sum(curvatures)
    best = np.linalg.solve(total, sum(A @ c for A, c in zip(curvatures, centers, strict=True)))
    ends = []
    for A, c, color in zip(curvatures, centers, (BLUE, GREEN), strict=True):
        path = [best]
        for _ in range(12):
            path.append(path[-1] - 0.25 * A @ (path[-1] - c))
        ends.append(path[-1])
        axis.plot(*np.array(path).T, "o-", ms=2.5, color=color, lw=1)
        axis.plot(*c, "x", color=color)
    axis.plot(*np.mean(ends, axis=0), "s", color=ORANGE, label="average after a round")
    axis.plot(*best, "*", ms=12, color="black", label="optimum; corrected steps stay there")
    axis.set(title="Client drift of local steps", xlabel="first weight", ylabel="second weight")
    axis.legend(fontsize=8, loc="upper left")


def gap(axis: pyplot.Axes) -> None:
    """Draw the certified gap over rounds, both algorithms with the same step and penalty."""
    rng = np.random.default_rng(0)
    agents = []
    for radius in (0.5, 1.0, 2.0, 4.0):
        X = rng.normal(size=(40, 10))
        y = X @ (2 * rng.normal(size=10)) + 0.1 * rng.normal(size=40)
        agents.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling=0.1))
    problem = Problem(agents)
    for exact, name, color in ((False, "PC-FedAvg", ORANGE), (True, "exact PC-FedAvg", BLUE)):
        rounds, gaps = [], []

        def record(evaluation, rounds=rounds, gaps=gaps) -> None:
            rounds.append(evaluation.record.round)
            gaps.append(certify(evaluation.problem, evaluation.models).gap)

        algorithm = PCFedAvg(0.1, 1.0, exact=exact)
        run(problem, algorithm, rounds=400, local_steps=10, eval_every=5, callbacks=[record])
        axis.semilogy(rounds, gaps, color=color, label=name)
    axis.set(title="With both corrections the gap vanishes", xlabel="round", ylabel="certified gap")
    axis.legend(fontsize=8)


def main() -> None:
    """Write the three panels."""
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for draw, axis in zip((penalty, drift, gap), axes, strict=True):
        draw(axis)
        axis.title.set_fontsize(10)
    figure.savefig(Path(__file__).with_name("exact.png"), dpi=120)


if __name__ == "__main__":
    main()
