"""Sparse digit classifiers for devices with different memory.

Five devices learn to read digits (softmax regression, 640 weights) without sharing images; each has
seen some digits more often than others. The sum of the absolute weights of a device's model, its l1
norm, may not exceed the device's own budget: a small budget leaves few weights that are not zero,
and those are what a device has to store.

The table has each device's own model beside what it could have without pcfed: the shared model of
FedAvg, cut down to the device's budget (and stopped when that is best on the test images, in its
favour); the best shared model that fits every device; and a model of the device's images alone.

    python examples/memory_budgets.py [--quick] [--picture budgets.png]
"""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, FedAvg, Gap, Local, PCFedAvg, Problem, Result, certify, run
from pcfed.data import digits, dirichlet
from pcfed.losses import SoftmaxRegression
from pcfed.sets import L1Ball

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (10.0, 20.0, 40.0, 80.0, 160.0)
EXACT = PCFedAvg("auto", "auto", exact=True)


@dataclass
class Outcome:
    """What there is to compare: models with one row a device, all feasible but the shared one."""

    test: SoftmaxRegression
    models: dict[str, NDArray[np.float64]]
    shared: NDArray[np.float64]
    tightest: NDArray[np.float64]
    gap: float


def make_problem(budgets: tuple[float, ...]) -> tuple[Problem, SoftmaxRegression]:
    """Return the devices, and the held-out images on which all models are tested."""
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
    """Train all models; every one that is compared is moved into its device's budget."""
    problem, test = make_problem(BUDGETS)
    rounds, stop = (100, Gap(0.03, relative=True)) if quick else (500, Gap(0.001, relative=True))
    result = run(problem, EXACT, rounds=rounds, local_steps=10, eval_every=25, stop=stop)
    own = certify(problem, result)
    gap = np.inf if own.gap is None else own.gap / own.objective

    def cut(shared: Result) -> NDArray[np.float64]:
        return certify(problem, shared, tightening=0).models

    def accuracy(shared: Result) -> float:
        return float(np.mean([test.accuracy(model) for model in cut(shared)]))

    stops = (3, 10, 30, 100)  # the longer FedAvg trains, the more a cut takes away
    shared = max(
        (run(problem, FedAvg("auto"), rounds=r, local_steps=10) for r in stops), key=accuracy
    )
    alone = run(problem, Local("auto", 10.0), rounds=200, local_steps=10, eval_every=200)
    models = {
        "own": own.models,
        "cut": cut(shared),
        "alone": certify(problem, alone, tightening=0).models,
    }
    everybody, _ = make_problem((min(BUDGETS),) * len(BUDGETS))
    result = run(everybody, EXACT, rounds=rounds, local_steps=10, eval_every=25, stop=stop)
    tightest = certify(everybody, result, tightening=0).models.mean(axis=0)
    return Outcome(test, models, shared.average, tightest, gap)


def weights(model: NDArray[np.float64]) -> int:
    """Return how many weights a device has to store."""
    return int(np.count_nonzero(np.abs(model) > 1e-9))


def show(outcome: Outcome) -> None:
    """Print weights and accuracy of every device's models."""
    accuracy = outcome.test.accuracy
    print("budget   own model               shared, cut down      alone")
    print("         l1 norm weights right   weights  right        weights  right")
    for i, budget in enumerate(BUDGETS):
        own, cut, alone = (outcome.models[name][i] for name in ("own", "cut", "alone"))
        line = f"{budget:6.0f}   {np.abs(own).sum():7.2f} {weights(own):7d} {accuracy(own):6.1%}"
        line += f"   {weights(cut):7d} {accuracy(cut):6.1%}       {weights(alone):8d}"
        print(line, f"{accuracy(alone):6.1%}")
    shared, tightest = outcome.shared, outcome.tightest
    need = np.abs(shared).sum()
    print(f"\nThe shared model: {accuracy(shared):.1%} right, {weights(shared)} weights. It needs")
    print(f"a budget of {need:.0f}: too much for {sum(b < need for b in BUDGETS)} of 5 devices.")
    print(f"The best shared model that fits all devices: {accuracy(tightest):.1%} right.")
    print(f"The own models are within {outcome.gap:.2%} of the best objective (certified).")


def draw(outcome: Outcome) -> "Figure":
    """Draw accuracy against budget and against the number of weights."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 3.8), layout="constrained", sharey=True)
    styles = {
        "own": ("o-", "#0072B2", "own model (pcfed)"),
        "cut": ("s--", "#D55E00", "shared model, cut down"),
        "alone": ("^:", "#009E73", "device alone"),
    }
    for name, (style, color, label) in styles.items():
        models = outcome.models[name]
        right = [100 * outcome.test.accuracy(model) for model in models]
        axes[0].plot(BUDGETS, right, style, color=color, label=label)
        axes[1].plot([weights(model) for model in models], right, style, color=color)
    tightest = 100 * outcome.test.accuracy(outcome.tightest)
    axes[0].axhline(tightest, color="#555555", lw=1, label="one model that fits all devices")
    axes[0].set(xlabel="budget of the device (l1 norm)", ylabel="held-out digits right (%)")
    axes[1].set(xlabel="weights to store (not zero, of 640)")
    for axis, ticks in zip(axes, (BUDGETS, (20, 50, 100, 200, 400, 640)), strict=True):
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def main() -> None:
    """Solve, print the table and draw the picture where it was asked for."""
    parser = argparse.ArgumentParser(description="Sparse classifiers for devices.")
    parser.add_argument("--quick", action="store_true", help="stop early, after a few seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="draw a picture, too")
    options = parser.parse_args()
    outcome = solve(options.quick)
    show(outcome)
    if options.picture:
        draw(outcome).savefig(options.picture, dpi=110)


if __name__ == "__main__":
    main()
