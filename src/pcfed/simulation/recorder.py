"""What a run has found and cost so far: records, refusals, bytes, seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pcfed.arrays import Array
from pcfed.simulation.checkpoint import Checkpoint, Checkpoints
from pcfed.simulation.engine import Engine, Outcome
from pcfed.simulation.result import Record, Refusal, Result, State, Status
from pcfed.storage.journal import Journal


class RunRecorder:
    """The books of a run, those of an earlier one that it goes on from included.

    Parameters
    ----------
    engine : Engine
        What evaluates states.
    state : State
        The state to begin with.
    earlier : Result, Checkpoint or None
        What to go on from.
    journal : Journal, optional
        Where records are written; then only the last one stays in memory.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        earlier: Result | Checkpoint | None,
        journal: Journal | None,
    ) -> None:
        self._engine, self._journal = engine, journal
        self.history: list[Record] = []
        self.refusals: list[Refusal] = []
        self.bytes_up = self.bytes_down = 0
        spent = 0.0
        if earlier is not None:
            self.history.extend(earlier.history)
            self.refusals.extend(earlier.refusals)
            last = earlier if isinstance(earlier, Checkpoint) else earlier.history[-1]
            self.bytes_up, self.bytes_down, spent = last.bytes_up, last.bytes_down, last.seconds
        self._began = time.perf_counter() - spent
        self.start = self.record(state) if earlier is None else earlier.start

    @property
    def seconds(self) -> float:
        """Time since the start of the run, pauses aside."""
        return time.perf_counter() - self._began

    def add(self, outcome: Outcome) -> None:
        """Add a round."""
        self.bytes_up += outcome.bytes_up
        self.bytes_down += outcome.bytes_down
        self.refusals.extend(outcome.refusals)

    def record(self, state: State) -> Record:
        """Evaluate a state and note what it took to get there."""
        return Record(
            **vars(self._engine.figures(state)),
            round=state.round,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            seconds=self.seconds,
        )

    def note(self, record: Record) -> None:
        """Keep a record."""
        if self._journal is not None:
            self._journal.append(record)
            self.history.clear()
        self.history.append(record)

    def checkpoint(
        self,
        files: Checkpoints,
        state: State,
        output: Mapping[str, Array],
        stop: Mapping[str, Array],
        *,
        status: Status | None = None,
    ) -> None:
        """Save everything: first the journal, which may be longer than a checkpoint knows."""
        files.save(
            Checkpoint(
                run=files.run,
                probe=files.probe,
                state=state,
                start=self.start,
                history=tuple(self.history),
                refusals=tuple(self.refusals),
                bytes_up=self.bytes_up,
                bytes_down=self.bytes_down,
                seconds=self.seconds,
                journal=None if self._journal is None else self._journal.flush(),
                output=output,
                stop=stop,
                status=status,
            )
        )
