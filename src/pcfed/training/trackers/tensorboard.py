"""Records as scalars of TensorBoard, in an event file that is written anew from the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pcfed.simulation.result import Record
from pcfed.training.trackers.tracking import Story

try:
    from tensorboardX import SummaryWriter
except ImportError:
    raise ImportError(
        "train: --tensorboard needs tensorboardX, which is not installed; run "
        "pip install 'pcfed[tensorboard]'."
    ) from None


class TensorBoardTracker:
    """An event file in a folder, with the training's digest in its name."""

    def __init__(self, folder: Path, story: Story) -> None:
        self._folder, self._story = folder, story
        self._suffix = f".pcfed-{story.digest[:12]}"
        self._writer: Any = None

    def begin(self, earlier: Sequence[Record]) -> None:
        """Write the file anew: old ones of the same training would give their points twice."""
        self.end("")
        for old in self._folder.glob(f"events.*{self._suffix}"):
            old.unlink()
        self._writer = SummaryWriter(str(self._folder), filename_suffix=self._suffix)
        for record in earlier:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add the figures of a round."""
        for name, value in self._story.scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def end(self, status: str) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def open_tracker(story: Story, folder: Path) -> TensorBoardTracker:
    """Return a tracker for a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"train: --tensorboard must be a folder, got the file {folder}.")
    return TensorBoardTracker(folder, story)
