"""Local: every agent trains alone, the baseline that cooperation should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pcfed.algorithms.base import PenaltyAlgorithm, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.local_descent import descend
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import Schedule
from pcfed.arrays import Array, Float64Array


@register
@dataclass(frozen=True)
class Local(PenaltyAlgorithm):
    r"""Every agent minimises $f_i(x) + \frac\rho2 \operatorname{dist}(x, X_i)^2$ alone.

    Nothing is sent.

    Parameters
    ----------
    step, penalty : float or callable
        As in `FedAvg`.

    Examples
    --------
    >>> Local(step=0.01, penalty=10.0)
    Local(step=0.01, penalty=10.0)
    """

    penalty: Schedule = 0.0

    sends: ClassVar[tuple[str, ...]] = ()

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start every agent at its own model."""
        return {}, {"x": models.copy()}

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps from the agent's own model."""
        x = context.rows(private["x"])
        y = descend(context, x, round_info)
        context.release(x)
        return Update(sent={}, pending={"x": y})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Return the server's state, which is empty."""
        return server

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Keep the new model."""
        return {"x": pending["x"]}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the agent's own model."""
        return private["x"]

    def average(self, server: Vectors) -> None:
        """Return None: the server does not know the average."""
        return
