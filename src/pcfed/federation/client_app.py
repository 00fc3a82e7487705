"""The agent as a Flower ClientApp; Flower starts a process for every message.

A SuperNode is started with ``--node-config 'agent="…/agent.toml"'``. The agent's state is in a
directory beside that file, one for each training.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.config.federation_files import AgentFile, ServerModel, read_agent_file
from pcfed.config.imports import import_modules
from pcfed.data.encoding import Encoding, numeric_target
from pcfed.data.tables import Table, read_table
from pcfed.errors import join_names, short_repr
from pcfed.extras import MissingExtra
from pcfed.federation.agent_report import AgentFiles
from pcfed.federation.client import Client
from pcfed.federation.identity import Identity, Roster
from pcfed.federation.paths import SECRETS, training_directory
from pcfed.federation.protocol import PROTOCOL_VERSION, Message, ProtocolError, Scalar
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.transport import from_records, to_records
from pcfed.problem import Agent

try:
    from flwr.app import Context
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

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
            return _hello(path, name, received)
        return _client(path, file, received).handle(received)
    except Exception as error:  # files and messages may be wrong in any way
        logging.getLogger("pcfed").error("%s: %s", name, error)
        public = isinstance(error, ProtocolError)
        reason = str(error) if public else "it could not answer; its own log says why"
        return Message("error", {"name": name, "protocol": PROTOCOL_VERSION, "reason": reason})


def _hello(path: Path, name: str, received: Message) -> Message:
    """Return the agent's name, signed with its key if it has one."""
    metadata: dict[str, Scalar] = {"name": name, "protocol": PROTOCOL_VERSION}
    if (identity := Identity.beside(path, name)) is not None:
        nonce = str(received.metadata.get("nonce"))
        metadata["signature"] = identity.sign("hello", nonce, name).hex()
    return Message("hello", metadata)


def _client(path: Path, file: AgentFile, message: Message) -> Client:
    """Return the agent of a file, for the training of a message."""
    # The owner's consent: only modules that the agent's own file names, never the server's.
    import_modules(file.imports, path)
    model = ServerModel.model_validate_json(str(message.metadata["model"]))
    folder = training_directory(path, str(message.metadata["training"]))
    identity, secure = Identity.beside(path, file.name), None
    if identity is not None:
        roster = Roster.beside(path)
        secure = SecureAgent(file.name, identity, folder / SECRETS, roster)
    return Client(
        file.name,
        build_agent(path, file, model),
        folder,
        batch=file.batch,
        certificate=file.certificate,
        report=file.report,
        files=AgentFiles(file, model),
        secure=secure,
        only_secure=file.only_secure(int(message.metadata["m"])),
        rollbacks=file.rollbacks,
    )


def build_agent(path: Path, file: AgentFile, model: ServerModel) -> Agent:
    """Return the agent of an agent.toml, with its data, for the model that the server sent."""
    text = () if model.labels is None else (file.target,)
    table = read_table(path.parent / file.file, text=text)
    X = Encoding(tuple(model.features)).matrix(table)
    y = _targets(table, file.target, model.labels)
    loss = model.kind.build_loss(
        X, y, model.labels, intercept=model.intercept, l2=model.l2, dtype=model.dtype
    )
    return Agent(
        loss,
        file.constraint,
        file.coupling,
        file.personalization,
        name=file.name,
        intercept_bound=model.resolved_intercept_bound,
    )


def _targets(table: Table, target: str, labels: tuple[str, ...] | None) -> NDArray[Any]:
    """Return the numbers of the target column, or the positions of its labels."""
    if labels is None:
        return numeric_target(table, target)
    positions = {label: i for i, label in enumerate(labels)}
    found = table.column(target).tolist()
    unknown = sorted({label for label in found if label not in positions})
    if unknown:
        raise ValueError(
            f"{table.where}: the column {short_repr(target)} must contain labels of the training, "
            f"got {join_names(unknown, 3)}; the labels are {join_names(labels, 6)}."
        )
    return np.array([positions[label] for label in found])
