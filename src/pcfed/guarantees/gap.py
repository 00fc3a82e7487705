"""`Gap`: stop a run once its models are certified."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.certificate import certify
from pcfed.guarantees.federated_certificate import certificate_of
from pcfed.guarantees.tighten import MAX_TIGHTENING_FACTOR
from pcfed.problem import Problem
from pcfed.sets import ProjectionError
from pcfed.simulation import Evaluation
from pcfed.validation import boolean, positive

MAX_TIGHTENED_AGENTS, MAX_TIGHTENED = 10_000, 2**24
"""Tightening, in one process, is only tried on so many agents and numbers of models."""


@dataclass
class Gap:
    r"""Stop a run once its models are certified: ``run(..., stop=Gap(1e-3))``.

    Every evaluated round costs a certificate: about one full gradient and, where the gap is not far
    from the tolerance, some projections. ``eval_every`` makes them rarer. The models of the result
    are within the tolerance once `certify` has made them feasible.

    Parameters
    ----------
    tolerance : float
        The run ends when $f(\hat x) - f^* \le$ ``tolerance`` is certain.
    relative : bool
        Whether the tolerance is relative to $|f(\hat x)|$.

    Raises
    ------
    ValueError
        When called, if a loss is not convex, so that there is no gap.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed import Agent, PCFedAvg, Problem, run
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    >>> problem = Problem([Agent(loss, L1Ball(radius), coupling=0.1) for radius in (1, 5)])
    >>> result = run(problem, PCFedAvg(step=0.1, penalty=5.0), rounds=900, stop=Gap(0.05))
    >>> result.status
    'stopped'
    >>> certify(problem, result).gap < 0.05
    True
    """

    tolerance: float
    relative: bool = False
    relative_gap: float | None = field(default=None, init=False, repr=False, compare=False)
    """The certified relative gap of the last evaluated round, None before there is one."""
    _witness: Float64Array | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive("Gap: tolerance", self.tolerance)
        boolean("Gap: relative", self.relative)

    def __call__(self, evaluation: Evaluation) -> bool:
        """Return whether the models of an evaluated round are within the tolerance."""
        problem = evaluation.problem
        if self._witness is not None and self._witness.shape != (problem.m, problem.n):
            self._witness = None  # it belongs to a run of another problem
        try:
            certificate = certificate_of(evaluation)
        except (ProjectionError, ValueError):  # the models are too large to project
            return False
        objective, gap = abs(certificate.objective), certificate.gap
        if gap is None:
            if not certificate.convex:
                _refuse_nonconvex(problem)
            gap = math.inf
        if not math.isfinite(objective):
            return False
        tolerance = self.tolerance * (objective if self.relative else 1.0)
        if self._can_tighten(problem) and tolerance < gap < MAX_TIGHTENING_FACTOR * tolerance:
            gap = self._tightened(evaluation)
        self.relative_gap = gap / objective if objective else math.inf if gap else 0.0
        return gap <= tolerance

    @staticmethod
    def _can_tighten(problem: Problem) -> bool:
        """Return whether steps on all models together are possible."""
        few = problem.m <= MAX_TIGHTENED_AGENTS and problem.m * problem.n <= MAX_TIGHTENED
        return few and not problem.is_lazy

    def _tightened(self, evaluation: Evaluation) -> float:
        """Return a smaller gap."""
        problem = evaluation.problem
        center = evaluation.center if problem.center == "free" else None
        certificate = certify(problem, evaluation.models, center=center, witness=self._witness)
        self._witness = certificate.witness
        return math.inf if certificate.gap is None else certificate.gap

    def state_dict(self) -> dict[str, Array]:
        """Return what a checkpoint must store."""
        return {} if self._witness is None else {"witness": self._witness}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned."""
        witness = state.get("witness")
        self._witness = None if witness is None else witness.astype(np.float64)


def _refuse_nonconvex(problem: Problem) -> None:
    """Raise a ValueError if an agent has a loss that is not convex."""
    for i, agent in enumerate(problem.agents):
        if not agent.loss.convex:
            raise ValueError(
                f"Gap: there must be a certificate to stop at, but the loss of {problem.names[i]} "
                "is not convex; use another stop rule."
            )
