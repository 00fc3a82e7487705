"""Draw the pictures of the home page and the README: python docs/home_pictures.py."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from pcfed import Agent, PCFedSplit, Problem, run
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
    return problem, run(problem, PCFedSplit(), rounds=200, local_steps=5, eval_every=200).models


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
        2, 2, figsize=(7.2, 6.4), height_ratios=(3.4, 2.6), layout="constrained"
    )
    (left, right), (names, losses) = axes
    violated = sum(not each.contains(free[0]) for each in sets)
    for axis in (left, right):
        plane(axis, problem)
    left.plot(*free[0], "*", color=RED, ms=18, label=f"shared, violates {violated} of 4")
    left.plot(*tight[0], "s", color=GREY, ms=10, mec="white", label="shared, satisfies all")
    left.set_title("One shared model", fontsize=13)
    for x, color in zip(own, COLORS, strict=True):
        right.plot(*zip(x, average, strict=True), color=color, lw=1.4, ls=":")
    for x, (name, _), color in zip(own, LIMITS, COLORS, strict=True):
        right.plot(*x, "o", color=color, ms=11, mec="white", label=name)
    right.plot(*average, "D", color=BLACK, ms=9, label="average of the models")
    right.set_title("pcfed: one per agent", fontsize=13)
    handles = [*left.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    names.axis("off")
    names.legend(handles=handles, fontsize=12, loc="center", frameon=False, handlelength=1)
    bars = {
        "shared,\nviolates": free[0],
        "shared,\nsatisfies": tight[0],
        "average\nof own": average,
    }
    costs = [problem.loss(x) for x in bars.values()]
    drawn = losses.bar(list(bars), costs, color=[RED, GREY, BLACK], width=0.65)
    losses.bar_label(drawn, fmt="%.2f", fontsize=12)
    losses.set_title("Average loss", fontsize=13)
    losses.tick_params(axis="x", labelsize=11.5, length=0)
    losses.set(yticks=[], ylim=(0, 1.12 * max(costs)))
    for side in ("top", "right", "left"):
        losses.spines[side].set_visible(False)
    figure.savefig(FOLDER / "home.png", dpi=110)


def box(axis: pyplot.Axes, at: tuple[float, float, float, float], text: str, color: str) -> None:
    """Draw a rounded box that contains text."""
    x, y, width, height = at
    style = "round,pad=0.02,rounding_size=0.06"
    axis.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, fc="white", ec=color, lw=1.8)
    )
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=12)


def messages_in_pictures() -> None:
    """Draw the messages between server and agents, and what stays at the agents."""
    figure = pyplot.figure(figsize=(6.4, 3.5))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 6.4), ylim=(0, 3.5))
    axis.axis("off")
    text = (
        "server: shared model z, multiplier ȳ, totals P, Y\nit needs only the sums of the updates"
    )
    box(axis, (0.12, 2.7, 6.16, 0.66), text, BLACK)
    for i, ((name, _), color) in enumerate(zip(LIMITS, COLORS, strict=True)):
        x = 0.12 + 1.58 * i
        kind = name.split(":")[0].removeprefix("a ").removesuffix("s")
        box(
            axis,
            (x, 0.14, 1.42, 1.06),
            f"agent {i + 1}\nits data\nits {kind} limit\nits model x",
            color,
        )
        for shift, sent, ends in (
            (-0.1, "dx\ndz", (1.26, 2.66)),
            (0.1, "z, ȳ\nP, Y", (2.66, 1.26)),
        ):
            at = x + 0.66 + shift
            arrow = FancyArrowPatch(
                *((at, y) for y in ends), arrowstyle="-|>", mutation_scale=14, lw=1.5, color=color
            )
            axis.add_patch(arrow)
            side = "right" if shift < 0 else "left"
            axis.text(at + 0.7 * shift, 1.96, sent, fontsize=12, ha=side, va="center")
    figure.savefig(FOLDER / "messages.png", dpi=110)


if __name__ == "__main__":
    problem_in_pictures()
    messages_in_pictures()
