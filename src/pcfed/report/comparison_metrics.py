"""Metrics of a comparison per algorithm and per agent, for tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.data import Dataset
from pcfed.experiments.summary import Comparison, infeasibility_of
from pcfed.losses import SoftmaxRegression
from pcfed.simulation.result import Result

NONZERO = 0.01
"""A weight counts as non-zero above this fraction of the largest weight of its model."""

MEGABYTE = 1e6


@dataclass(frozen=True)
class AgentMetrics:
    """Metrics of one agent's own model, means over seeds; None where a metric is undefined."""

    infeasibility: float
    norm: float
    budget: float | None
    accuracy: float | None
    nonzero: float


@dataclass(frozen=True)
class AlgorithmMetrics:
    """Metrics of one algorithm, means over seeds, and the range of its loss."""

    name: str
    loss: float
    loss_range: tuple[float, float]
    megabytes_up: float
    megabytes_down: float
    seconds: float
    agents: tuple[AgentMetrics, ...]

    @property
    def accuracies(self) -> list[float]:
        """The known test accuracies of the agents."""
        return [agent.accuracy for agent in self.agents if agent.accuracy is not None]

    @property
    def rows(self) -> list[tuple[str, AgentMetrics]]:
        """The agents as rows of a table; neighbours with equal metrics share a row."""
        groups = [list(group) for _, group in groupby(enumerate(self.agents), lambda pair: pair[1])]
        return [
            (format_agents([i for i, _ in group]).partition(" ")[2], group[0][1])
            for group in groups
        ]

    @property
    def megabytes(self) -> float:
        """Megabytes sent, up and down."""
        return self.megabytes_up + self.megabytes_down


def comparison_metrics(comparison: Comparison, dataset: Dataset) -> list[AlgorithmMetrics]:
    """Return the metrics of every algorithm; accuracies are those on the test part of the data."""
    test = SoftmaxRegression(
        dataset.test_images, dataset.test_labels, classes=dataset.classes, scale=dataset.scale
    )
    return [_algorithm_metrics(comparison, name, test) for name in comparison.results]


def _algorithm_metrics(c: Comparison, name: str, test: SoftmaxRegression) -> AlgorithmMetrics:
    """Return the metrics of one algorithm."""
    runs = c.results[name]
    losses = [result.history[-1].loss for result in runs]
    # Only models of the softmax regression can be evaluated on the test part.
    testable = runs[0].models.shape[1] == test.n
    accuracies = (
        np.mean([_accuracies(result, test) for result in runs], axis=0) if testable else None
    )
    fractions = np.mean([nonzero_fractions(result.models) for result in runs], axis=0)
    norms = c.norms(name)
    agents = tuple(
        AgentMetrics(
            infeasibility=c.last(name, infeasibility_of(i)),
            norm=float(norms[i]),
            budget=budget,
            accuracy=None if accuracies is None else float(accuracies[i]),
            nonzero=float(fractions[i]),
        )
        for i, budget in enumerate(c.setting.budgets)
    )
    return AlgorithmMetrics(
        name=name,
        loss=float(np.mean(losses)),
        loss_range=(min(losses), max(losses)),
        megabytes_up=c.last(name, lambda r: r.bytes_up) / MEGABYTE,
        megabytes_down=c.last(name, lambda r: r.bytes_down) / MEGABYTE,
        seconds=c.last(name, lambda r: r.seconds),
        agents=agents,
    )


def _accuracies(result: Result, test: SoftmaxRegression) -> Float64Array:
    """Return the test accuracy of every agent's model; equal models are evaluated once."""
    found = np.empty(len(result.models))
    for agents in agents_by_model(result.models):
        found[list(agents)] = test.accuracy(result.models[agents[0]])
    return found


def nonzero_fractions(models: Float64Array) -> Float64Array:
    """Return for each model the fraction of its weights above ``NONZERO`` times the largest.

    Examples
    --------
    >>> nonzero_fractions(np.array([[1.0, 0.0, -0.5, 0.001], [0.0, 0.0, 0.0, 0.0]]))
    array([0.5, 0. ])
    """
    size = np.abs(models)
    large = size > NONZERO * size.max(axis=1, keepdims=True)
    return np.asarray(large.mean(axis=1))


def agents_by_model(models: Float64Array) -> list[tuple[int, ...]]:
    """Return the agents grouped by equal models, in order.

    Examples
    --------
    >>> agents_by_model(np.array([[1.0], [2.0], [1.0]]))
    [(0, 2), (1,)]
    """
    groups: dict[bytes, list[int]] = {}
    for i, model in enumerate(models):
        groups.setdefault(model.tobytes(), []).append(i)
    return [tuple(group) for group in groups.values()]


def format_agents(agents: Sequence[int]) -> str:
    """Return agents as text, numbered from 1.

    Examples
    --------
    >>> format_agents([0]), format_agents([0, 1, 2]), format_agents([0, 2])
    ('agent 1', 'agents 1–3', 'agents 1, 3')
    """
    numbers = [i + 1 for i in agents]
    if len(numbers) == 1:
        return f"agent {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"agents {numbers[0]}–{numbers[-1]}"
    return f"agents {', '.join(map(str, numbers))}"
