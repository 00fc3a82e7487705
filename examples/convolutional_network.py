"""Four agents with four budgets train a convolutional network on MNIST, beside a linear model.

Every agent keeps the weights of two layers of the network inside l1 balls of its own budget, and
all weights of the linear model inside one. It needs ``pip install 'pcfed[torch,experiments]'``.

Run it with ``python examples/convolutional_network.py``; it takes half a minute on one core, or
seconds with ``--quick``, on small digits that need no download.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pcfed import Agent, PCFedAvg, Problem, certify, run
from pcfed.data import Dataset, digits, dirichlet, mnist
from pcfed.guarantees import Certificate
from pcfed.losses import SoftmaxRegression, TorchLoss
from pcfed.sets import Blocks, L1Ball

LAYERS = ("2.weight", "5.weight")


def network(side: int, classes: int) -> nn.Module:
    """Return two convolutions and a linear layer for square pictures."""
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
    """Return agents with the network, and their loss on held-out pictures."""
    side = data.image_shape[0]
    module = network(side, data.classes)

    def loss(images: np.ndarray, labels: np.ndarray) -> TorchLoss:
        pictures = images.reshape(-1, 1, side, side)
        return TorchLoss(module, (pictures, labels), nn.CrossEntropyLoss(), scale=data.scale)

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
    """Return which pictures each agent has: all kinds, but not as many of each."""
    return dirichlet(data.train_labels[:samples], len(budgets), alpha=0.5, seed=0)


def train(problem: Problem, x0: np.ndarray, rounds: int) -> Certificate:
    """Train with exact PC-FedAvg; return models that are feasible."""
    method = PCFedAvg(step=0.4, penalty=0.3, exact=True)
    result = run(
        problem,
        method,
        rounds=rounds,
        local_steps=10,
        batch=64,
        x0=x0,
        eval_every=20,
        progress=True,
    )
    return certify(problem, result)


def main() -> None:
    """Train both models and print what every agent has: its budget, its use, its accuracy."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if "--quick" in sys.argv[1:]:
        data, budgets, rounds, samples = digits(), (10.0, 20.0, 40.0, 80.0), 40, 1400
    else:
        data, budgets, rounds, samples = mnist(), (20.0, 40.0, 80.0, 160.0), 120, 8000

    problem, test = networks(data, budgets, samples)
    deep = train(problem, test.start, rounds)  # at zero a network has no slope
    convex, linear_test = linear_models(data, budgets, samples)
    linear = train(convex, np.zeros(convex.n), rounds)

    print(f"\n{test.n} and {linear_test.n} parameters; accuracy on held-out pictures\n")
    print("  budget │ network: ‖conv‖₁  ‖linear‖₁  accuracy │ softmax: ‖W‖₁  accuracy")
    for budget, x, w in zip(budgets, deep.models, linear.models, strict=True):
        conv, last = (np.abs(test.unpack(x)[layer]).sum() for layer in LAYERS)
        print(
            f"  {budget:6.0f} │ {conv:16.1f} {last:10.1f} {test.accuracy(x):9.3f} │ "
            f"{np.abs(w).sum():13.1f} {linear_test.accuracy(w):9.3f}"
        )
    print(f"\nThe linear models are within {linear.gap:.2g} of the optimum, which is certain;")
    print(f"for the network nobody knows: {deep.reason}.")


if __name__ == "__main__":
    main()
