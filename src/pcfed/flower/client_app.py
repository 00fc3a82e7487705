"""The agent as a Flower ClientApp: every message is answered by a process of its own.

A SuperNode is started with ``--node-config 'agent="…/agent.toml"'``. The agent's state lies beside
that file, one for each training.
"""

from __future__ import annotations

import re
from pathlib import Path

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from pcfed.flower.messages import Message
from pcfed.flower.node import Node
from pcfed.flower.records import from_records, to_records
from pcfed.flower.settings import Schema, agent_of, read_agent_file

app = ClientApp()


@app.query()
def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a message of the server; a mistake goes back as a sentence."""
    return FlowerMessage(to_records(reply_to(message, context)), reply_to=message)


def reply_to(message: FlowerMessage, context: Context) -> Message:
    """Return the agent's reply."""
    name = "?"
    try:
        path = Path(str(context.node_config["agent"]))
        settings = read_agent_file(path)
        name = settings.name
        ours = from_records(message.content)
        if ours.kind == "hello":
            return Message("hello", {"name": name})
        facts = dict(ours.facts)
        agent = agent_of(path, settings, Schema.from_text(str(facts.pop("schema"))))
        state = path.with_name(f"{path.stem}.{slug(str(facts['training']))}.npz")
        node = Node(name, agent, state, batch=1.0 if settings.batch is None else settings.batch)
        return node.answer(Message(ours.kind, facts, ours.vectors))
    except (ValueError, KeyError, OSError) as error:
        return Message("error", {"name": name, "why": str(error)})


def slug(name: str) -> str:
    """Return a name as part of the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "training"
