r"""Which method gives the best own models under personal constraints: a leaderboard.

All methods train on the same agents, for the same number of rounds and local steps. The parameters
of a method are the best of its ``TRIALS`` trials in a cell: each is fitted, for the same number of
rounds, to a part of the training samples of the first seed and scored on the rest, the validation
samples. With these parameters it is fitted to all training samples of every seed, and scored on
test samples of each agent's own distribution. No test sample of any seed is among the samples of
the search. Models are projected onto the agents' own sets before they are scored, because nobody
may use a model outside its set; how far they were outside is reported.

A method is compared with the others by its ranks over cells, each of the mean over seeds. Two
methods whose mean ranks differ by less than the critical difference of Nemenyi's test are not
distinguished by these cells. With many methods this test finds little, and whether it distinguishes
two of them depends on which others there are; so the best method is also compared with each other
one by Wilcoxon's signed-rank test, with Holm's correction. Methods that are not in all cells, or
have no search, have no rank.

References
----------
J. Demšar, "Statistical comparisons of classifiers over multiple data sets", Journal of Machine
Learning Research 7 (2006).

A. Benavoli, G. Corani, F. Mangili, "Should we really use post-hoc tests based on mean-ranks?",
Journal of Machine Learning Research 17 (2016).
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.stats import rankdata, studentized_range, wilcoxon
from threadpoolctl import threadpool_limits

from pcfed.algorithms import (
    Algorithm,
    Ditto,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedProx,
    FedRep,
    Local,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedHN,
    PFedMe,
    ProxAL,
    Scaffold,
)
from pcfed.algorithms.base import RoundInfo, Update, Vectors
from pcfed.algorithms.constrained import ConstrainedAlgorithm
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.own_models import take_steps
from pcfed.algorithms.registry import parameters
from pcfed.arrays import Array, Float64Array
from pcfed.config.imports import import_modules
from pcfed.errors import display_path, one_line
from pcfed.experiments.jobs import process_pool, run_in_pool, slug
from pcfed.experiments.personal import Interval
from pcfed.experiments.personal_cells import (
    Cell,
    Indices,
    Model,
    Samples,
    limits,
    load_samples,
    split_rows,
)
from pcfed.losses import Loss
from pcfed.problem import DEFAULT_COUPLING, Agent, Center, Problem
from pcfed.sets import SetRows
from pcfed.simulation import Evaluation, run
from pcfed.storage.saved import Metadata, SavedJson

METHODS = "methods"
"""The name of this experiment."""

SEEDS, QUICK_SEEDS = 3, 2
TRIALS = 8
"""So many trials has every method in a cell."""

LOCAL_STEPS = 10
EVALUATED = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
"""Rounds after which models are scored, beside the last one, to see how fast a method is."""

TARGET = 0.95
"""Rounds and bytes are counted to this part of the best accuracy in a cell."""

LEVEL = 0.05
"""The level of tests."""

MIN_GRID = 4
"""Values of a parameter in a search from which on its ends are counted."""

SOURCES = (
    *(f"{each}/*.py" for each in ("algorithms", "data", "kernels", "losses", "sets", "simulation")),
    *("arrays.py", "problem.py", "sampling.py", "tree_sums.py"),
    *(f"experiments/{each}.py" for each in ("image_network", "leaderboard", "personal_cells")),
)
"""The files of pcfed on which scores depend."""


NUM_CLASSES = 10
"""Of all data sets of images."""

NETWORK_CELL = Cell(
    *("cifar10", "dirichlet", "box", (0.03, 0.5)),
    agents=6,
    samples=200,
    pooling=2,
    search_rounds=20,
    rounds=20,
    model="network",
    batch=32,
)

_LINEAR_CELLS = tuple(
    replace(cell, search_rounds=100, rounds=100)
    for cell in (
        Cell("mnist", "iid", "l1", (5.0, 150.0), pooling=2),
        Cell("mnist", "dirichlet", "l1", (5.0, 150.0), pooling=2),
        Cell("mnist", "classes", "box", (0.01, 0.3), pooling=2),
        Cell("mnist", "dirichlet", "groups", (1.0, 30.0), pooling=2),
        Cell("cifar10", "dirichlet", "l1", (2.0, 60.0), pooling=4),
        Cell("cifar10", "classes", "groups", (0.5, 15.0), pooling=4),
        Cell("digits", "iid", "box", (0.02, 0.5), agents=10, samples=60, tests=60),
        Cell("digits", "dirichlet", "groups", (1.0, 30.0), agents=10, samples=60, tests=30),
        Cell("swissmetro", "travellers", "l1", (0.5, 15.0), agents=60),
        Cell("swissmetro", "relations", "fairness", (0.01, 1.0)),
        Cell("swissmetro", "relations", "groups", (0.3, 10.0)),
        Cell("electricity", "customers", "l1", (0.5, 15.0), agents=60),
        Cell("electricity", "customers", "box", (0.03, 1.0), agents=60),
    )
)

CELLS = (*_LINEAR_CELLS, NETWORK_CELL)
"""Left out: the other combinations of data, split and limit, and networks elsewhere."""

QUICK_CELLS = tuple(
    Cell("digits", *kind, agents=5, samples=40, tests=30, search_rounds=8, rounds=8)
    for kind in (
        ("iid", "l1", (2.0, 20.0)),
        ("dirichlet", "box", (0.05, 0.5)),
        ("classes", "groups", (1.0, 10.0)),
    )
)


class Trial(NamedTuple):
    """An algorithm with parameters, and the problem that it solves.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm.
    coupling, personalization : float
        Those of all agents.
    center : {"average", "free"}
        What models are coupled to.
    """

    algorithm: Algorithm
    coupling: float = 0.0
    personalization: float = 0.0
    center: Center = "average"

    def __str__(self) -> str:
        """Return what is not a default, with three digits."""
        algorithm = self.algorithm
        values = {each.name: getattr(algorithm, each.name) for each in parameters(type(algorithm))}
        defaults = {each.name: each.default for each in parameters(type(algorithm))}
        given = {name: value for name, value in values.items() if value != defaults[name]}
        if self.coupling:
            given |= {"coupling": self.coupling, "personalization": self.personalization}
            given |= {"center": self.center}
        numbers = (
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in given.items()
        )
        return ", ".join(numbers)


@dataclass(frozen=True)
class Method:
    """A method of the leaderboard.

    Attributes
    ----------
    name : str
        Its name in tables.
    trials : callable
        Returns ``TRIALS`` trials, given the typical smoothness L of the losses; one trial if it is
        not searched.
    models : tuple of {"linear", "network"}
        The models that it is for.
    searched : bool
        Whether the best of its trials is taken. A method without a search has no rank.
    """

    name: str
    trials: Callable[[float], Sequence[Trial]]
    models: tuple[Model, ...] = ("linear", "network")
    searched: bool = True

    def trials_for(self, smoothness: float) -> list[Trial]:
        """Return its trials; raise if they can't be built or are not as many as those of others."""
        try:
            trials = list(self.trials(smoothness))
        except Exception as error:  # the user's own code may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                one_line(f"{self.name}: its trials can't be built ({reason}); correct its file.")
            ) from error
        number = TRIALS if self.searched else 1
        if len(trials) != number:
            raise ValueError(
                f"{self.name}: trials must be {number}, as for all methods, got {len(trials)}; "
                "change their number."
            )
        return trials


_METHODS: dict[str, Method] = {}


def add_method(method: Method) -> None:
    """Add a method to the leaderboard.

    Examples
    --------
    >>> from pcfed import FedAvg
    >>> def trials(L):
    ...     return [Trial(FedAvg(step=k / (8 * L))) for k in range(1, 9)]
    >>> add_method(Method("FedAvg, slow", trials))
    >>> "FedAvg, slow" in method_names()
    True
    >>> del _METHODS["FedAvg, slow"]
    """
    taken = next((name for name in _METHODS if slug(name) == slug(method.name)), None)
    if taken is not None:
        raise ValueError(
            f"add_method: the name must be another than {taken!r}, got {method.name!r}; choose "
            "another name."
        )
    _METHODS[method.name] = method


def method_names() -> tuple[str, ...]:
    """Return the names of all methods."""
    return tuple(_METHODS)


def _steps(number: int = TRIALS) -> list[float]:
    """Return steps as multiples of 1/L."""
    return [float(each) for each in np.geomspace(0.005, 2.0, number)]


def _four(low: float, high: float) -> list[float]:
    """Return four values of a parameter, from low to high, each the same factor larger."""
    return [float(each) for each in np.geomspace(low, high, 4)]


OURS, DEFAULTS, PAPER = "PCFedSplit", "PCFedSplit, defaults", "PC-FedAvg"
ALONE, PROXAL = "alone", "ProxAL"

PROBLEMS: tuple[tuple[float, Center], ...] = ((0.0, "average"), (0.5, "free"))
"""Personalization and centre of the problems among which PCFedSplit chooses: the paper's problem,
and the default of files."""


@dataclass(frozen=True)
class Alone(ConstrainedAlgorithm, Local):
    """Projected gradient steps of every agent on its own model; nothing is sent."""

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps from the agent's own model."""
        x = context.rows(private["x"])
        steps = range(context.steps)
        take_steps(context, x, steps, step=round_info.step, project=self.constrained)
        return Update(sent={}, pending={"x": x})


TRIALS_OF: Mapping[str, Callable[[float], Sequence[Trial]]] = {
    OURS: lambda L: [
        Trial(PCFedSplit(), pull * L, theta, center)
        for theta, center in PROBLEMS
        for pull in _four(0.001, 1.0)
    ],
    PAPER: lambda L: [
        Trial(PCFedAvg("auto", rho * L), pull * L)
        for rho in _four(0.1, 10.0)
        for pull in (0.01, 1.0)
    ],
    ALONE: lambda L: [Trial(Alone(step / L)) for step in _steps()],
    "FedAvg": lambda L: [Trial(FedAvg(step / L)) for step in _steps()],
    "FedProx": lambda L: [
        Trial(FedProx(step / L, prox=mu * L)) for step in _steps(4) for mu in (0.1, 1.0)
    ],
    "SCAFFOLD": lambda L: [Trial(Scaffold(step / L)) for step in _steps()],
    "Ditto": lambda L: [
        Trial(Ditto(step / L, prox=pull * L)) for step in (0.05, 0.3) for pull in _four(0.003, 2.0)
    ],
    "pFedMe": lambda L: [
        Trial(PFedMe(move / (prox * L), own_step=0.6 / (L + prox * L), prox=prox * L))
        for move in (0.05, 0.3)
        for prox in _four(0.03, 30.0)
    ],
    "Per-FedAvg": lambda L: [
        Trial(PerFedAvg(step / L, own_step=own / L, own_steps=LOCAL_STEPS))
        for step in (0.05, 0.3)
        for own in (0.01, 0.05, 0.2, 1.0)
    ],
    "pFedHN": lambda L: [
        Trial(PFedHN(step / L, server_step=server))
        for step in (0.2, 0.8)
        for server in _four(0.01, 1.0)
    ],
    "FedMiD": lambda L: [Trial(FedMiD(step / L)) for step in _steps()],
    "FedDualAvg": lambda L: [Trial(FedDualAvg(step / L)) for step in _steps()],
    PROXAL: lambda L: [
        Trial(ProxAL("auto", rho * L, prox=L, inner_rounds=inner))
        for rho in (0.01, 0.03, 0.1, 0.3)
        for inner in (5, 20)
    ],
}
for _name, _trials in TRIALS_OF.items():
    add_method(Method(_name, _trials))


def _fedrep_trials(L: float) -> list[Trial]:
    """Return trials in which the last layer of the network is the agent's own."""
    own = ((-_image_network().head_size(NUM_CLASSES), None),)
    return [
        Trial(FedRep(step / L, own=own, own_step=step * ratio / L))
        for step in _steps(4)
        for ratio in (0.3, 1.0)
    ]


add_method(Method("FedRep", _fedrep_trials, models=("network",)))
add_method(
    Method(
        DEFAULTS,
        lambda L: [Trial(PCFedSplit(), DEFAULT_COUPLING, *PROBLEMS[1])],
        searched=False,
    )
)


class SharedScore(NamedTuple):
    """The score of a shared model that is not projected onto the agents' sets.

    Attributes
    ----------
    accuracy : float
        The mean of its accuracies on the agents' test samples.
    infeasibility : float
        Its largest distance from an agent's set.
    """

    accuracy: float
    infeasibility: float


@dataclass(frozen=True)
class SeedScore:
    """The score of a method with one seed.

    Attributes
    ----------
    accuracies : tuple of float
        Of every agent's own model, inside its set, on its own test samples.
    infeasibility, infeasibility_after : float
        The largest distance of a model from its set, before and after it was projected.
    course : tuple of (int, float)
        The mean accuracy after some numbers of rounds; empty if the training diverged.
    bytes_per_round : float
        Sent and received by an agent in a round.
    seconds : float
        Of this process's time on a core during the training, without the scores.
    shared : SharedScore or None
        Of the shared model, if the method has one.
    """

    accuracies: tuple[float, ...]
    infeasibility: float
    infeasibility_after: float
    course: tuple[tuple[int, float], ...]
    bytes_per_round: float
    seconds: float
    shared: SharedScore | None = None

    @property
    def accuracy(self) -> float:
        """The mean over agents."""
        return math.fsum(self.accuracies) / len(self.accuracies)

    @property
    def worst(self) -> float:
        """The accuracy of the worst agent."""
        return min(self.accuracies)

    def rounds_to(self, accuracy: float) -> float:
        """Return the number of rounds to an accuracy; infinite if it is not reached."""
        return next((float(done) for done, found in self.course if found >= accuracy), math.inf)


class GridEnds(NamedTuple):
    """How often the best trial of a search has the smallest or the largest value of a parameter.

    Attributes
    ----------
    values : int
        How many values the parameter has in a search.
    smallest, largest, cells : int
        In how many cells the smallest or the largest value was taken, and of how many.
    """

    values: int
    smallest: int
    largest: int
    cells: int


@dataclass(frozen=True)
class MethodScores(SavedJson):
    """The scores of a method in a cell; ``trial`` was the best one on validation samples."""

    cell: Cell
    method: str
    trial: str
    scores: tuple[SeedScore, ...]  # one per seed
    num_trials: int = TRIALS  # in the search; 0 without one
    digest: str = ""  # of all that the scores depend on, see `_digest`
    trials: tuple[str, ...] = ()  # all that were compared

    file_kind = "scores of a method"
    format = 2
    advice = "delete it, then rerun the command."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        scores = tuple(map(_seed_score, contents["scores"]))
        if not scores:
            raise ValueError(f"{contents['method']} has no scores in it")
        cell = Cell.from_json(contents["cell"])
        names = ("num_trials", "digest")
        others = {name: contents[name] for name in names}
        trials = tuple(map(str, contents.get("trials", ())))  # files of earlier versions have none
        return cls(cell, contents["method"], contents["trial"], scores, **others, trials=trials)


def _numbers(trial: str) -> dict[str, float]:
    """Return the numeric parameters of a trial from its text."""
    pairs = re.findall(r"(\w+) ([-+.e\d]+)(?=,|$)", trial)
    return {name: float(value) for name, value in pairs}


def _seed_score(contents: Metadata) -> SeedScore:
    """Return a score from JSON, which has lists in place of tuples."""
    course = tuple((int(done), float(found)) for done, found in contents["course"])
    shared = None if contents["shared"] is None else SharedScore(*contents["shared"])
    accuracies = tuple(map(float, contents["accuracies"]))
    if not accuracies:
        raise ValueError("a score in it is of no agent")
    changed: dict[str, Any] = {"accuracies": accuracies, "course": course, "shared": shared}
    return SeedScore(**{**contents, **changed})


@dataclass(frozen=True)
class MethodResults(SavedJson):
    """All scores of the leaderboard, with the command and the versions that computed them."""

    runs: tuple[MethodScores, ...]
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    file_kind = "leaderboard"
    format = 2
    advice = "give the file methods.json of an earlier run."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        runs = tuple(MethodScores._from_json(each) for each in contents["runs"])
        if not runs:
            raise ValueError("there are no runs in it")
        return cls(runs, contents["command"], dict(contents["versions"]))

    @property
    def provenance(self) -> dict[str, str]:
        """How the scores were computed."""
        seeds = sorted({len(each.scores) for each in self.runs})
        return {
            "command": self.command,
            **self.versions,
            "seeds": ", ".join(map(str, seeds)),
            "methods in cells": str(len(self.runs)),
        }

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, in the order of the runs."""
        return tuple(dict.fromkeys(each.cell for each in self.runs))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, the best mean rank first, and those without a rank last."""
        return tuple(self.mean_ranks()) + tuple(
            name for name in self._names if name not in self._ranked
        )

    def methods_in(self, cell: Cell) -> tuple[str, ...]:
        """Return the methods in a cell, the most accurate first."""
        names = [each.method for each in self.runs if each.cell == cell]
        return tuple(sorted(names, key=lambda name: -self.accuracy(cell, name).mean))

    def of(self, cell: Cell, method: str) -> MethodScores:
        """Return the scores of a method in a cell."""
        return next(each for each in self.runs if (each.cell, each.method) == (cell, method))

    def accuracy(self, cell: Cell, method: str) -> Interval:
        """Return the accuracy of the agents' own models, over seeds."""
        return Interval.of([each.accuracy for each in self.of(cell, method).scores])

    def worst(self, cell: Cell, method: str) -> float:
        """Return the mean over seeds of the accuracy of the worst agent."""
        return float(np.mean([each.worst for each in self.of(cell, method).scores]))

    def infeasibility(self, cell: Cell, method: str) -> float:
        """Return the largest distance of a model from its set, before it was projected.

        It is of trainings that have not diverged.
        """
        scores = self.of(cell, method).scores
        return max((each.infeasibility for each in scores if each.course), default=math.inf)

    def infeasibility_after(self, cell: Cell, method: str) -> float:
        """Return the largest distance of a model from its set, after it was projected."""
        return max(each.infeasibility_after for each in self.of(cell, method).scores)

    def difference(self, first: str, second: str) -> Interval:
        """Return the difference of the accuracies of two methods, over cells that have both."""
        return Interval.of(self._differences(first, second))

    def wins(self, first: str, second: str) -> int:
        """Return in how many cells a method is more accurate than another."""
        return sum(each > 0 for each in self._differences(first, second))

    def num_diverged(self, method: str) -> int:
        """Return how many trainings of a method have diverged, and have the score 0."""
        runs = [each for each in self.runs if each.method == method]
        return sum(not score.course for each in runs for score in each.scores)

    def _differences(self, first: str, second: str) -> list[float]:
        return [
            round(self.accuracy(cell, first).mean - self.accuracy(cell, second).mean, 12)
            for cell in self.cells
            if {first, second} <= set(self.methods_in(cell))
        ]

    def seconds(self, cell: Cell, method: str) -> float:
        """Return the mean over seeds of the seconds of a training."""
        return float(np.mean([each.seconds for each in self.of(cell, method).scores]))

    def target(self, cell: Cell) -> float:
        """Return the accuracy to which rounds are counted."""
        return TARGET * self.accuracy(cell, self.methods_in(cell)[0]).mean

    def rounds(self, cell: Cell, method: str) -> float:
        """Return the median over seeds of the rounds to the target."""
        target = self.target(cell)
        found = [each.rounds_to(target) for each in self.of(cell, method).scores]
        return float(np.median(found))

    def bytes_to_target(self, cell: Cell, method: str) -> float:
        """Return what an agent has sent and received until the target."""
        found = [each.bytes_per_round for each in self.of(cell, method).scores]
        return float(np.mean(found)) * self.rounds(cell, method)

    def mean_ranks(self) -> dict[str, float]:
        """Return the mean rank over cells of methods that are in all of them; 1 is best."""
        names = self._ranked
        means = np.array([[self.accuracy(cell, m).mean for m in names] for cell in self.cells])
        ranks = np.mean([rankdata(-row) for row in means.round(12)], axis=0)
        found = dict(zip(names, ranks.tolist(), strict=True))
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def critical_difference(self) -> float:
        """The smallest difference of mean ranks that Nemenyi's test takes for real."""
        k, cells = len(self._ranked), len(self.cells)
        quantile = float(studentized_range.ppf(1 - LEVEL, k, math.inf)) / math.sqrt(2)
        return quantile * math.sqrt(k * (k + 1) / (6 * cells))

    def holm(self, method: str) -> dict[str, float]:
        """Return p-values of the differences between a method and the others with a rank.

        They are those of Wilcoxon's signed-rank tests over cells, adjusted by Holm's method.
        """
        found = {
            name: float(wilcoxon(self._differences(method, name), zero_method="zsplit").pvalue)
            for name in self.mean_ranks()
            if name != method
        }
        adjusted, largest = {}, 0.0
        for done, name in enumerate(sorted(found, key=found.__getitem__)):
            largest = max(largest, (len(found) - done) * found[name])
            adjusted[name] = min(1.0, largest)
        return adjusted

    def grid_ends(self, method: str) -> dict[str, GridEnds]:
        """Return how often the ends of the grids of a method's parameters were taken.

        These are the parameters with a number in every trial, and at least ``MIN_GRID`` of them.
        """
        found = dict[str, GridEnds]()
        for each in self.runs:
            trials = list(map(_numbers, each.trials)) if each.method == method else []
            for name in dict.fromkeys(name for trial in trials for name in trial):
                values = {trial.get(name) for trial in trials}
                grid = sorted(value for value in values if value is not None)
                if None in values or len(grid) < MIN_GRID:
                    continue
                chosen = _numbers(each.trial)[name]
                _, smallest, largest, cells = found.get(name, GridEnds(len(grid), 0, 0, 0))
                smallest, largest = smallest + (chosen == grid[0]), largest + (chosen == grid[-1])
                found[name] = GridEnds(len(grid), smallest, largest, cells + 1)
        return found

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.method for each in self.runs))

    @property
    def _ranked(self) -> tuple[str, ...]:
        """The methods that are in all cells and had a search."""
        scored = [each.method for each in self.runs if each.num_trials]
        return tuple(name for name in self._names if scored.count(name) == len(self.cells))


# -- one method in one cell -----------------------------------------------------------------------


def score_method(method: str, cell: Cell, samples: Samples, seeds: int) -> MethodScores:
    """Choose the parameters of a method on the first seed, and score it on all."""
    first = split_rows(cell, samples, 0, unseen_tests=True)
    fit = [each.fit for each in first]
    validation = [_loss(cell, samples, each.validation) for each in first]
    smoothness = _problem(cell, samples, fit).typical_smoothness(None)
    trials = _METHODS[method].trials_for(smoothness)
    num_trials = len(trials) if _METHODS[method].searched else 0
    found = [
        _fit(each, cell, samples, fit, validation, cell.search_rounds).accuracy
        for each in trials[:num_trials]
    ]
    trial = trials[int(np.argmax(found))] if found else trials[0]
    scores = []
    for seed in range(seeds):
        rows = split_rows(cell, samples, seed, unseen_tests=True)
        train = [each.train for each in rows]
        tests = [_loss(cell, samples, each.test) for each in rows]
        scores.append(_fit(trial, cell, samples, train, tests, cell.rounds, EVALUATED))
    texts = tuple(map(str, trials))
    return MethodScores(cell, method, str(trial), tuple(scores), num_trials, trials=texts)


def _loss(cell: Cell, samples: Samples, rows: Indices) -> Loss:
    """Return the loss of the cell's model on some rows."""
    if cell.model == "linear":
        return samples.loss(rows)
    if samples.image_shape is None:
        raise ValueError(f"{cell.slug}: a network needs images, got a table; choose other data.")
    X, y = samples.features[rows], samples.labels[rows]
    loss: Loss = _image_network().NetworkLoss(X, y, samples.image_shape, samples.classes)
    return loss


def _image_network() -> ModuleType:
    """Return the module of the network, which needs torch."""
    return import_module("pcfed.experiments.image_network")


def _problem(
    cell: Cell, samples: Samples, rows: Sequence[Indices], trial: Trial | None = None
) -> Problem:
    """Return the problem of some rows of every agent."""
    coupling, theta = (0.0, 0.0) if trial is None else (trial.coupling, trial.personalization)
    agents = [
        Agent(_loss(cell, samples, some), each, coupling, personalization=theta)
        for some, each in zip(rows, limits(cell, samples), strict=True)
    ]
    return Problem(agents, "average" if trial is None else trial.center)


def _fit(
    trial: Trial,
    cell: Cell,
    samples: Samples,
    rows: Sequence[Indices],
    scored: Sequence[Loss],
    rounds: int,
    evaluated: Sequence[int] = (),
) -> SeedScore:
    """Train, and score the own models on other samples; a training that diverges scores 0.

    ``evaluated`` are rounds after which models are scored, beside the last one.
    """
    problem = _problem(cell, samples, rows, trial)
    sets = SetRows([agent.feasible_set for agent in problem.agents])
    course: list[tuple[int, float]] = []

    scoring = 0.0

    def projected(models: Array) -> Float64Array:
        wide = models.astype(np.float64)
        return sets.project(wide, np.empty_like(wide)).astype(np.float64, copy=False)

    def accuracies(models: Array) -> list[float]:
        return [round(loss.accuracy(x), 4) for loss, x in zip(scored, models, strict=True)]

    def follow(evaluation: Evaluation) -> None:
        nonlocal scoring
        start = time.process_time()
        done = evaluation.record.round
        if done in evaluated or done == rounds:
            found = accuracies(projected(evaluation.models))
            course.append((done, round(float(np.mean(found)), 4)))
        scoring += time.process_time() - start

    # At zero, the default, a network has no gradient in most parameters.
    x0 = getattr(problem.agents[0].loss, "start", None)
    start = time.process_time()  # of this process alone, whatever else the machine does
    result = run(
        problem,
        trial.algorithm,
        rounds=rounds,
        local_steps=LOCAL_STEPS,
        batch=cell.batch,
        x0=x0,
        eval_every=1 if evaluated else rounds,
        workers=1,  # runs are in parallel
        callbacks=[follow],
    )
    seconds = round(time.process_time() - start - scoring, 2)
    if result.status != "finished":
        return SeedScore((0.0,) * problem.m, math.inf, 0.0, (), 0.0, seconds)
    last, server = result.history[-1], result.state.server
    algorithm = trial.algorithm.for_center(problem.center)
    # Those of the result are projected already, if the algorithm is feasible.
    before = _rows(algorithm.model(server, result.state.private), result.models)
    after = projected(result.models)
    model, shared = algorithm.shared_model(server), None
    if model is not None:
        everywhere = _rows(model, result.models)
        distance = float(sets.distances(everywhere).max())
        shared = SharedScore(round(float(np.mean(accuracies(everywhere))), 4), distance)
    return SeedScore(
        tuple(accuracies(after)),
        float(sets.distances(before).max()),
        float(sets.distances(after).max()),
        tuple(course),
        (last.bytes_up + last.bytes_down) / (problem.m * rounds),
        seconds,
        shared,
    )


def _rows(models: Array, like: Array) -> Float64Array:
    """Return models as float64, one row per agent; all get the same one if there is only one."""
    return np.array(np.broadcast_to(models, like.shape), np.float64, order="C")


# -- runs -----------------------------------------------------------------------------------------


def run_leaderboard(
    out: Path,
    *,
    cells: Sequence[Cell],
    seeds: int = SEEDS,
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    workers: int = 2,
    on_progress: Callable[[MethodScores], None] = lambda scores: None,
) -> MethodResults:
    """Score all methods in all cells, in parallel processes; finished scores are loaded.

    ``files`` are Python files that add methods.
    """
    import_methods(files)
    if any(cell.model == "network" for cell in cells):
        _image_network()  # raises now, not after hours, where torch is missing
    jobs = [
        (out, method, cell, seeds, tuple(files), data_dir)
        for cell in cells
        for method in methods_for(cell)
    ]
    with process_pool(workers) as pool:
        runs = tuple(run_in_pool(pool, _load_or_run, jobs, on_progress))
    return MethodResults(runs, versions=software_versions())


def num_rounds(cell: Cell, seeds: int, num_trials: int = TRIALS) -> int:
    """Return the number of rounds of a method in a cell."""
    return num_trials * cell.search_rounds + seeds * cell.rounds


def total_rounds(cells: Sequence[Cell], seeds: int) -> int:
    """Return the number of rounds of all methods in all cells."""
    return sum(
        num_rounds(cell, seeds, TRIALS if _METHODS[name].searched else 0)
        for cell in cells
        for name in methods_for(cell)
    )


def methods_for(cell: Cell) -> tuple[str, ...]:
    """Return the names of the methods for the model of a cell."""
    return tuple(name for name, method in _METHODS.items() if cell.model in method.models)


def software_versions() -> dict[str, str]:
    """Return the versions of what the scores depend on."""
    packages = ("pcfed", "numpy", "scipy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def import_methods(files: Sequence[Path]) -> None:
    """Import Python files that add methods."""
    for file in files:
        if not file.is_file() or file.suffix != ".py":
            raise ValueError(
                f"--method: {display_path(file)} must be a Python file that calls add_method; "
                "correct the path."
            )
        import_modules([file.stem], file)


def _load_or_run(
    out: Path,
    method: str,
    cell: Cell,
    seeds: int,
    files: Sequence[Path],
    data_dir: Path | None,
) -> MethodScores:
    """Load the scores of a method in a cell from their file, or compute and save them."""
    import_methods(files)
    digits = _digest(_METHODS[method], cell, seeds)
    path = out / METHODS / f"{cell.slug}-{slug(method)}-{digits}.json"
    if path.exists():
        saved = MethodScores.load(path)
        if (saved.cell, saved.method, saved.digest) == (cell, method, digits):
            return saved
    samples = load_samples(cell.data, cell.pooling, data_dir)
    if cell.model == "network":
        _image_network()  # only libraries that are loaded are limited to one thread
    with threadpool_limits(1):
        scores = replace(score_method(method, cell, samples, seeds), digest=digits)
    scores.save(path)
    return scores


def _digest(method: Method, cell: Cell, seeds: int) -> str:
    """Return sixteen hexadecimal digits of what the scores of a method depend on.

    These are the cell, the number of seeds, the trials, the files of the trials and of the classes
    of the algorithms, and pcfed's ``SOURCES`` and version.
    """
    trials = method.trials_for(1.0)
    classes = [base for each in trials for base in type(each.algorithm).__mro__]
    names = {each.__module__ for each in (*classes, method.trials)}
    found = {getattr(sys.modules[name], "__file__", None) for name in names}
    files = [Path(each).read_bytes() for each in found if each is not None]
    key = {
        "cell": asdict(cell),
        "method": method.name,
        "seeds": seeds,
        "trials": re.sub(r" at 0x[0-9a-f]+", "", repr(trials)),  # the address of a function
        "version": version("pcfed"),
        "files": sorted(hashlib.sha256(each).hexdigest() for each in files),
        "sources": _sources_digest(Path(__file__).parents[1]),
    }
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


@cache
def _sources_digest(folder: Path) -> str:
    """Return the digest of the ``SOURCES`` in the folder of the package."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in SOURCES for file in folder.glob(pattern)):
        digest.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
