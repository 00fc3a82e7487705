"""What agents and server say to each other, whatever carries it.

    train      server: a round begins, with its facts and the server's vectors
               agent: the vectors that are summed
    finish     server: no round follows; agent: nothing but that it has heard it
    audit      server: which sums to send; agent: three numbers for each audited vector
    model, slope, share
               the three steps of the certificate (`pcfed.federation.certification`)

With every message the server says which of the agent's updates was the last to be counted. With
every reply an agent says whether its owner agrees to certificates, and what else the owner allows
to be told: nothing by default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm, FedAvg, FedProx, Local, PCFedAvg, RoundInfo, Scaffold
from pcfed.arrays import Array, Float64Array

METHODS: dict[str, type[Algorithm]] = {
    kind.__name__: kind for kind in (PCFedAvg, FedAvg, FedProx, Scaffold, Local)
}
OPTIONS = {"PCFedAvg": ("exact",), "FedProx": ("prox",), "Scaffold": ("server_step",)}
"""What agents must know of a method beside the step and the penalty of the round."""

MEASURES = ("loss", "accuracy", "infeasibility", "rows")
"""What an agent's owner may allow to be told, all of its own model on its own data."""

AUDITS = 3
"""Numbers that an agent sends for each audited vector."""

Fact = str | int | float | bool


@dataclass(frozen=True, eq=False)
class Message:
    """One message: its kind, facts, and named vectors."""

    kind: str
    facts: Mapping[str, Fact]
    vectors: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Counted:
    """The last update of an agent that the server has counted.

    Attributes
    ----------
    round : int
        Of which round it was; −1 for none yet.
    steps : int
        Local steps that were counted in that round, all agents together.
    """

    round: int = -1
    steps: int = 0


def describe(algorithm: Algorithm) -> dict[str, Fact]:
    """Return what agents must know of a method."""
    name = type(algorithm).__name__
    return {"method": name, **{key: getattr(algorithm, key) for key in OPTIONS.get(name, ())}}


def method_of(facts: Mapping[str, Fact]) -> Algorithm:
    """Return the method that facts describe, with the step and the penalty of the round."""
    name = str(facts["method"])
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    options: dict[str, Any] = {key: facts[key] for key in OPTIONS.get(name, ())}
    return METHODS[name](float(facts["step"]), float(facts["penalty"]), **options)


def facts_of(facts: RoundInfo) -> dict[str, Fact]:
    """Return the facts of a round as a message has them."""
    return {
        "round": facts.index,
        "m": facts.m,
        "step": facts.step,
        "penalty": facts.penalty,
        "max_local_steps": facts.max_local_steps,
    }


def round_of(facts: Mapping[str, Fact]) -> RoundInfo:
    """Return the facts of a round in a message."""
    return RoundInfo(
        index=int(facts["round"]),
        m=int(facts["m"]),
        step=float(facts["step"]),
        penalty=float(facts["penalty"]),
        max_local_steps=int(facts["max_local_steps"]),
    )


def directions(training: str, rounds: int, n: int) -> Float64Array:
    """Return the public random vectors of an audit, one a row.

    Parameters
    ----------
    training : str
        Name of the training.
    rounds : int
        Number of rounds done: another audit has other vectors.
    n : int
        Number of parameters.
    """
    key = hashlib.sha256(f"{training} {rounds}".encode()).digest()
    return np.random.default_rng(list(key)).standard_normal((AUDITS, n))
