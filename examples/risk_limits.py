"""Risk scores of hospitals with different limits on the difference between two groups.

Six hospitals train a risk score together (logistic regression on eight measurements). Each has its
own limit on the difference of the mean scores of its patients in groups A and B. As the score is
linear in the coefficients w, such a limit is a pair of halfspaces:

    |d·w| ≤ limit,     d = mean features of group A − mean features of group B (own patients)

The patients are generated: half are in group A. The features are x ~ N(0, I); in group A, 0.8 is
added to the last three, and a vector ~ N(0, 0.1²), one per hospital, to all. The outcome is
1 with probability 1 / (1 + exp(−x·v)), v = (1, −1, 0.5, −0.5, 0.3, 0.6, 0.6, 0.6): the measurements
that differ between the groups predict the outcome, so a tight limit costs accuracy.

The table lists the difference under the shared model and under the hospital's own model, on its
patients and on new ones, and the accuracy of both on new patients.

    python examples/risk_limits.py [--quick] [--seed N] [--picture risk.png]
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, FedAvg, Gap, PCFedSplit, Problem, certify, run
from pcfed.losses import LogisticRegression
from pcfed.sets import Box, Halfspace, Intersection

Array = NDArray[np.float64]
LIMITS = (0.1, 0.2, 0.4, 0.6, 0.8, 2.0)
TRUTH = np.array([1, -1, 0.5, -0.5, 0.3, 0.6, 0.6, 0.6])


@dataclass
class Patients:
    """Features, outcomes, and membership in group A."""

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
    """Return the hospitals, their patients, and new patients for testing."""
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


def draw(path: str, differences: dict[str, list[float]], accuracy: dict[str, list[float]]) -> None:
    """Draw the differences with their limits, and the accuracies."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, figsize=(5.2, 6.0), layout="constrained", sharey=True)
    rows = np.arange(len(LIMITS))
    axes[0].barh(rows, LIMITS, height=0.7, color="#DDDDDD", label="allowed by the limit")
    styles = {"shared": ("s", "#D55E00"), "own": ("o", "#0072B2")}
    for name, (marker, color) in styles.items():
        label = "shared model" if name == "shared" else "own model (pcfed)"
        axes[0].plot(differences[name], rows, marker, color=color, label=label)
        axes[1].plot([100 * score for score in accuracy[name]], rows, marker, color=color)
    axes[0].set_yticks(rows, [f"{limit}" for limit in LIMITS])
    axes[0].invert_yaxis()
    axes[0].set(xlabel="difference of mean scores (log-odds)")
    axes[1].set(xlabel="accuracy on new patients (%)")
    for axis in axes:
        axis.set_ylabel("limit of the hospital")
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train the shared and the own models; print differences, limits and accuracies."""
    parser = argparse.ArgumentParser(description="Risk scores with limits per hospital.")
    parser.add_argument("--quick", action="store_true", help="stop early; takes a few seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="also draw a picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated data")
    options = parser.parse_args()

    problem, known, new = make_problem(np.random.default_rng(options.seed))
    rounds, goal = (20, 0.05) if options.quick else (100, 1e-4)
    stop = Gap(goal, relative=True)
    result = run(problem, PCFedSplit(), rounds=rounds, local_steps=10, eval_every=10, stop=stop)
    own = certify(problem, result)
    shared = run(problem, FedAvg("auto"), rounds=200, local_steps=10, eval_every=200)

    models = {"shared": shared.models, "own": own.models}
    trained, tested, accuracy = {}, {}, {}
    for name, x in models.items():
        trained[name] = [abs(float(p.difference @ x_i)) for p, x_i in zip(known, x, strict=True)]
        tested[name] = [abs(float(p.difference @ x_i)) for p, x_i in zip(new, x, strict=True)]
        tests = [agent.test for agent in problem.agents if agent.test]
        accuracy[name] = [float(test.accuracy(x_i)) for test, x_i in zip(tests, x, strict=True)]

    print("         difference of mean scores              accuracy")
    print("limit    shared   own    own, new patients      shared    own")
    for i, limit in enumerate(LIMITS):
        mark = "!" if trained["shared"][i] > limit else " "
        print(
            f"{limit:5.2f} {trained['shared'][i]:9.3f}{mark} "
            f"{trained['own'][i]:6.3f} {tested['own'][i]:12.3f}"
            f"{accuracy['shared'][i]:20.1%} {accuracy['own'][i]:8.1%}"
        )
    violated = sum(d > limit for d, limit in zip(trained["shared"], LIMITS, strict=True))
    gap = np.inf if own.gap is None else own.gap / own.objective
    print(f"\n! The shared model violates the limits of {violated} of {problem.m} hospitals.")
    pairs = zip(trained["own"], tested["own"], strict=True)
    deviation = np.mean([abs(test - train) for train, test in pairs])
    print("The limits hold for the 300 training patients of each hospital; on 5000 new patients")
    print(f"the difference deviates by {deviation:.2f} on average.")
    print(f"The objective of the own models is within {gap:.2%} of the optimum (certified).")
    if options.picture:
        draw(options.picture, trained, accuracy)


if __name__ == "__main__":
    main()
