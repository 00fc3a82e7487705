r"""The certificate over messages: three exchanges, in which agents send only what is summed.

=========  =======================  ===============================================
message    brings                   the agent replies with
=========  =======================  ===============================================
``model``  nothing more             its feasible model $\hat x_i$
``slope``  $\hat z$                 its objective and its summand of $\bar g$
``share``  $\hat z$, $\bar g$       its summand of the gap
=========  =======================  ===============================================

The mathematics is that of `pcfed.guarantees.certificate`. A server that reads single summands sees
$\hat x_i$, which tells something of the agent's set, so every owner must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.federation.protocol import Fact, Message
from pcfed.guarantees import feasible_model, gap_sentence, gap_term, objective_terms
from pcfed.problem import Agent

STEPS: dict[str, tuple[str, ...]] = {"model": ("model",), "slope": ("gradient",), "share": ()}
"""The messages, and the vectors that each brings back."""

AVERAGE, SLOPE = "feasible_average", "feasible_slope"
"""What the means are called on their way to the agents."""

Ask = Callable[[str, Mapping[str, Array]], Mapping[str, Message]]
"""Sends a message of a kind, with vectors, to all agents and returns all replies by name."""


@dataclass(frozen=True)
class Certified:
    r"""What is certain of the feasible models of all agents.

    Attributes
    ----------
    round : int
        After how many rounds.
    objective : float
        $f(\hat x)$.
    gap : float or None
        $f(\hat x) - f^* \le$ ``gap``; None if there is no such number.
    reason : str or None
        Why there is none.
    """

    round: int
    objective: float
    gap: float | None
    reason: str | None

    def within(self, tolerance: float) -> bool:
        """Whether the gap is at most this share of the objective."""
        return self.gap is not None and self.gap <= tolerance * abs(self.objective)

    @property
    def sentence(self) -> str:
        """The certificate as one sentence."""
        return gap_sentence(self.objective, self.gap, self.reason)


def part_of(
    kind: str, agent: Agent, model: Array, received: Mapping[str, Array], m: int
) -> tuple[dict[str, Array], dict[str, Fact]]:
    """Return the vectors and the numbers with which an agent replies.

    Parameters
    ----------
    kind : {"model", "slope", "share"}
        Which step it is.
    agent : Agent
        Its data, set and coupling.
    model : Array
        Its model, feasible or not.
    received : mapping of str to Array
        The means of the steps before.
    m : int
        Number of agents.
    """
    own = feasible_model(agent, model)
    if kind == "model":
        return {"model": own}, {}
    if kind == "slope":
        slope = objective_terms(agent, own, received[AVERAGE])
        numbers: dict[str, Fact] = {"objective": slope.objective, "nonconvex": slope.nonconvex}
        return {"gradient": slope.gradient}, numbers
    return {}, {"share": gap_term(agent, own, received[AVERAGE], received[SLOPE], m)}


def certify_together(ask: Ask, rounds: int) -> Certified:
    """Return what all agents certify of their models; ``ask`` raises if one of them does not.

    Parameters
    ----------
    ask : callable
        What sends a message to all agents and returns their replies.
    rounds : int
        Number of rounds done.
    """
    average = _mean(ask("model", {}), "model")
    slopes = ask("slope", {AVERAGE: average})
    slope = _mean(slopes, "gradient")
    shares = ask("share", {AVERAGE: average, SLOPE: slope})
    objective = sum(_numbers(slopes, "objective").values()) / len(slopes)
    gaps = _numbers(shares, "share")
    for name, nonconvex in _numbers(slopes, "nonconvex").items():
        if nonconvex:
            return Certified(rounds, objective, None, f"the loss of {name} is not convex")
    for name, gap in gaps.items():
        if not math.isfinite(gap):
            why = f"the set of {name} has no bound along its gradient"
            return Certified(rounds, objective, None, why)
    return Certified(rounds, objective, sum(gaps.values()), None)


def _mean(replies: Mapping[str, Message], name: str) -> Float64Array:
    every = np.stack([reply.vectors[name] for reply in replies.values()]).astype(np.float64)
    return np.asarray(every.mean(axis=0))


def _numbers(replies: Mapping[str, Message], name: str) -> dict[str, float]:
    """Return a number of every reply; what is none counts as infinite."""
    found = {}
    for agent, reply in replies.items():
        value = reply.facts.get(name)
        fine = isinstance(value, (int, float)) and value == value
        found[agent] = float(value) if fine and value is not None else math.inf
    return found
