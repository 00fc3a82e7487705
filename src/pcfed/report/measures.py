"""What a comparison came to, per method and per agent: the numbers of tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.data import Dataset
from pcfed.experiments.summary import Comparison
from pcfed.losses import SoftmaxRegression
from pcfed.simulation.result import Record, Result

NONZERO = 0.01
"""A weight counts as non-zero above this share of the largest weight of its model."""

MEGABYTE = 1e6


@dataclass(frozen=True)
class AgentMeasures:
    """How one agent's own model came out, the mean over seeds; None where it has no meaning."""

    infeasibility: float
    norm: float
    budget: float | None
    accuracy: float | None
    nonzero: float


@dataclass(frozen=True)
class MethodMeasures:
    """How one method came out, the mean over seeds, and the smallest and largest loss."""

    name: str
    loss: float
    loss_range: tuple[float, float]
    megabytes_up: float
    megabytes_down: float
    seconds: float
    agents: tuple[AgentMeasures, ...]

    @property
    def accuracies(self) -> list[float]:
        """The agents' test accuracies that are known."""
        return [agent.accuracy for agent in self.agents if agent.accuracy is not None]

    @property
    def rows(self) -> list[tuple[str, AgentMeasures]]:
        """The agents in order as rows of a table; neighbours with equal measures share one."""
        groups = [list(group) for _, group in groupby(enumerate(self.agents), lambda pair: pair[1])]
        return [
            (agents_named([i for i, _ in group]).partition(" ")[2], group[0][1]) for group in groups
        ]

    @property
    def megabytes(self) -> float:
        """Sent up and down."""
        return self.megabytes_up + self.megabytes_down


def measure(comparison: Comparison, dataset: Dataset) -> list[MethodMeasures]:
    """Return the measures of every method.

    Parameters
    ----------
    comparison : Comparison
        The finished setting.
    dataset : Dataset
        Its data; the test part gives the accuracies.
    """
    test = SoftmaxRegression(
        dataset.test_images, dataset.test_labels, classes=dataset.classes, scale=dataset.scale
    )
    return [_measure(comparison, name, test) for name in comparison.results]


def _measure(c: Comparison, name: str, test: SoftmaxRegression) -> MethodMeasures:
    runs = c.results[name]
    losses = [result.history[-1].loss for result in runs]
    fits = runs[0].models.shape[1] == test.n
    accuracies = np.mean([_accuracies(result, test) for result in runs], axis=0) if fits else None
    shares = np.mean([nonzero_shares(result.models) for result in runs], axis=0)
    norms = c.norms(name)
    agents = tuple(
        AgentMeasures(
            infeasibility=c.last(name, infeasibility_of(i)),
            norm=float(norms[i]),
            budget=budget,
            accuracy=None if accuracies is None else float(accuracies[i]),
            nonzero=float(shares[i]),
        )
        for i, budget in enumerate(c.setting.budgets)
    )
    return MethodMeasures(
        name=name,
        loss=float(np.mean(losses)),
        loss_range=(min(losses), max(losses)),
        megabytes_up=c.last(name, lambda r: r.bytes_up) / MEGABYTE,
        megabytes_down=c.last(name, lambda r: r.bytes_down) / MEGABYTE,
        seconds=c.last(name, lambda r: r.seconds),
        agents=agents,
    )


def _accuracies(result: Result, test: SoftmaxRegression) -> Float64Array:
    """Return the test accuracy of every agent's model; equal models are tested once."""
    found = np.empty(len(result.models))
    for agents in same_models(result.models):
        found[list(agents)] = test.accuracy(result.models[agents[0]])
    return found


def infeasibility_of(i: int) -> Callable[[Record], float]:
    """Return the function that gives a record's infeasibility of agent ``i``."""
    return lambda record: float(record.infeasibility[i])


def nonzero_shares(models: Float64Array) -> Float64Array:
    """Return per model the share of weights above ``NONZERO`` times its largest.

    Examples
    --------
    >>> nonzero_shares(np.array([[1.0, 0.0, -0.5, 0.001], [0.0, 0.0, 0.0, 0.0]]))
    array([0.5, 0. ])
    """
    size = np.abs(models)
    large = size > NONZERO * size.max(axis=1, keepdims=True)
    return np.asarray(large.mean(axis=1))


def same_models(models: Float64Array) -> list[tuple[int, ...]]:
    """Return the agents grouped by equal models, in order.

    Examples
    --------
    >>> same_models(np.array([[1.0], [2.0], [1.0]]))
    [(0, 2), (1,)]
    """
    groups: dict[bytes, list[int]] = {}
    for i, model in enumerate(models):
        groups.setdefault(model.tobytes(), []).append(i)
    return [tuple(group) for group in groups.values()]


def agents_named(agents: Sequence[int]) -> str:
    """Return agents as readers count them, from 1.

    Examples
    --------
    >>> agents_named([0]), agents_named([0, 1, 2]), agents_named([0, 2])
    ('agent 1', 'agents 1–3', 'agents 1, 3')
    """
    numbers = [i + 1 for i in agents]
    if len(numbers) == 1:
        return f"agent {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"agents {numbers[0]}–{numbers[-1]}"
    return f"agents {', '.join(map(str, numbers))}"
