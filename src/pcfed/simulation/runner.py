"""The loop over rounds, and the hooks that are called around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pcfed.arrays import Float64Array
from pcfed.problem import Problem
from pcfed.simulation.agent_range import Summand
from pcfed.simulation.engine import Engine, RoundOutcome
from pcfed.simulation.recorder import RunRecorder
from pcfed.simulation.result import Record, Result, Status


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluated round, as callbacks and ``stop`` receive it.

    Attributes
    ----------
    problem : Problem
        The problem that is solved.
    record : Record
        The metrics of the round.
    models, average, center : Array
        The agents' models, (m, n), their average, (n,), and the centre to which they are coupled.
    """

    problem: Problem
    record: Record
    _engine: Engine

    @property
    def models(self) -> Float64Array:
        """The agents' models, one row each."""
        return self._engine.models()

    @property
    def average(self) -> Float64Array:
        """The population average."""
        return self._engine.average()

    @property
    def center(self) -> Float64Array:
        """The centre to which the models are coupled: their average, unless it is free."""
        return self._engine.center()

    def sum_over_agents(self, function: Summand) -> Float64Array:
        """Return the sum over agents of the numbers that a function computes, wherever they are.

        Parameters
        ----------
        function : callable
            Returns a row of numbers, given an agent and its model. On a cluster, it must be one
            that can be pickled.
        """
        return self._engine.sum_over_agents(function)


def rounds_text(number: int) -> str:
    """Return a number of rounds in words.

    Examples
    --------
    >>> rounds_text(1), rounds_text(30)
    ('1 round', '30 rounds')
    """
    return f"{number} round" if number == 1 else f"{number} rounds"


@dataclass(frozen=True)
class Ending:
    """Why a run ended."""

    status: Status
    message: str


class Hook:
    """Base of what is called around the rounds of a run; every method does nothing by default.

    A hook ends the run by setting ``runner.ending``.
    """

    def on_start(self, runner: Runner) -> None:
        """Run before the first round."""

    def before_round(self, runner: Runner, index: int) -> None:
        """Run before the round with this index."""

    def on_evaluation(self, runner: Runner, evaluation: Evaluation) -> None:
        """Run after a round that was evaluated."""

    def after_round(self, runner: Runner, index: int) -> None:
        """Run after every round, and after ``on_evaluation``."""

    def on_end(self, runner: Runner) -> None:
        """Run once, after the last round."""


class Runner:
    """Runs the rounds of one simulation.

    Parameters
    ----------
    engine : Engine
        Runs single rounds, and owns the state.
    recorder : RunRecorder
        Records metrics, traffic and refusals.
    rounds : range
        The indices of all rounds of the run.
    eval_every : int
        Every k-th round is evaluated, and the last one.
    max_refusals : int
        The run diverges if more updates are refused in total.
    hooks : sequence of Hook
        Called in this order.

    Attributes
    ----------
    ending : Ending or None
        Why the run ended; None before.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: RunRecorder,
        *,
        rounds: range,
        eval_every: int,
        max_refusals: int,
        hooks: Sequence[Hook],
    ) -> None:
        self.engine, self.recorder = engine, recorder
        self.rounds, self.eval_every, self.max_refusals = rounds, eval_every, max_refusals
        self.ending: Ending | None = None
        self._hooks = tuple(hooks)

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self.engine.round

    def run(self) -> Ending:
        """Run the rounds that are left, until the last one or until a hook ends the run."""
        for hook in self._hooks:
            hook.on_start(self)
        while self.ending is None and self.round < self.rounds.stop:
            index = self.round
            for hook in self._hooks:
                hook.before_round(self, index)
            if not self._run_round(index):
                break
            if self._is_evaluated(index):
                self._evaluate()
            for hook in self._hooks:
                hook.after_round(self, index)
        if self.ending is None:
            self.ending = Ending("finished", f"{rounds_text(self.round)} done.")
        for hook in self._hooks:
            hook.on_end(self)
        self.engine.free()
        return self.ending

    def _run_round(self, index: int) -> bool:
        """Run one round; return False if it was aborted, which changes nothing but ends the run."""
        allowed = self.max_refusals - len(self.recorder.refusals)
        outcome = self.engine.run_round(index, max_refusals=allowed)
        self.recorder.add(outcome)
        if outcome.aborted:
            self.ending = Ending("diverged", self._why_aborted(outcome))
        return not outcome.aborted

    def _is_evaluated(self, index: int) -> bool:
        return (index + 1) % self.eval_every == 0 or index + 1 == self.rounds.stop

    def _evaluate(self) -> None:
        """Evaluate the state, record its metrics and pass them to the hooks."""
        record = self.recorder.evaluate()
        self.recorder.keep(record)
        evaluation = self.evaluation(record)
        for hook in self._hooks:
            hook.on_evaluation(self, evaluation)

    def evaluation(self, record: Record) -> Evaluation:
        """Return the current state as callbacks receive it."""
        return Evaluation(self.engine.problem, record, self.engine)

    def _why_aborted(self, outcome: RoundOutcome) -> str:
        """Return whose update ended the run, and what to try."""
        last, info = outcome.refusals[-1], outcome.round_info
        name = self.engine.problem.names[last.agent]
        numbers = f" (step {info.step:g}, penalty {info.penalty:g})" if info.step else ""
        return (
            f"Diverged in round {last.round}: the update of {name} was refused, {last.reason}; "
            f"{self.engine.algorithm.advice}{numbers}."
        )

    def result(self, models: Float64Array, average: Float64Array, center: Float64Array) -> Result:
        """Return the result of a run that has ended, with the models that it outputs."""
        if self.ending is None:
            raise RuntimeError("Runner.result: the run must have ended first; call run().")
        return Result(
            models=models,
            average=average,
            center=center,
            history=self.recorder.complete_history(),
            start=self.recorder.start,
            status=self.ending.status,
            message=self.ending.message,
            refusals=tuple(self.recorder.refusals),
            state=self.engine.state,
            names=self.engine.problem.names,
        )
