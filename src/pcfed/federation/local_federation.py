"""A federation on this machine, to try it out: a real SuperLink and real SuperNodes.

All its files are in one folder: the server's and the agents' files, logs, keys, and
``federation.json`` with the port and the process ids.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.federation.paths import RESULT, training_directory
from pcfed.federation.server_state import ServerConfig, ServerResult, ended_result
from pcfed.storage.atomic import write_atomically
from pcfed.storage.saved import Metadata, SavedJson

HOST = "127.0.0.1"
FLOWER_NAME = "pcfed"
"""Name of this federation in Flower's configuration."""

SUPERLINK = "SuperLink"
"""Name of the SuperLink among the processes, whose other names are those of the agents."""

HEARTBEAT_TIMEOUT = 120.0
"""Seconds after which Flower has noticed that a SuperNode died: two heartbeats."""

Command = list[Path | str | int]

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
"""

SERVER_FILE = """training = "example"
roster = [{roster}]
center = "free"  # or "average": what the models are coupled to

[model]
kind = "softmax"
features = ["a", "b", "c", "d", "e"]
labels = ["x", "y", "z"]

[algorithm]
name = "PCFedSplit"
prox = "auto"

[rounds]
rounds = 5
local_steps = 20
minimum = {agents}
deadline = 60.0
"""

AGENT_FILE = """# This file stays with {name}: its constraint is never sent.
name = "{name}"
file = "{name}.csv"
target = "kind"
constraint = {{l1 = {radius}}}
coupling = 0.1
personalization = 0.5  # of the loss at the own model: 0 none, as in the paper, 1 all
batch = 1.0
certificate = true
report = ["loss"]
"""


@dataclass(frozen=True)
class Processes(SavedJson):
    """The processes of a federation: the SuperLink's port, whether they use TLS, their ids.

    Each process leads a process group of its own.
    """

    file_kind: ClassVar[str] = "list of a federation's processes"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "stop the processes with the version of pcfed that started them."

    port: int
    secure: bool
    pids: Mapping[str, int]

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls(**contents)

    def alive(self) -> dict[str, bool]:
        """Return for each process whether it runs."""
        return {name: _alive(pid) for name, pid in self.pids.items()}


class LocalFederation:
    """A federation on this machine, with all its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.server_file = self.folder / "server.toml"
        self._processes_path = self.folder / "federation.json"

    def write_example(self, num_agents: int) -> None:
        """Write data, agents with different budgets and a server's file, unless there is one."""
        _program("flower-superlink")  # nothing is written where Flower is not installed
        if self.server_file.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        names = [f"agent-{i + 1}" for i in range(num_agents)]
        centers = rng.normal(size=(3, 5))
        for i, name in enumerate(names):
            labels = rng.integers(3, size=60)
            X = centers[labels] + rng.normal(size=(60, 5))
            rows = [
                ",".join([*(f"{x:.4f}" for x in row), "xyz"[label]])
                for row, label in zip(X, labels, strict=True)
            ]
            self._write(f"{name}.csv", "\n".join(["a,b,c,d,e,kind", *rows, ""]))
            self._write(f"{name}.toml", AGENT_FILE.format(name=name, radius=i + 1))
        roster = ", ".join(f'"{name}"' for name in names)
        self._write("server.toml", SERVER_FILE.format(roster=roster, agents=num_agents))

    # -- processes ----------------------------------------------------------------------------

    def up(self, *, secure: bool) -> Processes:
        """Start a SuperLink, and a SuperNode for every agent of the roster.

        If some of them run, only the others are started again, with the same keys and port.
        """
        processes = self.processes
        if processes is not None and all(processes.alive().values()):
            raise ValueError(
                f"federation: the processes in {self.folder} run already; stop them with down."
            )
        files = self._roster_files()
        if processes is None:
            processes = self._prepare(list(files), secure)
        if not _alive(processes.pids.get(SUPERLINK)):
            pid = self._spawn(SUPERLINK, self._superlink_command(processes))
            processes = self._add_process(processes, SUPERLINK, pid)
            if not _wait_until(partial(_listens, processes.port), 60.0):
                raise ValueError(
                    "federation: the SuperLink did not start within a minute; see its log."
                )
        for name, file in files.items():
            known = processes.pids.get(name)
            if _alive(known):
                continue
            command = self._supernode_command(name, file, processes)
            if known is None:
                if processes.secure:
                    self._flwr("supernode", "register", f"{self._key(name)}.pub", FLOWER_NAME)
                pid = self._spawn(name, command)
            else:
                pid = self._respawn_supernode(name, command)
            processes = self._add_process(processes, name, pid)
        return processes

    def down(self) -> int:
        """Stop all processes and return how many there were."""
        processes = self.processes
        if processes is None:
            return 0
        groups = list(processes.pids.values())
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in groups:
                # The whole group: a SuperNode that died may have left a ClientApp.
                with suppress(ProcessLookupError):
                    os.killpg(group, number)
            _wait_until(lambda: not any(_alive(group, os.killpg) for group in groups), 5.0)
        self._processes_path.unlink()
        return len(groups)

    @property
    def processes(self) -> Processes | None:
        """The processes of the federation, or None if none of them runs."""
        if not self._processes_path.exists():
            return None
        found = Processes.load(self._processes_path)
        return found if any(found.alive().values()) else None

    def alive(self) -> dict[str, bool]:
        """Return for each process whether it runs."""
        return {} if self.processes is None else self.processes.alive()

    def _add_process(self, processes: Processes, name: str, pid: int) -> Processes:
        """Return the processes with one more, and save them: ``down`` must know all of them."""
        processes = replace(processes, pids={**processes.pids, name: pid})
        processes.save(self._processes_path)
        return processes

    def _roster_files(self) -> dict[str, Path]:
        """Return the file of every agent of the roster, by name."""
        server = read_server_file(self.server_file)
        paths = sorted(self.folder.glob("*.toml"))
        files = {read_agent_file(path).name: path for path in paths if path != self.server_file}
        roster = tuple(files) if isinstance(server.roster, int) else server.roster
        if len(roster) < server.num_agents:
            raise ValueError(
                f"federation: the roster has {server.num_agents} agents, but {self.folder} has the "
                f"files of {len(roster)}; add files, or make the roster smaller."
            )
        for name in roster:
            if name not in files:
                raise ValueError(
                    f"federation: there is no file of {name} in {self.folder}; write one, or "
                    f"remove {name} from the roster."
                )
        return {name: files[name] for name in roster}

    def _prepare(self, roster: Sequence[str], secure: bool) -> Processes:
        """Write the files that Flower needs; return a federation without processes."""
        # Flower sends all files of the app's folder to everybody, so nothing else may be there.
        self._write("app/pyproject.toml", FLOWER_APP)
        keys = self.folder / "keys"
        if secure and not keys.exists():
            from pcfed.federation.keys import make_keys  # needs an optional package

            make_keys(keys, [HOST, "localhost"], roster)
        port = _free_port()
        trust = f'root-certificates = "{keys / "ca.crt"}"' if secure else "insecure = true"
        config = f'[superlink.{FLOWER_NAME}]\naddress = "{HOST}:{port}"\n{trust}\n'
        self._write("flower/config.toml", config)
        return Processes(port, secure, {})

    def _superlink_command(self, processes: Processes) -> Command:
        keys = self.folder / "keys"
        command: Command = [_program("flower-superlink")]
        command += ["--host", HOST, "--port", processes.port]
        command += ["--database", self.folder / "flower" / "superlink.db"]
        command += ["--disable-runtime-dependency-installation"]
        if not processes.secure:
            return [*command, "--insecure"]
        command += ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
        return [*command, "--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]

    def _supernode_command(self, name: str, file: Path, processes: Processes) -> Command:
        command: Command = [_program("flower-supernode")]
        command += ["--superlink", f"{HOST}:{processes.port}", "--port", _free_port()]
        command += ["--node-config", f'agent="{file}"']
        if not processes.secure:
            return [*command, "--insecure"]
        command += ["--root-certificates", self.folder / "keys" / "ca.crt"]
        return [*command, "--auth-supernode-private-key", self._key(name)]

    def _key(self, name: str) -> Path:
        return self.folder / "keys" / f"{name}.key"

    def _spawn(self, name: str, command: Command) -> int:
        """Start a process that outlives this one, and return its id."""
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        arguments = [str(each) for each in command]
        return os.posix_spawn(
            arguments[0],
            arguments,
            self._environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, mode, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )

    def _respawn_supernode(self, name: str, command: Command) -> int:
        """Start a SuperNode that died; try again while Flower refuses its key.

        Flower does so until it has noticed that the old process is gone.
        """
        log, end = self.folder / "logs" / f"{name}.log", time.monotonic() + HEARTBEAT_TIMEOUT
        while True:
            old_size = log.stat().st_size
            pid = self._spawn(name, command)
            while _alive(pid) and b"SuperNode ID" not in log.read_bytes()[old_size:]:
                if time.monotonic() > end:
                    return pid
                time.sleep(0.2)
            if _alive(pid) or time.monotonic() > end:
                return pid
            time.sleep(3.0)

    # -- trainings ----------------------------------------------------------------------------

    def run(self, task: str = "train", on_tick: Callable[[], object] = lambda: None) -> bool:
        """Train as the server's file says, or resume; return whether there is a new result.

        With the task "audit" it only audits. ``on_tick`` is called a few times a second meanwhile.
        """
        before = self._result_time()
        config = f'server="{self.server_file}" task="{task}"'
        app = self.folder / "app"
        self._flwr("run", app, FLOWER_NAME, "--stream", "--run-config", config, on_tick=on_tick)
        return self._result_time() > before

    @property
    def config(self) -> ServerConfig:
        """The training, as the server's file describes it."""
        return ServerConfig.from_file(read_server_file(self.server_file))

    def ended_result(self) -> ServerResult | None:
        """Return the result of a training that has nothing left to do; None if it has."""
        if not self.server_file.exists():
            return None
        return ended_result(self.training_directory, self.config)

    @property
    def training_directory(self) -> Path:
        """The directory of the server's files of the training."""
        return training_directory(self.server_file, read_server_file(self.server_file).training)

    def _result_time(self) -> int:
        """Return when the last result was written."""
        result = self.training_directory / RESULT
        return result.stat().st_mtime_ns if result.exists() else 0

    def _flwr(self, *arguments: object, on_tick: Callable[[], object] = lambda: None) -> None:
        """Run Flower's command line; its output goes to a log."""
        command = [str(each) for each in (_program("flwr"), *arguments)]
        with (
            (self.folder / "logs" / "flwr.log").open("ab") as log,
            subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            ) as process,
        ):
            while process.poll() is None:
                on_tick()
                time.sleep(0.2)

    def _environment(self) -> dict[str, str]:
        """Return an environment in which Flower makes no requests to the internet."""
        programs = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.folder / name, text.encode())


def _program(name: str) -> Path:
    """Return one of Flower's programs, which are installed beside Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ValueError(f"federation: {name} is not installed; run pip install 'pcfed[flower]'.")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _alive(pid: int | None, kill: Callable[[int, int], None] = os.kill) -> bool:
    """Return whether a process runs, or with os.killpg any of its group; None never does."""
    if pid is None:
        return False
    with suppress(ChildProcessError):
        # A child that has ended stays visible until its parent has waited for it.
        os.waitpid(pid, os.WNOHANG)
    try:
        kill(pid, 0)
    except OSError:
        return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return False if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
