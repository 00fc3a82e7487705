r"""A certificate: a bound on the distance from the optimum that needs no constants.

Letters: $\hat x_i = \Pi_{X_i}[x_i]$ the feasible models, $\hat c$ the centre (their mean, unless it
is free), $q_j$ agent j's block of the gradient of f there, $h_j$ the support function of its set.

$$ f(\hat x) - f^* \;\le\; \sum_j \max_{s \in X_j} \langle q_j, \hat x_j - s \rangle
   = \sum_j \big( \langle q_j, \hat x_j \rangle + h_j(-q_j) \big), $$

$$ q_j = \frac1m \big( \theta_j \nabla f_j(\hat x_j) + \sigma_j (\hat x_j - \hat c) + \bar g \big),
   \qquad \bar g = \frac1m \sum_i \big( (1 - \theta_i) \nabla f_i(\hat c)
   - \sigma_i (\hat x_i - \hat c) \big) $$

If the centre is free, it moves by $d = \bar g / \bar\sigma$, $\bar\sigma$ the mean coupling, to
where the tangent plus the coupling is smallest: $\bar g$ in $q_j$ is replaced by $\sigma_j d$, and
the gap grows by $\frac1m \sum_j \frac{\sigma_j}{2} \|d\|^2$ (`pcfed.guarantees.tighten` has the
proof).

The sums take three exchanges. In each, an agent computes a term from the means that it received and
from its own data, and the server only needs the sum of these terms:

===================  =======================  ================================================
function             needs                    returns
===================  =======================  ================================================
``feasible_model``   the own model            $\hat x_i$
``objective_terms``  $\hat c$                 the terms of the objective and of $\bar g$
``gap_term``         $\hat c$, $\bar g$       the term of the gap
===================  =======================  ================================================

In a simulation, where exchanges are cheap, `pcfed.guarantees.tighten` then finds a smaller gap.

A point $\hat x_i$ on the boundary reveals something about the set to a server that reads single
terms. On a network the certificate therefore needs the agents' consent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.tighten import (
    Tangents,
    couplings,
    finite_or_infinite,
    linear_gap,
    tighten,
)
from pcfed.notebook import bar_chart, html_table
from pcfed.problem import Agent, Problem
from pcfed.sets.rounding import MAX_ENTRY
from pcfed.simulation.result import Result
from pcfed.tree_sums import TreeSums, tree_mean, tree_sum
from pcfed.validation import count, instance

TIGHTENING_STEPS = 2000
"""Default limit on the steps that make the gap smaller."""


@dataclass(frozen=True, eq=False)
class ObjectiveTerms:
    r"""An agent's terms of the objective and of its gradient; all of them are summed.

    Attributes
    ----------
    objective : float
        $\theta_i f_i(\hat x_i) + (1 - \theta_i) f_i(\hat c)
        + \frac{\sigma_i}{2} \|\hat x_i - \hat c\|^2$.
    gradient : Array
        $(1 - \theta_i) \nabla f_i(\hat c) - \sigma_i (\hat x_i - \hat c)$.
    coupling : float
        $\sigma_i$.
    nonconvex : int
        1 if the loss is not convex, so that there is no bound; otherwise 0.
    """

    objective: float
    gradient: Float64Array
    coupling: float
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
    _check_agent("feasible_model", agent)
    feasible = agent.feasible_set.project(np.asarray(model, np.float64))
    return feasible.astype(np.float64, copy=False) + 0.0  # so that −0 is 0


def objective_terms(agent: Agent, model: Array, center: Array) -> ObjectiveTerms:
    r"""Return the agent's terms of the objective and of $\bar g$: second exchange.

    The loss is evaluated in float64, whatever the dtype of its data.

    Parameters
    ----------
    agent : Agent
        The agent, for its loss, its coupling and its personalization.
    model : array of shape (n,)
        The result of `feasible_model`.
    center : array of shape (n,)
        The mean of the feasible models, or the free centre.
    """
    _check_agent("objective_terms", agent)
    with np.errstate(all="ignore"):  # certificates check what overflows
        return _objective_terms(agent, model, center)


def _objective_terms(agent: Agent, model: Array, center: Array) -> ObjectiveTerms:
    """Return what `objective_terms` returns."""
    loss, theta = agent.loss.to_float64(), agent.personalization
    deviation = model - center
    objective = agent.coupling / 2 * float(deviation @ deviation)
    gradient = -agent.coupling * deviation
    if theta < 1:
        objective += (1 - theta) * loss.value(center)
        gradient = (1 - theta) * loss.gradient(center) + gradient
    if theta > 0:
        objective += theta * loss.value(model)
    nonconvex = int(not loss.convex)
    return ObjectiveTerms(objective, gradient.astype(np.float64), agent.coupling, nonconvex)


def _check_agent(where: str, agent: object) -> None:
    """Raise a ValueError if the first argument of a function is not an agent."""
    instance(f"{where}: agent", agent, Agent, "give the agent first, one of problem.agents")


def own_gradient(agent: Agent, model: Array) -> Float64Array:
    r"""Return $\theta_j \nabla f_j(\hat x_j)$, in float64."""
    if agent.personalization == 0:
        return np.zeros(agent.loss.n)
    gradient = agent.loss.to_float64().gradient(model).astype(np.float64, copy=False)
    return np.asarray(agent.personalization * gradient)


def gap_term(
    agent: Agent,
    model: Array,
    center: Array,
    mean_gradient: Array,
    m: int,
    *,
    mean_coupling: float | None = None,
) -> float:
    r"""Return the agent's term of the gap: third exchange.

    Parameters
    ----------
    agent : Agent
        The agent.
    model : array of shape (n,)
        The result of `feasible_model`.
    center, mean_gradient : array of shape (n,)
        The centre, and the mean $\bar g$ of the second exchange.
    m : int
        Number of agents.
    mean_coupling : float, optional
        The mean $\bar\sigma$ of the couplings if the centre is free; None if it is the average.
    """
    _check_agent("gap_term", agent)
    with np.errstate(all="ignore"):  # overflow gives an infinite term
        own = own_gradient(agent, model)
        term = _gap_term(agent, model, center, own, mean_gradient, m, mean_coupling)[0]
    return math.inf if math.isnan(term) else term


def _gap_term(
    agent: Agent,
    model: Array,
    center: Array,
    own: Float64Array,
    mean_gradient: Array,
    m: int,
    mean_coupling: float | None,
) -> tuple[float, Float64Array]:
    """Return the agent's term of the gap, and its block q of the gradient."""
    sigma = agent.coupling
    force, moved = mean_gradient, 0.0
    if mean_coupling is not None:
        if mean_coupling == 0:
            unbounded = bool(np.any(mean_gradient))
            return (math.inf if unbounded else linear_gap(agent, model, own / m, model)), own / m
        step = mean_gradient / mean_coupling
        force, moved = sigma * step, sigma / (2 * m) * float(step @ step)
    q = (own + sigma * (model - center) + force) / m
    return linear_gap(agent, model, q, model) + moved, q


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
    center : Array
        (n,): $\hat c$, their mean, or the free centre.
    infeasibility : Array
        Per agent, the distance of the given model from its set: how far it was moved.
    gap_terms : Array
        Per agent, its term of the gap; the gap is their sum.
    witness : Array
        (m, n): the point that proves the gap, see `pcfed.guarantees.tighten`.
    reason : str or None
        Why there is no finite gap.
    names : tuple of str
        The agents' names.
    """

    objective: float
    gap: float | None
    models: Float64Array
    center: Float64Array
    infeasibility: Float64Array
    gap_terms: Float64Array
    witness: Float64Array
    reason: str | None = None
    names: tuple[str, ...] = ()

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
        names = self.names or tuple(f"agent {i}" for i in range(len(self.models)))
        terms = self.gap_terms.tolist()
        rows = list(zip(names, self.infeasibility.tolist(), terms, strict=True))
        columns = ("agent", "distance from its set", "term of the gap")
        chart = bar_chart("term of the gap", names, terms) if self.reason is None else ""
        return html_table(repr(self), columns, rows) + chart


def refuse_private(names: Sequence[str], agents: Sequence[Agent]) -> None:
    """Raise if an agent has a privacy budget: a certificate is computed from its records."""
    for name, agent in zip(names, agents, strict=False):
        if agent.privacy is not None:
            raise ValueError(
                f"certify: agents must have no privacy budget, got one of {name}: a certificate is "
                "computed from the records, which would spend more; project the models with "
                "agent.feasible_set.project to make them feasible."
            )


def certify(
    problem: Problem,
    result: Result | Array,
    *,
    center: Array | None = None,
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
    center : array of shape (n,), optional
        The free centre, where ``result`` has only models; not needed if it is their average.
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
    ValueError
        If an agent has a privacy budget.

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
    instance("certify: problem", problem, Problem, "call certify(problem, result)")
    count("certify: tightening", tightening, minimum=0)
    refuse_private(problem.names, problem.agents if problem.is_private else ())
    given = result.models if isinstance(result, Result) else result
    x = problem.as_models("certify: result", given)
    with np.errstate(all="ignore"):  # what overflows is an error or an infinite gap
        return _certify(problem, result, x, center, tightening, witness)


def _certify(
    problem: Problem,
    result: Result | Array,
    x: Float64Array,
    center: Array | None,
    tightening: int,
    witness: Float64Array | None,
) -> Certificate:
    """Return the certificate of models x, one row per agent."""
    models = np.stack([feasible_model(*pair) for pair in zip(problem.agents, x, strict=True)])
    c = _center(problem, result, models, center)
    means = _mean_terms(problem, models, c)
    if not math.isfinite(means.objective):
        raise ValueError(
            "certify: the objective of the feasible models must be finite, got "
            f"{means.objective}; rescale the data, the targets or the couplings."
        )
    free = problem.center == "free"
    coupling = means.coupling if free else None
    own = np.stack([own_gradient(*pair) for pair in zip(problem.agents, models, strict=True)])
    rows = zip(problem.agents, models, own, strict=True)
    terms = [_gap_term(a, y, c, g, means.gradient, problem.m, coupling) for a, y, g in rows]
    gap_terms = finite_or_infinite(np.array([term for term, _ in terms]))
    proof = models
    if tightening and not means.nonconvex and math.isfinite(gap_terms.sum()):
        # ḡ has the gradient of the coupling in it, which tightening treats exactly: take it out.
        shared = means.gradient + tree_mean(couplings(problem.agents) * (models - c))
        tangents = Tangents(problem.agents, models, c, own, shared, problem.center)
        if tangents.worth_tightening(float(gap_terms.sum())):
            tight = tighten(tangents, tightening, witness)
            gap_terms, proof = tight.gap_terms, tight.witness
    return Certificate(
        objective=means.objective,
        gap=None if means.nonconvex else float(tree_sum(gap_terms)),
        models=models,
        center=c,
        infeasibility=np.linalg.norm(models - x, axis=1),
        gap_terms=gap_terms,
        witness=proof,
        reason=_reason(problem, means, [q for _, q in terms], gap_terms),
        names=problem.names,
    )


def _center(
    problem: Problem, result: Result | Array, models: Float64Array, center: Array | None
) -> Float64Array:
    """Return the centre of feasible models."""
    if problem.center == "average":
        return tree_mean(models)
    if center is None and isinstance(result, Result):
        center = result.center
    if center is None:
        raise ValueError(
            "certify: center must be given where the center of the problem is free, got None; "
            "give a Result, or center=result.center."
        )
    c: Float64Array = problem.as_models("certify: center", center)[0]
    return c


def _mean_terms(problem: Problem, models: Float64Array, center: Float64Array) -> ObjectiveTerms:
    """Return the means of all agents' terms, and the number of losses that are not convex."""
    sums, nonconvex = TreeSums(), 0
    for i, (agent, model) in enumerate(zip(problem.agents, models, strict=True)):
        terms = objective_terms(agent, model, center)
        numbers = np.array([[terms.objective, terms.coupling]])
        sums.add([i], {"gradient": terms.gradient[None], "numbers": numbers})
        nonconvex += terms.nonconvex
    means = {name: total / problem.m for name, total in sums.totals().items()}
    objective, coupling = means["numbers"].tolist()
    return ObjectiveTerms(objective, means["gradient"], coupling, nonconvex)


def _reason(
    problem: Problem,
    means: ObjectiveTerms,
    blocks: Sequence[Float64Array],
    gap_terms: Float64Array,
) -> str | None:
    """Return why there is no finite gap; None if there is one."""
    agents, names = problem.agents, problem.names
    for agent, name in zip(agents, names, strict=True):
        if not agent.loss.convex:
            return f"the loss of {name} is not convex"
    if problem.center == "free" and means.coupling == 0 and not np.isfinite(gap_terms).all():
        return "no agent is coupled to the free center; give one a positive coupling"
    for agent, name, q, term in zip(agents, names, blocks, gap_terms, strict=True):
        if math.isinf(term):
            in_range = np.abs(q).max() <= MAX_ENTRY
            why = agent.feasible_set.support_reason(-q) if in_range else None
            if why is not None:
                return f"the set of {name} has no bound along its gradient ({why})"
            return (
                f"the term of {name} is beyond the range of float64; rescale its data, its "
                "constraint or the couplings"
            )
    return None if math.isfinite(gap_terms.sum()) else "the sum of its terms is beyond float64"
