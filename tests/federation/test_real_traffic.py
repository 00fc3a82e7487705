"""All bytes between an agent and the server, recorded: nothing private is among them.

With a secure sum, no update is either, nor in the files of the server.
"""

from __future__ import annotations

import io
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pcfed.config.federation_files import read_server_file
from pcfed.federation import Client, Message, Server, ServerConfig
from pcfed.federation.client_state import ClientState
from pcfed.federation.identity import Identity
from pcfed.federation.paths import CHECKPOINT, MODEL, SECRETS
from pcfed.federation.processes import HOST, Command, Processes
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.server_state import ServerState
from pcfed.storage.archive import load_arrays
from tests.federation.processes import BATCH, Federation

TAPPED = "agent-1"
RADIUS = 0.314159265358979
LABELS = {"x": "sycamore", "y": "hornbeam", "z": "blackthorn"}


class Tap(socketserver.ThreadingTCPServer):
    """Forwards all bytes to a port and records them, per connection and direction."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__((HOST, 0), Relay)
        self.target = target
        self.up: list[bytearray] = []
        self.down: list[bytearray] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Relay(socketserver.BaseRequestHandler):
    """One connection."""

    server: Tap

    def handle(self) -> None:
        with socket.create_connection((HOST, self.server.target)) as other:
            back = threading.Thread(target=pump, args=(other, self.request, self.server.down))
            back.start()
            pump(self.request, other, self.server.up)
            back.join()


def pump(source: socket.socket, sink: socket.socket, streams: list[bytearray]) -> None:
    """Forward bytes until the connection is closed."""
    kept = bytearray()
    streams.append(kept)
    try:
        while data := source.recv(65536):
            kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one side has closed the connection


class TappedFederation(Federation):
    """A federation without TLS in which one agent reaches the server through a tap."""

    tap: Tap

    def _supernode_command(self, name: str, file: Path, processes: Processes) -> Command:
        if name == TAPPED:
            self.tap = Tap(processes.port)
            processes = replace(processes, port=self.tap.server_address[1])
        return super()._supernode_command(name, file, processes)


@pytest.fixture
def real(tmp_path) -> Iterator[TappedFederation]:
    found = TappedFederation(tmp_path / "federation", 3)
    make_distinctive(found)
    try:
        found.up(tls=False)
        yield found
    finally:
        found.stop()
        found.tap.shutdown()
        found.tap.server_close()


def make_distinctive(real: Federation) -> None:
    """Give numbers and labels that are too long to appear in the traffic by chance."""
    rng = np.random.default_rng(1)
    for name in real.names:
        file = real.folder / f"{name}.csv"
        head, *rows = file.read_text().splitlines()
        lines = [head]
        for row in rows:
            *numbers, label = row.split(",")
            changed = [repr(float(each) + rng.normal() / 100) for each in numbers]
            lines.append(",".join([*changed, LABELS[label]]))
        file.write_text("\n".join(lines) + "\n")
        real.change(name, 'report = ["loss"]', "report = []")
    real.change("server", '"x", "y", "z"', ", ".join(f'"{each}"' for each in LABELS.values()))
    real.change(TAPPED, "l1 = 1", f"l1 = {RADIUS}")


class Rehearsal:
    """The same training in this process: what the agent sends, receives and keeps private.

    ``updates`` has its updates, on the grid of a secure sum if there is one, and ``summands`` the
    integers of everything that goes into secure sums: updates, certificates, audits, scores.
    """

    def __init__(self, real: Federation, folder: Path) -> None:
        self.clients = {}
        for agent in real.agents():
            name = str(agent.name)
            secure = SecureAgent(name, Identity.create(), folder / name / SECRETS)
            self.clients[name] = Client(name, agent, folder / name, batch=BATCH, secure=secure)
        self.summands: list[np.ndarray] = []
        tapped, mask = self.clients[TAPPED]._secure, self.clients[TAPPED]._secure.mask

        def record(message, integers, history=None):
            self.summands.append(integers)
            return mask(message, integers, history)

        tapped.mask = record
        self.updates: list[np.ndarray] = []
        self.sent: list[np.ndarray] = []
        self.received: list[np.ndarray] = []
        self.kept: list[np.ndarray] = []
        self.config = ServerConfig.from_file(read_server_file(real.server_file))
        with Server(self.config, self, folder / "server") as server:
            server.run()
            server.conclude()

    def exchange(self, messages: Mapping[str, Message], min_present: int) -> Iterable[Message]:
        for name, message in messages.items():
            client = self.clients[name]
            reply = client.handle(message)
            if name == TAPPED and message.vectors:
                self.sent += reply.vectors.values()
                pending = ClientState.load(client.state_path).pending
                if pending is not None and message.kind == "train":
                    self.updates += [rows[0] for rows in pending.sent.values() if np.any(rows)]
                self.received += message.vectors.values()
                self.kept += ClientState.load(client.state_path).private.values()
                self.kept.append(client.model(message.vectors, self.config.algorithm))
            yield reply


def windows(vector: np.ndarray, width: int) -> Iterator[bytes]:
    """Yield the bytes of all neighbouring entries, in double and in single precision."""
    flat = np.ravel(vector)
    for start in range(flat.size - width + 1):
        part = flat[start : start + width]
        if np.any(part):
            yield part.astype("<f8").tobytes()
            yield part.astype("<f4").tobytes()


def private(real: TappedFederation, rehearsal: Rehearsal) -> Iterator[bytes]:
    """Yield what must never be in the traffic."""
    yield from (struct.pack("<d", RADIUS), struct.pack("<f", RADIUS), repr(RADIUS).encode()[:10])
    rows = [line.split(",") for line in (real.folder / f"{TAPPED}.csv").read_text().split()[1:]]
    X = np.array([[float(each) for each in row[:-1]] for row in rows])
    for value in X.flat:
        yield struct.pack("<d", value)
        yield f"{abs(value):.8f}"[:-1].encode()  # all digits but one that is rounded
    yield from windows(X, 2)  # single numbers in single precision appear by chance
    yield from windows(X.T, 2)
    labels = np.array([list(LABELS.values()).index(row[-1]) for row in rows])
    for form in ("<i8", "<i4", "<i2", "u1"):
        yield labels.astype(form).tobytes()
    yield ",".join(row[-1] for row in rows[:3]).encode()
    model = load_arrays(real.state(TAPPED) / MODEL)[1]
    for vector in (*rehearsal.kept, *model.values()):
        yield from windows(vector, 8)


def integer_windows(integers: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of all pairs of neighbouring integers that are not both small."""
    for start in range(len(integers) - 1):
        pair = integers[start : start + 2]
        if (np.abs(pair.view(np.int64)) > 2**16).all():  # others may appear by chance
            yield pair.tobytes()


def forms(update: np.ndarray, step: float) -> Iterator[bytes]:
    """Yield the bytes of an update as numbers and as integers on a grid."""
    yield update.astype("<f8").tobytes()
    yield update.astype("<f4").tobytes()
    yield np.rint(update / step).astype("<i8").tobytes()


def models_from_traffic(real: TappedFederation, config: ServerConfig) -> list[np.ndarray]:
    """Return an agent's model as the server of PCFedAvg could compute it: C plus all u over m.

    There are several: the traffic has u and v of every round, on several connections, and does not
    say which is which. Of a secure sum it has masked integers, of which those of u come first.
    """
    up, n = b"\0".join(real.tap.up), config.n
    arrays = [
        np.load(io.BytesIO(up[found.start() :]), allow_pickle=False)
        for found in re.finditer(re.escape(b"\x93NUMPY"), up)
    ]
    plain = [array for array in arrays if array.dtype == np.float64 and array.size == n]
    # The last integer says whether the update was withheld.
    masked = [array for array in arrays if array.dtype == np.uint64 and array.size == 2 * n + 1]
    opened = [array[:n].view(np.int64) * config.grid for array in masked]
    assert (len(plain), len(opened)) in ((2 * config.rounds, 0), (0, config.rounds))
    choices = [opened] if opened else list(combinations(plain, config.rounds))
    start = ServerState.load(real.training_directory / CHECKPOINT).vectors["C"]
    return [start + np.sum(updates, axis=0) / len(real.names) for updates in choices]


@pytest.mark.federation
@pytest.mark.parametrize("kind", ["plain", "secure", "secure, with masks of zero"])
def test_summands_in_the_traffic_and_in_the_servers_files(real, kind, tmp_path):
    """The same search finds every update without a secure sum, and no summand with it.

    Where the masks are zero, it finds all summands: updates, certificates and audits. From the
    updates follows the agent's model, and from what is sent with a secure sum nothing.
    """
    algorithm = 'name = "PCFedAvg"\nstep = 0.1\npenalty = 3.0'
    secure, masked = kind != "plain", kind == "secure"
    if secure and not masked:
        real.faults.mkdir(exist_ok=True)
        (real.faults / "no-masks").touch()
    real.begin("a training", rounds=3, secure=secure, algorithm=algorithm)
    rehearsal = Rehearsal(real, tmp_path / "rehearsal")
    step = rehearsal.config.grid
    updates = [set(forms(update, step)) for update in rehearsal.updates]
    assert len(updates) >= 4
    if secure:
        pairs = [set(integer_windows(each)) for each in rehearsal.summands]
        updates = [each for each in pairs if each]
        assert len(updates) >= 3 + 2 + 1  # of rounds, the certificate and the audit
    database, files = set(), [real.folder / "flower", real.training_directory]

    def search() -> None:
        for path in (each for folder in files for each in folder.rglob("*") if each.is_file()):
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                database.update(i for i, kinds in enumerate(updates) if any_in(kinds, content))

    real.train(search)
    assert real.check(exact=True) == [real.names] * 3
    up = b"\0".join(real.tap.up)
    sent = {i for i, kinds in enumerate(updates) if any_in(kinds, up)}
    model = rehearsal.kept[-1]
    guesses = models_from_traffic(real, rehearsal.config)
    difference = min(np.linalg.norm(guess - model) for guess in guesses)
    if masked:
        assert not sent
        assert not database
        assert difference > 1e3 * np.linalg.norm(model)
    else:
        assert sent == set(range(len(updates)))
        assert database
        assert difference < 1e-12 * np.linalg.norm(model)


def any_in(parts: set[bytes], content: bytes) -> bool:
    """Return whether one of the parts is in the content."""
    return any(part in content for part in parts)


@pytest.mark.federation
def test_what_an_agent_sends_and_receives(real, tmp_path):
    real.begin("recorded", rounds=3)
    real.train()
    assert real.check() == [real.names] * 3
    rehearsal = Rehearsal(real, tmp_path / "rehearsal")
    up, down = b"\0".join(real.tap.up), b"\0".join(real.tap.down)
    assert b"content-encoding" not in up + down  # the search needs uncompressed bytes

    # The search finds what is sent on purpose; Flower sends what all agents have, zeros, once.
    for vector in filter(np.any, rehearsal.sent):
        assert vector.tobytes() in up
    for vector in rehearsal.received:
        assert vector.tobytes() in down
    assert TAPPED.encode() in up
    assert all(label.encode() in down for label in LABELS.values())  # they are public

    everything = up + down
    found = [secret for secret in private(real, rehearsal) if secret in everything]
    assert not found
    assert not [label for label in LABELS.values() if label.encode() in up]
