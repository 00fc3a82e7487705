"""Sparse digit classifiers for devices with different memory.

Five devices train digit classifiers (softmax regression, 640 weights) without sharing images; the
frequencies of the digits differ between devices. The l1 norm of a device's model must not exceed
the device's own budget. Small budgets make most weights zero, and a device has to store only the
nonzero ones.

The table compares each device's own model with the alternatives: the shared model of FedAvg,
projected onto the device's budget (with early stopping on the test images, in its favour); the best
shared model that fits every device; and a model that is trained on the device's images alone.

    python examples/memory_budgets.py [--quick] [--picture budgets.png]
"""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, FedAvg, Gap, Local, PCFedSplit, Problem, Result, certify, run
from pcfed.data import digits, dirichlet
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (10.0, 20.0, 40.0, 80.0, 160.0)


@dataclass
class Outcome:
    """The models to compare, one row per device; all but the shared one are feasible."""

    test: SoftmaxRegression
    models: dict[str, NDArray[np.float64]]
    shared: NDArray[np.float64]
    tightest: NDArray[np.float64]
    gap: float


def make_problem(budgets: tuple[float, ...]) -> tuple[Problem, SoftmaxRegression]:
    """Return the devices, and the loss on held-out images."""
    data = digits()
    images, labels = data.train_images * data.scale, data.train_labels
    devices = []
    parts = dirichlet(labels, len(budgets), alpha=0.5, seed=0)
    for rows, budget in zip(parts, budgets, strict=True):
        loss = SoftmaxRegression(images[rows], labels[rows], classes=10)
        devices.append(Agent(loss, L1Ball(budget), coupling=0.1))
    test = SoftmaxRegression(data.test_images * data.scale, data.test_labels, classes=10)
    return Problem(devices), test


def solve(quick: bool) -> Outcome:
    """Train all models; the ones that are compared are projected onto their device's budget."""
    problem, test = make_problem(BUDGETS)
    rounds, stop = (50, Gap(0.03, relative=True)) if quick else (200, Gap(0.001, relative=True))
    result = run(problem, PCFedSplit(), rounds=rounds, local_steps=10, eval_every=10, stop=stop)
    own = certify(problem, result)
    gap = np.inf if own.gap is None else own.gap / own.objective

    def projected(shared: Result) -> NDArray[np.float64]:
        return certify(problem, shared, tightening=0).models

    def accuracy(shared: Result) -> float:
        return float(np.mean([test.accuracy(model) for model in projected(shared)]))

    stops = (3, 10, 30, 100)  # the longer FedAvg trains, the more the projection changes
    shared = max(
        (run(problem, FedAvg("auto"), rounds=r, local_steps=10) for r in stops), key=accuracy
    )
    alone = run(problem, Local("auto", 10.0), rounds=200, local_steps=10, eval_every=200)
    models = {
        "own": own.models,
        "projected": projected(shared),
        "alone": certify(problem, alone, tightening=0).models,
    }
    tight, _ = make_problem((min(BUDGETS),) * len(BUDGETS))
    result = run(tight, PCFedSplit(), rounds=rounds, local_steps=10, eval_every=10, stop=stop)
    tightest = certify(tight, result, tightening=0).models.mean(axis=0)
    return Outcome(test, models, shared.average, tightest, gap)


def weights(model: NDArray[np.float64]) -> int:
    """Return the number of weights that a device has to store."""
    return int(np.count_nonzero(np.abs(model) > 1e-9))


def show(outcome: Outcome) -> None:
    """Print the number of weights and the accuracy of every device's models."""
    accuracy = outcome.test.accuracy
    print("budget   own model                  shared, projected  alone")
    print("         l1 norm weights accuracy   weights accuracy   weights accuracy")
    for i, budget in enumerate(BUDGETS):
        own, projected, alone = (outcome.models[name][i] for name in ("own", "projected", "alone"))
        line = f"{budget:6.0f}   {np.abs(own).sum():7.2f} {weights(own):7d} {accuracy(own):8.1%}"
        line += f"   {weights(projected):7d} {accuracy(projected):8.1%}   {weights(alone):7d}"
        print(line, f"{accuracy(alone):8.1%}")
    shared, tightest = outcome.shared, outcome.tightest
    norm = np.abs(shared).sum()
    print(f"\nThe shared model: accuracy {accuracy(shared):.1%}, {weights(shared)} weights.")
    print(
        f"Its l1 norm is {norm:.0f}: too large for {sum(b < norm for b in BUDGETS)} of 5 devices."
    )
    print(f"The best shared model that fits all devices: accuracy {accuracy(tightest):.1%}.")
    print(f"The own models: objective within {outcome.gap:.2%} of the optimum (certified).")


def draw(outcome: Outcome) -> "Figure":
    """Draw accuracy against budget and against the number of weights."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, figsize=(5.2, 6.4), layout="constrained", sharey=True)
    styles = {
        "own": ("o-", "#0072B2", "own model (pcfed)"),
        "projected": ("s--", "#D55E00", "shared model, projected"),
        "alone": ("^:", "#009E73", "device alone"),
    }
    for name, (style, color, label) in styles.items():
        models = outcome.models[name]
        scores = [100 * outcome.test.accuracy(model) for model in models]
        axes[0].plot(BUDGETS, scores, style, color=color, label=label)
        axes[1].plot([weights(model) for model in models], scores, style, color=color)
    tightest = 100 * outcome.test.accuracy(outcome.tightest)
    axes[0].axhline(tightest, color="#555555", lw=1, label="one model that fits all devices")
    axes[0].set(xlabel="budget of the device (l1 norm)")
    axes[1].set(xlabel="weights to store (nonzero, of 640)")
    figure.supylabel("accuracy on held-out digits (%)", fontsize="medium")
    for axis, ticks in zip(axes, (BUDGETS, (20, 50, 100, 200, 400, 640)), strict=True):
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def main() -> None:
    """Solve, print the table and draw the picture if requested."""
    parser = argparse.ArgumentParser(description="Sparse classifiers for devices.")
    parser.add_argument("--quick", action="store_true", help="stop early; takes a few seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="also draw a picture")
    options = parser.parse_args()
    outcome = solve(options.quick)
    show(outcome)
    if options.picture:
        draw(outcome).savefig(options.picture, dpi=110)


if __name__ == "__main__":
    main()
