r"""A bound on the distance from the optimum that needs no constants.

Letters: $\hat x_i = \Pi_{X_i}[x_i]$ the feasible models, $\hat z$ their mean, $q_j$ agent j's share
of the gradient of f there, $h_j$ the support function of its set.

$$ f(\hat x) - f^* \;\le\; \sum_j \max_{s \in X_j} \langle q_j, \hat x_j - s \rangle
   = \sum_j \big( \langle q_j, \hat x_j \rangle + h_j(-q_j) \big), \qquad
   q_j = \frac1m \big( \bar g + \sigma_j (\hat x_j - \hat z) \big), \quad
   \bar g = \frac1m \sum_i \big( \nabla f_i(\hat z) - \sigma_i (\hat x_i - \hat z) \big) $$

It takes three rounds. In each, an agent computes a function of what it received and of its own
things, and sends only what is summed:

=================  =======================  ==================================================
step               receives                 sends
=================  =======================  ==================================================
``send_model``     nothing                  $\hat x_i$
``send_slope``     $\hat z$                 its objective, its summand of $\bar g$, its doubts
``send_share``     $\hat z$, $\bar g$       its summand of the gap
=================  =======================  ==================================================

In this process, where rounds cost little, `pcfed.guarantees.tighten` then makes the gap smaller.

A point $\hat x_i$ on the boundary tells something of the set to whoever reads single summands: on a
network this needs the agents' consent until there is a secure sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.tighten import tighten
from pcfed.notebook import html_table
from pcfed.problem import Agent, Problem
from pcfed.sets import ProjectionError
from pcfed.simulation import Evaluation
from pcfed.simulation.result import Result
from pcfed.validation import count, positive


@dataclass(frozen=True, eq=False)
class Slope:
    r"""What an agent sends in the second round; all of it is summed.

    Attributes
    ----------
    objective : float
        $f_i(\hat z) + \frac{\sigma_i}{2} \|\hat x_i - \hat z\|^2$.
    gradient : Array
        $\nabla f_i(\hat z) - \sigma_i (\hat x_i - \hat z)$.
    nonconvex : int
        1 if the loss is not convex, so that there is no bound; otherwise 0.
    """

    objective: float
    gradient: Float64Array
    nonconvex: int


def send_model(agent: Agent, model: Array) -> Float64Array:
    r"""Return the agent's feasible model $\hat x_i = \Pi_{X_i}[x_i]$: first round.

    Parameters
    ----------
    agent : Agent
        Whose set.
    model : array of shape (n,)
        Its model $x_i$, feasible or not.
    """
    feasible = agent.feasible_set.project(np.asarray(model, np.float64))
    return feasible.astype(np.float64, copy=False) + 0.0  # so that −0 is 0


def send_slope(agent: Agent, model: Array, average: Array) -> Slope:
    r"""Return the agent's part of the objective and of $\bar g$: second round.

    The loss is evaluated in float64 whatever the dtype of its data is.

    Parameters
    ----------
    agent : Agent
        Whose loss and coupling.
    model : array of shape (n,)
        What `send_model` returned.
    average : array of shape (n,)
        The mean $\hat z$ of the first round.
    """
    loss = agent.loss.to_float64()
    apart = model - average
    objective = loss.value(average) + agent.coupling / 2 * float(apart @ apart)
    gradient = loss.gradient(average) - agent.coupling * apart
    return Slope(objective, gradient.astype(np.float64, copy=False), int(not loss.convex))


def send_share(agent: Agent, model: Array, average: Array, slope: Array, m: int) -> float:
    r"""Return $\max_{s \in X_j} \langle q_j, \hat x_j - s\rangle$, a part of the gap: third round.

    Parameters
    ----------
    agent : Agent
        Whose set and coupling.
    model : array of shape (n,)
        What `send_model` returned.
    average, slope : array of shape (n,)
        The means $\hat z$ and $\bar g$ of the first and the second round.
    m : int
        Number of agents.
    """
    q = _direction(agent, model, average, slope, m)
    return max(0.0, float(q @ model) + agent.feasible_set.support_bound(-q))


@dataclass(frozen=True, eq=False)
class Certificate:
    r"""Feasible models and how far they can be from the optimum.

    Attributes
    ----------
    objective : float
        $f(\hat x)$ of the feasible models.
    gap : float or None
        $f(\hat x) - f^* \le$ ``gap``. Infinite where a set gives no bound, None where a loss is
        not convex; ``reason`` says why.
    models : Array
        (m, n): $\hat x_i$, every one in its agent's set, one row an agent.
    infeasibility : Array
        Per agent, the distance of the given model from its set: how far it was moved.
    shares : Array
        Per agent, its part of the gap.
    witness : Array
        (m, n): the point that proves the gap, see `pcfed.guarantees.tighten`.
    reason : str or None
        Why there is no finite gap.
    """

    objective: float
    gap: float | None
    models: Float64Array
    infeasibility: Float64Array
    shares: Float64Array
    witness: Float64Array
    reason: str | None = None

    @property
    def relative_gap(self) -> float | None:
        r"""The gap as a share of $|f(\hat x)|$; None where there is no gap."""
        if self.gap is None or self.gap == 0:
            return self.gap
        return self.gap / abs(self.objective) if self.objective else math.inf

    def __repr__(self) -> str:
        bound = f"gap {self.gap:.3g}" if self.reason is None else f"no gap: {self.reason}"
        return f"Certificate(objective {self.objective:.6g}, {bound})"

    def _repr_html_(self) -> str:
        pairs = zip(self.infeasibility.tolist(), self.shares.tolist(), strict=True)
        rows = [(i, moved, share) for i, (moved, share) in enumerate(pairs)]
        return html_table(repr(self), ("agent", "moved to be feasible", "share of the gap"), rows)


TIGHTENING = 2000
"""Steps by which the gap is made smaller, at most."""


def certify(
    problem: Problem,
    result: Result | Array,
    *,
    tightening: int = TIGHTENING,
    witness: Float64Array | None = None,
) -> Certificate:
    r"""Make models feasible and bound their distance from the optimum.

    $$ f(\hat x) - f^* \le \sum_j \max_{s \in X_j} \langle \nabla_j f(\hat x), \hat x_j - s \rangle,
       \qquad \hat x_i = \Pi_{X_i}[x_i] $$

    It costs one full gradient, and projections for a bound that is often smaller by far: it keeps
    the coupling as it is and linearises only the losses (`pcfed.guarantees.tighten`). No constant,
    no step and no algorithm enters: it holds for whatever models are given, up to rounding in
    float64.

    Parameters
    ----------
    problem : Problem
        The agents.
    result : Result or array
        What `pcfed.run` returned, or models: (m, n), or (n,) for one shared model.
    tightening : int
        Largest number of steps that make the gap smaller, each a projection per agent; 0 for the
        formula above as it is.
    witness : array of shape (m, n), optional
        That of the certificate of models which are not far, say of an earlier round: where the
        steps begin.

    Returns
    -------
    Certificate

    Raises
    ------
    ProjectionError
        If a projection fails, for example because a set is empty.

    References
    ----------
    The Frank–Wolfe gap of a convex function over a product of sets: M. Jaggi, "Revisiting
    Frank-Wolfe" (2013), equation (2).

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed import Agent, Problem
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    >>> problem = Problem([Agent(loss, L1Ball(radius), coupling=0.1) for radius in (1, 5)])
    >>> certify(problem, np.zeros(2))
    Certificate(objective 2.5, gap 4.3)
    >>> certify(problem, np.zeros(2), tightening=0)
    Certificate(objective 2.5, gap 4.5)
    >>> certify(problem, np.array([[1.0, 0.0], [4.0, 1.0]]))
    Certificate(objective 0.25, gap 0.025)
    """
    count("certify: tightening", tightening, minimum=0)
    given = result.models if isinstance(result, Result) else np.asarray(result)
    x = problem.as_models("certify: models", given)
    agents, m = problem.agents, problem.m

    models = np.stack([send_model(agent, x_i) for agent, x_i in zip(agents, x, strict=True)])
    average = models.mean(axis=0)

    objective, slope, nonconvex = 0.0, np.zeros(problem.n), 0
    for agent, model in zip(agents, models, strict=True):
        sent = send_slope(agent, model, average)
        objective += sent.objective / m
        slope += sent.gradient
        nonconvex += sent.nonconvex
    slope /= m

    shares = np.array(
        [send_share(*pair, average, slope, m) for pair in zip(agents, models, strict=True)]
    )
    seen = models
    if tightening and not nonconvex and math.isfinite(shares.sum()):
        pulls = [
            agent.coupling * (x_i - average) for agent, x_i in zip(agents, models, strict=True)
        ]
        found = tighten(agents, models, slope + np.mean(pulls, axis=0), tightening, witness)
        shares, seen = found.shares, found.witness
    return Certificate(
        objective=objective,
        gap=None if nonconvex else float(shares.sum()),
        models=models,
        infeasibility=np.linalg.norm(models - x, axis=1),
        shares=shares,
        witness=seen,
        reason=_reason(problem, models, average, slope, shares),
    )


HOPE = 100.0
"""A gap this many times too large may yet be tightened enough; more was not seen."""


@dataclass
class Gap:
    r"""Stop a run once its models are certified: ``run(..., stop=Gap(1e-3))``.

    Every evaluated round costs a certificate, about one full gradient and, where that could make
    the difference, some projections; ``eval_every`` spaces them.
    The models of the result are then within the tolerance once `certify` has made them feasible.

    Parameters
    ----------
    tolerance : float
        The run ends when $f(\hat x) - f^* \le$ ``tolerance`` is certain.
    relative : bool
        Whether the tolerance is a share of $|f(\hat x)|$.

    Raises
    ------
    ValueError
        When called, if a loss is not convex: there would never be a gap.

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
    _witness: Float64Array | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive("Gap: tolerance", self.tolerance)

    def __call__(self, seen: Evaluation) -> bool:
        """Say whether the models of an evaluated round are good enough."""
        try:
            certificate = certify(seen.problem, seen.models, tightening=0)
            goal = self.tolerance * (abs(certificate.objective) if self.relative else 1.0)
            if certificate.gap is not None and goal < certificate.gap < HOPE * goal:
                witness = self._witness
                if witness is not None and witness.shape != certificate.models.shape:
                    witness = None  # of another problem
                certificate = certify(seen.problem, certificate.models, witness=witness)
                self._witness = certificate.witness
        except (ProjectionError, ValueError):  # models that are too wild to project
            return False
        if certificate.gap is None:
            raise ValueError(
                f"Gap: there must be a certificate to stop at, but {certificate.reason}; "
                "stop the run by something else."
            )
        return certificate.gap <= goal

    @property
    def memory(self) -> dict[str, Array]:
        """What the next look depends on, for checkpoints."""
        return {} if self._witness is None else {"witness": self._witness}

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Go on from the memory of an earlier one."""
        witness = memory.get("witness")
        self._witness = None if witness is None else witness.astype(np.float64)


def _direction(agent: Agent, model: Array, average: Array, slope: Array, m: int) -> Float64Array:
    """Return q_j, the agent's share of the gradient."""
    q: Float64Array = (slope + agent.coupling * (model - average)) / m
    return q


def _reason(
    problem: Problem, models: Float64Array, average: Array, slope: Array, shares: Iterable[float]
) -> str | None:
    """Say why there is no finite gap, or return None if there is one."""
    agents, names = problem.agents, problem.names
    for agent, name in zip(agents, names, strict=True):
        if not agent.loss.convex:
            return f"the loss of {name} is not convex"
    for agent, name, model, share in zip(agents, names, models, shares, strict=True):
        if math.isinf(share):
            q = _direction(agent, model, average, slope, problem.m)
            why = agent.feasible_set.support_reason(-q)
            return f"the set of {name} has no bound along its gradient ({why})"
    return None
