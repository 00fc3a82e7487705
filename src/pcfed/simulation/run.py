"""Run a method on a problem, in this process: the one loop over rounds."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Problem
from pcfed.sampling import Purpose, Sampling, stream
from pcfed.simulation.checkpoint import Checkpoints, probe_of
from pcfed.simulation.engine import Engine, Outcome
from pcfed.simulation.interrupt import Interruption, after_the_round
from pcfed.simulation.output import Output, OutputIterate
from pcfed.simulation.plan import Batch, LocalSteps, Participation, Plan
from pcfed.simulation.progress import ProgressLine
from pcfed.simulation.recorder import RunRecorder
from pcfed.simulation.result import Record, Result, State, Status
from pcfed.storage.journal import Journal
from pcfed.validation import count, positive

PathLike = str | os.PathLike[str]


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
    norm_limit: float | None = None,
    checkpoint: PathLike | None = None,
    every: int = 10,
    resume: bool = False,
    journal: PathLike | None = None,
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
        How many updates may be refused before the run ends as diverged: those that are not finite,
        too long, or of an agent whose projection fails. The round goes on without them.
    norm_limit : float, optional
        The largest Euclidean norm of a vector that an agent sends; longer ones are refused.
    checkpoint : path, optional
        A file in which the run is saved every few rounds and at its end, and beside it the one
        before. Ctrl-C and SIGTERM then end the run after the round, saved, as "interrupted".
    every : int
        Save after every k-th round.
    resume : bool
        Go on from the checkpoint, if there is one, to the same bits as without a pause; the other
        arguments must be the same, but ``rounds`` may be more where no number depends on them.
    journal : path, optional
        A file to which records are written, one a line (`read_journal`); ``result.history`` has
        then only the last one, and memory does not grow with the rounds.
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
    count("run: every", every)
    count("run: max_refusals", max_refusals, minimum=0)
    count("run: workers", workers)
    if norm_limit is not None:
        positive("run: norm_limit", norm_limit)
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
    algorithm = algorithm.resolved(problem, plan.run_info(span))
    line = ProgressLine(rounds) if progress else None

    with ExitStack() as open_files:
        engine = open_files.enter_context(Engine(problem, algorithm, plan, workers, norm_limit))
        files, signals = None, Interruption()
        if checkpoint is not None:
            facts = {
                "algorithm": algorithm,
                "local_steps": local_steps,
                "batch": batch,
                "sampling": sampling,
                "participation": participation,
                "seed": seed,
                "output": output if output == "last" else (output, rounds),
                "journal": journal is not None,
            }
            words = {name: _words(fact) for name, fact in facts.items()}
            files = open_files.enter_context(
                Checkpoints(Path(checkpoint), words, probe_of(problem), _fresh(problem, algorithm))
            )
            signals = open_files.enter_context(after_the_round())
        saved = files.load(resume=resume) if files else None
        state = saved.state if saved else _begin(problem, algorithm, x0, seed)
        records = Journal(Path(journal), saved.journal if saved else None) if journal else None
        if records:
            open_files.enter_context(records)
        recorder = RunRecorder(engine, state, saved or earlier, records)
        most_refusals = max_refusals + (len(earlier.refusals) if earlier else 0)
        most_refusals = max(most_refusals, len(recorder.refusals))  # what is past is past
        chosen = OutputIterate(output, engine, span)
        rule = stop if isinstance(stop, Stateful) else None
        if saved:
            chosen.load_state_dict(saved.output)
            if rule:
                rule.load_state_dict(saved.stop)

        def save(status: Status | None = None) -> None:
            if files:
                remembered = rule.state_dict() if rule else dict[str, Array]()
                recorder.checkpoint(files, state, chosen.state_dict(), remembered, status=status)

        if saved is None:
            save()
        status: Status = "finished"
        message = f"{span.stop} rounds done."
        ended = False
        if saved and saved.status == "stopped" and stop is not None:
            ended = stop(Evaluation(problem, recorder.history[-1], engine, state))
        for index in range(state.round, state.round if ended else span.stop):
            chosen.before(state, index)
            outcome = engine.run_round(state, index, allowed=most_refusals - len(recorder.refusals))
            recorder.add(outcome)
            if outcome.aborted:
                status, message = "diverged", _why_refused(problem, outcome)
                break
            state = outcome.state
            chosen.after(state)
            if (index + 1) % eval_every == 0 or index + 1 == span.stop:
                recorder.note(record := recorder.record(state))
                seen = Evaluation(problem, record, engine, state)
                for callback in callbacks:
                    callback(seen)
                if line:
                    line.update(index + 1 - first, record)
                recorder.refusals.extend(engine.without_value(state, record))
                if len(recorder.refusals) > most_refusals:
                    status = "diverged"
                    message = f"Diverged by round {index}: the objective is not finite; {_ADVICE}."
                    break
                if stop is not None and stop(seen):
                    ended = True
                    break
            if signals.by is not None and index + 1 < span.stop:
                status = "interrupted"
                message = (
                    f"Interrupted by {signals.by} after {state.round} of {span.stop} rounds; "
                    f"{checkpoint} has it all: resume=True goes on from there."
                )
                break
            if (index + 1) % every == 0 and index + 1 < span.stop:
                save()
        if ended:
            status, message = "stopped", f"{state.round} rounds done; stop ended the run."
        if status != "diverged":
            save(status)
        if line:
            line.close()
        if not recorder.history or recorder.history[-1].round < state.round:
            recorder.history.append(recorder.record(state))
        plan.pool.clear()
        models, average = chosen.models(state)
    return Result(
        models=models,
        average=average,
        history=tuple(recorder.history),
        start=recorder.start,
        status=status,
        message=message,
        refusals=tuple(recorder.refusals),
        state=state,
    )


@runtime_checkable
class Stateful(Protocol):
    """A rule when to stop that remembers something from one round to the next."""

    def state_dict(self) -> Mapping[str, Array]:
        """Return what a checkpoint must store."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned."""


def _words(fact: object) -> str:
    """Return an argument as text that is the same in every process; a long one as its digest."""
    plain = fact.tolist() if isinstance(fact, np.ndarray) else fact  # it prints without its middle
    text = " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(plain)).split())
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()


_ADVICE = "try a smaller step or a smaller penalty"


def _why_refused(problem: Problem, outcome: Outcome) -> str:
    """Say in a sentence whose update ended the run, and what to try."""
    last, round_info = outcome.refusals[-1], outcome.round_info
    return (
        f"Diverged in round {last.round}: the update of {problem.names[last.agent]} was refused, "
        f"{last.reason}; {_ADVICE} (step {round_info.step:g}, penalty {round_info.penalty:g})."
    )


def _continues(earlier: Result, problem: Problem, algorithm: Algorithm) -> bool:
    """Whether a run can go on from the very state of an earlier one, not just from its models."""
    if earlier.models.shape != (problem.m, problem.n):
        raise ValueError(
            f"run: x0 must be a result of this problem, got models of shape {earlier.models.shape} "
            f"for ({problem.m}, {problem.n}); give a result with the same agents and parameters."
        )
    if earlier.state.algorithm != algorithm.kind:
        return False
    if earlier.state.layout(problem.m) != _fresh(problem, algorithm).layout(problem.m):
        raise ValueError(
            f"run: x0 must have a state of {algorithm.kind} for this problem, got other arrays; "
            "give its models, x0=result.models."
        )
    if not earlier.state.finite:
        raise ValueError(
            "run: x0 must have a finite state, got a run that diverged; begin anew with a smaller "
            "step or a smaller penalty."
        )
    return True


def _fresh(problem: Problem, algorithm: Algorithm) -> State:
    """Return where a method begins with a single agent: all agents may take much memory."""
    return State(algorithm.kind, 0, *algorithm.start(np.zeros((1, problem.n))))


def _begin(
    problem: Problem, algorithm: Algorithm, x0: Array | str | Result | None, seed: int
) -> State:
    """Return the state before the first round."""
    if isinstance(x0, str) and x0 != "random":
        raise ValueError(f'run: x0 must be an array, "random" or a Result, got {x0!r}.')
    if isinstance(x0, Result) and x0.state.algorithm == algorithm.kind:
        return x0.state.copy()
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
