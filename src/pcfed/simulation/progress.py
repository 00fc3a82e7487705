"""A progress line on the terminal, written at most ten times a second."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from pcfed.simulation.result import Record


@dataclass
class ProgressLine:
    """One line that says how far a run is, what it has reached and how long it will take.

    Parameters
    ----------
    total : int
        Number of rounds.
    stream : TextIO
        Where to write.
    """

    total: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _began: float = field(default_factory=time.perf_counter, repr=False)
    _shown: float = field(default=0.0, repr=False)

    def update(self, done: int, record: Record) -> None:
        """Show that ``done`` rounds are behind us, and what the last one reached."""
        now = time.perf_counter()
        if now - self._shown < 0.1 and done < self.total:
            return
        self._shown = now
        elapsed = now - self._began
        left = elapsed / max(done, 1) * (self.total - done)
        filled = "█" * round(20 * done / self.total)
        worst = record.infeasibility.max()
        reached = f"objective {record.objective:.4g}  infeasibility {worst:.2g}"
        line = f"\r{filled:░<20} {done}/{self.total} rounds  {reached}  {left:.0f} s left"
        self.stream.write(f"{line:<100}")
        self.stream.flush()

    def close(self) -> None:
        """End the line."""
        self.stream.write("\n")
        self.stream.flush()
