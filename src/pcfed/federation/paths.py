"""Names of the files of a training: one directory beside the server's or the agent's file.

server.heating/                  north.heating/
    checkpoint.npz                   state.npz       private state and pending update
    history.jsonl                    model.npz       feasible model, at the end
    status.json                      report.html     report for the owner, at the end
    result.json                      lock
    settings.json, lock              config.json, outcome.json, models.npz: as those of a training
    earlier/                         earlier/        checkpoints and states to go back to
    open_sum.npz                     secrets.json    of secure sums

north.privacy.json, beside the agent's file: what all trainings have spent of a privacy budget
north.trainings.json, there, too: the names of the trainings with a secure sum
"""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINT, HISTORY, STATUS = "checkpoint.npz", "history.jsonl", "status.json"
RESULT, SETTINGS, LOCK = "result.json", "settings.json", "lock"
STATE, MODEL, REPORT = "state.npz", "model.npz", "report.html"
EARLIER = "earlier"
SECRETS, OPEN_SUM, ROSTER = "secrets.json", "open_sum.npz", "roster.toml"
PRIVACY, TRAININGS = "privacy.json", "trainings.json"


def training_directory(file: Path, training: str) -> Path:
    """Return the directory of a training, given the server's or an agent's file and its name.

    Examples
    --------
    >>> training_directory(Path("north.toml"), "Heating 2").name
    'north.heating-2'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", training.lower()).strip("-") or "training"
    return file.with_name(f"{file.stem}.{slug}")
