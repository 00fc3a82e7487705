"""The totals of agents' replies to a message of a certificate, where the server reads each."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pcfed.federation.protocol import Message
from pcfed.guarantees.federated_certificate import REPLY_VECTORS, SUMMED_NUMBERS, Totals
from pcfed.tree_sums import tree_mean, tree_sum


def totals_of_replies(replies: Mapping[str, Message], kind: str) -> Totals:
    """Return the totals of replies by name."""
    means = {
        name: tree_mean(np.stack([reply.vectors[name] for reply in replies.values()]))
        for name in REPLY_VECTORS[kind]
    }
    single = {
        name: {agent: float(reply.metadata[name]) for agent, reply in replies.items()}
        for name in SUMMED_NUMBERS[kind]
        if name != "unbounded"
    }
    nonconvex = [agent for agent, value in single.get("nonconvex", {}).items() if value]
    unbounded = [a for a, value in single.get("gap", {}).items() if not math.isfinite(value)]
    numbers = {name: float(tree_sum(list(values.values()))) for name, values in single.items()}
    return Totals(means, numbers, *(next(iter(each), "") for each in (nonconvex, unbounded)))
