"""Progress of long commands: bars on a terminal, a line now and then in a file or a pipe."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 10.0
"""Lines are at least this far apart."""

MAX_SECONDS_LEFT = 1e10
"""A longer remaining time is not shown."""


class ProgressBar(Progress):
    """Progress bars with their units and the remaining time.

    Parameters
    ----------
    console : Console
        Where they are shown. If it is not a terminal, lines are printed instead.
    seconds : float
        The least time between lines.
    """

    def __init__(self, console: Console, seconds: float = SECONDS_BETWEEN_LINES) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"))
        super().__init__(
            *columns,
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._seconds = seconds
        self._last_line = time.monotonic()

    def add_task(self, description: str, *args: Any, **options: Any) -> TaskID:
        """Add a bar; ``unit`` is what its steps are called, rounds by default."""
        return super().add_task(description, *args, **{"unit": "rounds", **options})

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a bar, or print a line."""
        super().update(task_id, **changes)
        now = time.monotonic()
        if self.disable and now - self._last_line >= self._seconds:
            self._last_line = now
            self.print_line(task_id)

    def print_line(self, task_id: TaskID) -> None:
        """Print what the bar shows as a line of text."""
        task = next(task for task in self.tasks if task.id == task_id)
        line = f"{task.completed:,.0f} of {task.total:,.0f} {task.fields['unit']}"
        line += f", {task.description}" if task.description else ""
        if (left := task.time_remaining) is not None and 0 < left < MAX_SECONDS_LEFT:
            line += f", about {timedelta(seconds=round(left))} left"
        self.console.print(escape(line), highlight=False, soft_wrap=True)
