"""From an agent's file and the server's model to an agent with its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.config.federation_files import AgentFile, ServerModel
from pcfed.data.tables import Table, read_table
from pcfed.errors import join_names, short_repr
from pcfed.problem import Agent
from pcfed.training.setup import feature_matrix


def build_agent(path: Path, file: AgentFile, model: ServerModel) -> Agent:
    """Return an agent with its data, its set and its coupling.

    Parameters
    ----------
    path : Path
        The path of agent.toml; the data file is relative to its folder.
    file : AgentFile
        The contents of agent.toml.
    model : ServerModel
        What is trained, as the server sent it.
    """
    text = () if model.labels is None else (file.target,)
    table = read_table(path.parent / file.file, text=text)
    X = feature_matrix(table, model.features)
    y = _targets(table, file.target, model.labels)
    loss = model.kind.build_loss(
        X, y, model.labels, intercept=model.intercept, l2=model.l2, dtype=model.dtype
    )
    return Agent(loss, file.constraint, file.coupling, name=file.name)


def _targets(table: Table, target: str, labels: tuple[str, ...] | None) -> NDArray[Any]:
    """Return the numbers of the target column, or the positions of its labels."""
    if labels is None:
        return table.numbers(target)
    positions = {label: i for i, label in enumerate(labels)}
    found = table.column(target).tolist()
    unknown = sorted({label for label in found if label not in positions})
    if unknown:
        raise ValueError(
            f"{table.where}: the column {short_repr(target)} must contain labels of the training, "
            f"got {join_names(unknown, 3)}; the labels are {join_names(labels, 6)}."
        )
    return np.array([positions[label] for label in found])
