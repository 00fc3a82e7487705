"""Partitions of the samples of a data set among agents.

Every function returns a list with the indices of each agent's samples. No sample belongs to two
agents, every agent has at least one, and the same seed gives the same partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.validation import count, positive

Indices = NDArray[np.intp]
Labels = NDArray[np.integer[Any]]


def iid(labels: ArrayLike, num_agents: int, *, seed: int) -> list[Indices]:
    """Partition the samples uniformly at random, into parts whose sizes differ by at most one.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    num_agents : int
        The number of agents.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    list of arrays of int
        The indices of each agent's samples; every sample is used.

    Examples
    --------
    >>> [len(part) for part in iid([0, 0, 1, 1, 2, 2, 2], 3, seed=0)]
    [3, 2, 2]
    """
    labels = _labels("iid", labels, num_agents)
    order = _random("iid", seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, num_agents)]


def label_sorted(labels: ArrayLike, num_agents: int) -> list[Indices]:
    """Sort the samples by label and cut them into shards of equal size.

    The sort is stable, so nothing is random. Every sample is used; sizes differ by at most one.

    Parameters
    ----------
    labels, num_agents
        As in :func:`iid`.

    Examples
    --------
    >>> [part.tolist() for part in label_sorted([1, 0, 1, 0, 2, 2], 3)]
    [[1, 3], [0, 2], [4, 5]]
    """
    labels = _labels("label_sorted", labels, num_agents)
    return np.array_split(np.argsort(labels, kind="stable"), num_agents)


def dirichlet(
    labels: ArrayLike,
    num_agents: int,
    *,
    alpha: float,
    seed: int,
    min_samples: int = 1,
    max_attempts: int = 100,
) -> list[Indices]:
    r"""Divide each class in proportions $p_k \sim \mathrm{Dirichlet}(\alpha, .., \alpha)$.

    Small ``alpha`` gives each class to few agents; large ``alpha`` comes close to :func:`iid`.
    Partitions in which an agent has fewer than ``min_samples`` samples are rejected. Every sample
    is used.

    Parameters
    ----------
    labels, num_agents, seed
        As in :func:`iid`.
    alpha : float
        Concentration, > 0.
    min_samples : int
        The minimal number of samples of an agent, at least 1.
    max_attempts : int
        The maximal number of partitions to draw.

    Raises
    ------
    ValueError
        If no draw gives every agent ``min_samples`` samples.

    References
    ----------
    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
    classification, 2019.

    Examples
    --------
    >>> parts = dirichlet([0, 1] * 50, 3, alpha=1.0, seed=0, min_samples=10)
    >>> sum(len(part) for part in parts)
    100
    """
    labels = _labels("dirichlet", labels, num_agents)
    min_samples = count("dirichlet: min_samples", min_samples)
    alpha = positive("dirichlet: alpha", alpha)
    rng = _random("dirichlet", seed)
    if min_samples * num_agents > len(labels):
        raise ValueError(
            f"dirichlet: min_samples must be at most {len(labels) // num_agents} for {len(labels)} "
            f"samples and {num_agents} agents, got {min_samples}; lower it."
        )
    for _ in range(count("dirichlet: max_attempts", max_attempts)):
        owner = _dirichlet_owners(labels, num_agents, alpha, rng)
        if np.bincount(owner, minlength=num_agents).min() >= min_samples:
            return _parts(owner, num_agents)
    raise ValueError(
        f"dirichlet: no partition in {max_attempts} attempts gave each of {num_agents} agents "
        f"{min_samples} or more samples with alpha={alpha:g}; raise alpha or max_attempts, or "
        "lower min_samples or num_agents."
    )


def _dirichlet_owners(
    labels: Labels, num_agents: int, alpha: float, rng: np.random.Generator
) -> Indices:
    """Draw the agent of every sample."""
    owner = np.empty(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        samples = np.flatnonzero(labels == label)
        cumulative = np.cumsum(rng.dirichlet(np.full(num_agents, alpha)))[:-1]
        cuts = np.rint(np.clip(cumulative, 0.0, 1.0) * len(samples)).astype(np.intp)
        ranks = rng.permutation(len(samples))
        owner[samples] = np.searchsorted(cuts, ranks, side="right")
    return owner


def by_classes(
    labels: ArrayLike, num_agents: int, *, classes_per_agent: int, seed: int
) -> list[Indices]:
    """Give each agent samples of exactly ``classes_per_agent`` classes.

    Classes are assigned to agents at random, such that the numbers of agents per class differ by at
    most one, and the agents of a class get equal parts of it. Classes without an agent are not
    used; there are some only if there are more than ``num_agents`` · ``classes_per_agent``.

    Parameters
    ----------
    labels, num_agents, seed
        As in :func:`iid`.
    classes_per_agent : int
        The number of classes of each agent.

    Raises
    ------
    ValueError
        If there are too few classes, or a class has fewer samples than agents.

    Examples
    --------
    >>> labels = np.repeat(np.arange(4), 6)
    >>> parts = by_classes(labels, 6, classes_per_agent=2, seed=0)
    >>> [len(np.unique(labels[part])) for part in parts]
    [2, 2, 2, 2, 2, 2]
    """
    labels = _labels("by_classes", labels, num_agents)
    classes_per_agent = count("by_classes: classes_per_agent", classes_per_agent)
    rng = _random("by_classes", seed)
    present = np.unique(labels)
    if classes_per_agent > len(present):
        raise ValueError(
            f"by_classes: classes_per_agent must be at most the number of classes, {len(present)}, "
            f"got {classes_per_agent}; lower it."
        )
    owner = np.full(len(labels), -1, dtype=np.intp)
    assigned = _assign_classes(len(present), num_agents, classes_per_agent, rng)
    for label, agents in zip(present, assigned, strict=True):
        samples = rng.permutation(np.flatnonzero(labels == label))
        if len(samples) < len(agents):
            raise ValueError(
                f"by_classes: class {label} must have a sample for each of its {len(agents)} "
                f"agents, got {len(samples)}; lower num_agents or classes_per_agent."
            )
        for agent, part in zip(agents, np.array_split(samples, max(len(agents), 1)), strict=False):
            owner[part] = agent
    return _parts(owner, num_agents)


def _assign_classes(
    num_classes: int, num_agents: int, classes_per_agent: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return the agents of each class."""
    agents: list[list[int]] = [[] for _ in range(num_classes)]
    for agent in range(num_agents):
        # Take the classes with the fewest agents so far; ties are broken at random.
        num_assigned = np.array([len(each) for each in agents])
        order = np.lexsort((rng.random(num_classes), num_assigned))
        for label in order[:classes_per_agent]:
            agents[label].append(agent)
    return agents


def unequal(
    labels: ArrayLike,
    num_agents: int,
    *,
    sizes: Sequence[int] | None = None,
    ratio: float | None = None,
    seed: int,
) -> list[Indices]:
    """Partition the samples at random, into parts of unequal size.

    Parameters
    ----------
    labels, num_agents, seed
        As in :func:`iid`.
    sizes : sequence of int, optional
        The size of each part. Remaining samples are not used.
    ratio : float, optional
        Instead of ``sizes``: sizes are a geometric progression in which the last agent has about
        ``ratio`` times the samples of the first. Every sample is used.

    Raises
    ------
    ValueError
        Unless exactly one of ``sizes`` and ``ratio`` is given and there are enough samples.

    Examples
    --------
    >>> [len(part) for part in unequal([0] * 70, 3, ratio=4.0, seed=0)]
    [10, 20, 40]
    >>> [len(part) for part in unequal([0] * 70, 3, sizes=[1, 9, 30], seed=0)]
    [1, 9, 30]
    """
    labels = _labels("unequal", labels, num_agents)
    if (sizes is None) == (ratio is None):
        raise ValueError("unequal: give one of sizes and ratio, got both or neither.")
    if sizes is not None:
        chosen = [count(f"unequal: sizes[{i}]", size) for i, size in enumerate(sizes)]
        if len(chosen) != num_agents or sum(chosen) > len(labels):
            raise ValueError(
                f"unequal: sizes must be {num_agents} numbers with a sum of at most {len(labels)}, "
                f"got {len(chosen)} with the sum {sum(chosen)}; change sizes or num_agents."
            )
    else:
        chosen = _geometric(len(labels), num_agents, positive("unequal: ratio", ratio or 0.0))
    order = _random("unequal", seed).permutation(len(labels))
    return [np.sort(part) for part in np.split(order, np.cumsum(chosen))[:num_agents]]


def class_counts(
    labels: ArrayLike, parts: Sequence[ArrayLike], classes: int | None = None
) -> NDArray[np.int64]:
    """Return the number of samples of each class that each agent has: agents × classes.

    Parameters
    ----------
    labels : array of int
        The label of each sample, 0 or more.
    parts : sequence of arrays of int
        The indices of each agent's samples.
    classes : int, optional
        The number of classes, by default the largest label + 1.

    Examples
    --------
    >>> class_counts([0, 0, 1, 2], [[0, 1], [2, 3]])
    array([[2, 0, 0],
           [0, 1, 1]])
    """
    labels = _labels("class_counts", labels, 1)
    highest = int(labels.max())
    classes = count("class_counts: classes", highest + 1 if classes is None else classes)
    if labels.min() < 0 or highest >= classes:
        raise ValueError(
            f"class_counts: labels must be in 0..{classes - 1}, got {labels.min()}..{highest}; "
            "renumber them or raise classes."
        )
    rows = [np.bincount(labels[np.asarray(part, np.intp)], minlength=classes) for part in parts]
    return np.array(rows, dtype=np.int64).reshape(len(parts), classes)


def _geometric(total: int, num_agents: int, ratio: float) -> list[int]:
    """Return sizes in a geometric progression, at least 1 each, that sum to ``total``."""
    # The weights are in (0, 1], so that no ratio overflows.
    weights = ratio ** (np.linspace(0.0, 1.0, num_agents) - (1.0 if ratio > 1 else 0.0))
    exact = weights / weights.sum() * total
    sizes = np.maximum(1, np.floor(exact).astype(np.intp))
    while sizes.sum() < total:
        sizes[np.argmax(exact - sizes)] += 1
    while sizes.sum() > total:
        sizes[np.argmax(sizes)] -= 1
    return [int(size) for size in sizes]


def _parts(owner: Indices, num_agents: int) -> list[Indices]:
    """Return the samples of each agent, in order; those with the owner −1 are not used."""
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(num_agents + 1))
    return [order[cuts[agent] : cuts[agent + 1]] for agent in range(num_agents)]


def _labels(where: str, labels: ArrayLike, num_agents: int) -> Labels:
    """Return the labels as an array; raise unless there is at least one per agent."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{where}: labels must be a non-empty list of whole numbers, got {array.dtype} of "
            f"shape {array.shape}; give one int for each sample."
        )
    if count(f"{where}: num_agents", num_agents) > array.size:
        raise ValueError(
            f"{where}: num_agents must be at most the number of samples, {array.size}, got "
            f"{num_agents}; lower it."
        )
    return array


def _random(where: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(count(f"{where}: seed", seed, minimum=0))
