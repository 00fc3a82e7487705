"""What a run has measured and cost so far: records, refusals, traffic, time."""

from __future__ import annotations

import time

from pcfed.simulation.checkpoint import Checkpoint
from pcfed.simulation.engine import Engine, RoundOutcome
from pcfed.simulation.result import Record, Refusal, Result


class RunRecorder:
    """Records a run, including the earlier run that it continues.

    Parameters
    ----------
    engine : Engine
        Evaluates its state.
    earlier : Result, Checkpoint or None
        The run that is continued or resumed.
    """

    def __init__(self, engine: Engine, earlier: Result | Checkpoint | None) -> None:
        self._engine = engine
        self.history: list[Record] = []
        self.refusals: list[Refusal] = []
        self.bytes_up = self.bytes_down = 0
        seconds = 0.0
        if earlier is not None:
            self.history.extend(earlier.history)
            self.refusals.extend(earlier.refusals)
            last = earlier if isinstance(earlier, Checkpoint) else earlier.history[-1]
            self.bytes_up, self.bytes_down, seconds = last.bytes_up, last.bytes_down, last.seconds
        self._start_time = time.perf_counter() - seconds
        self.start = self.evaluate() if earlier is None else earlier.start

    @property
    def seconds(self) -> float:
        """Time since the start of the run, without interruptions."""
        return time.perf_counter() - self._start_time

    def add(self, outcome: RoundOutcome) -> None:
        """Add the traffic and the refusals of a round."""
        self.bytes_up += outcome.bytes_up
        self.bytes_down += outcome.bytes_down
        self.refusals.extend(outcome.refusals)

    def evaluate(self) -> Record:
        """Return the metrics of the engine's state, with the traffic and the time so far."""
        return Record(
            **vars(self._engine.evaluate()),
            round=self._engine.round,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            seconds=self.seconds,
        )

    def keep(self, record: Record) -> None:
        """Add a record to the history."""
        self.history.append(record)

    def keep_only_last(self) -> None:
        """Remove all records but the last from memory."""
        del self.history[:-1]

    def complete_history(self) -> tuple[Record, ...]:
        """Return the history; its last record is that of the engine's state."""
        if not self.history or self.history[-1].round < self._engine.round:
            self.keep(self.evaluate())
        return tuple(self.history)
