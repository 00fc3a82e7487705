"""From server.toml and agent.toml to the terms of a training and to an agent with its data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.config.federation_files import AgentFile, read_server_file
from pcfed.config.train_file import Model
from pcfed.data.tables import Table, read_table
from pcfed.errors import join_names, short_repr
from pcfed.federation.server_config import Terms
from pcfed.problem import Agent
from pcfed.training.setup import feature_matrix


@dataclass(frozen=True)
class Schema:
    """What is trained: what agents must have in common.

    Attributes
    ----------
    model : Model
        The kind of model, its intercept and its l2 term.
    features : tuple of str
        The columns to predict from.
    labels : tuple of str or None
        The labels of a classification, in the order of the outputs.
    dtype : str
        The dtype of features and local steps.
    """

    model: Model
    features: tuple[str, ...]
    labels: tuple[str, ...] | None
    dtype: str

    @property
    def n(self) -> int:
        """Number of parameters."""
        kind, columns = self.model.linear_kind, len(self.features)
        layout = kind.layout(columns, self.labels, intercept=self.model.intercept)
        return sum(math.prod(shape) for shape in layout.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        return {**vars(self), "model": self.model.model_dump()}

    def to_text(self) -> str:
        """Return it as JSON, as agents receive it."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_text(text: str) -> Schema:
        """Return the schema that a text of `to_text` describes."""
        content: dict[str, Any] = json.loads(text)
        labels = content["labels"]
        return Schema(
            Model(**content["model"]),
            tuple(content["features"]),
            None if labels is None else tuple(labels),
            content["dtype"],
        )


@dataclass(frozen=True)
class ServerSettings:
    """The content of server.toml.

    Attributes
    ----------
    terms : Terms
        The settings of the training; the roster is empty if the file has only its size.
    size : int
        Number of agents.
    schema : Schema
        What is trained.
    deadline : float
        Seconds that agents have to answer.
    """

    terms: Terms
    size: int
    schema: Schema
    deadline: float


def read_server(path: Path) -> ServerSettings:
    """Read server.toml.

    Parameters
    ----------
    path : Path
        The file; `pcfed.config.federation_files.ServerFile` describes its keys.

    Raises
    ------
    ValueError
        If something in it is not valid: one sentence per error, which names the key.
    """
    file = read_server_file(path)
    model, rounds = file.model, file.rounds
    schema = Schema(
        Model(kind=model.kind, intercept=model.intercept, l2=model.l2),
        model.features,
        model.labels,
        model.dtype,
    )
    terms = Terms(
        training=file.training,
        roster=() if isinstance(file.roster, int) else file.roster,
        n=schema.n,
        algorithm=file.algorithm,
        rounds=rounds.rounds,
        local_steps=rounds.local_steps,
        seed=rounds.seed,
        minimum=rounds.minimum,
        attempts=rounds.attempts,
        norm_limit=np.inf if rounds.norm_limit is None else rounds.norm_limit,
        gap=rounds.gap,
        gap_every=rounds.gap_every,
    )
    return ServerSettings(terms, file.num_agents, schema, rounds.deadline)


def build_agent(path: Path, file: AgentFile, schema: Schema) -> Agent:
    """Return an agent with its data, its set and its coupling.

    Parameters
    ----------
    path : Path
        The path of agent.toml; the data file is relative to its folder.
    file : AgentFile
        The content of agent.toml.
    schema : Schema
        What is trained, from the server.
    """
    text = () if schema.labels is None else (file.target,)
    table = read_table(path.parent / file.file, text=text)
    X = feature_matrix(table, schema.features)
    y = _targets(table, file.target, schema)
    loss = schema.model.build_loss(X, y, schema.labels, schema.dtype)
    return Agent(loss, file.constraint, file.coupling, name=file.name)


def _targets(table: Table, target: str, schema: Schema) -> NDArray[Any]:
    """Return numbers, or positions in the labels."""
    if schema.labels is None:
        return table.numbers(target)
    positions = {label: i for i, label in enumerate(schema.labels)}
    found = table.column(target).tolist()
    unknown = sorted({label for label in found if label not in positions})
    if unknown:
        raise ValueError(
            f"{table.where}: the column {short_repr(target)} must contain labels of the training, "
            f"got {join_names(unknown, 3)}; the labels are {join_names(list(positions), 6)}."
        )
    return np.array([positions[label] for label in found])
