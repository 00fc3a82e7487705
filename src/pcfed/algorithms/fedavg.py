r"""FedAvg on the penalised objective: one shared model for all agents.

$$ \min_x \frac1m \sum_i \Big( f_i(x) + \frac\rho2 \operatorname{dist}(x, X_i)^2 \Big) $$
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcfed.algorithms.base import PenaltyAlgorithm, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.local_descent import descend
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import Schedule
from pcfed.arrays import Array, Float64Array


@register
@dataclass(frozen=True)
class FedAvg(PenaltyAlgorithm):
    r"""Federated averaging, with a penalty on each agent's distance from its own set.

    There is one model, which ``result.models`` repeats. The average is over the participants.

    Parameters
    ----------
    step : float or callable
        The local step $\gamma$.
    penalty : float or callable
        The penalty $\rho$; 0 is FedAvg without constraints.

    References
    ----------
    McMahan et al., "Communication-efficient learning of deep networks from decentralized data"
    (2017), with the penalty of the paper's last section.

    Examples
    --------
    >>> FedAvg(step=0.01)
    FedAvg(step=0.01, penalty=0.0)
    """

    penalty: Schedule = 0.0

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models."""
        return {"x": models.mean(axis=0)}, {}

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps from the shared model and send the difference."""
        x = received["x"].astype(context.dtype)[None]
        y = descend(context, x, round_info, prox=self._prox)
        return Update(sent={"delta": np.subtract(y, x, out=y)}, pending={})

    @property
    def _prox(self) -> float:
        """The pull back to the shared model; FedProx has one."""
        return 0.0

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean difference of the participants."""
        return {"x": server["x"] + sums.mean("delta")}

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Return the private state, which is empty."""
        return private

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the shared model."""
        return server["x"]

    def average(self, server: Vectors) -> Array:
        """Return the shared model."""
        return server["x"]
