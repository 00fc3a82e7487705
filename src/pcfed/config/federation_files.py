"""The two files of a federation: the server's, which is public, and every agent's own.

# server.toml
training = "heating"
roster = ["north", "south", "west"]     # or their number: the first that come

[model]
kind = "softmax"                 # softmax | logistic | least-squares
features = ["area", "rooms"]
labels = ["gas", "oil"]          # for softmax and logistic
intercept = false
l2 = 0.0
dtype = "float64"

[algorithm]                      # as in the file of `pcfed train`; numbers, not "auto"
step = 0.1
penalty = 1.0

[rounds]
rounds = 100
gap = 0.01                       # stop at this certified relative gap; by default never
gap_every = 10                   # rounds from one look at it to the next
local_steps = 10
seed = 0
minimum = 2                      # a round with fewer updates is repeated
attempts = 10                    # how often it is tried
deadline = 60.0                  # seconds that agents have to answer
norm_limit = 1e6                 # of what agents send; by default none

# agent.toml, which stays with the agent
name = "north"
file = "north.csv"
target = "heating"
constraint = {l1 = 5}
coupling = 0.1
batch = 0.1
certificate = true               # take part in certificates; by default false
report = ["loss", "rows"]        # what the server may know; by default []
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm
from pcfed.config.agent_table import KEYS, AgentSettings, checked_name, read_agent
from pcfed.config.algorithm_table import read_algorithm
from pcfed.config.model_table import MODELS, Model
from pcfed.config.section import Section, read_toml
from pcfed.config.train_file import DTYPES
from pcfed.data.tables import Table, read_table
from pcfed.errors import did_you_mean, display_path, join_names, short_repr
from pcfed.federation.protocol import METRICS
from pcfed.federation.server_config import ServerConfig
from pcfed.problem import Agent
from pcfed.sets import WholeSpace
from pcfed.training.setup import loss_of, matrix_of

DEADLINE = 60.0
ROUNDS = (
    "rounds",
    "gap",
    "gap_every",
    "local_steps",
    "seed",
    "minimum",
    "attempts",
    "deadline",
    "norm_limit",
)
"""The keys of ``[rounds]``."""


@dataclass(frozen=True)
class Schema:
    """What is trained: what agents must have in common.

    Attributes
    ----------
    model : Model
        The loss.
    features : tuple of str
        The columns to predict from.
    labels : tuple of str or None
        The labels of a classification, in the order of the outputs.
    dtype : str
        That of local steps.
    """

    model: Model
    features: tuple[str, ...]
    labels: tuple[str, ...] | None
    dtype: str

    @property
    def n(self) -> int:
        """Number of parameters."""
        outputs = len(self.labels or ()) if self.model.kind == "softmax" else 1
        return outputs * (len(self.features) + self.model.intercept)

    def to_text(self) -> str:
        """Return it as agents receive it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Schema:
        """Return what a text says."""
        facts: dict[str, Any] = json.loads(text)
        labels = facts["labels"]
        return Schema(
            Model(**facts["model"]),
            tuple(facts["features"]),
            None if labels is None else tuple(labels),
            facts["dtype"],
        )


@dataclass(frozen=True)
class ServerSettings:
    """What the server's file says.

    Attributes
    ----------
    config : ServerConfig
        What is settled; the roster is empty if the file has only its size.
    size : int
        Number of agents.
    schema : Schema
        What is trained.
    deadline : float
        Seconds that agents have to answer.
    """

    config: ServerConfig
    size: int
    schema: Schema
    deadline: float


def read_server(path: Path) -> ServerSettings:
    """Read the server's file.

    Parameters
    ----------
    path : Path
        The file, in the form that this module's description shows.

    Raises
    ------
    ValueError
        If something in it is not valid: one sentence that names the key.
    """
    where, table = display_path(path), read_toml(path)
    top = Section(where, "", table, ("training", "roster", "model", "algorithm", "rounds"))
    training, (roster, size) = top.text("training"), _roster(where, top)
    if training is None:
        raise ValueError(f"{where}: training is missing; give the training a name.")
    schema = _schema(where, table.get("model", {}))
    section = Section(where, "rounds", table.get("rounds", {}), ROUNDS)
    limit = section.optional_number("norm_limit")
    config = ServerConfig(
        training=training,
        roster=roster,
        n=schema.n,
        algorithm=_algorithm(where, table.get("algorithm", {})),
        rounds=section.count("rounds", 100),
        local_steps=section.count("local_steps", 10),
        seed=section.count("seed", 0, minimum=0),
        minimum=section.count("minimum", 1),
        attempts=section.count("attempts", 10),
        norm_limit=np.inf if limit is None else limit,
        gap=section.optional_number("gap"),
        gap_every=section.count("gap_every", 10),
    )
    if config.minimum > size:
        raise ValueError(
            f"{where}: rounds.minimum must be at most the {size} agents of the roster, got "
            f"{config.minimum}; give a smaller number."
        )
    return ServerSettings(config, size, schema, section.number("deadline", DEADLINE))


def _roster(where: str, top: Section) -> tuple[tuple[str, ...], int]:
    """Return the names of the agents, which may be none yet, and their number."""
    if "roster" not in top:
        raise ValueError(
            f"{where}: roster is missing; give the names of the agents, or their number."
        )
    if not isinstance(top.table["roster"], list):
        return (), top.count("roster", 2)
    names = top.names("roster") or ()
    return tuple(checked_name(where, name) for name in names), len(names)


def _schema(where: str, table: object) -> Schema:
    keys = ("kind", "features", "labels", "intercept", "l2", "dtype")
    section = Section(where, "model", table, keys)
    model = Model(
        kind=section.choice("kind", MODELS),
        intercept=section.flag("intercept", False),
        l2=section.number("l2", 0.0, zero=True),
    )
    features, labels = section.names("features"), section.names("labels")
    if not features:
        raise ValueError(f"{where}: model.features is missing; name the columns to predict from.")
    if (labels is None) != (model.kind == "least-squares"):
        raise ValueError(
            f"{where}: model.labels must be given for softmax and logistic, and only for them; "
            f"got {model.kind!r} and {short_repr(labels)}; name the classes, or leave them out."
        )
    if labels is not None and (len(labels) < 2 or (model.kind == "logistic" and len(labels) > 2)):
        raise ValueError(
            f"{where}: model.labels must be two for logistic and at least two for softmax, got "
            f"{len(labels)}; correct the list."
        )
    return Schema(model, features, labels, section.choice("dtype", DTYPES, "float64"))


def _algorithm(where: str, table: object) -> Algorithm:
    algorithm = read_algorithm(where, table)
    for name in ("step", "penalty"):
        if isinstance(value := getattr(algorithm, name), str):
            raise ValueError(
                f"{where}: algorithm.{name} must be a number, got {value!r}: the server does not "
                "see the data that it would come from; give one such as 0.1."
            )
    return algorithm


@dataclass(frozen=True)
class AgentFile:
    """What an agent's own file says.

    Attributes
    ----------
    settings : AgentSettings
        Its name, data, set and coupling.
    certificate : bool
        Whether its owner agrees to take part in certificates.
    report : tuple of str
        Which of ``METRICS`` its owner allows to be told.
    """

    settings: AgentSettings
    certificate: bool
    report: tuple[str, ...]


def read_agent_file(path: Path) -> AgentFile:
    """Read an agent's own file.

    Parameters
    ----------
    path : Path
        The file, in the form that this module's description shows.
    """
    where = display_path(path)
    section = Section(where, "", read_toml(path), ("name", *KEYS, "certificate", "report"))
    name = section.text("name")
    if name is None:
        raise ValueError(f"{where}: name is missing; give the agent's name in the roster.")
    usual = AgentSettings(name, constraint=WholeSpace(), coupling=0.1, batch=1.0)
    settings = read_agent(section, name).completed(usual)
    for key in ("file", "target"):
        if getattr(settings, key) is None:
            raise ValueError(f"{where}: {key} is missing; give the agent's {key}.")
    report = () if section.table.get("report") == [] else section.names("report") or ()
    for each in report:
        if each not in METRICS:
            raise ValueError(
                f"{where}: report must be some of {', '.join(METRICS)}, got {short_repr(each)}; "
                f"{did_you_mean(each, METRICS)}Take it out, or take one of these."
            )
    return AgentFile(settings, section.flag("certificate", False), report)


def agent_of(path: Path, settings: AgentSettings, schema: Schema) -> Agent:
    """Return an agent with its data, its set and its coupling.

    Parameters
    ----------
    path : Path
        Its file; data are looked for relative to its folder.
    settings : AgentSettings
        What the file says.
    schema : Schema
        What the server says is trained.
    """
    if settings.constraint is None or settings.coupling is None or settings.target is None:
        raise ValueError(f"{display_path(path)}: constraint, coupling and target must be given.")
    text = () if schema.labels is None else (settings.target,)
    table = read_table(path.parent / str(settings.file), text=text)
    X = matrix_of(table, schema.features)
    y = _targets(table, settings.target, schema)
    loss = loss_of(schema.model, X, y, schema.labels, schema.dtype)
    return Agent(loss, settings.constraint, settings.coupling, name=settings.name)


def _targets(table: Table, target: str, schema: Schema) -> NDArray[Any]:
    """Return numbers, or positions in the labels."""
    if schema.labels is None:
        return table.numbers(target)
    places = {label: i for i, label in enumerate(schema.labels)}
    found = table.column(target).tolist()
    strange = sorted({each for each in found if each not in places})
    if strange:
        raise ValueError(
            f"{table.where}: the column {short_repr(target)} must hold labels of the training, got "
            f"{join_names(strange, 3)}; the labels are {join_names(list(places), 6)}."
        )
    return np.array([places[each] for each in found])
