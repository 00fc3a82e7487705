"""Flower's programs: the files that they read, their environment and their command lines."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pcfed.config.json_schema import toml_value
from pcfed.errors import display_path, install_command
from pcfed.federation.processes import Command, free_port
from pcfed.storage.atomic import write_atomically
from pcfed.storage.reading import parse_toml, read_file

FLOWER_NAME = "pcfed"
"""Name of the SuperLink in Flower's configuration."""

MAX_CONFIG_BYTES = 2**20
"""Bytes of Flower's configuration at most."""

POLL_SECONDS = 0.4
"""How often a SuperNode looks for messages that no ClientApp answers yet; Flower's default is 1."""

DATABASE = Path("flower", "superlink.db")
"""The SuperLink's database in the folder of a federation."""

FLOWER_APP = """[project]
name = "pcfed-federation"
version = "1.0.0"

[tool.flwr.app]
publisher = "pcfed"

[tool.flwr.app.components]
serverapp = "pcfed.federation.server_app:app"
clientapp = "pcfed.federation.client_app:app"

[tool.flwr.app.config]
server = ""
task = "train"
overrides = "[]"
"""


@dataclass(frozen=True)
class Connection:
    """How to reach the SuperLink: its address, and its certificate authority; None without TLS.

    It is saved as Flower's own configuration, ``flower/config.toml``.
    """

    address: str
    authority: Path | None

    def save(self, folder: Path) -> None:
        """Write it to a folder."""
        write_atomically(connection_file(folder), self.text.encode())

    @property
    def text(self) -> str:
        """The contents of the file."""
        trust = "insecure = true"
        if self.authority is not None:
            trust = f"root-certificates = {toml_value(str(self.authority))}"
        return f'[superlink.{FLOWER_NAME}]\naddress = "{self.address}"\n{trust}\n'

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read it from a folder."""
        path = connection_file(folder)
        try:
            content = read_file(path, MAX_CONFIG_BYTES).decode("utf-8")
            table = parse_toml(content)["superlink"][FLOWER_NAME]
            authority = table.get("root-certificates")
            return cls(str(table["address"]), None if authority is None else Path(authority))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"federation: {display_path(path)} must have the address of the SuperLink; write "
                "the files of this folder with init first."
            ) from None

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


def connection_file(folder: Path) -> Path:
    """Return the file of Flower's configuration in a folder."""
    return folder / "flower" / "config.toml"


def superlink_command(folder: Path, host: str, port: int, *, tls: bool) -> Command:
    """Return the command of a SuperLink, whose files and keys are in a folder."""
    keys = folder / "keys"
    command: Command = [program("flower-superlink"), "--host", host, "--port", port]
    command += ["--database", folder / DATABASE]
    command += ["--disable-runtime-dependency-installation"]
    if not tls:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
    return [*command, "--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]


def erase_messages(folder: Path) -> bool:
    """Erase what is left of delivered messages in the SuperLink's database; False if it is in use.

    Flower deletes the messages of a run at its end, single updates among them, but SQLite leaves
    their bytes in free pages and in its log. What stays: nodes with their public keys, runs with
    their times and configurations, and logs.
    """
    path = folder / DATABASE
    if not path.exists():
        return True
    try:
        with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as database:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:
        return False
    return True


def supernode_command(agent_file: Path, connection: Connection, key: Path) -> Command:
    """Return the command of a SuperNode; the key is used with TLS only."""
    command: Command = [program("flower-supernode"), "--superlink", connection.address]
    command += ["--port", free_port(), "--node-config", f'agent="{agent_file}"']
    if connection.authority is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", connection.authority]
    return [*command, "--auth-supernode-private-key", key]


def program(name: str) -> Path:
    """Return one of Flower's programs, which are installed beside Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ValueError(f"federation: {name} is not installed; run {install_command('flower')}.")
    return path


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Flower keeps its files in a folder.

    It makes no requests to the internet, and on Linux it runs ClientApps with
    `pcfed.federation.app_runner`.
    """
    programs = [str(Path(sys.executable).parent)]
    if sys.platform == "linux":  # on macOS, forks of a process that has used NumPy may crash
        programs.insert(0, str(_write_superexec(folder).parent))
    return {
        **os.environ,
        "PATH": os.pathsep.join([*programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(POLL_SECONDS),
    }


def _write_superexec(folder: Path) -> Path:
    """Write the program that SuperNodes find in place of Flower's own, and return its path."""
    path = folder / "flower" / "programs" / "flower-superexec"
    command = shlex.join([sys.executable, "-m", "pcfed.federation.app_runner"])
    write_atomically(path, f'#!/bin/sh\nexec {command} "$@"\n'.encode())
    path.chmod(0o700)
    return path
