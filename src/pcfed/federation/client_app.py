"""The agent as a Flower ClientApp; Flower starts a process for every message.

A SuperNode is started with ``--node-config 'agent="…/agent.toml"'``. The agent's state is in a
directory beside that file, one for each training.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from pcfed.config.federation_files import AgentFile, ServerModel, read_agent_file
from pcfed.config.imports import import_modules
from pcfed.federation.agent_data import build_agent
from pcfed.federation.client import Client
from pcfed.federation.paths import training_directory
from pcfed.federation.protocol import PROTOCOL_VERSION, Message, ProtocolError
from pcfed.federation.transport import from_records, to_records

app = ClientApp()


@app.query()
def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a message of the server."""
    path = Path(str(context.node_config.get("agent", "agent.toml")))
    return FlowerMessage(to_records(reply_to(message, path)), reply_to=message)


def reply_to(message: FlowerMessage, path: Path) -> Message:
    """Return the agent's reply to a message.

    Most errors could reveal something about the data or the constraint. They go to the agent's own
    log, and the server learns only that there was one.
    """
    name = "?"
    try:
        file = read_agent_file(path)
        name = file.name
        received = from_records(message.content)
        if received.kind == "hello":
            return Message("hello", {"name": name, "protocol": PROTOCOL_VERSION})
        return _client(path, file, received).handle(received)
    except ProtocolError as error:
        reason = str(error)
        logging.getLogger("pcfed").error("%s: %s", name, error)
    except Exception as error:  # files and messages may be wrong in any way
        reason = "it could not answer; its own log says why"
        logging.getLogger("pcfed").error("%s: %s", name, error)
    return Message("error", {"name": name, "protocol": PROTOCOL_VERSION, "reason": reason})


def _client(path: Path, file: AgentFile, message: Message) -> Client:
    """Return the agent of a file, for the training of a message."""
    # The owner's consent: only modules that the agent's own file names, never the server's.
    import_modules(file.imports, path)
    model = ServerModel.model_validate_json(str(message.metadata["model"]))
    linear = {"kind", "intercept", "l2"}
    return Client(
        file.name,
        build_agent(path, file, model),
        training_directory(path, str(message.metadata["training"])),
        batch=file.batch,
        certificate=file.certificate,
        report=file.report,
        model_metadata={
            "model": model.model_dump(include=linear),
            **model.model_dump(exclude=linear),
        },
    )
