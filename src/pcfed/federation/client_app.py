"""The agent as a Flower ClientApp: every message is answered by a process of its own.

A SuperNode is started with ``--node-config 'agent="…/agent.toml"'``. The agent's state lies in a
folder beside that file, one for each training.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from pcfed.config.federation_files import AgentFile, read_agent_file
from pcfed.federation.client import Node
from pcfed.federation.paths import folder_of
from pcfed.federation.protocol import Message
from pcfed.federation.records import from_records, to_records
from pcfed.federation.settings import Schema, build_agent

app = ClientApp()


@app.query()
def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a message of the server."""
    path = Path(str(context.node_config.get("agent", "agent.toml")))
    return FlowerMessage(to_records(reply_to(message, path)), reply_to=message)


def reply_to(message: FlowerMessage, path: Path) -> Message:
    """Return the agent's reply; of a mistake the server learns only that there was one.

    What is wrong may tell something of the data or the constraint: it goes to the agent's own log.
    """
    name = "?"
    try:
        file = read_agent_file(path)
        name = file.name
        ours = from_records(message.content)
        if ours.kind == "hello":
            return Message("hello", {"name": name})
        return _node(path, file, ours).answer(ours)
    except Exception as error:  # data and messages of any kind
        logging.getLogger("pcfed").error("%s: %s", name, error)
        return Message("error", {"name": name, "why": "it could not answer; its own log says why"})


def _node(path: Path, file: AgentFile, message: Message) -> Node:
    """Return the agent of a file, for the training of a message."""
    schema = Schema.from_text(str(message.facts["schema"]))
    return Node(
        file.name,
        build_agent(path, file, schema),
        folder_of(path, str(message.facts["training"])),
        batch=file.batch,
        certificate=file.certificate,
        report=file.report,
        about=schema.to_dict(),
    )
