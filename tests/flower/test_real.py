"""A real SuperLink and real SuperNodes, as processes with TLS and keys: the simulator's numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pcfed import PCFedAvg, Problem, run
from pcfed.archive import load_arrays
from pcfed.flower.local import LocalFederation
from pcfed.flower.node import Node
from pcfed.flower.progress import read_history
from pcfed.flower.settings import agent_of, read_agent_file, read_server

NAMES = ("agent-1", "agent-2", "agent-3")


@pytest.fixture
def federation(tmp_path) -> Iterator[LocalFederation]:
    found = LocalFederation(tmp_path / "federation")
    found.write_example(len(NAMES))
    file = found.folder / "server.toml"
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 2"))
    yield found
    found.down()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_three_agents_over_tls_with_keys(federation):
    folder = federation.folder
    federation.up(secure=True)
    with pytest.raises(ValueError, match="has one that runs; take it down"):
        federation.up(secure=True)
    assert all(federation.alive().values())
    certificate = folder / "keys" / "server.crt"
    check = ["openssl", "verify", "-CAfile", folder / "keys" / "ca.crt", certificate]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    assert federation.run(), (folder / "logs" / "flwr.log").read_text()[-3000:]
    training = federation.training
    facts = json.loads((training / "result.json").read_text())
    rounds = read_history(training / "history.jsonl", 9)
    assert [entry["counted"] for entry in rounds] == [list(NAMES)] * 2
    assert facts["audit"].keys() == {"w_mean", "cv_mean", "cu_mean"}
    assert all(off < 1e-13 for off in facts["audit"].values())

    settings = read_server(folder / "server.toml")
    paths = [folder / f"{name}.toml" for name in NAMES]
    agents = [agent_of(path, read_agent_file(path).settings, settings.schema) for path in paths]
    method = PCFedAvg(step=0.5, penalty=1.0, exact=True)
    expected = run(Problem(agents), method, rounds=2, local_steps=20)
    _, arrays = load_arrays(training / "checkpoint.npz")
    server = {key.removeprefix("server/"): vector for key, vector in arrays.items()}
    for i, name in enumerate(NAMES):
        model = Node(name, agents[i], folder / f"{name}.example").model(server, method)
        np.testing.assert_allclose(model, expected.models[i], rtol=0, atol=1e-12)

    sent_to_all = [path for path in (folder / "flower" / "apps").rglob("*") if path.is_file()]
    assert sent_to_all
    assert not [path for path in sent_to_all if path.name.startswith("agent-")]
    assert federation.down() == 4
    assert federation.alive() == {}


def test_the_command_line_of_a_federation_that_is_not_there(tmp_path):
    for command, code, said in (
        ("run", 2, "federation: nothing runs in nowhere; start it with up."),
        ("down", 0, "0 processes stopped."),
    ):
        line = [sys.executable, "-m", "pcfed", "federation", command, "--folder", "nowhere"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert said in done.stdout + done.stderr
        assert list(Path(tmp_path).iterdir()) == []


def test_keys_are_made_once_and_are_for_their_owners(tmp_path):
    line = [sys.executable, "-m", "pcfed", "federation", "keys", "north", "south"]
    line += ["--host", "example.org", "--folder", "keys"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "keys").iterdir()}
    private = {"server.key", "north.key", "south.key"}
    assert names == {"ca.crt", "server.crt", "north.key.pub", "south.key.pub"} | private
    assert all((tmp_path / "keys" / name).stat().st_mode & 0o077 == 0 for name in private)
    again = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "ca.crt is there already, and is not overwritten" in again.stderr
