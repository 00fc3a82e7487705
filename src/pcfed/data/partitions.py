"""Partitions: which samples each agent gets.

Every function returns one array of indices per agent. No sample is given to two agents, every agent
has at least one, and the same seed gives the same partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.validation import count, positive

Indices = NDArray[np.intp]
Labels = NDArray[np.integer[Any]]


def iid(labels: ArrayLike, agents: int, *, seed: int) -> list[Indices]:
    """Deal the samples at random, in parts that differ by at most one sample.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    agents : int
        The number of parts.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    list of arrays of int
        The samples of each agent; every sample is in one of them.

    Examples
    --------
    >>> [len(part) for part in iid([0, 0, 1, 1, 2, 2, 2], 3, seed=0)]
    [3, 2, 2]
    """
    labels = _labels("iid", labels, agents)
    order = _random("iid", seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, agents)]


def label_sorted(labels: ArrayLike, agents: int) -> list[Indices]:
    """Sort the samples by label and cut them into shards of equal size: agents differ most.

    The sort keeps the order of samples with equal labels, so nothing is random. Sizes differ by at
    most one sample, if the number of samples can't be divided.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    agents : int
        The number of shards.

    Returns
    -------
    list of arrays of int
        The samples of each agent, sorted by label; every sample is in one of them.

    Examples
    --------
    >>> [part.tolist() for part in label_sorted([1, 0, 1, 0, 2, 2], 3)]
    [[1, 3], [0, 2], [4, 5]]
    """
    labels = _labels("label_sorted", labels, agents)
    return np.array_split(np.argsort(labels, kind="stable"), agents)


def dirichlet(
    labels: ArrayLike,
    agents: int,
    *,
    alpha: float,
    seed: int,
    minimum: int = 1,
    attempts: int = 100,
) -> list[Indices]:
    r"""Share out each class in proportions $p_k \sim \mathrm{Dirichlet}(\alpha, .., \alpha)$.

    Small ``alpha`` gives each class to few agents; large ``alpha`` comes close to :func:`iid`.
    A partition with an agent below ``minimum`` is drawn again.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    agents : int
        The number of parts.
    alpha : float
        Concentration, > 0.
    seed : int
        The seed of the random numbers.
    minimum : int
        The fewest samples that an agent may have, at least 1.
    attempts : int
        How many partitions to draw before giving up.

    Returns
    -------
    list of arrays of int
        The samples of each agent; every sample is in one of them.

    Raises
    ------
    ValueError
        If no draw gives every agent ``minimum`` samples.

    References
    ----------
    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
    classification, 2019.

    Examples
    --------
    >>> parts = dirichlet([0, 1] * 50, 3, alpha=1.0, seed=0, minimum=10)
    >>> sum(len(part) for part in parts)
    100
    """
    labels = _labels("dirichlet", labels, agents)
    minimum = count("dirichlet: minimum", minimum)
    alpha = positive("dirichlet: alpha", alpha)
    rng = _random("dirichlet", seed)
    if minimum * agents > len(labels):
        raise ValueError(
            f"dirichlet: minimum must be at most {len(labels) // agents} for {len(labels)} samples "
            f"and {agents} agents, got {minimum}; lower it."
        )
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(count("dirichlet: attempts", attempts)):
        owner = np.empty(len(labels), dtype=np.intp)
        for samples in members:
            shares = np.cumsum(rng.dirichlet(np.full(agents, alpha)))[:-1]
            cuts = np.rint(np.clip(shares, 0.0, 1.0) * len(samples)).astype(np.intp)
            ranks = rng.permutation(len(samples))
            owner[samples] = np.searchsorted(cuts, ranks, side="right")
        if np.bincount(owner, minlength=agents).min() >= minimum:
            return _parts(owner, agents)
    raise ValueError(
        f"dirichlet: no partition in {attempts} attempts gave each of {agents} agents {minimum} or "
        f"more samples with alpha={alpha:g}; raise alpha or attempts, or lower minimum or agents."
    )


def by_classes(
    labels: ArrayLike, agents: int, *, classes_per_agent: int, seed: int
) -> list[Indices]:
    """Give each agent samples of exactly ``classes_per_agent`` classes.

    Classes are dealt at random such that each has as many holders as any other, give or take one,
    and holders share a class equally. A class that no agent holds is left out, which happens only
    if there are more classes than ``agents`` · ``classes_per_agent``.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    agents : int
        The number of parts.
    classes_per_agent : int
        How many classes an agent has, at most as many as there are.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    list of arrays of int
        The samples of each agent.

    Raises
    ------
    ValueError
        If there are too few classes, or a class has fewer samples than holders.

    Examples
    --------
    >>> labels = np.repeat(np.arange(4), 6)
    >>> parts = by_classes(labels, 6, classes_per_agent=2, seed=0)
    >>> [len(np.unique(labels[part])) for part in parts]
    [2, 2, 2, 2, 2, 2]
    """
    labels = _labels("by_classes", labels, agents)
    each = count("by_classes: classes_per_agent", classes_per_agent)
    rng = _random("by_classes", seed)
    present = np.unique(labels)
    if each > len(present):
        raise ValueError(
            f"by_classes: classes_per_agent must be at most the {len(present)} classes that there "
            f"are, got {each}; lower it."
        )
    holders: list[list[int]] = [[] for _ in present]
    for agent in range(agents):
        # the classes with the fewest holders so far, those that are equal in random order
        held_by = np.array([len(held) for held in holders])
        order = np.lexsort((rng.random(len(present)), held_by))
        for which in order[:each]:
            holders[which].append(agent)
    owner = np.full(len(labels), -1, dtype=np.intp)
    for label, held in zip(present, holders, strict=True):
        samples = rng.permutation(np.flatnonzero(labels == label))
        if len(samples) < len(held):
            raise ValueError(
                f"by_classes: class {label} has {len(samples)} samples for the {len(held)} agents "
                "that hold it; lower agents or classes_per_agent."
            )
        for agent, part in zip(held, np.array_split(samples, max(len(held), 1)), strict=False):
            owner[part] = agent
    return _parts(owner, agents)


def unequal(
    labels: ArrayLike,
    agents: int,
    *,
    sizes: Sequence[int] | None = None,
    ratio: float | None = None,
    seed: int,
) -> list[Indices]:
    """Deal the samples at random, in parts of unequal size.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    agents : int
        The number of parts.
    sizes : sequence of int, optional
        The size of each part. Samples that are left over are not used.
    ratio : float, optional
        Instead of ``sizes``: the last agent has about ``ratio`` times the samples of the first, and
        sizes grow by one factor from agent to agent. Every sample is used.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    list of arrays of int
        The samples of each agent.

    Raises
    ------
    ValueError
        Unless one of ``sizes`` and ``ratio`` is given, and there are samples enough.

    Examples
    --------
    >>> [len(part) for part in unequal([0] * 70, 3, ratio=4.0, seed=0)]
    [10, 20, 40]
    >>> [len(part) for part in unequal([0] * 70, 3, sizes=[1, 9, 30], seed=0)]
    [1, 9, 30]
    """
    labels = _labels("unequal", labels, agents)
    if (sizes is None) == (ratio is None):
        raise ValueError("unequal: give one of sizes and ratio, got both or neither.")
    if sizes is not None:
        chosen = [count(f"unequal: sizes[{i}]", size) for i, size in enumerate(sizes)]
        if len(chosen) != agents or sum(chosen) > len(labels):
            raise ValueError(
                f"unequal: sizes must be {agents} numbers with a sum of at most {len(labels)}, "
                f"got {len(chosen)} with the sum {sum(chosen)}; change sizes or agents."
            )
    else:
        chosen = _geometric(len(labels), agents, positive("unequal: ratio", ratio or 0.0))
    order = _random("unequal", seed).permutation(len(labels))
    return [np.sort(part) for part in np.split(order, np.cumsum(chosen))[:agents]]


def counts(
    labels: ArrayLike, parts: Sequence[ArrayLike], classes: int | None = None
) -> NDArray[np.int64]:
    """Return how many samples of each class each agent has: a table of agents × classes.

    Parameters
    ----------
    labels : array of int
        The label of each sample, 0 or more.
    parts : sequence of arrays of int
        The samples of each agent.
    classes : int, optional
        The number of classes, by default the largest label + 1.

    Examples
    --------
    >>> counts([0, 0, 1, 2], [[0, 1], [2, 3]])
    array([[2, 0, 0],
           [0, 1, 1]])
    """
    labels = _labels("counts", labels, 1)
    highest = int(labels.max())
    classes = count("counts: classes", highest + 1 if classes is None else classes)
    if labels.min() < 0 or highest >= classes:
        raise ValueError(
            f"counts: labels must be in 0..{classes - 1}, got {labels.min()}..{highest}; "
            "renumber them or raise classes."
        )
    rows = [np.bincount(labels[np.asarray(part, np.intp)], minlength=classes) for part in parts]
    return np.array(rows, dtype=np.int64).reshape(len(parts), classes)


def _geometric(total: int, agents: int, ratio: float) -> list[int]:
    """Return sizes in a geometric progression, at least 1 each, that sum to ``total``."""
    # weights in (0, 1], so that no ratio overflows
    weights = ratio ** (np.linspace(0.0, 1.0, agents) - (1.0 if ratio > 1 else 0.0))
    exact = weights / weights.sum() * total
    sizes = np.maximum(1, np.floor(exact).astype(np.intp))
    while sizes.sum() < total:
        sizes[np.argmax(exact - sizes)] += 1
    while sizes.sum() > total:
        sizes[np.argmax(sizes)] -= 1
    return [int(size) for size in sizes]


def _parts(owner: Indices, agents: int) -> list[Indices]:
    """Return the samples of each agent, in order; the owner -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(agents + 1))
    return [order[cuts[agent] : cuts[agent + 1]] for agent in range(agents)]


def _labels(where: str, labels: ArrayLike, agents: int) -> Labels:
    """Return the labels as an array, if there is one for each agent or more."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{where}: labels must be a non-empty list of whole numbers, got {array.dtype} of "
            f"shape {array.shape}; give one int for each sample."
        )
    if count(f"{where}: agents", agents) > array.size:
        raise ValueError(
            f"{where}: agents must be at most the {array.size} samples, got {agents}; lower it."
        )
    return array


def _random(where: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(count(f"{where}: seed", seed, minimum=0))
