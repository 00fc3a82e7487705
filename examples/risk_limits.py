"""Risk scores of hospitals with different limits on the difference between two groups.

Six hospitals learn one risk score together (logistic regression on eight measurements). Each has a
rule of its own for how much the mean score of its patients may differ between groups A and B. As
the score is linear in the coefficients w, such a rule is a pair of halfspaces:

    |d·w| ≤ limit,     d = mean features of group A − mean features of group B (own patients)

The patients are generated: half are in group A, features are x ~ N(0, I) with 0.8 added to
the last three in group A, and N(0, 0.1²) to all, the same for a hospital's patients; the outcome is
1 with probability 1 / (1 + exp(−x·v)), v = (1, −1, 0.5, −0.5, 0.3, 0.6, 0.6, 0.6): the measurements
that differ between the groups do predict the outcome, so a tight limit costs accuracy.

The table has the difference under the shared model and under the hospital's own, on its patients
and on new ones, and the share of outcomes of new patients that each gets right.

    python examples/risk_limits.py [--quick] [--seed N] [--picture risk.png]
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, FedAvg, Gap, PCFedAvg, Problem, certify, run
from pcfed.losses import LogisticRegression
from pcfed.sets import Box, Halfspace, Intersection

Array = NDArray[np.float64]
LIMITS = (0.1, 0.2, 0.4, 0.6, 0.8, 2.0)
TRUTH = np.array([1, -1, 0.5, -0.5, 0.3, 0.6, 0.6, 0.6])


@dataclass
class Patients:
    """Features, outcomes, and who is in group A."""

    X: Array
    y: NDArray[np.bool_]
    A: NDArray[np.bool_]

    @property
    def difference(self) -> Array:
        """The mean features of group A minus those of group B."""
        d: Array = self.X[self.A].mean(axis=0) - self.X[~self.A].mean(axis=0)
        return d


def patients(shift: Array, count: int, rng: np.random.Generator) -> Patients:
    """Draw patients of a hospital from the model of the docstring."""
    A = rng.random(count) < 0.5
    X = rng.normal(size=(count, 8)) + np.outer(A, shift)
    return Patients(X, rng.random(count) < 1 / (1 + np.exp(-X @ TRUTH)), A)


def make_problem(rng: np.random.Generator) -> tuple[Problem, list[Patients], list[Patients]]:
    """Return the hospitals, their patients, and new patients of theirs."""
    agents, known, new = [], [], []
    for limit in LIMITS:
        shift = np.repeat([0.0, 0.8], [5, 3]) + rng.normal(0, 0.1, 8)
        known.append(patients(shift, 300, rng))
        new.append(patients(shift, 5000, rng))
        d = known[-1].difference
        rule = Intersection(Halfspace(d, limit), Halfspace(-d, limit), Box(-5, 5))
        loss = LogisticRegression(known[-1].X, known[-1].y)
        test = LogisticRegression(new[-1].X, new[-1].y)
        agents.append(Agent(loss, rule, coupling=0.1, test=test, name=f"limit {limit}"))
    return Problem(agents), known, new


def draw(path: str, differences: dict[str, list[float]], right: dict[str, list[float]]) -> None:
    """Draw the differences beside their limits, and the accuracies."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained", sharey=True)
    rows = np.arange(len(LIMITS))
    axes[0].barh(rows, LIMITS, height=0.7, color="#DDDDDD", label="allowed by the limit")
    styles = {"shared": ("s", "#D55E00"), "own": ("o", "#0072B2")}
    for name, (marker, color) in styles.items():
        label = "shared model" if name == "shared" else "own model (pcfed)"
        axes[0].plot(differences[name], rows, marker, color=color, label=label)
        axes[1].plot([100 * share for share in right[name]], rows, marker, color=color)
    axes[0].set_yticks(rows, [f"{limit}" for limit in LIMITS])
    axes[0].invert_yaxis()
    axes[0].set(ylabel="limit of the hospital", xlabel="difference of mean scores (log-odds)")
    axes[1].set(xlabel="outcomes of new patients right (%)")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train the shared and the own models and print who keeps which limit, and what it costs."""
    parser = argparse.ArgumentParser(description="Risk scores with limits per hospital.")
    parser.add_argument("--quick", action="store_true", help="stop early, after a few seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="draw a picture, too")
    parser.add_argument("--seed", type=int, default=0, help="draw other data")
    options = parser.parse_args()

    problem, known, new = make_problem(np.random.default_rng(options.seed))
    rounds, goal = (50, 0.05) if options.quick else (1000, 1e-4)
    method, stop = PCFedAvg("auto", "auto", exact=True), Gap(goal, relative=True)
    result = run(problem, method, rounds=rounds, local_steps=10, eval_every=25, stop=stop)
    own = certify(problem, result)
    shared = run(problem, FedAvg("auto"), rounds=200, local_steps=10, eval_every=200)

    models = {"shared": shared.models, "own": own.models}
    before, after, right = {}, {}, {}
    for name, x in models.items():
        before[name] = [abs(float(p.difference @ x_i)) for p, x_i in zip(known, x, strict=True)]
        after[name] = [abs(float(p.difference @ x_i)) for p, x_i in zip(new, x, strict=True)]
        tests = [agent.test for agent in problem.agents if agent.test]
        right[name] = [float(test.accuracy(x_i)) for test, x_i in zip(tests, x, strict=True)]

    print("         difference of mean scores              outcomes right")
    print("limit    shared   own    own, new patients      shared    own")
    for i, limit in enumerate(LIMITS):
        print(
            f"{limit:5.2f} {before['shared'][i]:9.3f}{'!' if before['shared'][i] > limit else ' '} "
            f"{before['own'][i]:6.3f} {after['own'][i]:12.3f}"
            f"{right['shared'][i]:20.1%} {right['own'][i]:8.1%}"
        )
    broken = sum(b > limit for b, limit in zip(before["shared"], LIMITS, strict=True))
    gap = np.inf if own.gap is None else own.gap / own.objective
    print(f"\n! The shared model breaks the limits of {broken} of {problem.m} hospitals.")
    pairs = zip(before["own"], after["own"], strict=True)
    off = np.mean([abs(new - old) for old, new in pairs])
    print("A limit holds for the patients it was set on, 300 of each hospital; on 5000 new ones")
    print(f"the difference is {off:.2f} larger or smaller, on average.")
    print(f"The own models are within {gap:.2%} of the best objective (certified).")
    if options.picture:
        draw(options.picture, before, right)


if __name__ == "__main__":
    main()
