"""Flower as transport: carries messages, and finds out which Flower node is which agent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pcfed.config.federation_files import ServerModel
from pcfed.config.fields import check_agent_name
from pcfed.extras import MissingExtra
from pcfed.federation.identity import is_signed
from pcfed.federation.protocol import PROTOCOL_VERSION, Message, Scalar
from pcfed.federation.server import MissingAgents
from pcfed.federation.server_state import ServerState
from pcfed.federation.status_file import StatusCallback

try:
    import httpx
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.serverapp import Grid
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

DISCOVERY_INTERVAL = 1.0
"""Seconds between two looks for new nodes."""
POLL_INTERVAL = 0.5
"""Seconds between two looks for replies."""

METADATA, VECTORS, KIND = "metadata", "vectors", "kind"


def to_records(message: Message, **metadata: Scalar) -> RecordDict:
    """Return a message, with more metadata, as Flower's records."""
    arrays = {name: Array(vector) for name, vector in message.vectors.items()}
    config = ConfigRecord({KIND: message.kind, **message.metadata, **metadata})
    return RecordDict({METADATA: config, VECTORS: ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Message:
    """Return the message in Flower's records; ValueError if there is none of pcfed."""
    try:
        config = records.config_records[METADATA].items()
        metadata = {key: value for key, value in config if isinstance(value, (str, int, float))}
        arrays = records.array_records[VECTORS].items()
        vectors = {name: array.numpy() for name, array in arrays}
        if not all(isinstance(vector, np.ndarray) for vector in vectors.values()):
            raise TypeError  # an archive of arrays, for example
        return Message(str(metadata.pop(KIND)), metadata, vectors)
    except Exception as error:  # bytes from outside can make Flower raise anything
        raise ValueError(f"it is not a message of pcfed ({type(error).__name__})") from None


class FlowerTransport:
    """Carries messages over Flower.

    It asks every new node for the name of its agent. A reply always belongs to the agent whose node
    was asked, whatever name is in the reply. The model is sent with every message. ``deadline`` is
    how many seconds to wait for agents to connect, and again for their replies. ``identities`` are
    the registered public keys by name: no other node can take such a name.
    """

    def __init__(
        self,
        grid: Grid,
        model: ServerModel,
        deadline: float,
        on_status: StatusCallback,
        identities: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._grid, self._model, self._deadline = grid, model, deadline
        self._identities = identities
        self._on_status = on_status
        self._names: dict[int, str] = {}
        self._late: set[int] = set()

    def exchange(self, messages: Mapping[str, Message], min_present: int) -> Iterable[Message]:
        """Send messages to agents and return the replies that arrived in time (`Transport`)."""
        present = self._wait_for(min_present, set(messages))
        model = self._model.model_dump_json()
        asked = {node: name for node, name in present.items() if name in messages}
        records = {node: to_records(messages[name], model=model) for node, name in asked.items()}
        replies = []
        for node, flower_reply in self._ask(records, asked):
            try:
                reply = from_records(flower_reply.content)
            except ValueError as error:
                reply = Message("error", {"reason": str(error)})
            metadata = {**reply.metadata, "name": asked[node]}
            replies.append(Message(reply.kind, metadata, reply.vectors))
        return replies

    def first_agents(self, num_agents: int) -> tuple[str, ...]:
        """Return the first agents that connect, in alphabetical order, or raise MissingAgents."""
        names = list(dict.fromkeys(self._wait_for(num_agents).values()))
        if len(names) < num_agents:
            raise MissingAgents(
                f"The roster needs {num_agents} agents, but in {self._deadline:g} seconds only "
                f"{', '.join(names) or 'none'} connected; start more agents, then rerun the "
                "command."
            )
        return tuple(sorted(names[:num_agents]))

    def _wait_for(self, min_present: int, wanted: set[str] | None = None) -> dict[int, str]:
        """Return the connected agents by node, once there are enough or the time is over."""
        end = time.monotonic() + self._deadline
        while True:
            present = self._discover(wanted)
            names = set(present.values())
            num_present = len(names if wanted is None else wanted & names)
            if num_present >= min_present or time.monotonic() > end:
                return present
            time.sleep(DISCOVERY_INTERVAL)

    def _discover(self, wanted: set[str] | None) -> dict[int, str]:
        """Return the connected agents by node.

        New nodes are asked for their names only if an agent is missing or was late: a question
        takes seconds, because Flower starts a process to answer it.
        """
        nodes = set(self._grid.get_node_ids())
        self._names = {node: name for node, name in self._names.items() if node in nodes}
        in_time = {name for node, name in self._names.items() if node not in self._late}
        if wanted is None or not wanted <= in_time:
            nonce = secrets.token_hex(16)
            hello = to_records(Message("hello", {"protocol": PROTOCOL_VERSION, "nonce": nonce}))
            for node, flower_reply in self._ask(dict.fromkeys(nodes - set(self._names), hello)):
                try:
                    reply = from_records(flower_reply.content)
                    name = check_agent_name(str(reply.metadata.get("name")))
                    if reply.kind == "hello" and self._is_known(name, nonce, reply):
                        self._names[node] = name
                except ValueError:
                    continue  # a node of another application
        self._on_status(present=sorted(set(self._names.values())))
        return self._names

    def _is_known(self, name: str, nonce: str, reply: Message) -> bool:
        """Return whether a name is signed with its registered key, or has none."""
        if name not in self._identities:
            return True
        signature = bytes.fromhex(str(reply.metadata.get("signature", "")))
        return is_signed(self._identities[name], signature, "hello", nonce, name)

    def _ask(
        self, records: Mapping[int, RecordDict], names: Mapping[int, str] | None = None
    ) -> list[tuple[int, FlowerMessage]]:
        """Send records to nodes and return the replies that arrived in time, with their nodes.

        A node whose reply is an error of Flower is asked for its name again the next time.
        """
        if not records:
            return []
        end = time.monotonic() + self._deadline
        messages = [
            # An agent that connects after the deadline must not answer an old message.
            FlowerMessage(content, node, "query", ttl=self._deadline)
            for node, content in records.items()
        ]
        ids = self._grid.push_messages(messages)
        waiting = {id_: node for id_, node in zip(ids, records, strict=False) if id_}
        replies: list[tuple[int, FlowerMessage]] = []
        while True:
            for reply in self._pull(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                self._late.discard(node)
                if reply.has_content():
                    replies.append((node, reply))
                else:
                    self._names.pop(node, None)
            if names is not None:
                self._on_status(
                    answered=sorted(names[node] for node, _ in replies),
                    waiting=sorted(names[node] for node in waiting.values()),
                )
            if not waiting or time.monotonic() > end:
                break
            time.sleep(POLL_INTERVAL)
        if names is not None:
            self._on_status(waiting=[], late=sorted(names[node] for node in waiting.values()))
        self._late.update(waiting.values())
        return replies

    def _pull(self, ids: list[str]) -> list[FlowerMessage]:
        """Return the replies that have arrived; a failed connection is tried again later."""
        try:
            return list(self._grid.pull_messages(ids))
        except httpx.TransportError:
            return []


def resolve_roster(checkpoint: Path, size: int, transport: FlowerTransport) -> tuple[str, ...]:
    """Return the roster of a training whose file has only the number of agents.

    The first agents that connect are the roster, and the checkpoint keeps it.
    """
    if not checkpoint.exists():
        return transport.first_agents(size)
    roster = tuple(ServerState.load(checkpoint).config["roster"])
    if len(roster) != size:
        raise ValueError(
            f"roster must be {len(roster)}, the number of agents that the training started with, "
            f"got {size}; give that number, or give the training another name."
        )
    return roster
