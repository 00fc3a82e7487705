"""The server's checks of replies: a reply is used only if it is exactly what was asked for.

Whatever is wrong with a reply refuses its agent and nobody else. Norms are compared with those of
other agents, see `pcfed.federation.norm_limits`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from pcfed.algorithms import STATISTICS, Algorithm
from pcfed.arrays import Array, Float64Array
from pcfed.config.federation_files import METRICS
from pcfed.errors import one_line, short_repr
from pcfed.federation.protocol import NUM_AUDIT_DIRECTIONS, PROTOCOL_VERSION, Message
from pcfed.federation.server_state import ServerConfig, ServerState

CERTIFICATE_NUMBERS: dict[str, tuple[str, ...]] = {
    "objective_terms": ("objective", "coupling", "nonconvex"),
    "gap_term": ("gap",),
}
"""Numbers in the replies of a certificate. None of them can be negative: no loss that a server's
file can name is. Only a gap may be infinite, where a set is unbounded."""


class RefusedReply(ValueError):
    """A reply that can't be used; the text says why, after the agent's name."""


def sent_names(algorithm: Algorithm, server: Mapping[str, Array], m: int) -> tuple[str, ...]:
    """Return the names of all vectors of an update in answer to the server's state."""
    names = algorithm.sent_vectors(server, m)
    return (*names, STATISTICS) if algorithm.statistics else names


def split_replies(
    replies: Iterable[Message],
    config: ServerConfig,
    state: ServerState,
    kind: str,
    vectors: Collection[str],
    integers: int | None = None,
) -> tuple[dict[str, Message], dict[str, str]]:
    """Return the valid replies, and for each other one why it is refused, both by agent.

    A reply must be of the kind of the server's message, and contain the named vectors. Those of a
    valid reply are returned in float64. Where ``integers`` is given, they are so many masked
    integers instead.
    """
    valid: dict[str, Message] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        name = str(reply.metadata.get("name"))
        try:
            checked = _check_reply(reply, config, state, kind, vectors, integers)
        except RefusedReply as refusal:
            checked, reason = None, str(refusal)
        except Exception as error:  # a reply comes from outside and can be wrong in any way
            checked, reason = None, f"its reply can't be read ({type(error).__name__})"
        if name in valid:
            # Only one of the two can be the agent, and the server can't tell which: refuse both.
            checked, reason = None, "two nodes use this name"
            del valid[name]
        if checked is None:
            refused[name] = reason
        elif name not in refused:
            valid[name] = checked
    return valid, refused


def reported_metrics(reply: Message) -> dict[str, float]:
    """Return the metrics that an agent reports; values that are not finite numbers are ignored."""
    values = {name: number(reply, f"metric_{name}") for name in METRICS}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def number(reply: Message, name: str) -> float:
    """Return a number of a reply's metadata; NaN if there is none."""
    value = reply.metadata.get(name)
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


def _check_reply(
    reply: Message,
    config: ServerConfig,
    state: ServerState,
    kind: str,
    vectors: Collection[str],
    integers: int | None,
) -> Message:
    """Return the reply with its vectors in float64, or raise RefusedReply."""
    metadata = reply.metadata
    if metadata.get("name") not in config.roster:
        raise RefusedReply("it is not in the roster")
    if reply.kind == "error":
        raise RefusedReply(one_line(str(metadata.get("reason")), 300))
    if metadata.get("protocol") != PROTOCOL_VERSION:
        version = short_repr(metadata.get("protocol"), 20)
        raise RefusedReply(
            f"it uses version {version} of the protocol and the server version {PROTOCOL_VERSION}; "
            "install the same version of pcfed on both sides"
        )
    if metadata.get("training") != config.training:
        raise RefusedReply("its reply is for another training")
    place = metadata.get("round"), metadata.get("rollbacks")
    if reply.kind != kind or place != (state.round, len(state.rollbacks)):
        raise RefusedReply("its reply is for another round")
    if reply.vectors.keys() != set(vectors):
        raise RefusedReply(f"it must send {', '.join(vectors) or 'no vectors'}")
    if config.secure:
        return _check_masked(reply, integers)
    for name in CERTIFICATE_NUMBERS.get(kind, ()):
        value = number(reply, name)
        if not value >= 0 or (math.isinf(value) and name != "gap"):
            raise RefusedReply(f"its {name} in a certificate can't be {value:g}")
    checked = {name: _check_vector(reply, name, config) for name in vectors}
    return Message(reply.kind, metadata, checked)


def _check_masked(reply: Message, size: int | None) -> Message:
    """Return a reply of a secure sum, or raise RefusedReply."""
    for vector in reply.vectors.values():
        if vector.shape != (size,) or vector.dtype != np.uint64:
            raise RefusedReply(
                f"its masked numbers must be {size} integers in uint64, got the shape "
                f"{vector.shape} in {vector.dtype}"
            )
    return reply


def _check_vector(reply: Message, name: str, config: ServerConfig) -> Float64Array:
    """Return a vector of a reply in float64, or raise RefusedReply."""
    vector = reply.vectors[name]
    size = NUM_AUDIT_DIRECTIONS if reply.kind == "audit" else config.n
    if reply.kind == "train" and name == STATISTICS:
        size = len(config.algorithm.statistics)
    if vector.shape != (size,) or vector.dtype not in (np.float32, np.float64):
        raise RefusedReply(
            f"its vectors must be {size} numbers in float32 or float64, got the shape "
            f"{vector.shape} in {vector.dtype}"
        )
    if not np.isfinite(vector).all():
        raise RefusedReply("its vectors are not finite")
    return np.array(vector, np.float64)
