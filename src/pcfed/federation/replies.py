"""What came back from agents: only what was asked for is let in, the rest is refused and told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pcfed.errors import one_line
from pcfed.federation.protocol import MEASURES, Message


@dataclass(frozen=True)
class Expected:
    """What a reply must be like.

    Attributes
    ----------
    kind, training, round
        Those of the message that was sent.
    roster : tuple of str
        The agents that may reply.
    vectors : mapping of str to tuple of int
        Names and shapes of the vectors that it has.
    norm_limit : float
        The largest norm of each of them.
    """

    kind: str
    training: str
    round: int
    roster: tuple[str, ...]
    vectors: Mapping[str, tuple[int, ...]]
    norm_limit: float = math.inf


def sift(
    replies: Iterable[Message], expected: Expected
) -> tuple[dict[str, Message], dict[str, str]]:
    """Return the replies that are fine, by name, and why others are not.

    Parameters
    ----------
    replies : iterable of Message
        Whatever came.
    expected : Expected
        What should have come.
    """
    fine: dict[str, Message] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        name = str(reply.facts.get("name"))
        why = _fault(reply, expected)
        if name in fine:
            why = "its name is taken"
            del fine[name]  # nobody knows which of the two it is
        if why is None and name not in refused:
            fine[name] = reply
        else:
            refused[name] = why or refused[name]
    return fine, refused


def told(reply: Message) -> dict[str, float]:
    """Return the measures that an agent's owner allows to be told: finite numbers only."""
    found = {key: reply.facts[f"told_{key}"] for key in MEASURES if f"told_{key}" in reply.facts}
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _fault(reply: Message, expected: Expected) -> str | None:
    """Say why a reply can't be counted, or None if it can."""
    facts = reply.facts
    if facts.get("name") not in expected.roster:
        return "it is not in the roster"
    if reply.kind == "error":
        return one_line(str(facts.get("why")), 200)
    if facts.get("training") != expected.training:
        return "it is of another training"
    if reply.kind != expected.kind or facts.get("round") != expected.round:
        return "it is of another round"
    if reply.vectors.keys() != expected.vectors.keys():
        return f"it must send {', '.join(expected.vectors) or 'no vector'}"
    for name, shape in expected.vectors.items():
        vector = reply.vectors[name]
        if vector.shape != shape or vector.dtype.kind != "f":
            return f"its vectors must be {shape[0]} floats"
        if not np.isfinite(vector).all():
            return "it is not finite"
        if np.linalg.norm(vector.astype(np.float64)) > expected.norm_limit:
            return f"its norm is above the limit {expected.norm_limit:g}"
    return None
