"""Faults at random in ClientApps: which one an agent has in a round follows from a seed.

``$FAULT/chaos.json`` has the seed. Every fault leaves a file ``AGENT ROUND`` with its name, and
happens once: the same round tried again has none.
"""

import json
import os
import signal
import time
import zlib
from pathlib import Path

import numpy as np

from pcfed.federation import client_app
from pcfed.federation.client_state import ClientState
from pcfed.federation.protocol import Message
from pcfed.federation.transport import from_records

CORRUPTIONS = {
    "not finite": lambda vector: vector * np.nan,
    "too short": lambda vector: vector[:-1],
    "float16": lambda vector: vector.astype(np.float16),
    "huge": lambda vector: np.full_like(vector, 1e300),
    "integers": lambda vector: vector.astype(np.int64),
}
FAULTS = (
    "dies while computing",
    "dies before it writes",
    "dies after it has written",
    "is late",
    "answers twice",
    "lies about itself",
    *CORRUPTIONS,
)
SHARE = 0.35
"""The share of messages with a fault."""


def install(home: Path) -> None:
    """Replace the function that answers messages."""
    seed = json.loads((home / "chaos.json").read_text())["seed"]
    honest = client_app.reply_to

    def reply_to(message, path):
        metadata = from_records(message.content).metadata
        # A hello has no round.
        key = [seed, zlib.crc32(path.stem.encode()), int(metadata.get("round", 2**20))]
        rng = np.random.default_rng(key)
        mark = home / f"{path.stem} {metadata.get('round')}"
        if "round" not in metadata or rng.random() > SHARE or mark.exists():
            return honest(message, path)
        fault = str(rng.choice(FAULTS))
        mark.write_text(fault)
        return faulty(fault, rng, honest, message, path)

    client_app.reply_to = reply_to


def faulty(fault, rng, honest, message, path):
    """Return an answer with a fault, if it comes to an answer."""
    if fault == "dies while computing":
        die()
    if fault == "dies before it writes":
        ClientState.save = lambda self, path: die()
    if fault == "is late":
        time.sleep(rng.uniform(1.0, 8.0))
    reply = honest(message, path)
    if fault == "dies after it has written":
        die()
    if fault == "answers twice":
        reply = honest(message, path)
    if fault == "lies about itself":
        lies = {"metric_loss": float(rng.normal()), "name": "agent-1", "certificate": True}
        reply = Message(reply.kind, {**reply.metadata, **lies}, reply.vectors)
    if fault in CORRUPTIONS:
        vectors = {name: CORRUPTIONS[fault](vector) for name, vector in reply.vectors.items()}
        reply = Message(reply.kind, reply.metadata, vectors)
    return reply


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
