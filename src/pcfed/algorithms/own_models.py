r"""What methods with a shared model and own models have in common.

The server averages the shared model $x$ over the participants. Every agent has an own model $v_i$,
which is private: it is never sent, and an agent that is absent keeps it. The methods differ in how
an agent moves the two.

Sets are not part of the published methods. Here the steps of own models are projected,

$$ v \leftarrow \Pi_{X_i}\big[ v - \gamma \big( \nabla f_i(v) + \mu (v - x) \big) \big], $$

so that every own model is in its agent's set; ``constrained=False`` leaves the projections out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms.base import RoundInfo, StepAlgorithm, Sums, Vectors
from pcfed.algorithms.constrained import ConstrainedAlgorithm
from pcfed.algorithms.local_context import LocalContext
from pcfed.arrays import Array, Float64Array
from pcfed.validation import positive

OwnStep = float | Literal["auto"]
"""A number, or ``"auto"`` for the step of the round."""


@dataclass(frozen=True)
class OwnStepAlgorithm(StepAlgorithm):
    r"""An algorithm with a step of own models beside that of the shared model.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma$ of the shared model.
    own_step : float or "auto"
        The step of own models; ``"auto"`` is that of the shared model.
    """

    _: KW_ONLY
    own_step: OwnStep = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_step != "auto":
            positive(f"{type(self).__name__}: own_step", self.own_step)

    def _own_step(self, round_info: RoundInfo) -> float:
        """Return the step of own models in a round."""
        return round_info.step if self.own_step == "auto" else self.own_step


# Fields of the last base come first: own_step before constrained.
@dataclass(frozen=True)
class OwnModelAlgorithm(ConstrainedAlgorithm, OwnStepAlgorithm):
    r"""An algorithm with a shared model and an own model of every agent.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma$ of the shared model.
    own_step : float or "auto"
        The step of own models; ``"auto"`` is that of the shared model.
    constrained : bool
        Whether steps of own models are projected onto the agent's own set; with False it is the
        published method.
    """

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start the shared model at the mean, and own models at their own."""
        return {"x": models.mean(axis=0)}, {"v": models.copy()}

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean difference of the participants."""
        return {"x": server["x"] + sums.mean("delta")}

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Keep the new own model."""
        return {"v": pending["v"]}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the agent's own model."""
        return private["v"]

    def average(self, server: Vectors) -> None:
        """Return None: the server does not know the average of own models."""
        return

    def shared_model(self, server: Vectors) -> Array:
        """Return the shared model."""
        return server["x"]


def take_steps(
    context: LocalContext,
    y: Array,
    batches: Iterable[int],
    *,
    step: float,
    project: bool,
    prox: float = 0.0,
    center: Array | None = None,
    entries: NDArray[np.bool_] | None = None,
) -> None:
    r"""Take gradient steps of the agents' models, in place.

    Parameters
    ----------
    context : LocalContext
        The agents' data and sets.
    y : array of shape (agents, n)
        The models, in the dtype of the steps.
    batches : iterable of int
        The batch of each step, numbered from 0 as local steps are.
    step : float
        The length $\gamma$ of the steps.
    project : bool
        Whether each step ends with a projection onto the agent's own set.
    prox : float
        The pull $\mu$ towards ``center``.
    center : array of shape (agents, n) or (1, n), optional
        Needed with ``prox``.
    entries : array of shape (n,), optional
        The entries that change; all by default.
    """
    gamma, mu = y.dtype.type(step), y.dtype.type(prox)
    g, p = context.empty(), context.empty()
    for k in batches:
        context.gradient(y, k, out=g)
        if center is not None and mu:
            np.subtract(y, center, out=p)
            p *= mu
            g += p
        if entries is not None:
            g *= entries
        g *= gamma
        y -= g
        if project and entries is None:
            context.project(y, out=y)
        elif project:
            np.copyto(y, context.project(y, out=p), where=entries)
    context.release(g, p)
