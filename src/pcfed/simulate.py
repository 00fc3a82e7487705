"""Run a method on a problem, in this process: the one loop over rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.arrays import Array, Float64Array, count
from pcfed.engine import Engine, Outcome
from pcfed.plan import Batch, LocalSteps, Participation, Plan
from pcfed.problem import Problem
from pcfed.progress import ProgressLine
from pcfed.result import Record, Refusal, Result, State, Status
from pcfed.sampling import Purpose, Sampling, stream

Output = Literal["last", "average", "random"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluated round, as callbacks and ``stop`` see it.

    Attributes
    ----------
    problem : Problem
        What is being solved.
    record : Record
        The figures of the round.
    models, average : Array
        The agents' models, (m, n), and their average, (n,).
    """

    problem: Problem
    record: Record
    _engine: Engine
    _state: State

    @property
    def models(self) -> Float64Array:
        """The agents' models, one row each."""
        return self._engine.models(self._state)

    @property
    def average(self) -> Float64Array:
        """The population average."""
        return self._engine.average(self._state)


def run(
    problem: Problem,
    algorithm: Algorithm,
    *,
    rounds: int,
    local_steps: LocalSteps = 1,
    batch: Batch = 1.0,
    sampling: Sampling = "without_replacement",
    participation: Participation = 1.0,
    x0: Array | Literal["random"] | Result | None = None,
    seed: int = 0,
    eval_every: int = 1,
    output: Output = "last",
    stop: Callable[[Evaluation], bool] | None = None,
    callbacks: Sequence[Callable[[Evaluation], object]] = (),
    progress: bool = False,
    max_refusals: int = 0,
    workers: int = 1,
) -> Result:
    r"""Train the agents of a problem together, in this process.

    Parameters
    ----------
    problem : Problem
        The agents.
    algorithm : Algorithm
        The method, for example ``PCFedAvg(step=0.03, penalty=10.0)``.
    rounds : int
        Number of communication rounds R.
    local_steps : int, sequence or callable
        Local steps in a round: a number, one per agent, or a function of the round's index.
    batch : float, int or callable
        Share of the local data in one gradient, a float in (0, 1], its size, an int, or a function
        of the round's index: batches that grow let the gap of the exact method go on falling.
    sampling : {"without_replacement", "with_replacement", "blocks"}
        How batches are drawn; ``"blocks"`` shuffles once and then reads contiguous rows.
    participation : float, int, sequence or callable
        Share (float) or number (int) of agents drawn in every round, or who is absent: a list of
        positions per round, or a function of the round's index that returns one.
    x0 : Array, "random" or Result, optional
        Where to begin: zeros by default, (n,), (m, n), a random point that is feasible for every
        agent where possible, or an earlier result to go on from, with its history.
    seed : int
        Streams belong to (seed, agent, round): same seed, same bits.
    eval_every : int
        Evaluate every k-th round; the last one is always evaluated.
    output : {"last", "average", "random"}
        Which models to return: after the last round, their mean over the rounds, or the iterate
        K* of the theory, uniform over all local steps.
    stop : callable, optional
        Sees each evaluated round as an `Evaluation`; the run ends when it returns True.
    callbacks : sequence of callables
        Called with each `Evaluation`.
    progress : bool
        Whether to show a progress line.
    max_refusals : int
        How many updates that are not finite may be refused before the run ends as diverged.
    workers : int
        Number of threads over which agents are spread.

    Returns
    -------
    Result

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed import Agent, PCFedAvg, Problem, run
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    >>> problem = Problem([Agent(loss, L1Ball(radius), coupling=0.1) for radius in (1, 5)])
    >>> result = run(problem, PCFedAvg(step=0.1, penalty=5.0), rounds=200, local_steps=2)
    >>> result.status
    'finished'
    >>> np.abs(result.models).sum(axis=1).round(1)
    array([1.2, 5.1])
    """
    count("run: rounds", rounds)
    count("run: eval_every", eval_every)
    count("run: max_refusals", max_refusals, minimum=0)
    count("run: workers", workers)
    if output not in get_args(Output):
        raise ValueError(f"run: output must be one of {get_args(Output)}, got {output!r}.")
    plan = Plan(
        problem,
        local_steps=local_steps,
        batch=batch,
        sampling=sampling,
        participation=participation,
        seed=seed,
    )
    earlier = x0 if isinstance(x0, Result) and _continues(x0, problem, algorithm) else None
    first = earlier.state.round if earlier else 0
    span = range(first, first + rounds)
    algorithm = algorithm.resolved(problem, plan.outlook(span))
    state = earlier.state.copy() if earlier else _begin(problem, algorithm, x0, seed)
    line = ProgressLine(rounds) if progress else None

    with Engine(problem, algorithm, plan, workers) as engine:
        ledger = _Ledger(engine, earlier)
        start = earlier.start if earlier else ledger.record(state)
        history = list(earlier.history) if earlier else []
        chosen = _Chosen(output, engine, span)
        status: Status = "finished"
        message = f"{span.stop} rounds done."
        for index in span:
            chosen.before(state, index)
            outcome = engine.play(state, index, allowed=max_refusals - len(ledger.refusals))
            ledger.add(outcome)
            if outcome.given_up:
                status, message = "diverged", _why_refused(problem, outcome)
                break
            state = outcome.state
            chosen.after(state)
            if (index + 1) % eval_every and index + 1 < span.stop:
                continue
            history.append(record := ledger.record(state))
            seen = Evaluation(problem, record, engine, state)
            for callback in callbacks:
                callback(seen)
            if line:
                line.update(index + 1 - first, record)
            if not np.isfinite(record.objective):
                status = "diverged"
                message = f"Diverged by round {index}: the objective is not finite; {_ADVICE}."
                break
            if stop is not None and stop(seen):
                status, message = "stopped", f"{state.round} rounds done; stop ended the run."
                break
        if line:
            line.close()
        if not history or history[-1].round < state.round:
            history.append(ledger.record(state))
        plan.pool.clear()
        models, average = chosen.models(state)
    return Result(
        models=models,
        average=average,
        history=tuple(history),
        start=start,
        status=status,
        message=message,
        refusals=tuple(ledger.refusals),
        state=state,
    )


_ADVICE = "try a smaller step or a smaller penalty"


class _Ledger:
    """What a run has cost since its start, an earlier run that it goes on from included."""

    def __init__(self, engine: Engine, earlier: Result | None) -> None:
        self.engine = engine
        last = earlier.history[-1] if earlier else None
        self.bytes_up = last.bytes_up if last else 0
        self.bytes_down = last.bytes_down if last else 0
        self.refusals: list[Refusal] = list(earlier.refusals) if earlier else []
        self.began = time.perf_counter() - (last.seconds if last else 0.0)

    def add(self, outcome: Outcome) -> None:
        """Add a round."""
        self.bytes_up += outcome.bytes_up
        self.bytes_down += outcome.bytes_down
        self.refusals.extend(outcome.refusals)

    def record(self, state: State) -> Record:
        """Evaluate a state and note what it took to get there."""
        return Record(
            **vars(self.engine.figures(state)),
            round=state.round,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            seconds=time.perf_counter() - self.began,
        )


class _Chosen:
    """The models that a run returns: the last, their mean over the rounds, or the iterate K*."""

    def __init__(self, output: Output, engine: Engine, span: range) -> None:
        self.output = output
        self.engine = engine
        self.taken: Float64Array | None = None
        self.rounds = 0
        if output == "random":
            lengths = [max(engine.plan.steps(index)) for index in span]
            k = int(stream(engine.plan.seed, Purpose.OUTPUT).integers(sum(lengths)))
            ends = np.cumsum(lengths)
            at = int(np.searchsorted(ends, k, side="right"))
            self.index, self.steps = span[at], k - int(ends[at] - lengths[at])

    def before(self, state: State, index: int) -> None:
        """Take the iterate K* if it lies in this round: the same round, cut short, ends there."""
        if self.output == "random" and index == self.index:
            at = state.copy()
            if self.steps:
                allowed = self.engine.problem.m  # refusals are counted in the whole round
                at = self.engine.play(at, index, allowed=allowed, limit=self.steps).state
            self.taken = self.engine.models(at)

    def after(self, state: State) -> None:
        """Count a round in the mean."""
        if self.output == "average":
            self.rounds += 1
            models = self.engine.models(state)
            mean = models if self.taken is None else self.taken
            self.taken = mean + (models - mean) / self.rounds

    def models(self, state: State) -> tuple[Float64Array, Float64Array]:
        """Return the chosen models and their average; the last ones where none were taken."""
        if self.taken is None:
            return self.engine.models(state), self.engine.average(state)
        return self.taken, self.taken.mean(axis=0)


def _why_refused(problem: Problem, outcome: Outcome) -> str:
    """Say in a sentence whose update ended the run, and what to try."""
    last, facts = outcome.refusals[-1], outcome.facts
    return (
        f"Diverged in round {last.round}: the update of {problem.names[last.agent]} was refused, "
        f"{last.reason}; {_ADVICE} (step {facts.step:g}, penalty {facts.penalty:g})."
    )


def _continues(earlier: Result, problem: Problem, algorithm: Algorithm) -> bool:
    """Whether a run can go on from the very state of an earlier one, not just from its models."""
    if earlier.models.shape != (problem.m, problem.n):
        raise ValueError(
            f"run: x0 must be a result of this problem, got models of shape {earlier.models.shape} "
            f"for ({problem.m}, {problem.n}); give a result with the same agents and parameters."
        )
    return earlier.state.algorithm == algorithm.kind


def _begin(
    problem: Problem, algorithm: Algorithm, x0: Array | str | Result | None, seed: int
) -> State:
    """Return the state before the first round."""
    if isinstance(x0, str) and x0 != "random":
        raise ValueError(f'run: x0 must be an array, "random" or a Result, got {x0!r}.')
    if x0 is None:
        models = np.zeros((problem.m, problem.n))
    elif isinstance(x0, str):
        models = _random_start(problem, seed)
    else:
        given = x0.models if isinstance(x0, Result) else x0
        models = problem.as_models("run: x0", given)
    server, private = algorithm.start(models)
    return State(algorithm.kind, 0, server, private)


def _random_start(problem: Problem, seed: int) -> Float64Array:
    """Return one random point that is in every set, or else every agent's own projection of it.

    Projecting onto one set after the other reaches a common point if there is one to be found soon.
    """
    x: Array = stream(seed, Purpose.START).standard_normal(problem.n) / np.sqrt(problem.n)
    sets = [agent.feasible_set for agent in problem.agents]
    own = problem.as_models("run: x0", np.stack([each.project(x) for each in sets]))
    for _ in range(50):
        for each in sets:
            x = each.project(x)
        if all(each.contains(x) for each in sets):
            return problem.as_models("run: x0", x)
    return own
