"""A federation on this machine, to try it out: a real SuperLink and real SuperNodes.

All its files are in one folder: the server's and the agents' files, logs, keys, and
``federation.json`` with the port and the process ids.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.federation.flower import Connection, program, supernode_command
from pcfed.federation.paths import ROSTER
from pcfed.federation.processes import HOST, Command, Processes, free_port, is_alive
from pcfed.federation.server_folder import ServerFolder

HEARTBEAT_TIMEOUT = 120.0
"""Seconds after which Flower has noticed that a SuperNode died: two heartbeats."""

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
trainings = 10  # with a secure sum, by their names; 1 by default
"""


class LocalFederation(ServerFolder):
    """A federation on this machine, with all its files in one folder."""

    def write_example(self, num_agents: int) -> None:
        """Write data, agents with different budgets and a server's file, unless there is one."""
        program("flower-superlink")  # nothing is written where Flower is not installed
        if self.server_file.exists():
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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

    def up(self, *, tls: bool) -> Processes:
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
            processes = self._prepare(list(files), tls)
        processes = self.start_superlink(processes)
        for name, file in files.items():
            known = processes.pids.get(name)
            if is_alive(known):
                continue
            command = self._supernode_command(name, file, processes)
            if known is None:
                if processes.tls:
                    self.register(self.keys / f"{name}.key.pub")
                pid = self._spawn(name, command)
            else:
                pid = self._respawn_supernode(name, command)
            processes = self._add_process(processes, name, pid)
        return processes

    def _roster_files(self) -> dict[str, Path]:
        """Return the file of every agent of the roster, by name."""
        server = read_server_file(self.server_file)
        paths = sorted(self.folder.glob("*.toml"))
        others = self.server_file, self.folder / ROSTER
        files = {read_agent_file(path).name: path for path in paths if path not in others}
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

    def _prepare(self, roster: Sequence[str], tls: bool) -> Processes:
        """Write the files that Flower needs; return a federation without processes."""
        if not self.keys.exists():
            from pcfed.federation.keys import make_keys  # needs an optional package

            make_keys(self.keys, [HOST, "localhost"], roster)
            self.write_roster()
        processes = Processes(free_port(), tls, {})
        self._connection(processes).save(self.folder)
        return processes

    def _connection(self, processes: Processes) -> Connection:
        authority = self.keys / "ca.crt" if processes.tls else None
        return Connection(f"{HOST}:{processes.port}", authority)

    def _supernode_command(self, name: str, file: Path, processes: Processes) -> Command:
        return supernode_command(file, self._connection(processes), self.keys / f"{name}.key")

    def _respawn_supernode(self, name: str, command: Command) -> int:
        """Start a SuperNode that died; try again while Flower refuses its key.

        Flower does so until it has noticed that the old process is gone.
        """
        log, end = self._log(name), time.monotonic() + HEARTBEAT_TIMEOUT
        while True:
            old_size = log.stat().st_size
            pid = self._spawn(name, command)
            while is_alive(pid) and b"SuperNode ID" not in log.read_bytes()[old_size:]:
                if time.monotonic() > end:
                    return pid
                time.sleep(0.2)
            if is_alive(pid) or time.monotonic() > end:
                return pid
            time.sleep(3.0)
