"""The Flower client: local steps with NumPy. A separate module, because workers import it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .local_steps import local_steps
from .workload import WORKLOADS, load

loaded = cache(load)  # once per worker instead of once per message


def train(message: Message, context: Context) -> Message:
    """Take the local steps of one agent in one round."""
    received: Any = message.content
    config = received["config"]
    images, labels = loaded(config["path"])
    agent = int(context.node_config["partition-id"])
    weights = np.array(received["arrays"].to_numpy_ndarrays()[0])
    local_steps(WORKLOADS[config["workload"]], weights, images[agent], labels[agent])
    reply: dict[str, Any] = {
        "arrays": ArrayRecord([weights]),
        "metrics": MetricRecord({"num-examples": len(labels[agent])}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


app = ClientApp()
app.train()(train)
