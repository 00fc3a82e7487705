r"""A certificate: a bound on the distance from the optimum that needs no constants.

Letters: $\hat x_i = \Pi_{X_i}[x_i]$ the feasible models, $\hat z$ their mean, $q_j$ agent j's
block of the gradient of f there, $h_j$ the support function of its set.

$$ f(\hat x) - f^* \;\le\; \sum_j \max_{s \in X_j} \langle q_j, \hat x_j - s \rangle
   = \sum_j \big( \langle q_j, \hat x_j \rangle + h_j(-q_j) \big), \qquad
   q_j = \frac1m \big( \bar g + \sigma_j (\hat x_j - \hat z) \big), \quad
   \bar g = \frac1m \sum_i \big( \nabla f_i(\hat z) - \sigma_i (\hat x_i - \hat z) \big) $$

The sums take three exchanges. In each, an agent computes a term from the means that it received and
from its own data, and the server only needs the sum of these terms:

===================  =======================  ================================================
function             needs                    returns
===================  =======================  ================================================
``feasible_model``   the own model            $\hat x_i$
``objective_terms``  $\hat z$                 the terms of the objective and of $\bar g$
``gap_term``         $\hat z$, $\bar g$       the term of the gap
===================  =======================  ================================================

In a simulation, where exchanges are cheap, `pcfed.guarantees.tighten` then finds a smaller gap.

A point $\hat x_i$ on the boundary reveals something about the set to a server that reads single
terms. On a network the certificate therefore needs the agents' consent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.tighten import couplings, tighten
from pcfed.notebook import html_table
from pcfed.problem import Agent, Problem
from pcfed.sets import ProjectionError
from pcfed.simulation import Evaluation
from pcfed.simulation.result import Result
from pcfed.validation import count, positive

TIGHTENING_STEPS = 2000
"""Default limit on the steps that make the gap smaller."""

MAX_TIGHTENING_FACTOR = 100.0
"""Tightening is only tried on gaps up to this multiple of the tolerance.

It divides gaps by less than that in all problems we measured, so that beyond it the steps would be
wasted.
"""


@dataclass(frozen=True, eq=False)
class ObjectiveTerms:
    r"""An agent's terms of the objective and of its gradient; all of them are summed.

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


def feasible_model(agent: Agent, model: Array) -> Float64Array:
    r"""Return the agent's feasible model $\hat x_i = \Pi_{X_i}[x_i]$: first exchange.

    Parameters
    ----------
    agent : Agent
        The agent, for its set.
    model : array of shape (n,)
        Its model $x_i$, feasible or not.
    """
    feasible = agent.feasible_set.project(np.asarray(model, np.float64))
    return feasible.astype(np.float64, copy=False) + 0.0  # so that −0 is 0


def objective_terms(agent: Agent, model: Array, average: Array) -> ObjectiveTerms:
    r"""Return the agent's terms of the objective and of $\bar g$: second exchange.

    The loss is evaluated in float64, whatever the dtype of its data.

    Parameters
    ----------
    agent : Agent
        The agent, for its loss and its coupling.
    model : array of shape (n,)
        The result of `feasible_model`.
    average : array of shape (n,)
        The mean $\hat z$ of the feasible models.
    """
    loss = agent.loss.to_float64()
    deviation = model - average
    objective = loss.value(average) + agent.coupling / 2 * float(deviation @ deviation)
    gradient = loss.gradient(average) - agent.coupling * deviation
    return ObjectiveTerms(objective, gradient.astype(np.float64, copy=False), int(not loss.convex))


def gap_term(agent: Agent, model: Array, average: Array, mean_gradient: Array, m: int) -> float:
    r"""Return $\max_{s \in X_j} \langle q_j, \hat x_j - s\rangle$: third exchange.

    Parameters
    ----------
    agent : Agent
        The agent, for its set and its coupling.
    model : array of shape (n,)
        The result of `feasible_model`.
    average, mean_gradient : array of shape (n,)
        The means $\hat z$ and $\bar g$ of the first and the second exchange.
    m : int
        Number of agents.
    """
    q = _gradient_block(agent, model, average, mean_gradient, m)
    return max(0.0, float(q @ model) + agent.feasible_set.support_bound(-q))


def gap_sentence(objective: float | None, gap: float | None, reason: str | None) -> str:
    """Return a certificate as one sentence.

    Parameters
    ----------
    objective, gap : float or None
        Objective of the feasible models, and the bound on its distance from the optimum; None
        where there is none.
    reason : str or None
        Why there is no finite gap.

    Examples
    --------
    >>> gap_sentence(2.0, 0.5, None)
    'Projected onto their sets, the models have objective 2, at most 0.5 (25 %) above the optimum.'
    >>> gap_sentence(2.0, None, "the loss of agent 3 is not convex")
    'No certificate: the loss of agent 3 is not convex.'
    """
    if objective is None or gap is None or not math.isfinite(gap):
        return f"No certificate: {(reason or 'the gap is not finite').rstrip('.')}."
    percent = f" ({100 * gap / abs(objective):.2g} %)" if objective else ""
    return (
        f"Projected onto their sets, the models have objective {objective:.6g}, at most "
        f"{gap:.3g}{percent} above the optimum."
    )


@dataclass(frozen=True, eq=False)
class Certificate:
    r"""Feasible models, and a bound on their distance from the optimum.

    Attributes
    ----------
    objective : float
        $f(\hat x)$ of the feasible models.
    gap : float or None
        $f(\hat x) - f^* \le$ ``gap``. Infinite where a set gives no bound, None where a loss is
        not convex; ``reason`` says why.
    models : Array
        (m, n): $\hat x_i$, every one in its agent's set, one row per agent.
    infeasibility : Array
        Per agent, the distance of the given model from its set: how far it was moved.
    gap_terms : Array
        Per agent, its term of the gap; the gap is their sum.
    witness : Array
        (m, n): the point that proves the gap, see `pcfed.guarantees.tighten`.
    reason : str or None
        Why there is no finite gap.
    """

    objective: float
    gap: float | None
    models: Float64Array
    infeasibility: Float64Array
    gap_terms: Float64Array
    witness: Float64Array
    reason: str | None = None

    @property
    def relative_gap(self) -> float | None:
        r"""The gap divided by $|f(\hat x)|$; None where there is no gap."""
        if self.gap is None or self.gap == 0:
            return self.gap
        return self.gap / abs(self.objective) if self.objective else math.inf

    @property
    def sentence(self) -> str:
        """The certificate as one sentence."""
        return gap_sentence(self.objective, self.gap, self.reason)

    def __repr__(self) -> str:
        bound = f"gap {self.gap:.3g}" if self.reason is None else f"no gap: {self.reason}"
        return f"Certificate(objective {self.objective:.6g}, {bound})"

    def _repr_html_(self) -> str:
        pairs = zip(self.infeasibility.tolist(), self.gap_terms.tolist(), strict=True)
        rows = [(i, distance, term) for i, (distance, term) in enumerate(pairs)]
        return html_table(repr(self), ("agent", "distance from its set", "term of the gap"), rows)


def certify(
    problem: Problem,
    result: Result | Array,
    *,
    tightening: int = TIGHTENING_STEPS,
    witness: Float64Array | None = None,
) -> Certificate:
    r"""Make models feasible and bound their distance from the optimum.

    $$ f(\hat x) - f^* \le \sum_j \max_{s \in X_j} \langle \nabla_j f(\hat x), \hat x_j - s \rangle,
       \qquad \hat x_i = \Pi_{X_i}[x_i] $$

    This costs one full gradient. Further projections give a bound that is often far smaller: it
    linearises the losses but not the coupling (`pcfed.guarantees.tighten`). The bound holds for any
    models, up to rounding in float64, whichever algorithm computed them.

    Parameters
    ----------
    problem : Problem
        The agents.
    result : Result or array
        The result of `pcfed.run`, or models: (m, n), or (n,) for one shared model.
    tightening : int
        Maximal number of steps that make the gap smaller, each with one projection per agent; 0
        evaluates the formula above.
    witness : array of shape (m, n), optional
        Start of these steps: the witness in the certificate of similar models, for example of an
        earlier round.

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
    models = np.stack([feasible_model(*pair) for pair in zip(problem.agents, x, strict=True)])
    average = models.mean(axis=0)
    objective, gradient, nonconvex = _mean_terms(problem, models, average)
    pairs = zip(problem.agents, models, strict=True)
    gap_terms = np.array([gap_term(*pair, average, gradient, problem.m) for pair in pairs])
    proof = models
    if tightening and not nonconvex and math.isfinite(gap_terms.sum()):
        # ḡ has the gradient of the coupling in it, which tightening treats exactly: take it out.
        force = couplings(problem.agents) * (models - average)
        loss_gradient = gradient + force.mean(axis=0)
        tight = tighten(problem.agents, models, loss_gradient, tightening, witness)
        gap_terms, proof = tight.gap_terms, tight.witness
    return Certificate(
        objective=objective,
        gap=None if nonconvex else float(gap_terms.sum()),
        models=models,
        infeasibility=np.linalg.norm(models - x, axis=1),
        gap_terms=gap_terms,
        witness=proof,
        reason=_reason(problem, models, average, gradient, gap_terms),
    )


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
    _witness: Float64Array | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive("Gap: tolerance", self.tolerance)

    def __call__(self, evaluation: Evaluation) -> bool:
        """Return whether the models of an evaluated round are within the tolerance."""
        problem = evaluation.problem
        if self._witness is not None and self._witness.shape != (problem.m, problem.n):
            self._witness = None  # it belongs to a run of another problem
        try:
            certificate = certify(problem, evaluation.models, tightening=0)
            tolerance = self.tolerance * (abs(certificate.objective) if self.relative else 1.0)
            gap = certificate.gap
            if gap is not None and tolerance < gap < MAX_TIGHTENING_FACTOR * tolerance:
                certificate = certify(problem, certificate.models, witness=self._witness)
                self._witness = certificate.witness
        except (ProjectionError, ValueError):  # the models are too large to project
            return False
        if certificate.gap is None:
            raise ValueError(
                f"Gap: there must be a certificate to stop at, but {certificate.reason}; "
                "use another stop rule."
            )
        return certificate.gap <= tolerance

    def state_dict(self) -> dict[str, Array]:
        """Return what a checkpoint must store."""
        return {} if self._witness is None else {"witness": self._witness}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned."""
        witness = state.get("witness")
        self._witness = None if witness is None else witness.astype(np.float64)


def _mean_terms(
    problem: Problem, models: Float64Array, average: Float64Array
) -> tuple[float, Float64Array, int]:
    """Return the objective, ḡ and the number of losses that are not convex."""
    objective, gradient, nonconvex = 0.0, np.zeros(problem.n), 0
    for agent, model in zip(problem.agents, models, strict=True):
        terms = objective_terms(agent, model, average)
        objective += terms.objective / problem.m
        gradient += terms.gradient
        nonconvex += terms.nonconvex
    return objective, gradient / problem.m, nonconvex


def _gradient_block(
    agent: Agent, model: Array, average: Array, mean_gradient: Array, m: int
) -> Float64Array:
    """Return q_j, the agent's block of the gradient of f."""
    q: Float64Array = (mean_gradient + agent.coupling * (model - average)) / m
    return q


def _reason(
    problem: Problem,
    models: Float64Array,
    average: Array,
    mean_gradient: Array,
    gap_terms: Float64Array,
) -> str | None:
    """Return why there is no finite gap; None if there is one."""
    agents, names = problem.agents, problem.names
    for agent, name in zip(agents, names, strict=True):
        if not agent.loss.convex:
            return f"the loss of {name} is not convex"
    for agent, name, model, term in zip(agents, names, models, gap_terms, strict=True):
        if math.isinf(term):
            q = _gradient_block(agent, model, average, mean_gradient, problem.m)
            why = agent.feasible_set.support_reason(-q)
            return f"the set of {name} has no bound along its gradient ({why})"
    return None
