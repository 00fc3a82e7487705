"""Portfolios of the funds of one group, with different caps.

Six funds invest in eight sectors: the weights are nonnegative and sum to 1. Each fund has its own
caps on sectors (concentration rules, exclusions), which the others must not learn, and two
years of monthly returns of its own loans. In per cent a month, the returns of the sectors are

    r = μ + β·market + ε,     market ~ N(0, 1),     ε_s ~ N(0, τ_s²)

with μ from 0.3 to 1.0, β from 0.3 to 1.2 and τ from 1 to 2.5, rising from sector A to sector H. The
group wants 0.6 % a month with little deviation: the loss is half the mean square of r·w − 0.6 for
the average w of the funds' weights, so a fund without caps compensates for those with caps.

The table lists the weights of every fund (* where a cap binds) and the cost of the caps: the
expected deviation of the weights from 0.6 %, computed from the model above.

    python examples/portfolio.py [--quick] [--seed N] [--picture portfolio.png]
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, Gap, PCFedSplit, Problem, certify, run
from pcfed.losses import LeastSquares
from pcfed.sets import Box, Intersection, Simplex

Array = NDArray[np.float64]
SECTORS, TARGET = "ABCDEFGH", 0.6
MEAN, BETA, NOISE = (np.linspace(*ends, 8) for ends in ((0.3, 1.0), (0.3, 1.2), (1.0, 2.5)))
CAPS = {
    "no caps": np.full(8, 1.0),
    "30 % each": np.full(8, 0.3),
    "15 % each": np.full(8, 0.15),
    "no A, B": np.array([0, 0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]),
    "no C, D, E": np.array([0.4, 0.4, 0, 0, 0, 0.4, 0.4, 0.4]),
    "A to D: 10 %": np.array([0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5]),
}


def make_problem(rng: np.random.Generator, capped: bool = True) -> Problem:
    """Return the funds, each with 24 months of returns."""
    agents = []
    for name, caps in CAPS.items():
        returns = MEAN + np.outer(rng.normal(size=24), BETA) + NOISE * rng.normal(size=(24, 8))
        loss = LeastSquares(returns, np.full(24, TARGET))
        constraint = Intersection(Simplex(1.0), Box(0.0, caps)) if capped else Simplex(1.0)
        agents.append(Agent(loss, constraint, coupling=0.1, name=name))
    return Problem(agents)


def risk(w: Array) -> float:
    """Return the root of E(r·w − 0.6)² in per cent a month, from the model of the returns."""
    return float(np.sqrt((MEAN @ w - TARGET) ** 2 + (BETA @ w) ** 2 + NOISE**2 @ w**2))


def solve(problem: Problem, rounds: int, goal: float) -> tuple[Array, float]:
    """Return feasible weights, one row per fund, and their certified relative gap."""
    stop = Gap(goal, relative=True)
    result = run(problem, PCFedSplit(), rounds=rounds, local_steps=10, eval_every=10, stop=stop)
    certificate = certify(problem, result)
    gap = np.inf if certificate.gap is None else certificate.gap / certificate.objective
    return certificate.models, gap


def draw(path: str, weights: Array, risks: dict[str, list[float]]) -> None:
    """Draw the weights as a heat map, and the risks below it."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    weights = np.vstack([weights, weights.mean(axis=0)])
    caps = np.vstack([*CAPS.values(), np.ones(8)])
    figure, (top, bottom) = pyplot.subplots(
        2, figsize=(5.4, 7.2), layout="constrained", sharey=True
    )
    top.imshow(100 * weights, cmap="Blues", vmin=0, vmax=60, aspect="auto")
    for (i, s), w in np.ndenumerate(weights):
        text = "–" if caps[i, s] == 0 else f"{100 * abs(w):.0f}"
        top.text(s, i, text, ha="center", va="center", color="white" if w > 0.35 else "black")
        if 0 < caps[i, s] < 1 and w > caps[i, s] - 5e-4:
            frame = Rectangle((s - 0.46, i - 0.44), 0.92, 0.88, fill=False, ec="#D55E00", lw=2)
            top.add_patch(frame)
    top.set_xticks(range(8), list(SECTORS))
    top.set_yticks(range(len(weights)), [*CAPS, "the group"])
    top.set(xlabel="sector", title="weights (%); framed: cap binds; –: excluded")
    marks = {"together": "#0072B2", "alone": "#009E73", "shared, projected": "#D55E00"}
    for (name, color), marker in zip(marks.items(), "o^s", strict=True):
        bottom.plot(risks[name], range(len(weights)), marker, color=color, label=name, alpha=0.9)
    bottom.axvline(risks["shared"][0], color="#555555", lw=1, label="shared, no caps")
    bottom.set(xlabel="expected deviation from 0.6 % (% a month)", title="cost of the caps")
    bottom.grid(alpha=0.3)
    bottom.legend()
    for axis in (top, bottom):
        axis.axhline(len(CAPS) - 0.5, color="#555555", lw=1)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Compute the weights of every fund, check the caps, and print weights and risks."""
    parser = argparse.ArgumentParser(description="Portfolios with private caps.")
    parser.add_argument("--quick", action="store_true", help="stop early; takes a few seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="also draw a picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated data")
    options = parser.parse_args()

    rounds, goal = (20, 1e-2) if options.quick else (100, 1e-4)
    problem = make_problem(np.random.default_rng(options.seed))
    weights, gap = solve(problem, rounds, goal)
    uncapped = make_problem(np.random.default_rng(options.seed), capped=False)
    free, _ = solve(uncapped, rounds, goal)
    alone = np.array([solve(Problem([agent]), rounds, goal)[0][0] for agent in problem.agents])
    projected = np.array([agent.constraint.project(free[0]) for agent in problem.agents])
    compared = {
        "together": weights,
        "alone": alone,
        "shared, projected": projected,
        "shared": free,
    }
    risks = {name: [risk(w) for w in (*x, x.mean(axis=0))] for name, x in compared.items()}

    print("fund            " + "".join(f"{s:>5}" for s in SECTORS) + "  together alone projected")
    rows = zip([*CAPS, "the group"], [*weights, weights.mean(axis=0)], strict=True)
    for i, (name, row) in enumerate(rows):
        caps = CAPS.get(name, np.ones(8))
        stars = np.where((caps > 0) & (caps < 1) & (row > caps - 5e-4), "*", " ")
        text = "".join(f"{abs(w):4.0%}{star}" for w, star in zip(row, stars, strict=True))
        costs = "  ".join(f"{risks[k][i]:5.3f}" for k in ("together", "alone", "shared, projected"))
        print(f"{name:14s}  {text}  {costs}")
    shared = "".join(f"{abs(w):4.0%} " for w in free.mean(axis=0))
    print(f"shared, no caps {shared}  {risks['shared'][-1]:5.3f}")
    over = max(float((w - c).max()) for w, c in zip(weights, CAPS.values(), strict=True))
    violated = int((problem.infeasibility(free[0]) > 1e-6).sum())
    sums = np.abs(weights.sum(axis=1) - 1).max()
    print(f"\nLargest excess over a cap: {max(over, 0):.0e}; weights sum to 1 within {sums:.0e}.")
    print(f"The shared weights violate the caps of {violated} of {problem.m} funds.")
    print(f"The objective is within {gap:.3%} of the optimum under these caps (certified).")
    if options.picture:
        draw(options.picture, weights, risks)


if __name__ == "__main__":
    main()
