"""The hooks of a run: journal, callbacks, progress, divergence, stopping, signals, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from pcfed.arrays import Array
from pcfed.simulation.checkpoint import Checkpoint, CheckpointFiles
from pcfed.simulation.history import record_to_row
from pcfed.simulation.interrupt import PendingSignal
from pcfed.simulation.output import OutputIterate
from pcfed.simulation.progress import ProgressLine
from pcfed.simulation.result import Status
from pcfed.simulation.runner import Ending, Evaluation, Hook, Runner, rounds_text
from pcfed.storage.journal import Journal

Stop = Callable[[Evaluation], bool]
"""A rule that ends a run after an evaluated round."""


@runtime_checkable
class Stateful(Protocol):
    """A stop rule whose decision depends on earlier rounds, so checkpoints save its state."""

    def state_dict(self) -> Mapping[str, Array]:
        """Return the state as arrays."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned."""


GROWTH = 1e6
"""A run has diverged if its objective is this many times as large as at the start."""


class JournalHook(Hook):
    """Writes the record of every evaluated round to a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_evaluation(self, runner: Runner, evaluation: Evaluation) -> None:
        """Append the record; the history then keeps only this one in memory."""
        self._journal.append(record_to_row(evaluation.record))
        runner.recorder.keep_only_last()


class CallbackHook(Hook):
    """Calls functions of the user with every evaluated round."""

    def __init__(self, callbacks: Sequence[Callable[[Evaluation], object]]) -> None:
        self._callbacks = tuple(callbacks)

    def on_evaluation(self, runner: Runner, evaluation: Evaluation) -> None:
        """Call them in order."""
        for callback in self._callbacks:
            callback(evaluation)


class ProgressHook(Hook):
    """Shows a progress line."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    def on_evaluation(self, runner: Runner, evaluation: Evaluation) -> None:
        """Update the line."""
        done = runner.round - runner.rounds.start
        self._line.update(done, evaluation.record)

    def on_end(self, runner: Runner) -> None:
        """Finish the line."""
        self._line.close()


class DivergenceHook(Hook):
    """Ends a run whose objective grows without bound, or is not finite.

    Refusals may allow for an objective that is not finite.
    """

    def on_evaluation(self, runner: Runner, evaluation: Evaluation) -> None:
        """Refuse the agents whose loss is not finite; end the run if there are too many."""
        objective = evaluation.record.objective
        if np.isfinite(objective):
            if _has_grown(runner, objective):
                message = f"Diverged by round {runner.round - 1}: the objective is more than "
                message += f"{GROWTH:g} times as large as at the start, {objective:.3g}"
                runner.ending = Ending("diverged", f"{message}; {runner.engine.algorithm.advice}.")
            return
        refusals = runner.recorder.refusals
        refusals.extend(runner.engine.refuse_infinite(evaluation.record))
        if len(refusals) > runner.max_refusals:
            message = f"Diverged by round {runner.round - 1}: the objective is not finite"
            runner.ending = Ending("diverged", f"{message}; {runner.engine.algorithm.advice}.")


def _has_grown(runner: Runner, objective: float) -> bool:
    """Return whether an objective is far above those of the start and of models that are zero.

    A run may start at models with hardly any objective, so the start alone does not say enough.
    """
    start = abs(runner.recorder.start.objective)
    if not objective > GROWTH * start:
        return False
    problem = runner.engine.problem
    return objective > GROWTH * abs(problem.loss(np.zeros(problem.n))) > 0


class StopHook(Hook):
    """Ends a run when the user's rule says so.

    Parameters
    ----------
    stop : callable
        The rule.
    stopped_before : bool
        Whether the run is resumed from a checkpoint at which it had been stopped: the rule, which
        may be another one now, is then asked before the first round.
    """

    def __init__(self, stop: Stop, *, stopped_before: bool) -> None:
        self._stop, self._stopped_before = stop, stopped_before

    def on_start(self, runner: Runner) -> None:
        """Ask the rule again about the round at which the run had been stopped."""
        if self._stopped_before:
            self.on_evaluation(runner, runner.evaluation(runner.recorder.history[-1]))

    def on_evaluation(self, runner: Runner, evaluation: Evaluation) -> None:
        """End the run if the rule returns True."""
        if runner.ending is None and self._stop(evaluation):
            message = f"{rounds_text(runner.round)} done; stop ended the run."
            runner.ending = Ending("stopped", message)


class SignalHook(Hook):
    """Ends a run with checkpoints between two rounds after Ctrl-C or SIGTERM."""

    def __init__(self, pending: PendingSignal, checkpoint: str) -> None:
        self._pending, self._checkpoint = pending, checkpoint

    def after_round(self, runner: Runner, index: int) -> None:
        """End the run if a signal has arrived and rounds are left."""
        done, total = runner.round, runner.rounds.stop
        if self._pending.name is not None and runner.ending is None and done < total:
            runner.ending = Ending(
                "interrupted",
                f"Interrupted by {self._pending.name} after {done} of {total} rounds; "
                f"{self._checkpoint} has the state: resume=True continues from there.",
            )


class CheckpointHook(Hook):
    """Saves a run every few rounds and at its end.

    Parameters
    ----------
    files : CheckpointFiles
        Where checkpoints are saved.
    every : int
        Save after every k-th round.
    iterate : OutputIterate
        Its state is saved, too.
    stop : Stateful, optional
        A stop rule whose state is saved, too.
    journal : Journal, optional
        Its extent is saved, too.
    is_new : bool
        Whether the run starts: it is then saved before its first round, so that a run that is
        killed in it can be resumed, although its journal exists.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        *,
        every: int,
        iterate: OutputIterate,
        stop: Stateful | None,
        journal: Journal | None,
        is_new: bool,
    ) -> None:
        self._files, self._every, self._is_new = files, every, is_new
        self._iterate, self._stop, self._journal = iterate, stop, journal

    def on_start(self, runner: Runner) -> None:
        """Save a new run."""
        if self._is_new:
            self._save(runner)

    def after_round(self, runner: Runner, index: int) -> None:
        """Save every few rounds; the last save is that of the end."""
        is_last = index + 1 == runner.rounds.stop
        if runner.ending is None and (index + 1) % self._every == 0 and not is_last:
            self._save(runner)

    def on_end(self, runner: Runner) -> None:
        """Save how the run ended, unless it diverged: it may be resumed with more refusals."""
        if runner.ending is not None and runner.ending.status != "diverged":
            self._save(runner, runner.ending.status)

    def _save(self, runner: Runner, status: Status | None = None) -> None:
        """Save everything; the journal first, which may be longer than the checkpoint says."""
        recorder = runner.recorder
        self._files.save(
            Checkpoint(
                run=self._files.run,
                probe=self._files.probe,
                state=runner.engine.state,
                start=recorder.start,
                history=tuple(recorder.history),
                refusals=tuple(recorder.refusals),
                bytes_up=recorder.bytes_up,
                bytes_down=recorder.bytes_down,
                seconds=recorder.seconds,
                journal=None if self._journal is None else self._journal.flush(),
                output=self._iterate.state_dict(),
                stop=self._stop.state_dict() if self._stop else {},
                status=status,
            )
        )
