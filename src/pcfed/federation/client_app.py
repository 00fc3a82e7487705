"""The agent as a Flower ClientApp; every message has a process of its own.

A SuperNode is started with ``--node-config 'agent="…/agent.toml"'``. The agent's state is in a
directory beside that file, one for each training.
"""

from __future__ import annotations

import hashlib
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.config.federation_files import AgentFile, ServerModel, read_agent_file
from pcfed.config.imports import import_modules
from pcfed.data.encoding import Encoding, numeric_target
from pcfed.data.tables import Table, read_table
from pcfed.errors import join_names, one_line, short_repr
from pcfed.extras import MissingExtra
from pcfed.federation.agent_report import AgentFiles
from pcfed.federation.allowed_trainings import AllowedTrainings
from pcfed.federation.client import BEFORE_TRAINING, Client, refuse_plain
from pcfed.federation.identity import Identity, Roster
from pcfed.federation.paths import PRIVACY, SECRETS, TRAININGS, training_directory
from pcfed.federation.privacy_ledger import PrivacyLedger
from pcfed.federation.protocol import (
    PROTOCOL_VERSION,
    SUM_KINDS,
    Message,
    ProtocolError,
    Scalar,
    is_secure,
)
from pcfed.federation.row_sums import SCALING, read_scaling
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.transport import from_records, to_records
from pcfed.problem import Agent
from pcfed.sampling import split_rows
from pcfed.standardize import Scaling

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
    name = kind = "?"
    try:
        file = read_agent_file(path)
        name = file.name
        received = from_records(message.content)
        kind = received.kind
        if kind == "hello":
            return _hello(path, name, received)
        return _client(path, file, received).handle(received)
    except Exception as error:  # files and messages may be wrong in any way
        logging.getLogger("pcfed").error("%s: %s", name, _sentence(error, kind))
        public = isinstance(error, ProtocolError)
        reason = one_line(str(error)) if public else "it could not answer; its own log says why"
        return Message("error", {"name": name, "protocol": PROTOCOL_VERSION, "reason": reason})


def _sentence(error: Exception, kind: str) -> str:
    """Return a line for the log: an error of a file or of the message, which may contain anything.

    What is not said in a sentence, such as a missing key, is due to the message.
    """
    if isinstance(error, (ValueError, OSError, ImportError, MemoryError)):
        return one_line(str(error))
    return f"the message of kind {short_repr(kind)} is not valid ({type(error).__name__})"


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
    identity, roster, secure = Identity.beside(path, file.name), Roster.beside(path), None
    if identity is not None:
        secure = SecureAgent(file.name, identity, folder / SECRETS, roster)
    # The server could say that there are fewer agents than there are.
    num_agents = max(int(message.metadata["m"]), 0 if roster is None else len(roster.keys))
    only_secure = file.only_secure(num_agents)
    # Before the rows are read: whether that is possible says something about them.
    if only_secure:
        refuse_plain(message.metadata)
    if is_secure(message.metadata):
        allowed = AllowedTrainings(path.with_name(f"{file.name}.{TRAININGS}"), file.trainings)
        text = str(message.metadata["model"])
        # Messages about keys need no rows.
        is_remembered = message.kind not in SUM_KINDS
        digest = hashlib.sha256(text.encode()).hexdigest() if is_remembered else None
        allowed.check(str(message.metadata["training"]), digest)
    # Together with the agent's file, this is for all trainings.
    ledger = path.with_name(f"{file.name}.{PRIVACY}")
    if file.privacy is not None:
        if model.standardize or SCALING in message.metadata:
            raise ProtocolError(
                "its owner has set a privacy budget, and standardization is computed from the "
                "records"
            )
        if message.kind not in SUM_KINDS:
            PrivacyLedger(ledger, file.privacy).bind_model(_reading_digest(model))
    scaling = read_scaling(message.metadata, len(model.features))
    if scaling is not None and not model.standardize:
        raise ProtocolError("the server sent means and scales for data that are not standardized")
    if model.standardize and scaling is None and message.kind not in BEFORE_TRAINING:
        raise ProtocolError("the server standardizes the data, and sent no means and scales")

    @cache
    def rows() -> AgentRows:
        return read_rows(path, file, model)

    return Client(
        file.name,
        lambda: build_agent(rows(), file, model, scaling),
        folder,
        batch=file.batch,
        certificate=file.certificate,
        report=file.report,
        files=AgentFiles(file, model, scaling),
        columns=lambda: _standardized_columns(rows(), model),
        secure=secure,
        only_secure=only_secure,
        rollbacks=file.rollbacks,
        privacy=file.privacy,
        ledger=ledger,
    )


def _reading_digest(model: ServerModel) -> str:
    """Return a hash of all of a model on which it may depend whether records can be read."""
    text = model.model_dump_json(exclude={"intercept", "intercept_bound", "l2"})
    return hashlib.sha256(text.encode()).hexdigest()


class AgentRows(NamedTuple):
    """The rows of an agent's file.

    Attributes
    ----------
    X : array of shape (rows, features)
        The features.
    y : array of shape (rows,)
        Numbers, or the positions of labels.
    train, test : array of int
        The rows for training, and those that are held out.
    """

    X: Float64Array
    y: NDArray[Any]
    train: NDArray[np.intp]
    test: NDArray[np.intp]


def read_rows(path: Path, file: AgentFile, model: ServerModel) -> AgentRows:
    """Return the rows of an agent's file, for the model that the server sent.

    The held-out rows are the same in all trainings. If the server could change them, the
    differences of sums over rows would be those of few rows of one agent.
    """
    text = () if model.labels is None else (file.target,)
    table = read_table(path.parent / file.file, text=text)
    X = Encoding(tuple(model.features)).matrix(table)
    y = _targets(table, file.target, model.labels)
    return AgentRows(X, y, *split_rows(file.held_out, len(X), 0, 0))


def build_agent(
    rows: AgentRows, file: AgentFile, model: ServerModel, scaling: Scaling | None = None
) -> Agent:
    """Return the agent of an agent.toml, with common means and scales if data are standardised."""
    X, y, constraint = rows.X, rows.y, file.constraint
    if scaling is not None:
        X = scaling.transform(X)
        y = y - scaling.target_mean if model.labels is None else y

    # The loss of held-out rows is that of predictions alone.
    loss, *test = (
        model.kind.build_loss(
            X[some], y[some], model.labels, intercept=model.intercept, l2=l2, dtype=model.dtype
        )
        for some, l2 in ((rows.train, model.l2), (rows.test, 0.0))
        if len(some)
    )
    if scaling is not None:
        option = "model.standardize = false in server.toml"
        constraint = scaling.transform_constraint(constraint, math.prod(loss.shape), option=option)
    return Agent(
        loss,
        constraint,
        file.coupling,
        file.personalization,
        test=test[0] if test else None,
        name=file.name,
        intercept_bound=model.resolved_intercept_bound,
        privacy=file.privacy,
    )


def _standardized_columns(rows: AgentRows, model: ServerModel) -> Float64Array | None:
    """Return the rows for training whose means and scales are needed, as they are in the file."""
    if not model.standardize:
        return None
    columns = np.column_stack([rows.X, rows.y]) if model.centers_target else rows.X
    return np.asarray(columns[rows.train], np.float64)


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
