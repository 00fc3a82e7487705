"""The Flower apps with their files, on a grid in this process: everything but the network."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity

from pcfed import Problem, certify, run
from pcfed.algorithms import registry
from pcfed.cli.federation import status_lines
from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.federation import server as server_module
from pcfed.federation import transport
from pcfed.federation.client_app import build_agent, read_rows, reply_to
from pcfed.federation.identity import Identity, Roster
from pcfed.federation.keys import make_agent_key, make_keys
from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.protocol import Message, ProtocolError
from pcfed.federation.row_sums import Standardization, federated_scaling, read_scaling
from pcfed.federation.server import MissingAgents, Server
from pcfed.federation.server_app import run_task
from pcfed.federation.server_state import ServerConfig, ServerResult, ServerState
from pcfed.federation.status_file import Status, read_history
from pcfed.federation.transport import to_records
from pcfed.standardize import Scaling
from pcfed.storage.archive import load_arrays
from pcfed.training.outcome import Outcome
from tests.federation.in_process import without_secure_sum

NAMES = ["agent-1", "agent-2", "agent-3"]


class Grid:
    """Flower's nodes, in this process: each answers with the agent of a file.

    A node in ``deaf`` gets messages and never replies.
    """

    def __init__(self, files: list[Path]) -> None:
        self.files = dict(enumerate(files, 1))
        self.deaf: set[int] = set()
        self.kinds: list[str] = []
        self._replies: dict[str, FlowerMessage] = {}

    def get_node_ids(self):
        return list(self.files)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = str(len(self.kinds))
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            self.kinds.append(message.content.config_records["metadata"]["kind"])
            node = message.metadata.dst_node_id
            if node not in self.deaf:
                self._replies[number] = FlowerMessage(self.answer(node, message), reply_to=message)
        return numbers

    def answer(self, node, message):
        return to_records(reply_to(message, self.files[node]))

    def pull_messages(self, numbers):
        return [self._replies.pop(each) for each in numbers if each in self._replies]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The example with three agents and two rounds, and short intervals."""
    monkeypatch.setattr(transport, "DISCOVERY_INTERVAL", 0.01)
    monkeypatch.setattr(transport, "POLL_INTERVAL", 0.01)
    for name in ("_run_id", "_node_id", "_task_id"):  # Flower sets them in processes of its own
        monkeypatch.setattr(TaskIdentity, name, 0)
    LocalFederation(tmp_path).write_example(3)
    without_secure_sum(tmp_path)
    change(tmp_path, "rounds = 5", "rounds = 2")
    change(tmp_path, "deadline = 60.0", "deadline = 0.2")
    return tmp_path


def change(folder, before, after, name="server"):
    path = folder / f"{name}.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def grid_of(folder, names=NAMES):
    return Grid([folder / f"{name}.toml" for name in names])


def train(folder, grid, task="train"):
    run_task(grid, folder / "server.toml", task)
    return ServerResult.load(folder / "server.example" / "result.json")


def simulated(folder, rounds=2):
    server = read_server_file(folder / "server.toml")
    paths = [folder / f"{name}.toml" for name in NAMES]
    agents = [
        build_agent(read_rows(path, file, server.model), file, server.model)
        for path, file in ((path, read_agent_file(path)) for path in paths)
    ]
    problem = Problem(agents, server.resolved_center)
    return problem, run(problem, server.algorithm, rounds=rounds, local_steps=20)


def test_from_the_files_to_every_agents_model(folder):
    result = train(folder, grid_of(folder))
    problem, expected = simulated(folder)
    certificate = certify(problem, expected, tightening=0)
    assert result.certificate.gap == pytest.approx(certificate.gap, abs=1e-12)
    assert result.finished == NAMES
    assert max(result.audit.values()) < 1e-14
    for name, model in zip(NAMES, certificate.models, strict=True):
        about, arrays = load_arrays(folder / f"{name}.example" / "model.npz")
        np.testing.assert_allclose(arrays["model"], model, rtol=0, atol=1e-12)
        assert about["labels"] == ["x", "y", "z"]
        assert (folder / f"{name}.example" / "report.html").exists()
        assert (folder / f"{name}.example").stat().st_mode & 0o077 == 0
    kept = {path.name for path in (folder / "server.example").iterdir()}
    written = {"checkpoint.npz", "history.jsonl", "settings.json", "status.json", "result.json"}
    assert kept == {"lock", "earlier", *written}


@pytest.fixture
def secure_folder(folder) -> Path:
    """The example with a secure sum: keys for all agents, and the roster of them."""
    for path in folder.glob("*.toml"):
        path.write_text(path.read_text().replace("secure = false\n", ""))
    make_keys(folder / "keys", ["localhost"], NAMES)
    LocalFederation(folder).write_roster()
    change(folder, "certificate = true", "certificate = false", "agent-2")
    return folder


def test_a_secure_sum_from_the_files_to_every_agents_model(secure_folder):
    folder, grid = secure_folder, grid_of(secure_folder)
    result = train(folder, grid)
    problem, _ = simulated(folder)
    server = read_server_file(folder / "server.toml")
    expected = run(problem, server.algorithm, rounds=2, local_steps=20, grid=server.grid)
    certificate = certify(problem, expected, tightening=0)
    assert result.certificate.gap == pytest.approx(certificate.gap, abs=1e-12)
    assert result.finished == NAMES
    assert set(result.audit.values()) == {0.0}
    for name, model in zip(NAMES, certificate.models, strict=True):
        arrays = load_arrays(folder / f"{name}.example" / "model.npz")[1]
        np.testing.assert_array_equal(arrays["model"], model)
        assert (folder / f"{name}.example" / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert grid.kinds.count("train") == grid.kinds.count("unmask") == 2 * len(NAMES)
    assert set(train(folder, grid, "audit").audit.values()) == {0.0}


def test_a_rollback_of_a_secure_training_needs_every_owner(secure_folder):
    folder, grid = secure_folder, grid_of(secure_folder)
    change(folder, "[rounds]", "[rounds]\nkeep_every = 1\nattempts = 1")
    train(folder, grid)
    line = [sys.executable, "-m", "pcfed", "federation", "rollback", "--folder", str(folder)]
    done = subprocess.run([*line, "--to-round", "1"], capture_output=True, text=True, check=False)
    assert "every owner has to agree: rollbacks = 1" in " ".join(done.stdout.split())
    with pytest.raises(MissingAgents):
        train(folder, grid)
    status = Status.load(folder / "server.example" / "status.json")
    assert "has not consented to go back" in status.refused["agent-1"]
    for name in NAMES:
        change(folder, "batch = 1.0", "batch = 1.0\nrollbacks = 1", name)
    assert set(train(folder, grid).audit.values()) == {0.0}


def test_another_secure_training_needs_every_owner(secure_folder):
    """Otherwise a server could train again without one agent, and subtract the first sums."""
    folder, grid = secure_folder, grid_of(secure_folder)
    change(folder, "minimum = 3", "minimum = 3\nattempts = 1")
    for name in NAMES:
        change(folder, "trainings = 10", "trainings = 1", name)
    train(folder, grid)
    assert set(train(folder, grid, "audit").audit.values()) == {0.0}  # the same training is free
    change(folder, 'training = "example"', 'training = "second"')
    with pytest.raises(MissingAgents):
        train(folder, grid)
    refused = Status.load(folder / "server.second" / "status.json").refused["agent-1"]
    assert "has not consented to another training with a secure sum" in refused
    assert "trainings = 2 in the agent's file" in refused
    assert not (folder / "agent-1.second" / "secrets.json").exists()
    for name in NAMES:
        change(folder, "trainings = 1 ", "trainings = 2 ", name)
    run_task(grid, folder / "server.toml", "train")
    change(folder, 'training = "second"', 'training = "example"')
    change(folder, "rounds = 2", "rounds = 3")
    assert train(folder, grid).rounds == 3
    change(folder, 'training = "example"', 'training = "third"')
    with pytest.raises(MissingAgents):
        run_task(grid, folder / "server.toml", "train")


def test_a_training_that_has_asked_for_keys_only_is_not_counted(secure_folder):
    folder = secure_folder
    change(folder, "minimum = 3", "minimum = 3\nattempts = 1")
    for name in NAMES:
        change(folder, "trainings = 10", "trainings = 1", name)
    change(folder, 'training = "example"', 'training = "mistyped"')
    with pytest.raises(MissingAgents):
        run_task(grid_of(folder, NAMES[:2]), folder / "server.toml", "train")
    assert (folder / "agent-1.mistyped" / "secrets.json").exists()
    change(folder, 'training = "mistyped"', 'training = "example"')
    assert train(folder, grid_of(folder)).finished == NAMES


def test_messages_about_keys_read_no_rows(secure_folder):
    """Whether rows can be read, with labels that the server chooses, says something about them."""
    folder = secure_folder
    change(folder, "minimum = 3", "minimum = 3\nattempts = 1")
    (folder / "agent-1.csv").unlink()
    grid = grid_of(folder)
    with pytest.raises(MissingAgents):
        run_task(grid, folder / "server.toml", "train")
    assert {"introduce", "announce", "train"} <= set(grid.kinds)
    status = Status.load(folder / "server.example" / "status.json")
    assert "Round 0: 3 agents must be in a sum." in status.note
    secrets = json.loads((folder / "agent-1.example" / "secrets.json").read_text())
    assert secrets["secrets"]  # it has announced them


@pytest.mark.parametrize("key", ["labels", "features"])
def test_a_secure_training_has_one_model(secure_folder, key, caplog):
    """Otherwise a server could try which labels occur in the rows of an agent."""
    folder = secure_folder
    train(folder, grid_of(folder))
    other = {
        "labels": ('["x", "y", "z"]', '["x", "y", "w"]'),
        "features": ('"d", "e"]', '"d", "kind"]'),
    }[key]
    for name in NAMES:  # rows are not read again, so that nothing depends on them
        (folder / f"{name}.csv").unlink()
    model = read_server_file(folder / "server.toml").model.model_dump_json()
    text = model.replace(*(each.replace(", ", ",") for each in other))
    assert text != model
    metadata = {"model": text, "training": "example", "grid": 2.0**-32, "m": 3}
    asked = FlowerMessage(
        to_records(Message("train", metadata)), dst_node_id=1, message_type="query"
    )
    reply = reply_to(asked, folder / "agent-1.toml")
    assert "the training has begun with another model" in reply.metadata["reason"]


def test_a_plain_training_is_not_counted(folder):
    for name in NAMES:
        change(folder, "trainings = 10", "trainings = 0", name)
    assert train(folder, grid_of(folder)).finished == NAMES


def copied_rosters(folder):
    """Return a folder with the file of agent-1, its key and the roster of all agents."""
    copy = folder / "copy"
    copy.mkdir()
    for name in ("agent-1.toml", "agent-1.csv", "keys/agent-1.key", "roster.toml"):
        source = folder / name
        (copy / source.name).write_bytes(source.read_bytes())
    return copy


@pytest.mark.parametrize("secure", [False, True])
def test_a_server_can_not_say_that_there_are_two_agents(secure, secure_folder, caplog):
    """Trainings of two agents have no secure sum by default, but the roster has three."""
    folder = secure_folder
    grid = grid_of(folder)
    grid.files[1] = copied_rosters(folder) / "agent-1.toml"
    change(folder, "minimum = 3", "minimum = 2\nattempts = 1")
    roster = 'roster = ["agent-1", "agent-2"]'
    more = "\nsecure = true" if secure else ""
    change(folder, 'roster = ["agent-1", "agent-2", "agent-3"]', roster + more)
    for name in NAMES[1:]:  # they have no roster, and take part in plain trainings
        if not secure:
            change(folder, "batch = 1.0", "batch = 1.0\nsecure = false", name)
    with pytest.raises(MissingAgents):
        train(folder, grid)
    secure_said = "the roster of its owner has 3 agents, and the training 2"
    said = secure_said if secure else "its owner takes part only with a secure sum"
    assert said in caplog.text
    assert not (folder / "copy" / "agent-1.example" / "state.npz").exists()


def refusals(folder, caplog, kind, change=lambda metadata: metadata):
    """Return the log lines of an agent that gets a message with changed metadata."""
    server = read_server_file(folder / "server.toml")
    config = replace(ServerConfig.from_file(server), algorithm=server.algorithm)
    with Server(config, None, folder / "attacker") as attacker:
        message = attacker._message("agent-1", kind, {}, {})
    metadata = change({**message.metadata, "model": server.model.model_dump_json()})
    records = to_records(Message(kind, metadata, message.vectors))
    caplog.clear()
    flower_message = FlowerMessage(records, 1, "query")
    reply = reply_to(flower_message, folder / "agent-1.toml")
    assert reply.kind == "error"
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "missing", ["m", "training", "model", "participants", "round", "rollbacks"]
)
def test_a_message_without_a_field_is_refused_in_a_sentence(missing, secure_folder, caplog):
    def without(metadata):
        return {key: each for key, each in metadata.items() if key != missing}

    lines = refusals(secure_folder, caplog, "train", without)
    assert len(lines) == 1
    assert lines[0].startswith("agent-1: the message of kind 'train' is not valid (")


def test_names_in_messages_can_not_forge_lines_of_the_log(secure_folder, caplog):
    """A name of another agent with a line feed and an escape sequence."""
    forged = "x\n2030-01-01 INFO agent-1: the secure sum is complete\x1b[2J"
    members = [[name, "k", "00", "00"] for name in (forged, "agent-1", "agent-2")]

    def with_members(metadata):
        return {**metadata, "next_place": "0 0", "group": json.dumps(members)}

    (line,) = refusals(secure_folder, caplog, "announce", with_members)
    assert line.startswith("agent-1: the keys of x 2030-01-01 INFO")
    assert line.isprintable()


def test_nobody_can_take_a_registered_name(secure_folder):
    """A node that knows the file of an agent, and not its key."""
    folder = secure_folder
    other = folder / "other"
    other.mkdir()
    for name in ("agent-2.toml", "agent-2.csv"):
        (other / name).write_bytes((folder / name).read_bytes())
    grid = grid_of(folder)
    grid.files[2] = other / "agent-2.toml"
    with pytest.raises(MissingAgents):
        train(folder, grid)
    make_agent_key(other, "agent-2")
    with pytest.raises(MissingAgents):
        train(folder, grid)
    assert not (other / "agent-2.example").exists()
    grid.files[4] = folder / "agent-2.toml"
    assert train(folder, grid).finished == NAMES


def test_an_agent_refuses_keys_that_are_not_in_its_roster(secure_folder, caplog):
    folder = secure_folder
    foreign = Roster({name: Identity.create().public for name in NAMES})
    away = folder / "away"
    away.mkdir()
    for name in ("agent-3.toml", "agent-3.csv"):
        (away / name).write_bytes((folder / name).read_bytes())
    (away / "agent-3.key").write_bytes((folder / "keys" / "agent-3.key").read_bytes())
    foreign.save(away / "roster.toml")
    grid = grid_of(folder)
    grid.files[3] = away / "agent-3.toml"
    change(folder, "deadline = 0.2", "deadline = 0.2\nattempts = 1")
    with pytest.raises(MissingAgents):
        train(folder, grid)
    assert "the key of agent-1 is not the one that is known" in caplog.text


def test_agents_refuse_plain_trainings_of_three_agents(secure_folder, caplog):
    folder = secure_folder
    change(folder, 'training = "example"', 'training = "example"\nsecure = false')
    change(folder, "deadline = 0.2", "deadline = 0.2\nattempts = 1")
    with pytest.raises(MissingAgents):
        train(folder, grid_of(folder))
    status = Status.load(folder / "server.example" / "status.json")
    assert "takes part only with a secure sum" in status.refused["agent-1"]


def test_a_training_without_a_secure_sum_stays_one(secure_folder):
    """The settings of earlier versions do not mention secure sums."""
    folder = secure_folder
    for path in (folder / "server.toml", *(folder / f"{name}.toml" for name in NAMES)):
        path.write_text(f"secure = false\n{path.read_text()}")
    train(folder, grid_of(folder))
    settings = folder / "server.example" / "settings.json"
    text = settings.read_text()
    assert '"secure": false' in text
    settings.write_text(text.replace('"secure": false,', ""))
    train(folder, grid_of(folder))
    change(folder, "secure = false\n", "")
    with pytest.raises(ValueError, match="secure was false and is true"):
        train(folder, grid_of(folder))


def test_the_owners_consent_is_respected(folder):
    change(folder, "certificate = true", "certificate = false", "agent-2")
    change(folder, 'report = ["loss"]', "report = []", "agent-2")
    change(folder, 'report = ["loss"]', 'report = ["rows", "infeasibility"]', "agent-3")
    grid = grid_of(folder)
    result = train(folder, grid)
    assert "agent-2 did not give it" in result.no_certificate
    assert set(grid.kinds) == {"hello", "train", "finish", "audit"}
    reported = {name: set(metrics) for name, metrics in result.metrics.items()}
    assert reported == {"agent-1": {"loss"}, "agent-3": {"rows", "infeasibility"}}


def test_the_first_agents_are_the_roster_and_stay_it(folder):
    change(folder, 'roster = ["agent-1", "agent-2", "agent-3"]', "roster = 2")
    change(folder, "minimum = 3", "minimum = 2")
    (folder / "broken.toml").write_text("name = 3")  # a node whose file has no name
    with pytest.raises(
        MissingAgents, match=r"needs 2 agents, but in 0.2 seconds only agent-3 connect"
    ):
        train(folder, grid_of(folder, ["agent-3", "broken"]))
    assert not (folder / "server.example" / "checkpoint.npz").exists()
    train(folder, grid_of(folder, ["agent-3", "agent-1"]))
    about, _ = load_arrays(folder / "server.example" / "checkpoint.npz")
    assert about["config"]["roster"] == ["agent-1", "agent-3"]
    change(folder, "rounds = 2", "rounds = 3")
    result = train(folder, grid_of(folder, ["agent-2", "agent-3", "agent-1"]))
    assert (result.rounds, result.finished) == (3, ["agent-1", "agent-3"])
    assert not (folder / "agent-2.example").exists()
    change(folder, "roster = 2", "roster = 3")
    with pytest.raises(ValueError, match=r'roster was \["agent-1", "agent-3"\] and is 3;'):
        train(folder, grid_of(folder))
    (folder / "server.example" / "settings.json").unlink()
    with pytest.raises(
        ValueError, match="roster must be 2, the number of agents that the training"
    ):
        train(folder, grid_of(folder))


def test_an_audit_without_training(folder):
    with pytest.raises(ValueError, match="there is no training to audit yet; train first"):
        train(folder, grid_of(folder), "audit")
    assert not (folder / "server.example").exists()
    train(folder, grid_of(folder))
    before = (folder / "server.example" / "checkpoint.npz").read_bytes()
    grid = grid_of(folder)
    result = train(folder, grid, "audit")
    assert set(grid.kinds) == {"hello", "audit"}
    assert max(result.audit.values()) < 1e-14
    assert result.finished == NAMES  # what was known is kept
    assert (folder / "server.example" / "checkpoint.npz").read_bytes() == before
    result = train(folder, grid_of(folder, NAMES[:2]), "audit")
    assert result.no_audit == "The audit needs all agents, and agent-3 did not answer."
    assert result.audit is None
    with pytest.raises(ValueError, match="task must be one of train, audit, got 'play'"):
        train(folder, grid_of(folder), "play")


def test_an_agent_that_is_late_is_shown_and_treated_as_absent(folder):
    change(folder, "minimum = 3", "minimum = 2")
    grid = grid_of(folder)
    seen = []

    def watch(node, message):
        if message.content.config_records["metadata"].get("round") == 1:
            grid.deaf = {2}
            seen.append(Status.load(folder / "server.example" / "status.json"))
        return Grid.answer(grid, node, message)

    grid.answer = watch
    result = train(folder, grid)
    history = read_history(folder / "server.example" / "history.jsonl", 9)
    assert [entry["missing"] for entry in history] == [[], ["agent-2"]]
    assert (seen[0].stage, seen[0].round, seen[0].present) == ("training", 1, NAMES)
    assert "did not answer" in result.no_certificate
    status = Status.load(folder / "server.example" / "status.json")
    assert (status.stage, status.late, status.round) == ("done", ["agent-2"], 2)
    assert "late: agent-2" in status_lines(status)
    assert status.started_at <= status.round_started_at <= status.updated_at


def test_an_error_stays_with_its_agent(folder, caplog):
    path = folder / "agent-2.csv"
    path.write_text(path.read_text().replace(",x\n", ",secret label\n"))
    change(folder, "minimum = 3", "minimum = 2")
    with caplog.at_level(logging.ERROR, "pcfed"):
        train(folder, grid_of(folder))
    assert "secret label" in caplog.text
    entry = read_history(folder / "server.example" / "history.jsonl", 1)[0]
    assert entry["refused"] == {"agent-2": "it could not answer; its own log says why"}
    for kept in (folder / "server.example").rglob("*.*"):
        assert b"secret" not in kept.read_bytes()


def test_a_name_that_two_nodes_use_is_refused(folder):
    change(folder, "minimum = 3", "minimum = 1")
    train(folder, grid_of(folder, [*NAMES, "agent-2"]))
    entry = read_history(folder / "server.example" / "history.jsonl", 1)[0]
    assert entry["refused"].keys() == {"agent-2"}
    assert entry["accepted"] == ["agent-1", "agent-3"]


def test_nodes_of_other_applications_are_ignored(folder):
    grid = grid_of(folder, [*NAMES, "stranger"])
    grid.files[5] = grid.files[6] = folder / "server.toml"

    def answer(node, message):
        strange = {5: Message("hello", {"name": "\x1b[2J"}), 6: Message("hello", {})}
        return to_records(strange[node]) if node in strange else Grid.answer(grid, node, message)

    grid.answer = answer
    assert train(folder, grid).finished == NAMES
    assert b"\\u001b" not in (folder / "server.example" / "status.json").read_bytes()


def test_the_status_says_why_a_training_failed(folder):
    with pytest.raises(MissingAgents, match="Round 0 had fewer than 3 agents"):
        train(folder, grid_of(folder, NAMES[:2]))
    status = Status.load(folder / "server.example" / "status.json")
    assert status.stage == "failed"
    assert status.error == (
        "Round 0 had fewer than 3 agents in 10 attempts; start more agents, then rerun the command."
    )
    assert status_lines(status)[-1] == status.error
    assert "absent: agent-3" in status_lines(status)


def test_a_reply_belongs_to_the_node_that_was_asked(folder):
    grid = grid_of(folder)

    def answer(node, message):
        records = Grid.answer(grid, node, message)
        if node == 1 and records.config_records["metadata"]["kind"] == "train":
            records.config_records["metadata"]["name"] = "agent-2"
        return records

    grid.answer = answer
    train(folder, grid)
    entry = read_history(folder / "server.example" / "history.jsonl", 1)[0]
    assert (entry["accepted"], entry["refused"]) == (NAMES, {})


MODULE = """
from dataclasses import KW_ONLY, dataclass

import numpy as np

from pcfed import FedAvg
from pcfed.algorithms.registry import register


@register
@dataclass(frozen=True)
class Momentum(FedAvg):
    _: KW_ONLY
    momentum: float = 0.5

    def start(self, models):
        server, private = super().start(models)
        return {**server, "momentum": np.zeros_like(server["x"])}, private

    def aggregate(self, server, sums, round_info):
        moved = self.momentum * server["momentum"] + sums.vectors["delta"] / sums.num_aggregated
        return {"x": server["x"] + moved, "momentum": moved}
"""


class SeparateGrid(Grid):
    """A grid whose nodes start without the user's modules, as processes of their own do."""

    def answer(self, node, message):
        registered = dict(registry._ALGORITHMS)
        registry._ALGORITHMS.pop("Momentum")
        sys.modules.pop("own_algorithms", None)
        try:
            return super().answer(node, message)
        finally:
            registry._ALGORITHMS.clear()
            registry._ALGORITHMS.update(registered)


@pytest.fixture
def own_algorithm(folder, monkeypatch):
    """The example with an algorithm of a module beside the server's file."""
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))
    monkeypatch.setitem(sys.modules, "own_algorithms", None)
    del sys.modules["own_algorithms"]
    (folder / "own_algorithms.py").write_text(MODULE)
    change(
        folder,
        'name = "PCFedSplit"\nprox = "auto"',
        'name = "Momentum"\nstep = 0.5\npenalty = 1.0\nmomentum = 0.8',
    )
    change(folder, "[model]", 'imports = ["own_algorithms"]\n\n[model]')
    return SeparateGrid([folder / f"{name}.toml" for name in NAMES])


def test_an_algorithm_that_server_and_agents_import(folder, own_algorithm):
    for name in NAMES:
        change(folder, "coupling", 'imports = ["own_algorithms"]\ncoupling', name)
    assert train(folder, own_algorithm).finished == NAMES
    _, expected = simulated(folder)
    _, arrays = load_arrays(folder / "server.example" / "checkpoint.npz")
    np.testing.assert_allclose(arrays["server/x"], expected.models[0], rtol=0, atol=1e-12)
    assert np.any(arrays["server/momentum"])
    assert str(folder) not in sys.path


def test_an_agent_imports_only_what_its_own_file_names(folder, own_algorithm):
    change(folder, "minimum = 3", "minimum = 2")
    for name in NAMES[:2]:
        change(folder, "coupling", 'imports = ["own_algorithms"]\ncoupling', name)
    train(folder, own_algorithm)
    entry = read_history(folder / "server.example" / "history.jsonl", 1)[0]
    assert entry["accepted"] == NAMES[:2]
    assert entry["refused"] == {
        "agent-3": "the agent does not know the algorithm 'Momentum'; its owner must name the "
        'module that registers it, as in imports = ["my_algorithms"], in the agent\'s file'
    }


def test_a_rollback_by_its_command(folder):
    """Back to round 2 of 4, then on to round 4: the numbers of a training that never went back."""
    change(folder, "rounds = 2", "rounds = 4\nkeep_every = 2")
    grid = grid_of(folder)
    before = train(folder, grid)
    line = [sys.executable, "-m", "pcfed", "federation", "rollback", "--folder", str(folder)]
    listed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert listed.returncode == 2
    assert "got nothing; 4 rounds are done, and the kept ones before are: 0, 2." in (
        " ".join(listed.stderr.split())
    )
    line += ["--to-round", "2"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "The training went back from round 4 to round 2." in " ".join(done.stdout.split())
    assert not (folder / "server.example" / "result.json").exists()
    after = train(folder, grid)
    assert (after.rounds, after.finished) == (4, NAMES)
    assert after.certificate == before.certificate
    assert max(after.audit.values()) < 1e-14


# -- sums over rows -------------------------------------------------------------------------------

ROWS = {"agent-1": 30, "agent-2": 40, "agent-3": 25}


@pytest.fixture
def regression_folder(secure_folder) -> Path:
    """Agents that predict numbers from columns of very different sizes."""
    rng = np.random.default_rng(5)
    for i, (name, rows) in enumerate(ROWS.items()):
        year = rng.integers(1950, 2020, rows) + 3 * i
        area = 1e4 * rng.normal(size=rows)
        price = 300 + 2 * (year - 1985) + 1e-3 * area + rng.normal(size=rows)
        table = np.column_stack([year, area, price])
        np.savetxt(
            secure_folder / f"{name}.csv",
            table,
            "%.17g",
            ",",
            header="year,area,price",
            comments="",
        )
        path = secure_folder / f"{name}.toml"
        path.write_text(
            f'name = "{name}"\nfile = "{name}.csv"\ntarget = "price"\nheld_out = 0.2\n'
            f"constraint = {{ box = [{-1.5 - i / 10}, {1.5 + i / 10}] }}\ncoupling = 0.5\n"
        )
    (secure_folder / "server.toml").write_text(
        'training = "example"\nroster = ["agent-1", "agent-2", "agent-3"]\n'
        '[model]\nkind = "least-squares"\nfeatures = ["year", "area"]\nstandardize = true\n'
        "intercept_bound = 1000.0\nl2 = 0.01\n"
        '[algorithm]\nname = "PCFedSplit"\n'
        "[rounds]\nrounds = 4\nlocal_steps = 20\nattempts = 2\ndeadline = 0.2\nseed = 3\n"
    )
    return secure_folder


def agent_rows(folder):
    server = read_server_file(folder / "server.toml")
    paths = [folder / f"{name}.toml" for name in NAMES]
    files = [read_agent_file(path) for path in paths]
    rows = [read_rows(path, file, server.model) for path, file in zip(paths, files, strict=True)]
    return server, list(zip(files, rows, strict=True))


def test_standardized_data_from_the_files_to_every_agents_model(regression_folder):
    folder, grid = regression_folder, grid_of(regression_folder)
    result = train(folder, grid)
    server, pairs = agent_rows(folder)
    found = ServerState.load(folder / "server.example" / "checkpoint.npz").scaling
    expected = Scaling.fit([rows.X[rows.train] for _, rows in pairs], intercept=True)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-12)
    targets = np.concatenate([rows.y[rows.train] for _, rows in pairs])
    assert found.target_mean == pytest.approx(targets.mean(), rel=1e-12)
    assert grid.kinds.count("totals") == grid.kinds.count("squares") == len(NAMES)

    agents = [build_agent(rows, file, server.model, found) for file, rows in pairs]
    problem = Problem(agents, "free")
    options = {"rounds": 4, "local_steps": 20, "seed": 3, "grid": server.grid}
    simulated = run(problem, server.algorithm, **options)
    certificate = certify(problem, simulated, tightening=0)
    assert result.certificate.gap == pytest.approx(certificate.gap, rel=1e-9)
    assert set(result.audit.values()) == {0.0}
    held_out = [agent.test for agent in agents]
    losses = [test.size * test.value(x) for test, x in zip(held_out, simulated.models, strict=True)]
    assert result.score.rows == sum(test.size for test in held_out) == 19
    assert result.score.loss == pytest.approx(sum(losses) / 19, rel=1e-9)
    assert "held-out rows" in result.score.sentence

    for (file, rows), agent, model in zip(pairs, agents, certificate.models, strict=True):
        arrays = load_arrays(folder / f"{file.name}.example" / "model.npz")[1]
        delivered = arrays["model"]
        np.testing.assert_allclose(delivered, found.to_original_units(model[None])[0], rtol=1e-9)
        assert file.constraint.contains(delivered[:2])
        assert abs(delivered[0]) == pytest.approx(float(file.constraint.upper), rel=1e-9)
        # The model predicts the targets in the units of the file.
        predictions = rows.X[rows.test] @ delivered[:2] + delivered[2]
        standardized = agent.test.sample_predictions(model).ravel() + found.target_mean
        np.testing.assert_allclose(predictions, standardized, rtol=1e-9)
        outcome = Outcome.load(folder / f"{file.name}.example" / "outcome.json")
        assert outcome.agents[0].held_out == agent.test.size
        assert outcome.agents[0].usage.active
        assert "held-out rows" in outcome.notes[1]


def test_standardization_needs_all_agents_and_goes_on_when_they_are_there(regression_folder):
    folder, grid = regression_folder, grid_of(regression_folder)
    missing = grid.files.pop(2)
    with pytest.raises(MissingAgents, match="Standardization needs all agents, and agent-2 did"):
        train(folder, grid)
    grid.files[2] = missing
    expected = train(folder, grid).certificate
    assert expected.gap is not None
    assert expected.round == 4


def test_sums_over_rows_are_taken_once_and_before_the_first_round(regression_folder, caplog):
    """A server that could choose other means or another time would learn nothing new."""
    folder, grid = regression_folder, grid_of(regression_folder)
    train(folder, grid)
    change(folder, "rounds = 4", "rounds = 5")
    original = server_module.Server.run

    def ask_again(server):
        federated_scaling(partial(server._sum_numbers, "A second look"), config)
        return original(server)

    config = Standardization(2, True, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module.Server, "run", ask_again)
        with pytest.raises(MissingAgents, match="taken before the first round"):
            train(folder, grid)


def test_means_and_scales_that_are_not_those_of_the_features(regression_folder):
    """The agent refuses them before it computes anything."""
    message = Message("train", {"scaling": '{"mean": [0], "scale": [1], "target_mean": 0}'})
    with pytest.raises(ProtocolError, match="not those of the features"):
        read_scaling(message.metadata, 2)
    for scale in ("0.0", "NaN", "Infinity", "-1.0", "1e200", "1e-200"):
        text = f'{{"mean": [0, 0], "scale": [1, {scale}], "target_mean": 0, "intercept": true}}'
        with pytest.raises(ProtocolError, match="not those of the features"):
            read_scaling({"scaling": text}, 2)
