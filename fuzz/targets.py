"""The readers, each as a function of arbitrary bytes that fails if its contract is broken.

Whatever a file contains, a reader returns or raises a `ValueError` of one line. Whatever an agent
sends, the server's checks return: one reply must not end a federation.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pcfed import Agent, Checkpointing, PCFedSplit, Problem, run
from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.config.fields import _parse_constraint
from pcfed.config.overrides import Override
from pcfed.config.train_file import load_config
from pcfed.data.tables import read_table
from pcfed.federation.identity import Identity
from pcfed.federation.masking import SecureSumError
from pcfed.federation.protocol import (
    MASKED,
    PROTOCOL_VERSION,
    Message,
    check_version,
    read_algorithm,
    read_round_info,
)
from pcfed.federation.replies import reported_metrics, split_replies
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.secure_sums import OpenedSum, Request, SecureSums
from pcfed.federation.server_state import Place, ServerConfig, ServerState
from pcfed.federation.transport import from_records
from pcfed.losses import LeastSquares
from pcfed.sets import L1Ball
from pcfed.simulation import read_journal
from pcfed.simulation.checkpoint import Checkpoint
from pcfed.simulation.result import Result
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.storage.reading import parse_toml
from pcfed.training.directory import RunMetadata
from pcfed.training.outcome import Outcome
from pcfed.training.trained_models import TrainedModels

SEPARATOR = b"\n--\n"
"""What separates the members of an archive in the input of a target."""

MEMORY = Path("/dev/shm")
FOLDER = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


class BrokenContractError(Exception):
    """A reader raised something else than one sentence."""


def check_sentence(error: ValueError) -> None:
    """Fail unless every line of an error is a sentence of readable length."""
    for line in str(error).split("\n"):
        if not line.endswith((".", "?")) or not line.isprintable() or len(line) > 600:
            raise BrokenContractError(f"not a sentence: {error!r}") from error


def attempt(read: Callable[[], object]) -> object:
    """Return what a reader returns, or None if it raises a sentence."""
    try:
        return read()
    except ValueError as error:
        check_sentence(error)
        return None


def on_file(name: str, content: bytes, read: Callable[[Path], object]) -> None:
    """Write a file and read it."""
    path = Path(FOLDER.name) / name
    path.write_bytes(content)
    attempt(lambda: read(path))


def fuzz_toml(data: bytes) -> None:
    """Read train.toml, server.toml, agent.toml, or an override of a key."""
    kind, content = data[:1], data[1:]
    if kind == b"o":
        attempt(lambda: Override.parse(content.decode("utf-8", "replace")))
    else:
        readers = {b"s": read_server_file, b"a": read_agent_file}
        on_file("file.toml", content, readers.get(kind, load_config))


def fuzz_csv(data: bytes) -> None:
    """Read a CSV file, and all of its columns as numbers."""
    decimal = "," if data[:1] == b"," else "."

    def read(path: Path) -> None:
        table = read_table(path, text=("a",), decimal=decimal)
        for name in table.names:
            table.is_text(name)
            attempt(partial(table.numbers, name))

    on_file("file.csv", data[1:], read)


def fuzz_npz(data: bytes) -> None:
    """Read a NumPy archive as a table: any bytes, or a valid archive of members of any bytes."""
    if data[:1] == b"m":
        # Changed bytes of a whole archive rarely have the checksums that it must have.
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in zip(("X", "y", "a"), data[1:].split(SEPARATOR), strict=False):
                archive.writestr(f"{name}.npy", content)
        data = stream.getvalue()
    on_file("file.npz", data, read_table)


def fuzz_set(data: bytes) -> None:
    """Read the specification of a set, as text or as a value of TOML."""
    text = data[1:].decode("utf-8", "replace")
    if data[:1] != b"t":
        attempt(lambda: _parse_constraint(text))
        return
    try:
        table = parse_toml(text)
    except ValueError:
        return
    for value in table.values():
        try:
            _parse_constraint(value)
        except ValueError as error:
            # A clause that begins with the key is put before it.
            check_sentence(error)


def signed_archive(data: bytes) -> bytes:
    """Return an archive with a valid checksum; its metadata and its arrays have any contents."""
    head, *parts = data.split(SEPARATOR)
    try:
        arrays = {}
        for part in parts:
            name, _, content = part.partition(b"\n")
            arrays[name.decode()] = np.load(io.BytesIO(content), allow_pickle=False)
        path = Path(FOLDER.name) / "signed"
        save_arrays(path, json.loads(head), arrays)
        return path.read_bytes()
    except Exception:  # bytes that are no JSON or no arrays
        return data


def fuzz_saved(data: bytes) -> None:
    """Read the files of a run directory."""
    kinds: list[Callable[[Path], object]] = [
        RunMetadata.load,
        Outcome.load,
        TrainedModels.load,
        Checkpoint.load,
        Result.load,
        read_journal,
    ]
    kind, content = (data[0] if data else 0) % len(kinds), data[1:]
    on_file("file", signed_archive(content) if kind in (2, 3, 4) else content, kinds[kind])


CONFIG = ServerConfig("t", ("a", "b"), 2, PCFedSplit(), rounds=3)
STATE = ServerState(CONFIG.identity(), 1, {}, {})


def fuzz_protocol(data: bytes) -> None:
    """Check a reply as the server does, then read it as an agent reads a message.

    The bytes are a line of JSON with the metadata, a line with the names, types and shapes of
    arrays, and the bytes that all of these have.
    """
    head, _, rest = data.partition(b"\n")
    shapes, _, content = rest.partition(b"\n")
    try:
        config = {
            key: value
            for key, value in json.loads(head).items()
            if isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 2**63)
        }
        arrays = {
            str(name): Array(dtype=str(dtype), shape=tuple(shape), stype=str(stype), data=content)
            for name, dtype, shape, stype in json.loads(shapes)
        }
        records = RecordDict({"metadata": ConfigRecord(config), "vectors": ArrayRecord(arrays)})
    except Exception:  # bytes that are no records of Flower
        return
    try:
        message = from_records(records)
    except ValueError:
        return
    for kind, vectors in (("train", ("x", "statistics")), ("finish", ()), ("audit", ("x",))):
        split_replies([message], CONFIG, STATE, kind, vectors)
    reported_metrics(message)
    # An agent catches every error and answers with one; it must not hang or take all memory.
    for read in (check_version, read_algorithm, read_round_info):
        try:
            read(message.metadata)
        except Exception:
            continue


AGENTS = ("a", "b", "c", "d")
IDENTITIES = {name: Identity.create() for name in AGENTS}
SUMMANDS = {name: np.arange(3, dtype=np.uint64) + np.uint64(ord(name)) for name in AGENTS}
ROUND = {
    "training": "t",
    "m": len(AGENTS),
    "rollbacks": 0,
    "round": 0,
    "colluders": 1,
    "accepted_round": -1,
    "grid": 0.5,
}
"""What every message of the server has."""


def fuzz_secure(data: bytes) -> None:
    """Run a secure sum in which messages to one agent, and its replies, are changed.

    The bytes are JSON: for "asked" and "replied", by the kind of a message, fields that take the
    place of others. The server must find the exact sum of those that it names, or none.
    """
    try:
        changes = json.loads(data)
        asked, replied = (
            {kind: dict(fields) for kind, fields in changes[side].items()}
            for side in ("asked", "replied")
        )
    except Exception:  # bytes that are no changes
        return

    with tempfile.TemporaryDirectory(dir=FOLDER.name) as name:
        folder = Path(name)
        agents = {n: SecureAgent(n, IDENTITIES[n], folder / n) for n in AGENTS}

        def answer(name: str, request: Request) -> Message:
            metadata = {**ROUND, **request.metadata}
            if name == "a":
                metadata |= asked.get(request.kind, {})
            message, vectors = Message(request.kind, metadata, {}), {}
            if request.kind == "train":
                vectors[MASKED], found = agents[name].mask(message, SUMMANDS[name])
            else:
                found = getattr(agents[name], request.kind)(message)
            if name == "a":
                found = {**found, **replied.get(request.kind, {})}
            return Message(request.kind, found, vectors)

        def exchange(
            requests: dict[str, Request], min_present: int
        ) -> tuple[dict[str, Message], dict[str, str]]:
            replies, refused = {}, {}
            for name, request in requests.items():
                try:
                    replies[name] = answer(name, request)
                except SecureSumError as error:
                    refused[name] = str(error)
            return replies, refused

        sums = SecureSums("t", AGENTS, 1, {}, folder, exchange)
        found = sums.sum_updates(Place(0, 0), 3, 3, attempts=1)
        if isinstance(found, OpenedSum):
            expected = sum((SUMMANDS[name] for name in found.survivors), np.zeros(3, np.uint64))
            if not np.array_equal(found.total, expected):
                raise BrokenContractError(f"the sum of {found.survivors} is wrong")


def npy(array: np.ndarray) -> bytes:
    """Return an array in the npy format."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    """Return a NumPy archive."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def reply(**changes: object) -> bytes:
    """Return a valid reply to a message of the server, with some changes."""
    place = {"protocol": PROTOCOL_VERSION, "name": "a", "training": "t", "round": 1, "rollbacks": 0}
    metadata = {"kind": "train", **place}
    shapes = [[name, "float64", [2], "numpy.ndarray"] for name in ("x", "statistics")]
    lines = [json.dumps({**metadata, **changes}), json.dumps(shapes)]
    return "\n".join(lines).encode() + b"\n" + npy(np.ones(2))


TRAIN = b"""tmodel.kind = "softmax"
data = {target = "y", features = ["a"], missing = "drop"}
training = {rounds = 3, batch = 0.5, gap = 1e-3}
[algorithm]
name = "PCFedAvg"
step = "auto"
[agents."a b"]
file = "a.csv"
constraint = {intersection = [{l1 = 5}, "box(-1, 1)"]}
"""
SERVER = b"""straining = "t"
roster = ["a", "b"]
[model]
kind = "logistic"
features = ["x"]
labels = ["no", "yes"]
[rounds]
local_steps = 3
"""


def saved_files() -> list[bytes]:
    """Return inputs that are a valid result and a checkpoint."""
    problem = Problem([Agent(LeastSquares(np.eye(2), np.ones(2)), L1Ball(1.0), 0.1)])
    path = Path(FOLDER.name) / "checkpoint.npz"
    result = run(problem, PCFedSplit(), rounds=1, checkpoint=Checkpointing(path))
    result.save(path.with_name("result.npz"))
    found = []
    for kind, name in ((b"\x03", "checkpoint.npz"), (b"\x04", "result.npz")):
        metadata, arrays = load_arrays(path.with_name(name))
        parts = [key.encode() + b"\n" + npy(array) for key, array in arrays.items()]
        found.append(kind + SEPARATOR.join([json.dumps(metadata).encode(), *parts]))
    return found


SEEDS: dict[str, list[bytes]] = {
    "toml": [TRAIN, SERVER, b"aname = 'a'\nfile = 'a.csv'\ntarget = 'y'\n", b"oa.b=[1, 2.5]"],
    "csv": [b".a,b\n1,2.5\n3,x\n", b',a;"b;c"\n1,5;-2e3\n;nan\n', b".\xef\xbb\xbfa\tb\r\n1\t2\r\n"],
    "npz": [
        b"m" + SEPARATOR.join([npy(np.eye(2)), npy(np.arange(2)), npy(np.array(["a", "b"]))]),
        b"m"
        + SEPARATOR.join([npy(np.ones((2, 2), ">f4", order="F")), npy(np.array([b"a", b"b"]))]),
        npz(X=np.eye(2), y=np.array(["a", "b"])),
        npz(a=np.arange(3), b=np.ones(3, bool)),
    ],
    "set": [
        b"sintersection(l1(5), box([0, 1], [2, inf]))",
        b"sblocks({'0:2': l2(1, center=[1, 2])})",
        b"spolyhedron([[1, 1]], [5])",
        b't"a" = {blocks = {"0:2" = {l1 = 1}, "2:" = "simplex(1)"}}',
        b"ta = {box = {lower = [0, 1], upper = 2}}",
    ],
    "saved": [
        b'\x00{"format": 1, "digest": "a", "config": {}, "versions": {}}',
        b'\x01{"format": 1, "agents": [], "rounds": 3}',
        *saved_files(),
        b'\x05{"round": 1, "objective": 0.5}\n',
    ],
    "protocol": [
        reply(),
        reply(kind="audit", metric_loss=0.5),
        reply(algorithm="PCFedSplit", parameters='{"prox": 0.1}', m=2, step=0.1, penalty=1.0),
        reply(algorithm="FedAvg", parameters="[]", max_local_steps=3),
        reply().partition(b"\x93NUMPY")[0] + npz(x=np.ones(2)),  # an archive instead of an array
    ],
    "secure": [
        json.dumps({"asked": {kind: {field: value}}, "replied": {}}).encode()
        for kind, field, value in (
            ("introduce", "m", 4.5),
            ("announce", "group", '[["a", "b", "00", "00"]]'),
            ("train", "participants", '[{"name": "a"}]'),
            ("confirm", "survivors", '["a", "b", "c"]'),
            ("unmask", "shares", '{"a": "00"}'),
        )
    ]
    + [
        json.dumps({"asked": {}, "replied": {kind: {field: value}}}).encode()
        for kind, field, value in (
            ("introduce", "introduction", '["a", "b", "00", "00"]'),
            ("announce", "announcements", '{"shared": {"name": "a"}}'),
            ("train", "context", "00"),
            ("confirm", "signature", "00"),
            ("unmask", "mask_shares", '{"a": "00"}'),
            ("unmask", "key_shares", "[[[[]]]]"),
        )
    ],
}
TARGETS: dict[str, Callable[[bytes], None]] = {name: globals()[f"fuzz_{name}"] for name in SEEDS}
