"""Draw the pictures of the home page and the README: python docs/home_pictures.py."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from pcfed import Agent, PCFedAvg, Problem, certify, run
from pcfed.losses import LeastSquares
from pcfed.sets import Box, ConvexSet, Halfspace, Intersection, L1Ball, L2Ball, WholeSpace

FOLDER = Path(__file__).parent
COLORS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")
SIDE = 241
BLACK, GREY, RED = "#222222", "#888888", "#D55E00"
LIMITS: tuple[tuple[str, ConvexSet], ...] = (
    ("memory: l1 ball", L1Ball(0.9)),
    ("actuators: box", Box([-0.4, -0.5], [1.1, 1.9])),
    ("energy: l2 ball", L2Ball(1.35)),
    ("a rule: halfspace", Halfspace([1.0, 0.6], 2.7)),
)


def agents(sets: list[ConvexSet]) -> Problem:
    """Return four agents with their own data; models have two weights, so they can be drawn."""
    rng = np.random.default_rng(4)
    roster = []
    for each in sets:
        X = rng.normal(size=(60, 2))
        y = X @ (np.array([1.55, 1.15]) + 0.3 * rng.normal(size=2)) + 0.2 * rng.normal(size=60)
        roster.append(Agent(LeastSquares(X, y), each, coupling=0.02))
    return Problem(roster)


def solve(sets: list[ConvexSet]) -> tuple[Problem, np.ndarray]:
    """Return the problem with these sets, and the models of all agents."""
    problem = agents(sets)
    algorithm = PCFedAvg("auto", "auto", exact=True)
    result = run(problem, algorithm, rounds=150, local_steps=2, eval_every=150)
    return problem, certify(problem, result, tightening=0).models


def plane(axis: pyplot.Axes, problem: Problem) -> None:
    """Draw the four sets and the level lines of the average loss."""
    edge = np.linspace(-1.35, 2.65, SIDE)
    points = np.stack(np.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
    coarse = edge[::8]
    losses = np.array([[problem.loss(np.array([a, b])) for a in coarse] for b in coarse])
    levels = losses.min() + np.array([0.05, 0.2, 0.5, 1, 1.8, 3, 4.5])
    axis.contour(coarse, coarse, losses, levels=levels, colors="#cccccc", linewidths=0.7)
    for (_, each), color in zip(LIMITS, COLORS, strict=True):
        distance = np.linalg.norm(points - each.project(points), axis=1).reshape(SIDE, SIDE)
        axis.contourf(edge, edge, distance, levels=[-1, 1e-9], colors=[color], alpha=0.10)
        axis.contour(edge, edge, distance, levels=[0.01], colors=[color], linewidths=1.4)
    axis.set(xlim=(-1.35, 2.65), ylim=(-1.35, 2.65), aspect="equal", xticks=[], yticks=[])


def problem_in_pictures() -> None:
    """Draw one shared model, one model per agent, and their losses."""
    sets = [each for _, each in LIMITS]
    problem, own = solve(sets)
    _, free = solve([WholeSpace()] * 4)
    _, tight = solve([Intersection(*sets)] * 4)
    average = own.mean(axis=0)
    figure, axes = pyplot.subplots(
        1, 3, figsize=(10.5, 4.4), width_ratios=(3, 3, 2), layout="constrained"
    )
    left, middle, right = axes
    violated = sum(not each.contains(free[0]) for each in sets)
    for axis in (left, middle):
        plane(axis, problem)
    left.plot(
        *free[0], "*", color=RED, ms=15, label=f"shared: violates {violated} of 4 constraints"
    )
    left.plot(*tight[0], "s", color=BLACK, ms=9, label="shared: satisfies all 4")
    left.set_title("One shared model")
    for x, color in zip(own, COLORS, strict=True):
        middle.plot(*zip(x, average, strict=True), color=color, lw=1, ls=":")
    for x, (name, _), color in zip(own, LIMITS, COLORS, strict=True):
        middle.plot(*x, "o", color=color, ms=9, mec="white", label=name)
    middle.plot(*average, "D", color=BLACK, ms=8, label="their average")
    middle.set_title("pcfed: one model per agent, in its own set")
    for axis in (left, middle):
        axis.legend(
            fontsize=7.5,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            ncols=3,
            frameon=False,
            columnspacing=1,
        )
    bars = {
        "shared,\nviolates": free[0],
        "shared,\nsatisfies all": tight[0],
        "own models'\naverage": average,
    }
    costs = [problem.loss(x) for x in bars.values()]
    drawn = right.bar(list(bars), costs, color=[RED, GREY, COLORS[0]], width=0.65)
    right.bar_label(drawn, fmt="%.2f", fontsize=9)
    right.set_title("Average loss")
    right.tick_params(axis="x", labelsize=8)
    right.set_yticks([])
    for side in ("top", "right", "left"):
        right.spines[side].set_visible(False)
    figure.savefig(FOLDER / "home.png", dpi=100)


def box(axis: pyplot.Axes, at: tuple[float, float, float, float], text: str, color: str) -> None:
    """Draw a rounded box that contains text."""
    x, y, width, height = at
    style = "round,pad=0.02,rounding_size=0.06"
    axis.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, fc="white", ec=color, lw=1.6)
    )
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def messages_in_pictures() -> None:
    """Draw the messages between server and agents, and what stays at the agents."""
    figure = pyplot.figure(figsize=(8, 2.9))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 8), ylim=(0, 2.9))
    axis.axis("off")
    box(
        axis,
        (2.4, 2.1, 3.2, 0.6),
        "server: shared model C, mean offset w̄\nsums the updates",
        BLACK,
    )
    for i, ((name, _), color) in enumerate(zip(LIMITS, COLORS, strict=True)):
        x = 0.12 + 1.98 * i
        kind = name.split(":")[0].removeprefix("a ")
        box(
            axis,
            (x, 0.12, 1.8, 0.82),
            f"agent {i + 1}: its data,\nits constraint ({kind}),\nits model C + w",
            color,
        )
        top = 2.75 + 0.83 * i
        for shift, text, ends in (
            (-0.09, "v, u", ((x + 0.9, 0.98), (top, 2.06))),
            (0.09, "C, w̄", ((top, 2.06), (x + 0.9, 0.98))),
        ):
            start, end = ((a + shift, b) for a, b in ends)
            arrow = FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=11, lw=1.1, color=color
            )
            axis.add_patch(arrow)
            middle = (np.array(start) + np.array(end)) / 2
            side = "right" if shift < 0 else "left"
            axis.text(
                middle[0] + 1.2 * shift,
                middle[1],
                text,
                fontsize=8,
                ha=side,
                va="center",
                color=color,
            )
    figure.savefig(FOLDER / "messages.png", dpi=110)


if __name__ == "__main__":
    problem_in_pictures()
    messages_in_pictures()
