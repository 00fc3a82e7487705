"""SCAFFOLD: FedAvg with control variates against the drift of local steps."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from pcfed.algorithms.base import PenaltyAlgorithm, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.local_descent import descend
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import Schedule
from pcfed.arrays import Array, Float64Array
from pcfed.validation import positive


@register
@dataclass(frozen=True)
class Scaffold(PenaltyAlgorithm):
    r"""Stochastic controlled averaging on the penalised objective.

    An agent corrects its gradients by $c - c_i$, and after the round sets
    $c_i \leftarrow c_i - c + (x - y_i)/(H \gamma)$ (option II). The model is averaged over
    the participants, c over all m agents.

    Parameters
    ----------
    step, penalty : float or callable
        As in `FedAvg`.
    server_step : float
        The factor on the mean difference at the server.

    References
    ----------
    Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning" (2020),
    Algorithm 1.

    Examples
    --------
    >>> Scaffold(step=0.01, server_step=1.0)
    Scaffold(step=0.01, penalty=0.0, server_step=1.0)
    """

    penalty: Schedule = 0.0
    _: KW_ONLY
    server_step: float = 1.0

    sends: ClassVar[tuple[str, ...]] = ("delta", "delta_c")

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("Scaffold: server_step", self.server_step)

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models, without corrections."""
        x = models.mean(axis=0)
        return {"x": x, "c": np.zeros_like(x)}, {"c": np.zeros_like(models)}

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take corrected local steps; send the differences of the model and of c_i."""
        x, c = (received[name].astype(context.dtype)[None] for name in ("x", "c"))
        correction = context.empty()
        np.subtract(received["c"], private["c"], out=correction, casting="same_kind")
        y = descend(context, x, round_info, correction=correction)
        delta, delta_c = np.subtract(y, x, out=y), correction
        np.divide(delta, -context.steps * round_info.step, out=delta_c)
        delta_c -= c
        return Update(sent={"delta": delta, "delta_c": delta_c}, pending={"delta_c": delta_c})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean difference of the participants, and move c by the sum over m."""
        return {
            "x": server["x"] + self.server_step * sums.vectors["delta"] / sums.num_aggregated,
            "c": server["c"] + sums.vectors["delta_c"] / round_info.m,
        }

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Move the agent's own control variate."""
        return {"c": private["c"] + pending["delta_c"]}

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        """Return the agents' own control variates, whose mean is the server's."""
        return {"c": private["c"]}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the shared model."""
        return server["x"]

    def average(self, server: Vectors) -> Array:
        """Return the shared model."""
        return server["x"]
