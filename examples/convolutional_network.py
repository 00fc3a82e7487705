"""Four agents with different budgets train a convolutional network and a linear model on MNIST.

The weights of two layers of an agent's network are in l1 balls with the agent's budget as radius;
all weights of its linear model are in one such ball. It needs the extras ``torch`` and
``experiments``.

    python examples/convolutional_network.py [--quick] [--picture network.png]

It takes half a minute on one core. With ``--quick`` it takes seconds, on a small data set of digits
that needs no download.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pcfed import Agent, PCFedAvg, PCFedSplit, Problem, certify, run
from pcfed.data import Dataset, digits, dirichlet, mnist
from pcfed.guarantees import Certificate
from pcfed.losses import SoftmaxRegression, TorchLoss
from pcfed.sets import Blocks, L1Ball

LAYERS = ("2.weight", "5.weight")


def network(side: int, classes: int) -> nn.Module:
    """Return two convolutions and a linear layer for square images."""
    kernel = 5 if side > 8 else 3
    last = ((side - kernel) // 2 + 1 - kernel) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, kernel, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * last * last, classes),
    )


def networks(data: Dataset, budgets: Sequence[float], samples: int) -> tuple[Problem, TorchLoss]:
    """Return agents with the network, and the loss on held-out images."""
    side = data.image_shape[0]
    module = network(side, data.classes)

    def loss(images: np.ndarray, labels: np.ndarray) -> TorchLoss:
        images = images.reshape(-1, 1, side, side)
        return TorchLoss(module, (images, labels), nn.CrossEntropyLoss(), scale=data.scale)

    agents = []
    for part, budget in zip(shares(data, budgets, samples), budgets, strict=True):
        limits = Blocks.for_module(module, {layer: L1Ball(budget) for layer in LAYERS})
        own = loss(data.train_images[part], data.train_labels[part])
        agents.append(Agent(own, limits, coupling=0.01))
    return Problem(agents), loss(data.test_images[:2000], data.test_labels[:2000])


def linear_models(
    data: Dataset, budgets: Sequence[float], samples: int
) -> tuple[Problem, SoftmaxRegression]:
    """Return the same agents with softmax regression, which is convex."""

    def loss(images: np.ndarray, labels: np.ndarray) -> SoftmaxRegression:
        return SoftmaxRegression(images, labels, classes=data.classes, scale=data.scale)

    agents = []
    for part, budget in zip(shares(data, budgets, samples), budgets, strict=True):
        own = loss(data.train_images[part], data.train_labels[part])
        agents.append(Agent(own, L1Ball(budget), coupling=0.01))
    return Problem(agents), loss(data.test_images[:2000], data.test_labels[:2000])


def shares(data: Dataset, budgets: Sequence[float], samples: int) -> list[NDArray[np.intp]]:
    """Return the indices of each agent's images; class frequencies differ between agents."""
    return dirichlet(data.train_labels[:samples], len(budgets), alpha=0.5, seed=0)


def train_networks(problem: Problem, x0: np.ndarray, rounds: int) -> Certificate:
    """Train networks and return feasible models."""
    # Networks are not convex, and PCFedSplit() then takes short proximal steps: on MNIST it has
    # accuracies of 0.68, 0.86, 0.90, 0.88 after these rounds, and this has 0.77, 0.91, 0.92, 0.93
    # (means over three seeds; PCFedSplit was not tuned, this step and penalty are old choices).
    result = run(
        problem,
        PCFedAvg(step=0.4, penalty=0.3),
        rounds=rounds,
        local_steps=10,
        batch=64,
        x0=x0,
        eval_every=20,
        progress=True,
    )
    return certify(problem, result)


def train_linear_models(problem: Problem, rounds: int) -> Certificate:
    """Train linear models, nearly to the optimum, and return them."""
    result = run(problem, PCFedSplit(), rounds=rounds, local_steps=10, eval_every=20, progress=True)
    return certify(problem, result)


def draw(
    path: str, budgets: Sequence[float], network: Sequence[float], linear: Sequence[float]
) -> None:
    """Draw accuracy against the budget, for both models."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5.5, 3.6), layout="constrained")
    axis.semilogx(budgets, network, "o-", label="network, two layers with this budget each")
    axis.semilogx(budgets, linear, "s--", label="softmax regression with this budget")
    axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axis.minorticks_off()
    axis.set(xlabel="l1 budget of the agent", ylabel="accuracy on held-out images")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train both models; print every agent's budget, the norms of its models and their accuracy."""
    parser = argparse.ArgumentParser(description="A network with l1 budgets per layer and agent.")
    parser.add_argument("--quick", action="store_true", help="a small data set; takes seconds")
    parser.add_argument("--picture", metavar="FILE.png", help="also draw a picture")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if options.quick:
        data, budgets, rounds, samples = digits(), (10.0, 20.0, 40.0, 80.0), 40, 1400
    else:
        data, budgets, rounds, samples = mnist(), (20.0, 40.0, 80.0, 160.0), 120, 8000

    problem, test = networks(data, budgets, samples)
    deep = train_networks(problem, test.start, rounds)  # at zero the gradient vanishes
    convex, linear_test = linear_models(data, budgets, samples)
    linear = train_linear_models(convex, rounds)

    print(f"\n{test.n} and {linear_test.n} parameters; accuracy on held-out images\n")
    print("  budget │ network: ‖conv‖₁  ‖linear‖₁  accuracy │ softmax: ‖W‖₁  accuracy")
    scores = [test.accuracy(x) for x in deep.models]
    linear_scores = [linear_test.accuracy(w) for w in linear.models]
    for i, (x, w) in enumerate(zip(deep.models, linear.models, strict=True)):
        conv, last = (np.abs(test.unpack(x)[layer]).sum() for layer in LAYERS)
        print(
            f"  {budgets[i]:6.0f} │ {conv:16.1f} {last:10.1f} {scores[i]:9.3f} │ "
            f"{np.abs(w).sum():13.1f} {linear_scores[i]:9.3f}"
        )
    print(f"\nThe linear models: objective within {linear.gap:.2g} of the optimum (certified).")
    print(f"There is no certificate for the network: {deep.reason}.")
    if options.picture:
        draw(options.picture, budgets, scores, linear_scores)


if __name__ == "__main__":
    main()
