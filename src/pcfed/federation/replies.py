"""The server's checks of replies: a reply is used only if it is exactly what was asked for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from pcfed.algorithms import STATISTICS, Algorithm
from pcfed.arrays import Array
from pcfed.config.federation_files import METRICS
from pcfed.errors import one_line, short_repr
from pcfed.federation.protocol import NUM_AUDIT_DIRECTIONS, PROTOCOL_VERSION, Message
from pcfed.federation.server_state import ServerConfig


def sent_names(algorithm: Algorithm, server: Mapping[str, Array], m: int) -> tuple[str, ...]:
    """Return the names of all vectors of an update in answer to the server's state."""
    names = algorithm.sent_vectors(server, m)
    return (*names, STATISTICS) if algorithm.statistics else names


def split_replies(
    replies: Iterable[Message],
    config: ServerConfig,
    kind: str,
    rounds: int,
    vectors: Collection[str],
) -> tuple[dict[str, Message], dict[str, str]]:
    """Return the valid replies, and for each other one why it is refused, both by agent.

    A reply must be of the kind of the server's message, and contain the named vectors.
    """
    valid: dict[str, Message] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        name = str(reply.metadata.get("name"))
        reason = _find_fault(reply, config, kind, rounds, vectors)
        if name in valid:
            # Only one of the two can be the agent, and the server can't tell which: refuse both.
            reason = "two nodes use this name"
            del valid[name]
        if reason is None and name not in refused:
            valid[name] = reply
        else:
            refused[name] = reason or refused[name]
    return valid, refused


def reported_metrics(reply: Message) -> dict[str, float]:
    """Return the metrics that an agent reports; values that are not finite numbers are ignored."""
    values = {name: reply.metadata.get(f"metric_{name}") for name in METRICS}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _find_fault(
    reply: Message, config: ServerConfig, kind: str, rounds: int, vectors: Collection[str]
) -> str | None:
    """Return why a reply is not valid, or None if it is."""
    metadata = reply.metadata
    if metadata.get("name") not in config.roster:
        return "it is not in the roster"
    if reply.kind == "error":
        return one_line(str(metadata.get("reason")), 300)
    if metadata.get("protocol") != PROTOCOL_VERSION:
        version = short_repr(metadata.get("protocol"), 20)
        return (
            f"it uses version {version} of the protocol and the server version {PROTOCOL_VERSION}; "
            "install the same version of pcfed on both sides"
        )
    if metadata.get("training") != config.training:
        return "its reply is for another training"
    if reply.kind != kind or metadata.get("round") != rounds:
        return "its reply is for another round"
    if reply.vectors.keys() != set(vectors):
        return f"it must send {', '.join(vectors) or 'no vectors'}"
    for name, vector in reply.vectors.items():
        size = NUM_AUDIT_DIRECTIONS if kind == "audit" else config.n
        if kind == "train" and name == STATISTICS:
            size = len(config.algorithm.statistics)
        if vector.shape != (size,) or vector.dtype.kind != "f":
            return f"its vectors must be {size} floats"
        if not np.isfinite(vector).all():
            return "its vectors are not finite"
        norm = np.linalg.norm(vector.astype(np.float64))
        if kind == "train" and name != STATISTICS and norm > config.norm_limit:
            return f"its norm is above the limit {config.norm_limit:g}"
    return None
