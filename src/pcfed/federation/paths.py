"""Where things lie: a folder for each training, beside the server's or the agent's file.

server.heating/                  north.heating/
    checkpoint.npz                   state.npz       private state, with what is pending
    history.jsonl                    model.npz       its feasible model, at the end
    progress.json                    report.html     what its owner should know, at the end
    result.json                      lock
    lock
"""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINT, HISTORY, PROGRESS = "checkpoint.npz", "history.jsonl", "progress.json"
RESULT, LOCK = "result.json", "lock"
STATE, MODEL, REPORT = "state.npz", "model.npz", "report.html"


def folder_of(file: Path, training: str) -> Path:
    """Return the folder of a training.

    Parameters
    ----------
    file : Path
        The server's file or an agent's.
    training : str
        Name of the training.

    Examples
    --------
    >>> folder_of(Path("north.toml"), "Heating 2").name
    'north.heating-2'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", training.lower()).strip("-") or "training"
    return file.with_name(f"{file.stem}.{slug}")
