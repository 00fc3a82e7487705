"""The server's checks of replies: a reply is used only if it is exactly what was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pcfed.config.federation_files import METRICS
from pcfed.errors import one_line, short_repr
from pcfed.federation.protocol import PROTOCOL_VERSION, Message


@dataclass(frozen=True)
class ExpectedReply:
    """What a valid reply looks like.

    Attributes
    ----------
    kind, training, round
        Those of the server's message.
    roster : tuple of str
        The agents that may reply.
    vectors : mapping of str to tuple of int
        Names and shapes of the vectors that it contains.
    norm_limit : float
        The largest norm that each of them may have.
    """

    kind: str
    training: str
    round: int
    roster: tuple[str, ...]
    vectors: Mapping[str, tuple[int, ...]]
    norm_limit: float = math.inf


def split_replies(
    replies: Iterable[Message], expected: ExpectedReply
) -> tuple[dict[str, Message], dict[str, str]]:
    """Return the valid replies, and for each other one why it is refused, both by agent.

    Parameters
    ----------
    replies : iterable of Message
        What arrived.
    expected : ExpectedReply
        What a valid reply looks like.
    """
    valid: dict[str, Message] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        name = str(reply.metadata.get("name"))
        reason = _find_fault(reply, expected)
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


def _find_fault(reply: Message, expected: ExpectedReply) -> str | None:
    """Return why a reply is not valid, or None if it is."""
    metadata = reply.metadata
    if metadata.get("name") not in expected.roster:
        return "it is not in the roster"
    if reply.kind == "error":
        return one_line(str(metadata.get("reason")), 300)
    if metadata.get("protocol") != PROTOCOL_VERSION:
        version = short_repr(metadata.get("protocol"), 20)
        return (
            f"it uses version {version} of the protocol and the server version {PROTOCOL_VERSION}; "
            "install the same version of pcfed on both sides"
        )
    if metadata.get("training") != expected.training:
        return "its reply is for another training"
    if reply.kind != expected.kind or metadata.get("round") != expected.round:
        return "its reply is for another round"
    if reply.vectors.keys() != expected.vectors.keys():
        return f"it must send {', '.join(expected.vectors) or 'no vectors'}"
    for name, shape in expected.vectors.items():
        vector = reply.vectors[name]
        if vector.shape != shape or vector.dtype.kind != "f":
            return f"its vectors must be {shape[0]} floats"
        if not np.isfinite(vector).all():
            return "its vectors are not finite"
        if np.linalg.norm(vector.astype(np.float64)) > expected.norm_limit:
            return f"its norm is above the limit {expected.norm_limit:g}"
    return None
