"""A real SuperLink and real SuperNodes, as processes on this machine: the simulator's numbers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pcfed import PCFedAvg, Problem, run
from pcfed.archive import load_arrays
from pcfed.flower.node import Node
from pcfed.flower.settings import Schema, agent_of, read_agent_file, read_server

BIN = Path(sys.executable).parent
NAMES = ("north", "south", "west")
SERVER = """
training = "a test"
roster = ["north", "south", "west"]

[model]
kind = "softmax"
features = ["a", "b", "c"]
labels = ["x", "y", "z"]

[algorithm]
exact = true
step = 0.3
penalty = 1.0

[rounds]
rounds = 3
local_steps = 4
minimum = 3
deadline = 60.0
"""
AGENT = """
name = "{name}"
file = "{name}.csv"
target = "kind"
constraint = {{l1 = {radius}}}
coupling = 0.1
batch = 0.5
"""
PROJECT = """
[project]
name = "pcfed-federation"
version = "1.0.0"

[tool.flwr.app]
publisher = "pcfed"

[tool.flwr.app.components]
serverapp = "pcfed.flower.server_app:app"
clientapp = "pcfed.flower.client_app:app"

[tool.flwr.app.config]
server = ""
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(*line: object, env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone in the end, with all that it started."""
    with log.open("wb") as stream:
        started = subprocess.Popen(
            [str(each) for each in line],
            env=env,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        os.killpg(started.pid, 9)
        started.wait()


def write_federation(folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "server.toml").write_text(SERVER)
    (folder / "pyproject.toml").write_text(PROJECT)
    for i, name in enumerate(NAMES):
        X = rng.normal(size=(20, 3))
        rows = [",".join([*(f"{x:.3f}" for x in row), "xyz"[row.argmax()]]) for row in X]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,c,kind", *rows]) + "\n")
        (folder / f"{name}.toml").write_text(AGENT.format(name=name, radius=i + 1))


@pytest.mark.skipif(shutil.which("flower-superlink", path=BIN) is None, reason="needs Flower")
def test_three_agents_as_processes(tmp_path):
    write_federation(tmp_path)
    port = free_port()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    env = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        link = (
            *(BIN / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port),
            *("--database", tmp_path / "link.db", "--disable-runtime-dependency-installation"),
        )
        stack.enter_context(process(*link, env=env, log=tmp_path / "link.log"))
        for name in NAMES:
            node = (
                *(BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--port", free_port()),
                *("--node-config", f'agent="{tmp_path / name}.toml"'),
            )
            stack.enter_context(process(*node, env=env, log=tmp_path / f"{name}.log"))
        time.sleep(3)
        start = [BIN / "flwr", "run", tmp_path, "here", "--stream"]
        start += ["--run-config", f'server="{tmp_path / "server.toml"}"']
        done = subprocess.run(
            [str(each) for each in start], env=env, capture_output=True, text=True, timeout=240
        )
        logs = done.stdout + done.stderr
    assert (tmp_path / "server.json").exists(), logs[-3000:]
    facts = json.loads((tmp_path / "server.json").read_text())
    assert facts["rounds"] == 3
    assert all(off < 1e-13 for off in facts["audit"].values())
    assert facts["audit"].keys() == {"w_mean", "cv_mean", "cu_mean"}

    settings = read_server(tmp_path / "server.toml")
    agents = [_agent(tmp_path / f"{name}.toml", settings.schema) for name in NAMES]
    expected = run(
        Problem(agents),
        PCFedAvg(step=0.3, penalty=1.0, exact=True),
        rounds=3,
        local_steps=4,
        batch=0.5,
    )
    _, arrays = load_arrays(tmp_path / "server.npz")
    server = {key.removeprefix("server/"): vector for key, vector in arrays.items()}
    for i, name in enumerate(NAMES):
        node = Node(name, agents[i], tmp_path / f"{name}.a-test.npz")
        model = node.model(server, settings.terms.algorithm)
        np.testing.assert_allclose(model, expected.models[i], rtol=0, atol=1e-12)


def _agent(path: Path, schema: Schema):
    return agent_of(path, read_agent_file(path), schema)
