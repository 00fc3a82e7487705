"""How far a training is, in a small file that others may read at any moment."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from pcfed.storage.atomic import write_atomically


class Progress:
    """Keeps a file of facts up to date; use it as a context manager.

    If it ends with an error, the file says so, and why.

    Parameters
    ----------
    path : Path
        The file.
    facts
        What is known at the beginning.
    """

    def __init__(self, path: Path, **facts: Any) -> None:
        self._path = path
        self._facts: dict[str, Any] = {"stage": "starting", "began": time.time(), **facts}

    def note(self, **facts: Any) -> None:
        """Add facts, or replace older ones; since when a round is going on is added by itself."""
        now = time.time()
        if "round" in facts and facts["round"] != self._facts.get("round"):
            self._facts["since"] = now
        self._facts |= {**facts, "updated": now}
        write_atomically(self._path, json.dumps(self._facts).encode())

    def __enter__(self) -> Progress:
        self.note()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.note(stage="done")
        else:
            self.note(stage="failed", why=str(error) or type(error).__name__)


def read_progress(path: Path) -> dict[str, Any]:
    """Return what the file says, or nothing if it is not there or is something else."""
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def read_history(path: Path, most: int) -> list[dict[str, Any]]:
    """Return the last rounds of a history; a line that is being written is left out.

    Parameters
    ----------
    path : Path
        The file, one round a line.
    most : int
        How many rounds at most.
    """
    try:
        with path.open("rb") as file:
            lines = deque((line for line in file if line.endswith(b"\n")), most)
    except OSError:
        return []
    return [json.loads(line) for line in lines]
