r"""The certificate over messages: three exchanges, in which agents send only what is summed.

======================  =====================  ==================================================
message                 vectors in it          reply of an agent
======================  =====================  ==================================================
``feasible_model``      none                   its feasible model $\hat x_i$
``objective_terms``     $\hat z$               its objective and its summand of $\bar g$
``gap_term``            $\hat z$, $\bar g$     its summand of the gap
======================  =====================  ==================================================

The mathematics is that of `pcfed.guarantees.certificate`. A server that reads single summands sees
$\hat x_i$, which reveals something about the agent's set, so every owner must consent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.federation.protocol import Message, Scalar
from pcfed.guarantees import feasible_model, gap_sentence, gap_term, objective_terms
from pcfed.problem import Agent

REPLY_VECTORS: dict[str, tuple[str, ...]] = {
    "feasible_model": ("model",),
    "objective_terms": ("gradient",),
    "gap_term": (),
}
"""The kinds of messages of a certificate, and the vectors that each reply contains."""

AVERAGE, GRADIENT = "feasible_average", "feasible_gradient"
"""Names of the averages that the server sends to the agents."""

AskAll = Callable[[str, Mapping[str, Array]], Mapping[str, Message]]
"""Sends a message of a kind, with vectors, to all agents and returns their replies by name."""


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
    """

    round: int
    objective: float
    gap: float | None
    reason: str | None

    def within(self, tolerance: float) -> bool:
        """Return whether the gap is at most this fraction of the objective."""
        return self.gap is not None and self.gap <= tolerance * abs(self.objective)

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
        terms = objective_terms(agent, feasible, received[AVERAGE])
        metadata: dict[str, Scalar] = {"objective": terms.objective, "nonconvex": terms.nonconvex}
        return {"gradient": terms.gradient}, metadata
    gap = gap_term(agent, feasible, received[AVERAGE], received[GRADIENT], m)
    return {}, {"gap": gap}


def federated_certificate(ask_all: AskAll, rounds: int) -> FederatedCertificate:
    """Return the certificate of all agents' models after some rounds."""
    average = _mean(ask_all("feasible_model", {}), "model")
    gradients = ask_all("objective_terms", {AVERAGE: average})
    gradient = _mean(gradients, "gradient")
    gap_terms = ask_all("gap_term", {AVERAGE: average, GRADIENT: gradient})
    objective = sum(_numbers(gradients, "objective").values()) / len(gradients)
    gaps = _numbers(gap_terms, "gap")
    nonconvex = _numbers(gradients, "nonconvex").items()
    reasons = [f"the loss of {name} is not convex" for name, value in nonconvex if value]
    reasons += [
        f"the set of {name} is unbounded along its gradient"
        for name, gap in gaps.items()
        if not math.isfinite(gap)
    ]
    if reasons:
        return FederatedCertificate(rounds, objective, None, reasons[0])
    return FederatedCertificate(rounds, objective, sum(gaps.values()), None)


def _mean(replies: Mapping[str, Message], name: str) -> Float64Array:
    """Return the mean over agents of a vector of the replies."""
    rows = np.stack([reply.vectors[name] for reply in replies.values()]).astype(np.float64)
    return np.asarray(rows.mean(axis=0))


def _numbers(replies: Mapping[str, Message], name: str) -> dict[str, float]:
    """Return a number of every reply; anything that is not a number becomes infinity."""
    values = {agent: reply.metadata.get(name) for agent, reply in replies.items()}
    return {
        agent: float(x) if isinstance(x, (int, float)) and not math.isnan(x) else math.inf
        for agent, x in values.items()
    }
