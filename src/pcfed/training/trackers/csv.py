"""Records as rows of a CSV file, which is rewritten from the history when a training resumes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO

import numpy as np

from pcfed.data.readers import read_bytes
from pcfed.errors import display_path
from pcfed.simulation.result import Record
from pcfed.storage.atomic import FileError
from pcfed.storage.reading import open_file
from pcfed.training.trackers.tracking import TrackedRun

COLUMNS = ["round", *(field.name for field in fields(Record) if field.name != "round")]


class CsvTracker:
    """A file with one row a record and one column a metric, for agents ``metric[agent]``."""

    def __init__(self, path: Path, agents: Sequence[str]) -> None:
        self.path, self._agents = path, agents
        self._file: IO[str] | None = None

    def start(self, earlier: Sequence[Record]) -> None:
        """Write a new file with the earlier records."""
        self.finish("")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.TextIOWrapper(open_file(self.path, "wb"), "utf-8", newline="")
        except OSError as error:
            raise FileError(self.path, error) from None
        for record in earlier:
            self.log(record)

    def log(self, record: Record) -> None:
        """Write a row, and before the first row the header."""
        if self._file is None:
            raise ValueError("CsvTracker: the file is not open; call start first.")
        row: dict[str, object] = {}
        for name in COLUMNS:
            value = getattr(record, name)
            if isinstance(value, np.ndarray):
                pairs = zip(self._agents, value.tolist(), strict=True)
                row |= {f"{name}[{agent}]": "" if np.isnan(v) else v for agent, v in pairs}
            else:
                row[name] = value
        writer = csv.writer(self._file, lineterminator="\n")
        if not self._file.tell():
            writer.writerow(row)
        writer.writerow(row.values())
        self._file.flush()

    def finish(self, status: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def open_tracker(run: TrackedRun, path: Path) -> CsvTracker:
    """Return a tracker for a file that is new, empty or was written by such a tracker."""
    if path.exists():
        start = read_bytes(display_path(path), path)[:16]
        if start and not start.startswith(b"round,objective,"):
            raise ValueError(
                f"train: --csv {display_path(path)} must be new or a history that pcfed wrote, got "
                "another file; give another name."
            )
    return CsvTracker(path, run.agents)
