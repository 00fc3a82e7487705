"""The folder of a server: its file, its keys and its SuperLink, which runs in the background.

server.toml         the training
roster.toml         the names and public keys of all agents, for them
keys/               the certificate authority, the server's key, and the agents' public keys
app/, flower/       files of Flower
logs/               one log per process
federation.json     the port and the process ids
server.TRAINING/    checkpoint, history and result
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pcfed.config.federation_files import ServerFile, read_server_file
from pcfed.config.json_schema import toml_value
from pcfed.errors import display_path, one_line
from pcfed.federation.flower import (
    DATABASE,
    FLOWER_APP,
    FLOWER_NAME,
    Connection,
    environment,
    erase_messages,
    program,
    superlink_command,
)
from pcfed.federation.paths import RESULT, ROSTER, training_directory
from pcfed.federation.processes import (
    HOST,
    Command,
    Processes,
    is_alive,
    is_listening,
    spawn,
    stop,
    wait_until,
)
from pcfed.federation.server_settings import check_settings
from pcfed.federation.server_state import ServerConfig, ServerResult, ended_result
from pcfed.storage.atomic import write_atomically

SUPERLINK = "SuperLink"
"""Name of the SuperLink among the processes; those of other processes are the agents' names."""

APP_FILE, RUN_FILE = "app/pyproject.toml", "flower/run.toml"


class ServerFolder:
    """A server with all its files in one folder.

    Parameters
    ----------
    folder : Path
        The folder.
    overrides : sequence of str
        Values that replace those of server.toml, such as ``"rounds.rounds=30"``.
    """

    def __init__(self, folder: Path, overrides: Sequence[str] = ()) -> None:
        self.folder = folder.absolute()
        self.overrides = list(overrides)
        self.server_file = self.folder / "server.toml"
        self.keys = self.folder / "keys"
        self._processes_path = self.folder / "federation.json"

    # -- processes ----------------------------------------------------------------------------

    def start(self) -> list[str]:
        """Start the SuperLink unless it runs, and register all public keys in the folder of keys.

        The result has the names of the keys that are new to the SuperLink.
        """
        connection = Connection.load(self.folder)
        self.start_superlink(self.processes or Processes(connection.port, True, {}))
        new = [key.name for key in sorted(self.keys.glob("*.pub")) if self.register(key)]
        self.write_roster()
        return new

    def write_roster(self) -> None:
        """Write roster.toml: the names and public keys of all agents whose keys are there."""
        from pcfed.federation.identity import Roster  # needs an optional package

        file = self.file
        names = None if isinstance(file.roster, int) else file.roster
        roster = Roster.of_keys(self.keys, names, file.resolved_colluders, file.rounds.minimum)
        if roster.keys:
            roster.save(self.folder / ROSTER)

    def start_superlink(self, processes: Processes) -> Processes:
        """Return the processes with a SuperLink that listens; it is started if it does not run."""
        if is_alive(processes.pids.get(SUPERLINK)):
            return processes
        if is_listening(processes.port):
            raise ValueError(
                f"federation: port {processes.port} is in use by another program; stop it, or "
                "choose another port."
            )
        # Its database has single updates while a round lasts.
        folder = (self.folder / DATABASE).parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        command = superlink_command(self.folder, HOST, processes.port, tls=processes.tls)
        processes = self._add_process(processes, SUPERLINK, self._spawn(SUPERLINK, command))
        pid = processes.pids[SUPERLINK]
        wait_until(lambda: is_listening(processes.port) or not is_alive(pid), 60.0)
        if not is_listening(processes.port):
            raise ValueError(
                "federation: the SuperLink did not start within a minute; its log is "
                f"{display_path(self._log(SUPERLINK))}."
            )
        return processes

    def register(self, key: Path) -> bool:
        """Register an agent's public key; return False if the SuperLink has it already."""
        code, output = self._flwr("supernode", "register", key, FLOWER_NAME)
        if code == 0:
            return True
        if "already in use" in " ".join(output.split()):
            return False
        raise ValueError(
            one_line(
                f"federation: {display_path(key)} must be the public key of an agent, but Flower "
                f"refused it: {output.strip()}"
            )
        )

    def down(self) -> int:
        """Stop all processes and return how many there were."""
        processes = self.processes
        if processes is None:
            return 0
        stop(processes.pids.values())
        self._processes_path.unlink()
        erase_messages(self.folder)
        return len(processes.pids)

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

    # -- trainings ----------------------------------------------------------------------------

    def run(self, task: str = "train", on_tick: Callable[[], object] = lambda: None) -> bool:
        """Train as the server's file says, or resume; return whether there is a new result.

        With the task "audit" it only audits. ``on_tick`` is called a few times a second meanwhile.
        """
        check_settings(self.training_directory, self.file)
        before = self._result_time()
        config = {"server": self.server_file, "task": task, "overrides": json.dumps(self.overrides)}
        lines = [f"{key} = {toml_value(str(value))}\n" for key, value in config.items()]
        self._write(RUN_FILE, "".join(lines))
        # Flower sends all files of the app's folder to everybody, so nothing else may be there.
        self._write(APP_FILE, FLOWER_APP)
        app = (self.folder / APP_FILE).parent
        line = ("run", app, FLOWER_NAME, "--stream", "--run-config", self.folder / RUN_FILE)
        self._flwr(*line, on_tick=on_tick)
        erase_messages(self.folder)
        return self._result_time() > before

    @property
    def file(self) -> ServerFile:
        """The server's file, with the values of ``overrides``."""
        return read_server_file(self.server_file, self.overrides)

    @property
    def config(self) -> ServerConfig:
        """The training, as the server's file describes it."""
        return ServerConfig.from_file(self.file)

    def ended_result(self) -> ServerResult | None:
        """Return the result of a training that has nothing left to do; None if it has."""
        if not self.server_file.exists():
            return None
        check_settings(self.training_directory, self.file)
        return ended_result(self.training_directory, self.config)

    @property
    def training_directory(self) -> Path:
        """The directory of the server's files of the training."""
        return training_directory(self.server_file, self.file.training)

    def _result_time(self) -> int:
        """Return when the last result was written."""
        result = self.training_directory / RESULT
        return result.stat().st_mtime_ns if result.exists() else 0

    # -- programs -----------------------------------------------------------------------------

    def _flwr(
        self, *arguments: object, on_tick: Callable[[], object] = lambda: None
    ) -> tuple[int, str]:
        """Run Flower's command line; its output goes to a log and is returned after its code."""
        command = [str(each) for each in (program("flwr"), *arguments)]
        path = self._log("flwr")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as log:
            size = log.tell()
            with subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            ) as process:
                while process.poll() is None:
                    on_tick()
                    time.sleep(0.2)
        return process.returncode, path.read_bytes()[size:].decode("utf-8", "replace")

    def _spawn(self, name: str, command: Command) -> int:
        """Start a process that outlives this one, and return its id."""
        return spawn(command, self._environment(), self._log(name))

    def _environment(self) -> dict[str, str]:
        return environment(self.folder)

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.folder / name, text.encode())
