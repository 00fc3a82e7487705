"""Real processes with TLS and keys: the simulator's numbers, strangers, and a killed SuperNode.

`make test-federation` runs more of this kind (test_real_long.py).
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pcfed.federation.flower import DATABASE, erase_messages
from pcfed.federation.keys import make_keys
from tests.federation.processes import federation, wait_until

KILLED = "agent-2"


def test_a_killed_node_and_a_stranger_over_tls_with_keys(tmp_path):
    with federation(tmp_path / "federation", 3, tls=True) as real:
        with pytest.raises(ValueError, match="run already; stop them with down"):
            real.up(tls=True)
        make_keys(tmp_path / "own", ["localhost"], ["stranger"])
        real.stranger("stranger", tmp_path / "own", real.folder / "keys" / "ca.crt")
        real.begin("short", rounds=3, minimum=2)
        real.plant(KILLED, "computing", 1, wait=True)

        seen = []

        def kill_and_start_again() -> None:
            seen.append(in_database(real))
            if real.reached and real.killed != [KILLED]:
                real.kill(KILLED)
                real.up(tls=True)

        real.train(kill_and_start_again)
        accepted = real.check()
        assert real.killed == [KILLED]
        assert KILLED not in accepted[1]
        assert {name for present in accepted for name in present} == set(real.names)
        wait_until(lambda: "Exit Code: 305" in real.log("stranger"))

        apps = [path for path in (real.folder / "flower" / "apps").rglob("*") if path.is_file()]
        assert apps
        assert not [path for path in apps if path.name.startswith("agent-")]
        assert any(seen)  # Flower keeps messages while a round lasts
        assert not in_database(real)
        assert (real.folder / "flower").stat().st_mode & 0o077 == 0
        assert real.down() == 4
        assert real.alive() == {}


def in_database(real) -> bool:
    """Return whether a message is in the files of the SuperLink's database."""
    files = (real.folder / DATABASE).parent.glob(f"{DATABASE.name}*")
    return any(b"accepted_round" in file.read_bytes() for file in files)


def test_deleted_messages_are_erased(tmp_path):
    path = tmp_path / DATABASE
    path.parent.mkdir()
    assert erase_messages(tmp_path / "nowhere")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode=WAL")
    other.execute("CREATE TABLE message (content BLOB)")
    other.execute("INSERT INTO message VALUES (?)", [b"secret update" * 1000])
    other.execute("DELETE FROM message")
    assert any(b"secret" in file.read_bytes() for file in path.parent.iterdir())
    assert erase_messages(tmp_path)  # the SuperLink is still connected
    assert not any(b"secret" in file.read_bytes() for file in path.parent.iterdir())
    other.close()


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="openssl, a second opinion on our certificates, is not installed",
)
def test_openssl_accepts_the_certificate(tmp_path):
    make_keys(tmp_path, ["127.0.0.1", "localhost"], [])
    check = ["openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "server.crt"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


def test_commands_without_a_federation(tmp_path):
    for command, code, said in (
        ("run", 2, "federation: no processes run in nowhere; start them with pcfed federation up."),
        ("down", 0, "Stopped 0 processes."),
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
    assert "ca.crt exists already and is not overwritten" in again.stderr
