"""Federations of real processes for tests, and their comparison with the simulator."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from pcfed import Agent, Problem, run
from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.federation.client import Client
from pcfed.federation.client_app import build_agent, read_rows
from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.paths import CHECKPOINT, HISTORY, RESULT, training_directory
from pcfed.federation.processes import Command
from pcfed.federation.server_state import ServerConfig, ServerResult, ServerState
from pcfed.federation.status_file import read_history
from pcfed.storage.atomic import write_atomically

SPLIT = 'name = "PCFedSplit"'
BATCH = 0.3
FAULTS = Path(__file__).with_name("faults")
"""A folder whose sitecustomize.py makes a ClientApp die or wait, as `Federation.plant` says."""


class Federation(LocalFederation):
    """A federation whose agents have unequal data, and draw batches of them.

    Parameters
    ----------
    folder : Path
        Where its files are.
    agents : int
        Their number.
    """

    def __init__(self, folder: Path, agents: int) -> None:
        super().__init__(folder)
        self.names = [f"agent-{i + 1}" for i in range(agents)]
        self.faults = self.folder / "faults"
        self.killed: list[str] = []
        self._groups: list[int] = []
        self.write_example(agents)
        for i, name in enumerate(self.names):
            rows = self.folder / f"{name}.csv"
            rows.write_text("\n".join(rows.read_text().splitlines()[: 31 + 7 * i]) + "\n")
            self.change(name, "batch = 1.0", f"batch = {BATCH}")
            self.change(name, "certificate = true", "certificate = false\nsecure = false")
            self.change(name, "trainings = 10", "trainings = 99")

    def change(self, name: str, old: str, new: str) -> None:
        """Change a line of a file."""
        file = self.folder / f"{name}.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def begin(
        self,
        training: str,
        *,
        rounds: int,
        algorithm: str = SPLIT,
        minimum: int | None = None,
        imports: Sequence[str] = (),
        secure: bool = False,
    ) -> None:
        """Write the server's file of another training; with a secure sum, if it is secure."""
        text = self.server_file.read_text()
        shared = text[text.index("roster") : text.index("[algorithm]")]
        # PC-FedAvg has no form for a free centre.
        center = "average" if "PCFedAvg" in algorithm else "free"
        shared = re.sub(r'center = "\w+"', f'center = "{center}"', shared)
        minimum = len(self.names) if minimum is None else minimum
        self.server_file.write_text(
            f'training = "{training}"\nimports = {list(imports)}\n'
            f"secure = {'true' if secure else 'false'}\n{shared}"
            f"[algorithm]\n{algorithm}\n\n[rounds]\n"
            f"rounds = {rounds}\nlocal_steps = 5\nseed = 3\nminimum = {minimum}\n"
            "deadline = 60.0\n"
        )

    def train(self, on_tick: Callable[[], object] = lambda: None) -> None:
        """Run until there is an audit: a run fails if the machine is stopped for a minute."""
        for _ in range(6):
            self.run(on_tick=on_tick)
            path = self.training_directory / RESULT
            if path.exists() and ServerResult.load(path).audit is not None:
                return
        raise AssertionError((self.folder / "logs" / "flwr.log").read_text()[-3000:])

    def check(self, *, exact: bool = False) -> list[list[str]]:
        """Compare with the simulator with the same absences; return the agents of each round.

        The audit must hold, and every agent's model must be the simulator's, to the bit if exact.
        """
        config = ServerConfig.from_file(read_server_file(self.server_file))
        audit = ServerResult.load(self.training_directory / RESULT).audit
        limit = 0.0 if config.secure else 1e-13
        assert all(difference <= limit for difference in audit.values()), audit
        history = self.history()
        assert [entry["round"] for entry in history] == list(range(config.rounds))
        accepted = [entry["accepted"] for entry in history]
        agents = self.agents()
        expected = run(
            Problem(agents, config.center),
            config.algorithm,
            rounds=config.rounds,
            local_steps=config.local_steps,
            batch=BATCH,
            seed=config.seed,
            grid=config.grid if config.secure else None,
            participation=[
                [i for i, name in enumerate(self.names) if name not in present]
                for present in accepted
            ],
        )
        vectors = ServerState.load(self.training_directory / CHECKPOINT).vectors
        for agent, model in zip(agents, expected.models, strict=True):
            client = Client(str(agent.name), agent, self.state(str(agent.name)))
            found = client.model(vectors, config.algorithm)
            np.testing.assert_allclose(found, model, rtol=0, atol=0 if exact else 1e-12)
        return accepted

    def history(self) -> list[dict[str, Any]]:
        """Return the server's history."""
        return read_history(self.training_directory / HISTORY, 99)

    def agents(self) -> list[Agent]:
        """Return the agents as the simulator needs them."""
        model = read_server_file(self.server_file).model
        files = [self.folder / f"{name}.toml" for name in self.names]
        return [
            build_agent(read_rows(path, file, model), file, model)
            for path, file in ((path, read_agent_file(path)) for path in files)
        ]

    def state(self, name: str) -> Path:
        """Return the folder of an agent's state."""
        training = read_server_file(self.server_file).training
        return training_directory(self.folder / f"{name}.toml", training)

    def kill(self, name: str) -> None:
        """Kill a SuperNode or the SuperLink, and nothing else, with SIGKILL."""
        assert self.processes is not None
        os.kill(self.processes.pids[name], signal.SIGKILL)
        wait_until(lambda: not self.alive()[name])
        self.killed.append(name)

    def plant(self, agent: str, where: str, index: int, *, wait: bool = False) -> None:
        """Make the ClientApp of an agent die in a round, or wait for `release`; once.

        Parameters
        ----------
        agent : str
            The agent's name.
        where : str
            "computing", while it computes its update; "before" or "after" it has written its state;
            or that and a kind of message, such as "before confirm": it has not handled one yet, or
            has, and has not replied.
        index : int
            The round.
        wait : bool
            Wait instead of dying.
        """
        for word in ("reached", "go", "written"):
            (self.faults / word).unlink(missing_ok=True)
        fault = {"agent": agent, "where": where, "index": index, "wait": wait}
        write_atomically(self.faults / "fault.json", json.dumps(fault).encode())

    @property
    def reached(self) -> bool:
        """Whether a ClientApp has reached the fault."""
        return (self.faults / "reached").exists()

    def release(self) -> None:
        """End the waiting of a ClientApp."""
        (self.faults / "go").touch()

    def stranger(self, name: str, keys: Path, authority: Path) -> int:
        """Start a SuperNode with the first agent's file and other keys; return its process id."""
        assert self.processes is not None
        line = self._supernode_command(name, self.folder / "agent-1.toml", self.processes)
        line[line.index("--root-certificates") + 1] = authority
        line[line.index("--auth-supernode-private-key") + 1] = keys / f"{name}.key"
        return self._spawn(name, [*line, "--max-retries", 1])

    def log(self, name: str) -> str:
        """Return the log of a process."""
        return (self.folder / "logs" / f"{name}.log").read_text()

    def stop(self) -> None:
        """Kill all processes that were started, and their children."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.down()

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")])
        return {**super()._environment(), "PYTHONPATH": path, "FAULT": str(self.faults)}

    def _spawn(self, name: str, command: Command) -> int:
        self._groups.append(super()._spawn(name, command))
        return self._groups[-1]


@contextmanager
def federation(folder: Path, agents: int, *, tls: bool) -> Iterator[Federation]:
    """Start a federation; stop all of it in the end, whatever happens."""
    found = Federation(folder, agents)
    try:
        found.up(tls=tls)
        yield found
    finally:
        found.stop()


def wait_until(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    """Wait until a condition holds; long, because the machine may be stopped for a minute."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
