r"""The certificate over messages: three exchanges, in which agents send only what is summed.

======================  =====================  ==================================================
message                 vectors in it          reply of an agent
======================  =====================  ==================================================
``feasible_model``      none                   its feasible model $\hat x_i$
``objective_terms``     $\hat c$               its objective, its summand of $\bar g$, $\sigma_i$
``gap_term``            $\hat c$, $\bar g$     its summand of the gap
======================  =====================  ==================================================

If the centre is free, the server knows it: the first exchange is left out, and the third carries
the mean of the couplings, too.

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

CENTER, GRADIENT, COUPLING = "feasible_center", "feasible_gradient", "mean_coupling"
"""Names of what the server sends to the agents; the last only if the centre is free."""

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


def federated_certificate(
    ask_all: AskAll, rounds: int, center: Array | None = None
) -> FederatedCertificate:
    """Return the certificate of all agents' models after some rounds.

    ``center`` is the free centre; None if the centre is the average of the models.
    """
    free = center is not None
    c = _mean(ask_all("feasible_model", {}), "model") if center is None else center
    gradients = ask_all("objective_terms", {CENTER: c})
    means = {CENTER: c, GRADIENT: _mean(gradients, "gradient")}
    if free:
        couplings = _numbers(gradients, "coupling").values()
        means[COUPLING] = np.array([sum(couplings) / len(gradients)])
    gap_terms = ask_all("gap_term", means)
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
