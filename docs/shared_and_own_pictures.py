"""Draw the pictures of shared-and-own.md: python docs/shared_and_own_pictures.py."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.patches import Circle

from pcfed import Agent, PCFedSplit, Problem, run
from pcfed.losses import LeastSquares
from pcfed.problem import Center
from pcfed.sets import L2Ball

COLORS = ("#0072b2", "#d55e00", "#009e73")
BEST = np.array([[2.2, 0.4], [0.6, 2.2], [-1.0, 0.6]])
"""What each agent's data ask for."""
RADII = (1.2, 3.0, 0.8)


def problem(theta: float, coupling: float, center: Center) -> Problem:
    """Return three agents with two weights each, whose losses have their minima at ``BEST``."""
    features = np.sqrt(2) * np.eye(2)
    agents = [
        Agent(LeastSquares(features, features @ best), L2Ball(radius), coupling, theta)
        for best, radius in zip(BEST, RADII, strict=True)
    ]
    return Problem(agents, center)


def draw(axis: pyplot.Axes, theta: float, coupling: float, center: Center, title: str) -> None:
    """Draw sets, minima of the losses, own models and the shared model."""
    result = run(problem(theta, coupling, center), PCFedSplit(), rounds=200, local_steps=20)
    for color, best, radius, model in zip(COLORS, BEST, RADII, result.models, strict=True):
        axis.add_patch(Circle((0, 0), radius, fill=False, ec=color, lw=1.2, alpha=0.7))
        axis.plot(*best, "x", color=color, ms=8, mew=2)
        axis.plot(*np.transpose([result.center, model]), color=color, lw=1, alpha=0.6)
        axis.plot(*model, "o", color=color, ms=8)
    axis.plot(*result.center, "*", color="black", ms=14)
    axis.set(xlim=(-1.9, 3.2), ylim=(-1.4, 3.2), xticks=[], yticks=[], aspect="equal")
    axis.set_title(title, fontsize=10)


def main() -> None:
    """Draw what personalization, coupling and the centre do."""
    folder = Path(__file__).parent
    figure, axes = pyplot.subplots(3, 2, figsize=(5.0, 6.9), layout="constrained")
    for row, theta in zip(axes, (0.0, 0.5, 1.0), strict=True):
        for axis, center in zip(row, ("average", "free"), strict=True):
            draw(axis, theta, 0.5, center, f"{center} center, θ = {theta:g}")
    figure.savefig(folder / "shared_and_own_theta.png", dpi=110)
    figure, axes = pyplot.subplots(1, 3, figsize=(5.0, 1.9), layout="constrained")
    for axis, coupling in zip(axes, (0.05, 0.5, 5.0), strict=True):
        draw(axis, 0.5, coupling, "free", f"coupling {coupling:g}")
    figure.savefig(folder / "shared_and_own_coupling.png", dpi=110)


if __name__ == "__main__":
    main()
