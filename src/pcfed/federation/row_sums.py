r"""Sums over the rows of all agents, of which the server sees no summand.

=============  =============  ====================================================================
message        vectors in it  reply of an agent, masked
=============  =============  ====================================================================
``totals``     none           its number of rows, and the sum of each column
``squares``    the means      the sums of differences from the means, and of their squares
``score``      none           its number of held-out rows, and the sum of their losses
=============  =============  ====================================================================

The first two standardise the data with common means and scales (`pcfed.standardize`), before the
first round. The third, after the last round, says how good all models are on rows that they were
not trained on; two trainings with different settings can be compared by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.federation.protocol import NO_ROUND, Message, ProtocolError, Scalar
from pcfed.problem import Agent
from pcfed.standardize import Scaling, mean_of_totals, send_squares, send_totals
from pcfed.storage.reading import parse_json

TOTALS, SQUARES, SCORE = "totals", "squares", "score"
ROW_SUMS = (TOTALS, SQUARES, SCORE)
"""The kinds of messages."""

COLUMN_MEAN = "column_mean"
"""The name of the vector of means that the server sends."""

SCALING = "scaling"
"""The metadata with the scaling, in all messages that need it."""

MAX_SCALE = 1e100
"""With larger or smaller means and scales, whether rows can be scaled would tell their size."""

SumAll = Callable[[str, int, Mapping[str, Array]], Float64Array]
"""Sends a message of a kind, with vectors, to all agents; returns the sum of so many numbers."""


class Standardization(NamedTuple):
    """What is standardised.

    Attributes
    ----------
    features : int
        Number of features.
    intercept : bool
        Whether the model has an intercept; only then columns are centred.
    target : bool
        Whether the target is centred, too: where it is a number and there is an intercept.
    """

    features: int
    intercept: bool
    target: bool


@dataclass(frozen=True)
class HeldOutScore:
    """How good the models of all agents are on held-out rows.

    Attributes
    ----------
    rows : int
        Number of held-out rows of all agents.
    loss : float
        The mean loss of a row.
    """

    rows: int
    loss: float

    @property
    def sentence(self) -> str:
        """The score as one sentence."""
        return f"The mean loss on {self.rows:,} held-out rows of all agents is {self.loss:.4g}."


def row_sums_reply(
    message: Message, agent: Agent, model: Array, columns: Float64Array | None
) -> Float64Array:
    """Return an agent's summands.

    Parameters
    ----------
    message : Message
        The server's message.
    agent : Agent
        The agent.
    model : array of shape (n,)
        Its model.
    columns : array of shape (rows, columns), optional
        Its rows for training as they are in its file.
    """
    if message.kind == SCORE:
        if agent.test is None:
            return np.zeros(2)
        rows, loss = agent.test.size, agent.test.value(agent.feasible_set.project(model))
        return np.array([rows, rows * loss])
    if columns is None:
        raise ProtocolError("its model is not standardized")
    if message.metadata["accepted_round"] != NO_ROUND:
        raise ProtocolError("sums for standardization are taken before the first round")
    if message.kind == TOTALS:
        return send_totals(columns)
    return send_squares(columns, message.vectors[COLUMN_MEAN]).ravel()


def federated_scaling(sum_all: SumAll, what: Standardization) -> Scaling:
    """Return the common means and scales of all agents."""
    columns = what.features + what.target
    totals = sum_all(TOTALS, 1 + columns, {})
    if not totals[0] >= 1:
        raise ValueError(f"The agents have {totals[0]:g} rows in total; they need at least one.")
    mean = mean_of_totals(totals, intercept=what.intercept)
    squares = sum_all(SQUARES, 2 * columns, {COLUMN_MEAN: mean})
    scaling = Scaling.from_sums(totals, squares.reshape(2, columns), intercept=what.intercept)
    return scaling.split_target() if what.target else scaling


def held_out_score(sum_all: SumAll) -> HeldOutScore | None:
    """Return the score of all models on held-out rows; None if no agent holds rows out."""
    rows, loss = sum_all(SCORE, 2, {}).tolist()
    return HeldOutScore(round(rows), loss / rows) if rows >= 1 else None


def scaling_metadata(scaling: Scaling) -> dict[str, Scalar]:
    """Return what messages say about a scaling; `read_scaling` is the inverse."""
    numbers = {"mean": scaling.mean.tolist(), "scale": scaling.scale.tolist()}
    more = {"intercept": scaling.intercept, "target_mean": scaling.target_mean}
    return {SCALING: json.dumps({**numbers, **more})}


def read_scaling(metadata: Mapping[str, Scalar], features: int | None = None) -> Scaling | None:
    """Return the scaling in the metadata of a message or of a file; None if there is none.

    It must be one of so many features, if their number is given.
    """
    if SCALING not in metadata:
        return None
    found = parse_json(str(metadata[SCALING]))
    mean, scale = (np.array(found[name], np.float64) for name in ("mean", "scale"))
    target_mean = float(found["target_mean"])
    if not (
        mean.shape == scale.shape == (mean.size if features is None else features,)
        and (np.abs([*mean, target_mean]) <= MAX_SCALE).all()
        and (scale >= 1 / MAX_SCALE).all()
        and (scale <= MAX_SCALE).all()
    ):
        raise ProtocolError("the server's means and scales are not those of the features")
    return Scaling(mean, scale, bool(found["intercept"]), target_mean)
