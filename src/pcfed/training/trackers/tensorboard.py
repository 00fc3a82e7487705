"""Records as TensorBoard scalars, in an event file that is rewritten when a training resumes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pcfed.errors import display_path, install_command
from pcfed.simulation.result import Record
from pcfed.training.trackers.tracking import TrackedRun

try:
    from tensorboardX import SummaryWriter
except ImportError:
    raise ImportError(
        "train: --tensorboard needs tensorboardX, which is not installed; run "
        f"{install_command('tensorboard')}."
    ) from None


class TensorBoardTracker:
    """An event file in a folder, with the training's digest in its name."""

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        self._folder, self._run = folder, run
        self._suffix = f".pcfed-{run.digest[:12]}"
        self._writer: Any = None

    def start(self, earlier: Sequence[Record]) -> None:
        """Write a new file; an old one of the same training would show its points twice."""
        self.finish("")
        for old in self._folder.glob(f"events.*{self._suffix}"):
            old.unlink()
        self._writer = SummaryWriter(str(self._folder), filename_suffix=self._suffix)
        for record in earlier:
            self.log(record)

    def log(self, record: Record) -> None:
        """Log the metrics of a round."""
        for name, value in self._run.scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def finish(self, status: str) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def open_tracker(run: TrackedRun, folder: Path) -> TensorBoardTracker:
    """Return a tracker for a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"train: --tensorboard must be a folder, got the file {display_path(folder)}; give "
            "another path."
        )
    return TensorBoardTracker(folder, run)
