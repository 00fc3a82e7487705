"""Algorithms whose own models are, if asked, projected onto the agents' own sets."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pcfed.algorithms.base import PenaltyAlgorithm, RoundInfo, StepAlgorithm, Vectors
from pcfed.algorithms.schedules import Schedule
from pcfed.arrays import Array, Float64Array
from pcfed.validation import boolean


@dataclass(frozen=True)
class ConstrainedAlgorithm(StepAlgorithm):
    r"""An algorithm with a choice between projected and unconstrained own models.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma > 0$, as in `StepAlgorithm`.
    constrained : bool
        Whether own models are projected onto the agents' own sets.
    """

    _: KW_ONLY
    constrained: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        boolean(f"{type(self).__name__}: constrained", self.constrained)

    # Only the simulator and the agent itself know the set, so they project where this is true.
    @property
    def feasible(self) -> bool:
        """Whether own models are projected onto the agents' own sets."""
        return self.constrained


@dataclass(frozen=True)
class SharedModelAlgorithm(ConstrainedAlgorithm, PenaltyAlgorithm):
    """An algorithm whose server has one model ``x``, and whose agents have no private state.

    An agent's own model is the shared model, projected onto its own set if ``constrained`` is true.

    Parameters
    ----------
    step, penalty : float or callable
        As in `FedAvg`.
    constrained : bool
        Whether own models are projected onto the agents' own sets.
    """

    penalty: Schedule = 0.0

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models."""
        return {"x": models.mean(axis=0)}, {}

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Return the private state, which is empty."""
        return private

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the shared model; it is projected where ``feasible`` is true."""
        return server["x"]

    def average(self, server: Vectors) -> Array | None:
        """Return the shared model, or None if own models are its projections."""
        return None if self.constrained else self.shared_model(server)

    def shared_model(self, server: Vectors) -> Array | None:
        """Return the shared model."""
        return server["x"]
