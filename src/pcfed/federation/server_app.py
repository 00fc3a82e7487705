"""The server as a Flower ServerApp.

It is started with ``flwr run … --run-config 'server="…/server.toml"'``. What it keeps lies in a
folder beside that file: after a SuperLink has died, the same command goes on. With ``task="audit"``
it asks for an audit and trains nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pcfed.federation.paths import CHECKPOINT, LOCK, PROGRESS, RESULT, folder_of
from pcfed.federation.server import Server
from pcfed.federation.settings import read_server
from pcfed.federation.status_file import Progress, read_progress
from pcfed.federation.transport import FlowerTransport, roster_of
from pcfed.storage.atomic import write_atomically
from pcfed.storage.locks import exclusive_lock

app = ServerApp()

TASKS = ("train", "audit")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train or audit as the server's file says, and write what came out."""
    path = Path(str(context.run_config["server"]))
    serve(grid, path, str(context.run_config.get("task", "train")))


def serve(grid: Grid, path: Path, task: str) -> None:
    """Do a task for the training of a server's file.

    Parameters
    ----------
    grid : Grid
        Flower's nodes.
    path : Path
        The server's file.
    task : {"train", "audit"}
        Whether to train, from where it is, or only to audit.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}; give one of them.")
    settings = read_server(path)
    terms = settings.terms
    folder = folder_of(path, terms.training)
    if task == "audit" and not (folder / CHECKPOINT).exists():
        raise ValueError(f"{path}: there must be a training to audit, and none has begun; run it.")
    with (
        exclusive_lock(folder / LOCK),
        Progress(folder / PROGRESS, training=terms.training, rounds=terms.rounds) as progress,
    ):
        post = FlowerTransport(grid, settings.schema, settings.deadline, progress.note)
        if not terms.roster:
            names = roster_of(folder / CHECKPOINT, settings.size, post)
            terms = replace(terms, roster=names)
        with Server(terms, post, folder, progress.note) as server:
            done = server.state.round
            progress.note(roster=list(terms.roster), first=done, round=done)
            if task == "audit":
                result = read_progress(folder / RESULT)
                result = {k: v for k, v in result.items() if k not in ("audit", "no_audit")}
                result |= server.audited()
            else:
                server.run()
                result = server.conclude()
        write_atomically(folder / RESULT, json.dumps(result, indent=1).encode())
