"""The folder of an agent on its own machine: its file, its key, and its SuperNode."""

from __future__ import annotations

import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

from pcfed.config.federation_files import AgentFile, read_agent_file
from pcfed.config.fields import check_agent_name
from pcfed.config.json_schema import schema_text, toml_value
from pcfed.config.validation_errors import validate_file
from pcfed.errors import display_path
from pcfed.federation.flower import Connection, environment, supernode_command
from pcfed.federation.paths import ROSTER
from pcfed.federation.processes import Command, is_alive, spawn, stop
from pcfed.federation.server_setup import refuse_existing, write_private_folder

ADDRESS = re.compile(r"[A-Za-z0-9._:\[\]-]+:[0-9]{1,5}")

AGENT_FILE = """#:schema ./agent.schema.json
#
# This file stays with {name}: the data and the constraint are never sent. Lines of the form
# "# key = value" are settings that are not needed here: remove the "#" to use them.

name = {written_name}  # as in the server's roster
file = {file}  # the data: .csv, .npz or .parquet; relative to this file
target = {target}  # the column to predict
constraint = {constraint}  # on the coefficients; "whole_space" is no constraint
# personalization = 0.5   # of the loss at the own model: 0 none, 1 all
# coupling = 0.1          # how strongly the shared model attracts the own one
# privacy = {{epsilon = 2.0, delta = 1e-5, feature_norm = 3.0}}  # limit what models reveal of rows
# batch = 1.0             # rows in one gradient: a share, or a number
# secure = true           # refuse trainings in which the server could read single updates
# rollbacks = 0           # how often a secure training may go back to an earlier round
# trainings = 1           # in how many secure trainings, by their names, to take part
# certificate = true      # take part in certificates of trainings that are not secure
# report = ["loss"]       # what the server may know of: loss, accuracy, infeasibility, rows
"""


class AgentFolder:
    """An agent with all its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.agent_file = self.folder / "agent.toml"
        self.log = self.folder / "logs" / "agent.log"

    @property
    def name(self) -> str:
        """The agent's name, as in its file."""
        return read_agent_file(self.agent_file).name

    def write(
        self,
        name: str,
        server: str,
        authority: Path,
        *,
        file: Path | None = None,
        target: str = "target",
        constraint: str = "whole_space",
        roster: Path | None = None,
    ) -> Path:
        """Write the files of a new agent, and return the path of its public key.

        Parameters
        ----------
        name : str
            The agent's name.
        server : str
            The server's host and port.
        authority : Path
            The server's ca.crt; it is copied.
        file : Path, optional
            The data file; by default ``NAME.csv`` in the folder.
        target, constraint : str
            The column to predict and the agent's set.
        roster : Path, optional
            The roster.toml of the federation; it is copied.
        """
        # They need an optional package.
        from pcfed.federation.identity import Roster
        from pcfed.federation.keys import key_name, make_agent_key

        key = key_name(check_agent_name(name))
        if not ADDRESS.fullmatch(server):
            raise ValueError(
                f"agent init: --server must be HOST:PORT, got {server!r}; give one such as "
                "server.example.org:8443."
            )
        given = ((authority, "--ca"), (file, "--file"), (roster, "--roster"))
        for path, option in given:
            if path is not None and not path.is_file():
                raise ValueError(
                    f"agent init: {option} must be a file, got {display_path(path)}, which does "
                    "not exist; check the path."
                )
        values = {"file": file.absolute() if file else f"{name}.csv", "target": target}
        written = {key: toml_value(str(value)) for key, value in values.items()}
        text = AGENT_FILE.format(
            name=name, written_name=toml_value(name), constraint=toml_value(constraint), **written
        )
        validate_file(AgentFile, tomllib.loads(text), self.agent_file)
        copy = self.folder / "ca.crt"
        contents = {
            "agent.toml": text,
            "agent.schema.json": schema_text("agent"),
            "flower/config.toml": Connection(server, copy).text,
        }
        refuse_existing("agent init", self.folder, [*contents, "ca.crt", key])
        write_private_folder(self.folder, contents)
        shutil.copyfile(authority, copy)
        if roster is not None:
            Roster.load(roster)  # refuses what is none
            shutil.copyfile(roster, self.folder / ROSTER)
        return make_agent_key(self.folder, name)

    def run(self, on_line: Callable[[str], object]) -> None:
        """Run the SuperNode until it ends or an exception such as Ctrl-C stops it.

        Its output goes to the log; ``on_line`` is called with every line of it.
        """
        command = self.command()
        with self.log.open("ab+") as log:
            log.seek(0, os.SEEK_END)
            pid = spawn(command, environment(self.folder), self.log)
            try:
                running = True
                while running:
                    running = is_alive(pid)  # first, so that the last lines are read, too
                    for line in log:
                        on_line(line.decode("utf-8", "replace").rstrip())
                    time.sleep(0.2)
            finally:
                stop([pid])

    def command(self) -> Command:
        """Return the command of the SuperNode; raise if files are missing."""
        if not self.agent_file.exists():
            raise ValueError(
                f"agent start: there is no agent.toml in {display_path(self.folder)}; write it "
                "with pcfed federation agent init, or give another --folder."
            )
        key = self.folder / f"{self.name}.key"
        if not key.exists():
            raise ValueError(
                f"agent start: there is no key {display_path(key)}; give the agent the name in "
                "agent.toml that it had in agent init."
            )
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        return supernode_command(self.agent_file, Connection.load(self.folder), key)
