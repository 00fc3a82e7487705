"""The client of Flower: local steps with NumPy. A module of its own, since workers import it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .numpy_steps import local_steps
from .work import WORKS, load

loaded = cache(load)  # once in a worker, not once in a message


def train(message: Message, context: Context) -> Message:
    """Take the local steps of one agent in one round."""
    received: Any = message.content
    config = received["config"]
    images, labels = loaded(config["path"])
    agent = int(context.node_config["partition-id"])
    weights = np.array(received["arrays"].to_numpy_ndarrays()[0])
    local_steps(WORKS[config["work"]], weights, images[agent], labels[agent])
    reply: dict[str, Any] = {
        "arrays": ArrayRecord([weights]),
        "metrics": MetricRecord({"num-examples": len(labels[agent])}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


app = ClientApp()
app.train()(train)
