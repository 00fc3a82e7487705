"""The messages between server and agents, independent of the transport that carries them.

    hello      server: which agent is this?
               agent: its name
    train      server: a round starts, with its metadata and the server's vectors
               agent: its update, the vectors that the server sums
    finish     server: there are no more rounds
               agent: an acknowledgement, after it has written its model
    audit      server: asks for a check of the averages that it holds
               agent: three numbers for each audited vector, masked in a secure sum
    feasible_model, objective_terms, gap_term
               the three exchanges of a certificate (`pcfed.federation.certification`)
    totals, squares, score
               sums over the rows of all agents (`pcfed.federation.row_sums`)
    introduce, announce, confirm, unmask
               those of a secure sum (`pcfed.federation.secure_sums`), under which the replies to
               train, audit, the exchanges of a certificate and sums over rows are masked integers

Every message of the server after ``hello`` contains the round of the agent's last accepted update,
and how often the training has gone back to an earlier round (`pcfed.federation.rollback`); in a
training with a secure sum also the context of that update's sum, and who was in it.
Every reply says whether the agent's owner consents to certificates. Metrics are part of a reply
only where the owner allows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, RoundInfo, StepAlgorithm
from pcfed.algorithms.grid import Integers
from pcfed.algorithms.registry import (
    algorithm_names,
    find_algorithm,
    from_mapping,
    parameters,
    to_mapping,
)
from pcfed.arrays import Array, Float64Array
from pcfed.errors import one_line, short_repr
from pcfed.problem import Center
from pcfed.storage.reading import parse_json

PROTOCOL_VERSION = 8
"""Version of the messages. Server and agents must use the same one."""

SCHEDULES = ("step", "penalty")
"""Parameters that may depend on the round, so that they are part of its metadata."""

NUM_AUDIT_DIRECTIONS = 3
"""How many numbers an agent sends for each audited vector."""

NO_ROUND = -1
"""The round of an agent's last accepted update, if no update has been accepted yet."""

MASKED = "masked"
"""The vector of masked integers in the replies of a secure sum."""

SUM_KINDS = ("introduce", "announce", "confirm", "unmask")
"""The kinds of messages about a secure sum itself; they have no vectors."""

INVALID_FIELDS = (
    *(ValueError, ArithmeticError, LookupError),
    *(TypeError, AttributeError, RecursionError),
)
"""What reading missing, wrong or deeply nested fields of a message may raise."""

Scalar = str | int | float | bool


class ProtocolError(ValueError):
    """A message that an agent can't answer, for a reason that it may send to the server.

    The text may repeat what the server sent, and must not contain anything of the agent's own.
    """


@dataclass(frozen=True, eq=False)
class Message:
    """One message.

    Attributes
    ----------
    kind : str
        One of the kinds that this module's docstring lists, or ``"error"``.
    metadata : mapping of str to Scalar
        Texts and numbers.
    vectors : mapping of str to array
        Named vectors.
    """

    kind: str
    metadata: Mapping[str, Scalar]
    vectors: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Transport(Protocol):
    """Carries messages from the server to agents, and their replies back."""

    def exchange(self, messages: Mapping[str, Message], min_present: int) -> Iterable[Message]:
        """Send messages to agents and return the replies that arrived in time.

        Parameters
        ----------
        messages : mapping of str to Message
            The message for each agent, by the agent's name.
        min_present : int
            How many of these agents to wait for before messages are sent.
        """


def check_version(metadata: Mapping[str, Scalar]) -> None:
    """Refuse a message of another version of the protocol."""
    version = metadata.get("protocol")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the server uses version {short_repr(version, 20)} of the protocol and the agent "
            f"version {PROTOCOL_VERSION}; install the same version of pcfed on both sides"
        )


def algorithm_metadata(algorithm: Algorithm) -> dict[str, Scalar]:
    """Return what a message says about an algorithm; `read_algorithm` is the inverse.

    The step and the penalty are part of the metadata of the round (`round_metadata`), because they
    may depend on the round. Parameters that can't be sent raise a ValueError.
    """
    options = to_mapping(algorithm)
    name = options.pop("name")
    for schedule in SCHEDULES:
        options.pop(schedule, None)
    try:
        return {"algorithm": name, "parameters": json.dumps(options)}
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: the parameters must be numbers, texts or lists of them to be sent to agents, "
            f"got {short_repr(options)}; make them so, or compute them in the algorithm."
        ) from None


def read_algorithm(metadata: Mapping[str, Scalar]) -> Algorithm:
    """Return the algorithm of a message, for its centre, with the step and penalty of the round.

    It raises a ProtocolError if the agent's algorithm of that name is unknown or another one.
    """
    name = str(metadata["algorithm"])
    if name not in algorithm_names():
        raise ProtocolError(
            f"the agent does not know the algorithm {short_repr(name)}; its owner must name the "
            'module that registers it, as in imports = ["my_algorithms"], in the agent\'s file'
        )
    options = {**parse_json(str(metadata["parameters"])), "name": name}
    algorithm = find_algorithm(name)
    if issubclass(algorithm, StepAlgorithm):
        known = {each.name for each in parameters(algorithm)}
        options |= {each: float(metadata[each]) for each in SCHEDULES if each in known}
    try:
        center: Center = "free" if metadata.get("center") == "free" else "average"
        return from_mapping(options).for_center(center)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            one_line(f"the algorithm {short_repr(name)} of the agent is not the server's: {error}")
        ) from None


def round_metadata(round_info: RoundInfo) -> dict[str, Scalar]:
    """Return what a message says about a round; `read_round_info` is the inverse."""
    return {
        "round": round_info.index,
        "m": round_info.m,
        "step": round_info.step,
        "penalty": round_info.penalty,
        "max_local_steps": round_info.max_local_steps,
    }


def read_round_info(metadata: Mapping[str, Scalar]) -> RoundInfo:
    """Return the information on a round in the metadata of a message or of a file."""
    return RoundInfo(
        index=int(metadata["round"]),
        m=int(metadata["m"]),
        step=float(metadata["step"]),
        penalty=float(metadata["penalty"]),
        max_local_steps=int(metadata["max_local_steps"]),
    )


def audit_digest(training: str, rounds: int, vectors: Mapping[str, Array]) -> str:
    """Return a hash of the round of an audit and of the server's vectors in it."""
    digest = hashlib.sha256(f"{training} {rounds}".encode())
    for name in sorted(vectors):
        digest.update(f" {name} ".encode())
        digest.update(np.ascontiguousarray(vectors[name], "<f8").tobytes())
    return digest.hexdigest()


NOT_ASKED = frozenset(
    {"position", "accepted_round", "accepted_sum", "participants", "group", "next_place"}
)
"""Metadata in which the messages to different agents, or of different attempts, may differ."""


def question_digest(message: Message, ignored: Set[str] = NOT_ASKED) -> str:
    """Return a hash of what a message asks: its kind, vectors and metadata, without some.

    By default it is the same for all agents and all attempts at a round.
    """
    parts = [f"{key}={value!r}" for key, value in sorted(message.metadata.items())]
    asked = [part for part in parts if part.partition("=")[0] not in ignored]
    digest = hashlib.sha256(repr([message.kind, *asked]).encode())
    for name, vector in sorted(message.vectors.items()):
        digest.update(repr([name, vector.shape, str(vector.dtype)]).encode())
        digest.update(np.ascontiguousarray(vector, "<f8").tobytes())
    return digest.hexdigest()


def is_secure(metadata: Mapping[str, Scalar]) -> bool:
    """Return whether a message belongs to a training with a secure sum."""
    return "grid" in metadata


def integer_products(
    digest: str, totals: Mapping[str, Integers], sizes: Mapping[str, int]
) -> Integers:
    """Return the numbers of an exact audit: products of totals with public random integers.

    There are ``NUM_AUDIT_DIRECTIONS`` for each vector of totals, all modulo 2⁶⁴. ``sizes`` are
    those of the vectors; an agent that has never sent one has zeros.
    """
    products = [np.zeros(0, np.uint64)]
    for name, size in sorted(sizes.items()):
        total = totals.get(name, np.zeros(size, np.uint64))
        rng = np.random.default_rng([*bytes.fromhex(digest), *name.encode()])
        directions = rng.integers(0, 2**64, (NUM_AUDIT_DIRECTIONS, size), np.uint64)
        products.append((directions * total).sum(axis=1, dtype=np.uint64))
    return np.concatenate(products)


def audit_directions(digest: str, n: int) -> Float64Array:
    """Return the public random vectors of an audit, one in each row.

    They follow from what the server has broadcast: neither side can choose them.
    """
    key = list(bytes.fromhex(digest))
    return np.random.default_rng(key).standard_normal((NUM_AUDIT_DIRECTIONS, n))
