"""A federation on this machine: a real SuperLink and real SuperNodes, for trying out.

All of it lies in one folder: the server's and the agents' files, logs, keys, and
``federation.json``, which says which processes run and where.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pcfed.config.federation_files import read_agent_file
from pcfed.federation.keys import make_keys
from pcfed.federation.paths import RESULT, folder_of
from pcfed.federation.settings import read_server
from pcfed.storage.atomic import write_atomically

HOST = "127.0.0.1"
NAME = "pcfed"
"""How Flower's configuration calls this federation."""

MISSED = 120.0
"""Seconds after which Flower has surely noticed that a SuperNode died: two heartbeats."""

PROJECT = """[project]
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
"""

SERVER = """training = "example"
roster = [{roster}]

[model]
kind = "softmax"
features = ["a", "b", "c", "d", "e"]
labels = ["x", "y", "z"]

[algorithm]
exact = true
step = 0.5
penalty = 1.0

[rounds]
rounds = 5
local_steps = 20
minimum = {agents}
deadline = 60.0
"""

AGENT = """# This file stays with {name}: nobody else learns its constraint.
name = "{name}"
file = "{name}.csv"
target = "kind"
constraint = {{l1 = {radius}}}
coupling = 0.1
batch = 1.0
certificate = true
report = ["loss"]
"""


@dataclass(frozen=True)
class Running:
    """What runs: a port, and processes by name."""

    port: int
    secure: bool
    processes: dict[str, int]


class LocalFederation:
    """The processes of a federation in a folder.

    Parameters
    ----------
    folder : Path
        Where its files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._facts = self.folder / "federation.json"

    def write_example(self, agents: int) -> None:
        """Write a server's file and agents with data and budgets of their own, where none are."""
        if (self.folder / "server.toml").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        names = [f"agent-{i + 1}" for i in range(agents)]
        centers = rng.normal(size=(3, 5))
        for i, name in enumerate(names):
            kinds = rng.integers(3, size=60)
            X = centers[kinds] + rng.normal(size=(60, 5))
            rows = [
                ",".join([*(f"{x:.4f}" for x in row), "xyz"[kind]])
                for row, kind in zip(X, kinds, strict=True)
            ]
            self._write(f"{name}.csv", "\n".join(["a,b,c,d,e,kind", *rows, ""]))
            self._write(f"{name}.toml", AGENT.format(name=name, radius=i + 1))
        roster = ", ".join(f'"{name}"' for name in names)
        self._write("server.toml", SERVER.format(roster=roster, agents=agents))

    def up(self, *, secure: bool) -> Running:
        """Start a SuperLink and a SuperNode for every agent of the roster.

        Where some of them run, only those that have ended are started again, as they were.
        """
        old = self.running
        if old is not None and all(self.alive().values()):
            raise ValueError(
                f"federation: {self.folder} has one that runs; take it down before you start it."
            )
        settings = read_server(self.folder / "server.toml")
        files = {read_agent_file(path).name: path for path in self._agent_files()}
        roster = settings.terms.roster or tuple(files)
        if len(roster) < settings.size:
            raise ValueError(
                f"federation: the roster has {settings.size} agents, and {self.folder} has files "
                f"of {len(roster)}; write more, or make the roster smaller."
            )
        missing = [name for name in roster if name not in files]
        if missing:
            raise ValueError(
                f"federation: {missing[0]} of the roster must have a file in {self.folder}, and "
                "has none; write one, or take it off the roster."
            )
        running = old or self._prepared(roster, secure)
        port, secure, processes = running.port, running.secure, running.processes
        ended = [
            name
            for name in ("SuperLink", *roster)
            if name not in processes or not _alive(processes[name])
        ]
        if "SuperLink" in ended:
            processes["SuperLink"] = self._start("SuperLink", self._link(port, secure))
            self._note(running)
            _wait_for(port)
            ended.remove("SuperLink")
        for name in ended:
            line = self._node(name, files[name], port, secure)
            if name in processes:
                processes[name] = self._start_again(name, line)
            else:
                if secure:
                    self._flwr("supernode", "register", self._key(name) + ".pub", NAME)
                processes[name] = self._start(name, line)
            self._note(running)
        return running

    def _start_again(self, name: str, line: list[Path | str | int]) -> int:
        """Start a SuperNode that died; Flower takes its key again once it has missed it."""
        log, end = self.folder / "logs" / f"{name}.log", time.monotonic() + MISSED
        while True:
            before = log.stat().st_size
            pid = self._start(name, line)
            while _alive(pid) and b"SuperNode ID" not in log.read_bytes()[before:]:
                if time.monotonic() > end:
                    return pid
                time.sleep(0.2)
            if _alive(pid) or time.monotonic() > end:
                return pid
            time.sleep(3.0)

    def _prepared(self, roster: Sequence[str], secure: bool) -> Running:
        """Write what Flower needs; return the federation of which nothing runs yet."""
        self._write("app/pyproject.toml", PROJECT)  # Flower sends all of that folder to everybody
        keys = self.folder / "keys"
        if secure and not keys.exists():
            make_keys(keys, [HOST, "localhost"], roster)
        port = _free_port()
        trust = f'root-certificates = "{keys / "ca.crt"}"' if secure else "insecure = true"
        config = f'[superlink.{NAME}]\naddress = "{HOST}:{port}"\n{trust}\n'
        self._write("flower/config.toml", config)
        return Running(port, secure, {})

    def run(self, task: str = "train", look: Callable[[], object] = lambda: None) -> bool:
        """Train as the server's file says, from where it is; say whether it came to its end.

        Parameters
        ----------
        task : {"train", "audit"}
            Whether to train, or only to audit.
        look : callable
            Called a few times a second meanwhile.
        """
        before = self._finished()
        config = f'server="{self.folder / "server.toml"}" task="{task}"'
        self._flwr("run", self.folder / "app", NAME, "--stream", "--run-config", config, look=look)
        return self._finished() > before

    @property
    def training(self) -> Path:
        """The folder of what the server keeps of the training."""
        file = self.folder / "server.toml"
        return folder_of(file, read_server(file).terms.training)

    def down(self) -> int:
        """Stop all processes and return how many there were."""
        running = self.running
        if running is None:
            return 0
        groups = list(running.processes.values())
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, number)  # also what a SuperNode that died has left
            _wait_for_end(groups, 5.0)
        self._facts.unlink()
        return len(running.processes)

    @property
    def running(self) -> Running | None:
        """What runs, or None."""
        if not self._facts.exists():
            return None
        found = Running(**json.loads(self._facts.read_text("utf-8")))
        return found if any(map(_alive, found.processes.values())) else None

    def alive(self) -> dict[str, bool]:
        """Say of each process whether it runs."""
        running = self.running
        return {} if running is None else {k: _alive(v) for k, v in running.processes.items()}

    def _finished(self) -> int:
        report = self.training / RESULT
        return report.stat().st_mtime_ns if report.exists() else 0

    def _agent_files(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("*.toml")) if path.name != "server.toml"]

    def _link(self, port: int, secure: bool) -> list[Path | str | int]:
        line: list[Path | str | int] = [
            _program("flower-superlink"),
            "--host",
            HOST,
            "--port",
            port,
        ]
        line += ["--database", self.folder / "flower" / "superlink.db"]
        line += ["--disable-runtime-dependency-installation"]
        if not secure:
            return [*line, "--insecure"]
        keys = self.folder / "keys"
        line += ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
        return [*line, "--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]

    def _node(self, name: str, file: Path, port: int, secure: bool) -> list[Path | str | int]:
        line: list[Path | str | int] = [
            _program("flower-supernode"),
            "--superlink",
            f"{HOST}:{port}",
        ]
        line += ["--port", _free_port(), "--node-config", f'agent="{file}"']
        if not secure:
            return [*line, "--insecure"]
        keys = self.folder / "keys"
        line += ["--root-certificates", keys / "ca.crt"]
        return [*line, "--auth-supernode-private-key", self._key(name)]

    def _key(self, name: str) -> str:
        return str(self.folder / "keys" / f"{name}.key")

    def _start(self, name: str, line: list[Path | str | int]) -> int:
        """Start a process that outlives this one, and return its number."""
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        words = [str(each) for each in line]
        return os.posix_spawn(
            words[0],
            words,
            self._environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, writing, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )

    def _flwr(self, *arguments: object, look: Callable[[], object] = lambda: None) -> None:
        """Run Flower's command line; what it says goes to a log."""
        line = [str(each) for each in (_program("flwr"), *arguments)]
        with (
            (self.folder / "logs" / "flwr.log").open("ab") as log,
            subprocess.Popen(
                line, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            ) as process,
        ):
            while process.poll() is None:
                look()
                time.sleep(0.2)

    def _environment(self) -> dict[str, str]:
        """Return the environment in which Flower does not look for the internet."""
        own = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([own, os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.folder / name, text.encode())

    def _note(self, running: Running) -> None:
        self._write("federation.json", json.dumps(asdict(running), indent=1))


def _program(name: str) -> Path:
    """Return one of Flower's programs, which lie beside Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ValueError(f"federation: {name} is not installed; run pip install 'pcfed[flower]'.")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that we started is let go."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _wait_for_end(groups: Sequence[int], seconds: float) -> None:
    """Wait until no process of the groups runs."""
    end = time.monotonic() + seconds
    while any(_alive(group) or _group_alive(group) for group in groups) and time.monotonic() < end:
        time.sleep(0.05)


def _wait_for(port: int, seconds: float = 60.0) -> None:
    """Wait until somebody listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    raise ValueError("federation: the SuperLink did not start in a minute; look at its log.")
