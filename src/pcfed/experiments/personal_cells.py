"""The cells of the experiments on own models: data, split among agents, and private limits.

Images are drawn by the labels of an agent: fractions of the classes from a Dirichlet distribution,
or equal parts of a few classes. Training images come from the training part of the data set, test
images from its test part, both with the agent's own fractions. The tables are split by person,
traveller or customer, or by relation: then the travellers of a relation are divided, so that no
traveller has choices in two of the parts for fitting, validation and test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pcfed import data
from pcfed.arrays import Array, Float64Array
from pcfed.data.tables import Table
from pcfed.losses import SoftmaxRegression
from pcfed.sets import Blocks, ConvexSet, GroupL1Ball, Halfspace, L1Ball, LinfBall

Indices = NDArray[np.intp]
Split = Literal["iid", "dirichlet", "classes", "travellers", "customers", "relations"]
Limit = Literal["l1", "box", "groups", "fairness"]
Model = Literal["linear", "network"]

ALPHA = 0.3
"""Concentration of the Dirichlet distribution."""

CLASSES_PER_AGENT = 3
VALIDATION = 0.2
"""Fraction of an agent's training samples on which σ and λ are chosen."""

CHOICES = 9
"""Choices of a traveller in Swissmetro."""

DATA_NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "digits": "digits",
    "swissmetro": "Swissmetro",
    "electricity": "Electricity",
}
SPLIT_NAMES: dict[Split, str] = {
    "iid": "i.i.d.",
    "dirichlet": f"Dirichlet({ALPHA:g}) labels",
    "classes": f"{CLASSES_PER_AGENT} classes each",
    "travellers": "by traveller",
    "customers": "by customer",
    "relations": "by relation",
}
LIMIT_NAMES: dict[Limit, str] = {
    "l1": "l1 budgets",
    "box": "boxes",
    "groups": "group budgets",
    "fairness": "fairness halfspaces",
}
MODEL_NAMES: dict[Model, str] = {"linear": "", "network": "convolutional network"}


COUPLINGS = (0.001, 0.01, 0.1, 0.3, 1.0)
TABLE_COUPLINGS = (0.01, 0.1, 0.3, 1.0, 3.0)
"""Values of σ and λ for images and for Swissmetro, whose features are larger."""


@dataclass(frozen=True)
class Cell:
    """One data set, split and kind of limit; radii grow geometrically from agent to agent."""

    data: str
    split: Split
    limit: Limit
    radii: tuple[float, float]  # of the first and the last agent
    agents: int = 20
    samples: int = 150  # training samples of an agent at most, with those for validation
    tests: int = 200  # test samples of an agent at most
    pooling: int = 1  # length of the squares of pixels whose mean is a feature
    couplings: tuple[float, ...] = COUPLINGS  # values of σ and λ
    search_rounds: int = 20  # of a run with one of these values
    rounds: int = 50  # of the last run, with the best value
    model: Model = "linear"
    batch: float | int = 1.0  # samples in a gradient, a fraction or a number

    @classmethod
    def from_json(cls, contents: Mapping[str, Any]) -> Self:
        """Return a cell from JSON, which has lists in place of tuples."""
        tuples = {key: tuple(contents[key]) for key in ("radii", "couplings")}
        return cls(**{**contents, **tuples})

    @property
    def title(self) -> str:
        """The title of figures."""
        names = (
            DATA_NAMES[self.data],
            SPLIT_NAMES[self.split],
            LIMIT_NAMES[self.limit],
            MODEL_NAMES[self.model],
        )
        return ", ".join(filter(None, names))

    @property
    def slug(self) -> str:
        """The start of file names."""
        suffix = "" if self.model == "linear" else f"-{self.model}"
        return f"personal-{self.data}-{self.split}-{self.limit}{suffix}"


CELLS = (
    Cell("mnist", "dirichlet", "l1", (5.0, 150.0)),
    Cell("mnist", "classes", "box", (0.01, 0.3), pooling=2),
    Cell("mnist", "dirichlet", "groups", (1.0, 30.0), pooling=2),
    Cell("cifar10", "dirichlet", "l1", (2.0, 60.0), pooling=2),
    Cell("cifar10", "classes", "groups", (0.5, 15.0), pooling=4),
    Cell("swissmetro", "travellers", "l1", (0.5, 15.0), agents=60, couplings=TABLE_COUPLINGS),
    Cell("swissmetro", "relations", "box", (0.03, 1.0), couplings=TABLE_COUPLINGS),
    Cell("swissmetro", "relations", "groups", (0.3, 10.0), couplings=TABLE_COUPLINGS),
)
"""Of 18 combinations. Left out: MNIST and CIFAR-10 with the other pairs of split and limit, and
Swissmetro by traveller with boxes or groups, by relation with l1 budgets."""

_DIGITS = Cell(
    *("digits", "dirichlet", "l1", (2.0, 20.0)),
    agents=5,
    samples=40,
    tests=30,
    couplings=(0.01, 0.1),
    search_rounds=5,
    rounds=10,
)
QUICK_CELLS = (
    _DIGITS,
    replace(_DIGITS, split="classes", limit="box", radii=(0.05, 0.5)),
    replace(_DIGITS, split="classes", limit="groups", radii=(1.0, 10.0)),
)


@dataclass(frozen=True, eq=False)
class AgentRows:
    """The rows of an agent in the samples of its cell; no row is in two of the parts."""

    fit: Indices
    validation: Indices
    test: Indices

    @property
    def train(self) -> Indices:
        """The rows that are not for test."""
        return np.concatenate([self.fit, self.validation])


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a data set, and which of its features belong together."""

    features: Array  # samples × features, float32
    labels: NDArray[np.integer[Any]]
    classes: int
    feature_groups: Indices  # the group of every feature, for group budgets
    image_shape: tuple[int, int, int] | None = None  # of images: rows, columns, colours
    in_test_part: NDArray[np.bool_] | None = None  # of a data set with a published test part
    persons: NDArray[np.int64] | None = None  # travellers or customers
    relations: NDArray[np.int64] | None = None
    protected: NDArray[np.bool_] | None = None  # who belongs to a protected group

    def loss(self, rows: Indices) -> SoftmaxRegression:
        """Return the loss on some of the samples."""
        return SoftmaxRegression(self.features[rows], self.labels[rows], classes=self.classes)


def limits(cell: Cell, samples: Samples) -> list[ConvexSet]:
    """Return the private set of every agent of a cell."""
    radii = np.geomspace(*cell.radii, cell.agents).tolist()
    if cell.limit == "l1":
        return [L1Ball(radius) for radius in radii]
    if cell.limit == "box":
        return [LinfBall(radius) for radius in radii]
    if cell.limit == "fairness":
        return _fairness_limits(cell, samples, radii)
    groups = np.tile(samples.feature_groups, samples.classes)  # W is row-major, a row per class
    return [GroupL1Ball(groups, radius) for radius in radii]


def _fairness_limits(cell: Cell, samples: Samples, radii: Sequence[float]) -> list[ConvexSet]:
    """Return limits on how much higher the mean score of a class is within the protected group.

    The class is the first one, and the difference of the means of the features is public.
    """
    protected = _required(cell, "a protected group", samples.protected)
    X = samples.features
    # In Swissmetro the class is the train, whose score is higher for women: most limits bind.
    difference = X[protected].mean(axis=0) - X[~protected].mean(axis=0, dtype=np.float64)
    block = (0, X.shape[1])
    return [Blocks({block: Halfspace(difference, radius)}) for radius in radii]


# -- samples ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def load_samples(name: str, pooling: int = 1, data_dir: Path | None = None) -> Samples:
    """Return the samples of a data set; of images, the means of squares of pixels."""
    if name == "swissmetro":
        return _swissmetro(data.swissmetro(data_dir=data_dir))
    if name == "electricity":
        return _electricity(data.electricity(data_dir=data_dir))
    dataset = data.load(name, data_dir=data_dir)
    images = np.concatenate([dataset.train_images, dataset.test_images])
    sizes = (len(dataset.train_labels), len(dataset.test_labels))
    height, width, *channels = dataset.image_shape
    colours = channels[0] if channels else 1
    blocks = (height // pooling, pooling, width // pooling, pooling, colours)
    features = images.reshape(-1, *blocks).mean(axis=(2, 4), dtype=np.float32)
    features = features.reshape(len(images), -1)
    return Samples(
        features * np.float32(dataset.scale),
        np.concatenate([dataset.train_labels, dataset.test_labels]).astype(np.intp),
        dataset.classes,
        np.arange(features.shape[1]) // colours,  # the colours of a pixel belong together
        image_shape=(height // pooling, width // pooling, colours),
        in_test_part=np.repeat([False, True], sizes),
    )


def _swissmetro(table: Table) -> Samples:
    """Return the choices as samples; features are of the order of 1."""
    known = np.flatnonzero(table.numbers("CHOICE") > 0)
    column = {name: table.numbers(name)[known] for name in table.names}
    pays = 1.0 - column["GA"]  # who has an annual ticket pays for neither train nor Swissmetro
    features = [
        np.ones(len(known)),
        *(column[f"{mode}_TT"] / 100 for mode in ("TRAIN", "SM", "CAR")),
        *(pays * column[f"{mode}_CO"] / 100 for mode in ("TRAIN", "SM")),
        column["CAR_CO"] / 100,
        *(column[f"{mode}_HE"] / 100 for mode in ("TRAIN", "SM")),
        *(column[name] for name in ("SM_SEATS", "CAR_AV", "SURVEY", "FIRST", "GA", "MALE")),
        *(column[name] / 3 for name in ("LUGGAGE", "AGE", "INCOME")),
        *(column["PURPOSE"] == purpose for purpose in (1, 2, 3, 4)),
        *(column["WHO"] == payer for payer in (1, 2, 3)),
    ]
    X = np.stack(features, axis=1).astype(np.float32)
    X = np.clip(X, None, 5.0)  # a few travel times and costs are ten times as large as the others
    origin, destination = column["ORIGIN"].astype(np.int64), column["DEST"].astype(np.int64)
    return Samples(
        X,
        column["CHOICE"].astype(np.intp) - 1,
        3,
        np.arange(X.shape[1]),
        persons=column["ID"].astype(np.int64),
        relations=100 * origin + destination,
        protected=column["MALE"] == 0,
    )


def _electricity(table: Table) -> Samples:
    """Return the choices as samples, with the features of all four suppliers, of the order of 1."""
    suppliers, scales = 4, {"pf": 10.0, "cl": 5.0, "loc": 1.0, "wk": 1.0, "tod": 1.0, "seas": 1.0}
    columns = [table.numbers(name) / scale for name, scale in scales.items()]
    X = np.stack(columns, axis=1).reshape(-1, suppliers * len(scales)).astype(np.float32)
    chosen = (table.column("choice") == "TRUE").reshape(-1, suppliers)
    ones = np.ones((len(X), 1), np.float32)
    return Samples(
        np.concatenate([X, ones], axis=1),
        chosen.argmax(axis=1),
        suppliers,
        # An attribute of all suppliers is one group, and the constant feature another.
        np.append(np.tile(np.arange(len(scales)), suppliers), len(scales)),
        persons=table.numbers("id")[::suppliers].astype(np.int64),
    )


# -- splits -------------------------------------------------------------------------------------


def split_rows(
    cell: Cell, samples: Samples, seed: int, *, unseen_tests: bool = False
) -> list[AgentRows]:
    """Return the rows of every agent of a cell.

    With ``unseen_tests``, no test row of any seed is a row for fitting or validation of seed 0:
    relations have the same test travellers for all seeds, and persons are agents for one seed only.
    """
    rng = np.random.default_rng(seed)
    if cell.split in ("travellers", "customers"):
        return list(_by_person(cell, samples, rng, seed if unseen_tests else None))
    if cell.split == "relations":
        fixed = np.random.default_rng(0) if unseen_tests else None
        return list(_by_relation(cell, samples, rng, fixed))
    return _by_labels(cell, samples, rng)


def _by_labels(cell: Cell, samples: Samples, rng: np.random.Generator) -> list[AgentRows]:
    """Draw samples with the labels of every agent, from the training part and the test part."""
    in_test_part = _required(cell, "a test part", samples.in_test_part)
    fractions = _label_fractions(cell, samples.classes, rng)
    trains, tests = (
        _draw(samples, np.flatnonzero(part), fractions, number, rng)
        for part, number in (
            (~in_test_part, cell.samples),
            (in_test_part, cell.tests),
        )
    )
    held_out = round(VALIDATION * cell.samples)
    return [
        AgentRows(train[held_out:], train[:held_out], test)
        for train, test in zip(trains, tests, strict=True)
    ]


def _label_fractions(cell: Cell, classes: int, rng: np.random.Generator) -> Float64Array:
    """Return the fraction of every class in the samples of every agent: agents × classes."""
    if cell.split == "iid":
        return np.full((cell.agents, classes), 1 / classes)
    if cell.split == "dirichlet":
        return rng.dirichlet(np.full(classes, ALPHA), size=cell.agents)
    fractions = np.zeros((cell.agents, classes))
    for agent in range(cell.agents):
        fractions[agent, rng.permutation(classes)[:CLASSES_PER_AGENT]] = 1 / CLASSES_PER_AGENT
    return fractions


def _draw(
    samples: Samples, pool: Indices, fractions: Float64Array, number: int, rng: np.random.Generator
) -> list[Indices]:
    """Draw rows for every agent in random order, each row once until the pool has no more."""
    queues = [rng.permutation(pool[samples.labels[pool] == k]) for k in range(samples.classes)]
    parts = []
    for row in fractions:
        chosen = []
        for k, count in enumerate(rng.multinomial(number, row)):
            if count > len(queues[k]):
                raise ValueError(
                    f"personal: class {k} must have {count} samples for an agent, got "
                    f"{len(queues[k])}; take fewer samples per agent."
                )
            chosen.append(queues[k][:count])
            queues[k] = np.roll(queues[k], -count)
        parts.append(rng.permutation(np.concatenate(chosen)))
    return parts


def _by_person(
    cell: Cell, samples: Samples, rng: np.random.Generator, part: int | None = None
) -> Iterator[AgentRows]:
    """Yield the choices of randomly chosen persons, each an agent.

    Of nine choices four are for fitting, two for validation and three for test. With ``part``, the
    persons are those of this part of one fixed order, as many as there are agents.
    """
    persons = _required(cell, "persons", samples.persons)
    names, counts = np.unique(persons, return_counts=True)
    choices = int(counts.max())  # a few persons have answered fewer questions
    ends = (choices * 4 // 9, choices * 6 // 9)
    order = (rng if part is None else np.random.default_rng(0)).permutation(
        names[counts == choices]
    )
    first = 0 if part is None else part * cell.agents
    if first + cell.agents > len(order):
        raise ValueError(
            f"{cell.slug}: there must be {first + cell.agents} persons, got {len(order)}; take "
            "fewer seeds."
        )
    for person in order[first : first + cell.agents]:
        rows = rng.permutation(np.flatnonzero(persons == person))
        yield AgentRows(*np.split(rows, ends))


def _by_relation(
    cell: Cell,
    samples: Samples,
    rng: np.random.Generator,
    fixed: np.random.Generator | None = None,
) -> Iterator[AgentRows]:
    """Yield the choices on the relations with the most travellers, each an agent.

    The test travellers are drawn by ``fixed``, if it is given.
    """
    travellers = _required(cell, "travellers", samples.persons)
    relations = _required(cell, "relations", samples.relations)
    names, counts = np.unique(relations, return_counts=True)
    for relation in names[np.argsort(-counts, kind="stable")][: cell.agents]:
        rows = np.flatnonzero(relations == relation)
        order = (fixed or rng).permutation(np.unique(travellers[rows]))
        tests = min(round(0.4 * len(order)), cell.tests // CHOICES)
        train = min(len(order) - tests, cell.samples // CHOICES)
        if fixed is not None:
            order[tests:] = rng.permutation(order[tests:])
        held_out = max(1, round(VALIDATION * train))
        ends = np.cumsum([tests, held_out, train - held_out])
        test, validation, fit = (
            rows[np.isin(travellers[rows], each)] for each in np.split(order, ends)[:3]
        )
        yield AgentRows(fit, validation, test)


def _required(cell: Cell, what: str, values: NDArray[Any] | None) -> NDArray[Any]:
    """Return a column of the samples, or raise an error if the data set has none."""
    if values is None:
        raise ValueError(
            f"{cell.slug}: the split needs {what}, got data without; choose another split."
        )
    return values
