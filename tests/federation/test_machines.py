"""The commands for several machines: the files that they write, and a federation of them."""

from __future__ import annotations

import base64
import hashlib
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pcfed import Problem, run
from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.federation.agent_folder import AgentFolder
from pcfed.federation.client_app import build_agent, read_rows
from pcfed.federation.flower import Connection
from pcfed.federation.processes import free_port
from pcfed.federation.server_folder import ServerFolder
from pcfed.federation.server_state import ServerResult
from pcfed.storage.archive import load_arrays
from tests.federation.processes import wait_until

NAMES = ("north", "south")


def pcfed(folder: Path, *words: object, code: int = 0) -> str:
    """Run a command and return what it prints."""
    line = [sys.executable, "-m", "pcfed", "federation", *map(str, words)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def init_server(folder: Path, *words: object, code: int = 0) -> str:
    return pcfed(folder, "server", "init", "--host", "server.example.org", *words, code=code)


def init_agent(folder: Path, *words: object, code: int = 0) -> str:
    line = ["agent", "init", "--name", "north", "--server", "server.example.org:8443"]
    return pcfed(folder, *line, *words, code=code)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_files_of_a_server(tmp_path):
    said = init_server(tmp_path, "--training", "heating", "--agents", "north, south")
    server = tmp_path / "server"
    file = read_server_file(server / "server.toml")
    assert (file.training, file.roster, file.rounds.minimum) == ("heating", NAMES, 2)
    assert (server / "server.toml").read_text().startswith("#:schema ./server.schema.json\n")
    assert (server / "server.schema.json").exists()
    assert Connection.load(server).address == "localhost:8000"
    app = tomllib.loads((server / "app" / "pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["components"]["clientapp"].startswith("pcfed.federation")
    assert [path.name for path in (server / "app").iterdir()] == ["pyproject.toml"]
    assert mode(server) == mode(server / "keys") == 0o700
    assert mode(server / "keys" / "server.key") == 0o600
    nginx = (server / "nginx.conf").read_text()
    assert "listen 8443 ssl;" in nginx
    assert "proxy_pass https://127.0.0.1:8000;" in nginx
    assert nginx.count("{") == nginx.count("}")
    for path in re.findall(r'"(/.+)"', nginx):
        assert Path(path).is_file()
    assert "pcfed federation agent init --name NAME --server server.example.org:8443" in said


def test_the_comments_of_the_files_work(tmp_path):
    """Every setting in a comment is valid, alone and in the place where it is."""
    init_server(tmp_path)
    (tmp_path / "ca.crt").touch()
    init_agent(tmp_path, "--ca", "ca.crt")
    for path, read in (
        (tmp_path / "server" / "server.toml", read_server_file),
        (tmp_path / "agent" / "agent.toml", read_agent_file),
    ):
        text = path.read_text()
        settings = re.findall(r"^# (?=\w+ = )", text, re.MULTILINE)
        assert len(settings) >= 3
        for match in re.finditer(r"^# (?=(\w+) = )", text, re.MULTILINE):
            changed = text[: match.start()] + text[match.end() :]
            if match[1] == "labels":  # as its comment says
                changed = changed.replace('"least-squares" ', '"logistic" ')
                changed = re.sub("^intercept_bound.*$", "", changed, flags=re.MULTILINE)
            path.write_text(changed)
            read(path)


def test_the_roster_of_a_server_may_be_left_open(tmp_path):
    init_server(tmp_path, "--folder", "other")
    assert read_server_file(tmp_path / "other" / "server.toml").roster == 2


def test_the_roster_has_the_fingerprints_that_the_agents_have_seen(tmp_path):
    init_server(tmp_path, "--agents", "north, south, west")
    server = ServerFolder(tmp_path / "server")
    line = ["agent", "init", "--server", "server.example.org:8443", "--ca", "server/keys/ca.crt"]
    for name in ("north", "south", "west"):
        said = pcfed(tmp_path, *line, "--name", name, "--folder", name)
        public = (tmp_path / name / f"{name}.key.pub").read_text()
        # As ssh-keygen -l computes it.
        digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
        seen = f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
        assert f"The fingerprint of its key is {seen}." in said
        (server.keys / f"{name}.key.pub").write_text(public)
        server.write_roster()
        roster = (server.folder / "roster.toml").read_text()
        entry = f'name = "{name}"\nkey = "{" ".join(public.split()[:2])}"\n# {seen}\n'
        assert entry in roster
    assert roster.count("[[agent]]") == 3
    other = [*line, "--name", "east", "--folder", "east", "--roster", "server/roster.toml"]
    said = pcfed(tmp_path, *other)
    assert "get roster.toml" not in said
    assert (tmp_path / "east" / "roster.toml").read_text() == roster
    (tmp_path / "broken.toml").write_text("agent = 3")
    said = pcfed(tmp_path, *other[:-3], "broken", "--roster", "broken.toml", code=2)
    assert "broken.toml" in said
    assert "Traceback" not in said


def test_the_files_of_an_agent(tmp_path):
    (tmp_path / "ca.crt").write_text("a certificate")
    (tmp_path / "data.csv").write_text("area,load\n1,2\n")
    words = ("--ca", "ca.crt", "--file", "data.csv", "--target", "load", "--constraint", "l1(1.5)")
    said = init_agent(tmp_path, *words)
    agent = tmp_path / "agent"
    file = read_agent_file(agent / "agent.toml")
    assert (file.name, file.target, file.constraint.spec) == ("north", "load", "l1(1.5)")
    assert (agent / file.file).samefile(tmp_path / "data.csv")
    assert Connection.load(agent) == Connection("server.example.org:8443", agent / "ca.crt")
    assert (agent / "ca.crt").read_text() == "a certificate"
    assert mode(agent) == 0o700
    assert mode(agent / "north.key") == 0o600
    assert (agent / "north.key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert "Send agent/north.key.pub to the server" in said


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "ca.crt").touch()
    init_server(tmp_path)
    init_agent(tmp_path, "--ca", "ca.crt")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for said in (init_server(tmp_path, code=2), init_agent(tmp_path, "--ca", "ca.crt", code=2)):
        assert len(said.splitlines()) == 1
        assert "exists already and is not overwritten; give another folder" in said
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"server": "example.org"}, "--server must be HOST:PORT, got 'example.org'"),
        ({"authority": Path("no.crt")}, "--ca must be a file, got no.crt, which does not exist"),
        ({"file": Path("no.csv")}, "--file must be a file, got no.csv, which does not exist"),
        ({"constraint": "l7(2)"}, "agent.toml: constraint: .*l7"),
        ({"name": " "}, "the name of an agent must be"),
        ({"name": "a/b"}, "is not a valid file name; rename the agent"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_writes_nothing(tmp_path, change, said):
    authority = tmp_path / "ca.crt"
    authority.touch()
    values = {"name": "north", "server": "a:8443", "authority": authority, **change}
    with pytest.raises(ValueError, match=said) as error:
        AgentFolder(tmp_path / "agent").write(**values)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "agent").exists()


def test_commands_before_init_say_what_to_do(tmp_path):
    for words, said in (
        (("agent", "start"), "write it with pcfed federation agent init"),
        (("server", "start"), "write the files of this folder with init first"),
        (("server", "run"), "start them with pcfed federation server start."),
    ):
        assert said in pcfed(tmp_path, *words, code=2)
    assert list(tmp_path.iterdir()) == []
    wrong = ("server", "init", "--host", "https://example.org/")
    assert "--host must be a host name or an address" in pcfed(tmp_path, *wrong, code=2)


def write_data(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for name, rows in zip(NAMES, (30, 40), strict=True):
        X = rng.normal(size=(rows, 2)).round(3)
        y = (X @ [1.0, -2.0] + rng.normal(size=rows)).round(3)
        lines = [f"{a},{b},{load}" for (a, b), load in zip(X, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["area,rooms,load", *lines, ""]))


@pytest.mark.federation
def test_a_federation_of_several_machines_has_the_numbers_of_the_simulator(tmp_path):
    """Server and agents are processes on this machine; agents reach the SuperLink without nginx."""
    write_data(tmp_path)
    port = free_port()
    words = ("--training", "heating", "--agents", "north,south", "--superlink-port", port)
    pcfed(tmp_path, "server", "init", "--host", "127.0.0.1", *words)
    server = ServerFolder(tmp_path / "server")
    with ExitStack() as stack:
        stack.callback(server.down)
        assert "There are no keys of agents" in pcfed(tmp_path, "server", "start")
        for i, name in enumerate(NAMES):
            words = ("--server", f"127.0.0.1:{port}", "--ca", "server/keys/ca.crt")
            words += ("--file", f"{name}.csv", "--target", "load", "--constraint", f"l1({i + 1})")
            pcfed(tmp_path, "agent", "init", "--name", name, "--folder", name, *words)
            public = f"{name}.key.pub"
            (server.keys / public).write_bytes((tmp_path / name / public).read_bytes())
        assert "New keys: north.key.pub, south.key.pub." in pcfed(tmp_path, "server", "start")
        assert "New keys: none." in pcfed(tmp_path, "server", "start")
        agents = [stack.enter_context(started_agent(tmp_path, name)) for name in NAMES]
        said = pcfed(tmp_path, "server", "run", "--set", "rounds.rounds=2")
        assert "The training has ended after 2 rounds." in said
        assert "SuperLink" in pcfed(tmp_path, "status", "--folder", "server")
        for agent in agents:
            agent.send_signal(signal.SIGINT)
            assert agent.wait(30) == 0
            assert "is connected.\nStopped.\n" in agent.stdout.read()
        assert "Stopped 1 process." in pcfed(tmp_path, "down", "--folder", "server")
    check_models(tmp_path)


def started_agent(folder: Path, name: str) -> subprocess.Popen[str]:
    """Start an agent, and wait until it is connected."""
    line = [sys.executable, "-u", "-m", "pcfed", "federation", "agent", "start", "--folder", name]
    process = subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True)
    log = folder / name / "logs" / "agent.log"
    wait_until(lambda: log.exists() and "SuperNode ID" in log.read_text())
    return process


def check_models(folder: Path) -> None:
    """Compare every agent's model with that of the simulator."""
    file = read_server_file(folder / "server" / "server.toml")
    paths = [folder / name / "agent.toml" for name in NAMES]
    agents = [
        build_agent(read_rows(path, own, file.model), own, file.model)
        for path, own in ((path, read_agent_file(path)) for path in paths)
    ]
    problem = Problem(agents, file.resolved_center)
    expected = run(problem, file.algorithm, rounds=2, local_steps=file.rounds.local_steps)
    for path, agent, model in zip(paths, agents, expected.models, strict=True):
        found = load_arrays(path.parent / "agent.heating" / "model.npz")[1]["model"]
        np.testing.assert_allclose(found, agent.feasible_set.project(model), rtol=0, atol=1e-9)
    result = ServerResult.load(folder / "server" / "server.heating" / "result.json")
    assert result.finished == list(NAMES)
    assert max(result.audit.values()) < 1e-13
