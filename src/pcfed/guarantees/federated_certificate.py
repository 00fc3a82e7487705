r"""The certificate from sums: three exchanges, in which agents send only what is summed.

======================  =====================  ==================================================
exchange                vectors in it          reply of an agent
======================  =====================  ==================================================
``feasible_model``      none                   its feasible model $\hat x_i$
``objective_terms``     $\hat c$               its objective, its summand of $\bar g$, $\sigma_i$
``gap_term``            $\hat c$, $\bar g$     its summand of the gap
======================  =====================  ==================================================

If the centre is free, the server knows it: the first exchange is left out, and the third carries
the mean of the couplings, too.

The mathematics is that of `pcfed.guarantees.certificate`. Federations exchange messages, and runs
of agents that are elsewhere or made on demand ask for the sums (`certificate_of`). A server that
reads single summands sees $\hat x_i$, which reveals something about the agent's set, so every owner
must consent; under a secure sum it reads none, and nobody has to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.certificate import (
    feasible_model,
    gap_sentence,
    gap_term,
    objective_terms,
    refuse_private,
)
from pcfed.problem import Agent
from pcfed.simulation import Evaluation

REPLY_VECTORS: dict[str, tuple[str, ...]] = {
    "feasible_model": ("model",),
    "objective_terms": ("gradient",),
    "gap_term": (),
}
"""The kinds of exchanges of a certificate, and the vectors that each reply contains."""

Scalar = str | int | float | bool

CENTER, GRADIENT, COUPLING = "feasible_center", "feasible_gradient", "mean_coupling"
"""Names of what the server sends to the agents; the last only if the centre is free."""

SUMMED_NUMBERS: dict[str, tuple[str, ...]] = {
    "feasible_model": (),
    "objective_terms": ("objective", "coupling", "nonconvex"),
    "gap_term": ("gap", "unbounded"),
}
"""The numbers of each reply that are summed; the last is 1 where a gap is infinite."""


class Totals(NamedTuple):
    """What the server needs to know of all replies to a message of a certificate.

    Attributes
    ----------
    means : mapping of str to Array
        The means of vectors over the agents.
    numbers : mapping of str to float
        The sums of numbers.
    nonconvex, unbounded : str
        Whose loss is not convex, and whose set is unbounded; empty if there is none.
    """

    means: Mapping[str, Float64Array]
    numbers: Mapping[str, float]
    nonconvex: str = ""
    unbounded: str = ""


AskAll = Callable[[str, Mapping[str, Array]], Totals]
"""Sends a message of a kind, with vectors, to all agents; returns the totals of their replies."""


@dataclass(frozen=True)
class FederatedCertificate:
    r"""What is certain about the feasible models of all agents.

    Attributes
    ----------
    round : int
        Number of completed rounds.
    objective : float
        $f(\hat x)$.
    gap : float or None
        $f(\hat x) - f^* \le$ ``gap``; None if there is no such bound.
    reason : str or None
        Why there is no bound.
    convex : bool
        Whether all losses are convex.
    """

    round: int
    objective: float
    gap: float | None
    reason: str | None
    convex: bool = True

    def within(self, tolerance: float) -> bool:
        """Return whether the gap is at most this fraction of the objective."""
        return self.gap is not None and self.gap <= tolerance * abs(self.objective)

    @property
    def metadata(self) -> dict[str, Scalar]:
        """The certificate as metadata of a message."""
        found = {"objective": self.objective, "gap": self.gap, "reason": self.reason}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def sentence(self) -> str:
        """The certificate as one sentence."""
        return gap_sentence(self.objective, self.gap, self.reason)


def certificate_reply(
    kind: str, agent: Agent, model: Array, received: Mapping[str, Array], m: int
) -> tuple[dict[str, Array], dict[str, Scalar]]:
    """Return the vectors and the metadata of an agent's reply.

    ``kind`` is one of ``REPLY_VECTORS``, ``received`` has the averages of the exchanges before, and
    ``m`` is the number of agents. The model need not be feasible.
    """
    feasible = feasible_model(agent, model)
    if kind == "feasible_model":
        return {"model": feasible}, {}
    if kind == "objective_terms":
        terms = objective_terms(agent, feasible, received[CENTER])
        metadata: dict[str, Scalar] = {
            "objective": terms.objective,
            "coupling": terms.coupling,
            "nonconvex": terms.nonconvex,
        }
        return {"gradient": terms.gradient}, metadata
    coupling = float(received[COUPLING][0]) if COUPLING in received else None
    vectors = received[CENTER], received[GRADIENT]
    return {}, {"gap": gap_term(agent, feasible, *vectors, m, mean_coupling=coupling)}


def summands(
    kind: str, vectors: Mapping[str, Array], numbers: Mapping[str, Scalar]
) -> Float64Array:
    """Return an agent's reply as one row of numbers, for a secure sum."""
    values = {name: float(value) for name, value in numbers.items()}
    if kind == "gap_term":
        unbounded = not math.isfinite(values["gap"])
        values = {"gap": 0.0 if unbounded else values["gap"], "unbounded": float(unbounded)}
    scalars = np.array([values[name] for name in SUMMED_NUMBERS[kind]])
    return np.concatenate([*(vectors[name] for name in REPLY_VECTORS[kind]), scalars])


def totals_of_sum(kind: str, row: Float64Array, m: int) -> Totals:
    """Return the totals of a secure sum of `summands` over m agents."""
    names, numbers = REPLY_VECTORS[kind], SUMMED_NUMBERS[kind]
    split = len(row) - len(numbers)
    means = dict(zip(names, np.split(row[:split] / m, max(1, len(names))), strict=False))
    found = dict(zip(numbers, row[split:].tolist(), strict=True))
    anyone = {name: "an agent" if found.get(name) else "" for name in ("nonconvex", "unbounded")}
    return Totals(means, found, **anyone)


def federated_certificate(
    ask_all: AskAll, rounds: int, m: int, center: Array | None = None
) -> FederatedCertificate:
    """Return the certificate of all agents' models after some rounds.

    ``m`` is the number of agents, and ``center`` is the free centre; None if the centre is the
    average of the models.
    """
    c = ask_all("feasible_model", {}).means["model"] if center is None else center
    terms = ask_all("objective_terms", {CENTER: c})
    means: dict[str, Array] = {CENTER: c, GRADIENT: terms.means["gradient"]}
    if center is not None:
        means[COUPLING] = np.array([terms.numbers["coupling"] / m])
    gap = ask_all("gap_term", means)
    objective = terms.numbers["objective"] / m
    if terms.nonconvex:
        reason = f"the loss of {terms.nonconvex} is not convex"
    elif gap.unbounded:
        reason = f"the set of {gap.unbounded} is unbounded along its gradient"
    else:
        return FederatedCertificate(rounds, objective, gap.numbers["gap"], None)
    return FederatedCertificate(rounds, objective, None, reason, convex=not terms.nonconvex)


def certificate_of(evaluation: Evaluation) -> FederatedCertificate:
    """Return the certificate of the models of a round, from sums over agents wherever they are."""
    problem = evaluation.problem
    refuse_private(problem.names, problem.agents if problem.is_private else ())

    def ask_all(kind: str, received: Mapping[str, Array]) -> Totals:
        summands = Summands(kind, dict(received), problem.m)
        return totals_of_sum(kind, evaluation.sum_over_agents(summands), problem.m)

    center = evaluation.center if problem.center == "free" else None
    return federated_certificate(ask_all, evaluation.record.round, problem.m, center)


@dataclass(frozen=True, eq=False)
class Summands:
    """An agent's row of numbers in an exchange, as a function that other processes can call.

    Attributes
    ----------
    kind, received, m
        As in `certificate_reply`.
    """

    kind: str
    received: Mapping[str, Array]
    m: int

    def __call__(self, agent: Agent, model: Array) -> Float64Array:
        """Return the row of an agent with a model."""
        reply = certificate_reply(self.kind, agent, model, self.received, self.m)
        return summands(self.kind, *reply)
