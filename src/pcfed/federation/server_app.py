"""The server as a Flower ServerApp.

It is started with ``flwr run … --run-config 'server="…/server.toml"'``. Its files are in a
directory beside that file, so the same command resumes the training after a SuperLink has died.
With ``task="audit"`` it audits and trains nothing; if the training has ended without a certificate,
for example because an owner did not consent yet, it tries to certify the models, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pcfed.config.federation_files import read_server_file
from pcfed.extras import MissingExtra
from pcfed.federation.identity import Roster
from pcfed.federation.paths import CHECKPOINT, LOCK, RESULT, SETTINGS, STATUS, training_directory
from pcfed.federation.server import Server
from pcfed.federation.server_settings import ServerSettings, check_settings
from pcfed.federation.server_state import ServerConfig, ServerResult
from pcfed.federation.status_file import StatusFile
from pcfed.federation.transport import FlowerTransport, resolve_roster
from pcfed.storage.locks import exclusive_lock

try:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

app = ServerApp()

TASKS = ("train", "audit")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train or audit as the run's configuration says."""
    config = context.run_config
    overrides = json.loads(str(config.get("overrides", "[]")))
    run_task(grid, Path(str(config["server"])), str(config.get("task", "train")), overrides)


def run_task(grid: Grid, path: Path, task: str, overrides: Sequence[str] = ()) -> None:
    """Train from the last checkpoint on, or only audit, and write the result.

    ``overrides`` are values that replace those of the server's file.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}; give one of them.")
    file = read_server_file(path, overrides)
    config = ServerConfig.from_file(file)
    folder = training_directory(path, config.training)
    checkpoint, result_path = folder / CHECKPOINT, folder / RESULT
    if task == "audit" and not checkpoint.exists():
        raise ValueError(f"{path}: there is no training to audit yet; train first.")
    check_settings(folder, file)
    with (
        exclusive_lock(folder / LOCK),
        StatusFile(folder / STATUS, config.training, config.rounds) as status,
    ):
        roster = Roster.beside(path)
        keys = {} if roster is None else roster.keys
        config = replace(config, identities=keys)
        transport = FlowerTransport(grid, file.model, file.rounds.deadline, status.update, keys)
        if not config.roster:
            names = resolve_roster(checkpoint, file.num_agents, transport)
            config = replace(config, roster=names)
        with Server(config, transport, folder, status.update) as server:
            done = server.state.round
            status.update(roster=list(config.roster), first_round=done, round=done)
            ServerSettings.of(file, config.roster).save(folder / SETTINGS)
            if task == "train":
                server.run()
                result = server.conclude()
            else:
                found = ServerResult.load(result_path) if result_path.exists() else None
                result = server.repeat_audit(found or ServerResult(done))
        result.save(result_path)
