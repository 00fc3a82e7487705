"""`run`: train the agents of a problem together."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.algorithms.grid import Grid, check_step
from pcfed.arrays import Array, Float64Array, large_empty
from pcfed.errors import short_repr
from pcfed.losses.probe import check_records
from pcfed.privacy import delta_warning, why_not_secret
from pcfed.problem import Problem
from pcfed.sampling import Purpose, Sampling, random_stream
from pcfed.sets import SetRows
from pcfed.simulation.agent_range import MAX_MADE_AGENTS, AgentRange, chunks
from pcfed.simulation.checkpoint import Checkpoint, CheckpointFiles, Checkpointing, probe_of
from pcfed.simulation.engine import Engine
from pcfed.simulation.hooks import (
    CallbackHook,
    CheckpointHook,
    DivergenceHook,
    JournalHook,
    ProgressHook,
    SignalHook,
    Stateful,
    Stop,
    StopHook,
)
from pcfed.simulation.interrupt import PendingSignal, deferred_signals
from pcfed.simulation.output import Output, OutputIterate
from pcfed.simulation.plan import Batch, LocalSteps, Participation, Plan
from pcfed.simulation.private_state import IN_MEMORY, Memory
from pcfed.simulation.progress import ProgressLine
from pcfed.simulation.ranges import LocalRanges, Ranges
from pcfed.simulation.ray_ranges import Ray, RayRanges
from pcfed.simulation.recorder import RunRecorder
from pcfed.simulation.result import Result, State
from pcfed.simulation.runner import Evaluation, Hook, Runner
from pcfed.simulation.threads import Workers, num_workers, one_blas_thread
from pcfed.storage.journal import Journal
from pcfed.storage.saved import PathLike
from pcfed.validation import boolean, count, instance, is_path, positive, type_text

Start = Array | Literal["random"] | Result | None
"""Where a run starts."""


@dataclass(frozen=True)
class RefusalPolicy:
    """Which updates are refused, and how many may be: ``run(..., refusals=RefusalPolicy(10))``.

    Updates that are not finite, and those of agents whose projection fails, are always refused; the
    round continues without them.

    Parameters
    ----------
    max_refusals : int
        If more updates are refused, the run ends as diverged.
    norm_limit : float, optional
        The largest Euclidean norm of a vector that an agent sends; longer ones are refused.
    """

    max_refusals: int = 0
    norm_limit: float | None = None

    def __post_init__(self) -> None:
        count("RefusalPolicy: max_refusals", self.max_refusals, minimum=0)
        if self.norm_limit is not None:
            positive("RefusalPolicy: norm_limit", self.norm_limit)


DEFAULT_REFUSALS = RefusalPolicy()


def run(
    problem: Problem,
    algorithm: Algorithm,
    *,
    rounds: int,
    local_steps: LocalSteps = 1,
    batch: Batch = 1.0,
    sampling: Sampling = "without_replacement",
    participation: Participation = 1.0,
    x0: Start = None,
    seed: int = 0,
    eval_every: int = 1,
    output: Output = "last",
    stop: Stop | None = None,
    callbacks: Sequence[Callable[[Evaluation], object]] = (),
    progress: bool = False,
    refusals: RefusalPolicy = DEFAULT_REFUSALS,
    grid: float | None = None,
    checkpoint: PathLike | Checkpointing | None = None,
    journal: PathLike | None = None,
    workers: Workers = "auto",
    backend: Ray | None = None,
    memory: Memory = IN_MEMORY,
) -> Result:
    r"""Train the agents of a problem together, in this process or on a cluster.

    Parameters
    ----------
    problem : Problem
        The agents.
    algorithm : Algorithm
        For example ``PCFedAvg(step=0.03, penalty=10.0)``.
    rounds : int
        Number of communication rounds R.
    local_steps : int, sequence or callable
        Local steps in a round: a number, one per agent, or a function of the round's index.
    batch : float, int or callable
        The batch of one gradient: a fraction of the local data as a float in (0, 1], a number of
        samples as an int, or a function of the round's index that returns either.
    sampling : {"without_replacement", "with_replacement", "blocks"}
        How batches are drawn; ``"blocks"`` shuffles once and then reads contiguous rows.
    participation : float, int, sequence or callable
        The agents of a round: a fraction as a float, a number as an int, or which are absent: a
        list of positions per round, or a function of the round's index that returns one.
    x0 : Array, "random" or Result, optional
        Where to start: zeros by default, (n,), (m, n), a random point that is feasible for every
        agent where possible, or an earlier result to continue, with its history.
    seed : int
        Streams belong to (seed, agent, round): the same seed gives the same bits. Where agents have
        a privacy budget, it must be a secret such as ``secrets.randbits(128)``: who knows it can
        subtract the noise.
    eval_every : int
        Evaluate every k-th round; the last one is always evaluated.
    output : {"last", "average", "random"}
        Which models to return: after the last round, their mean over the rounds, or the iterate
        K* of the theory, uniform over all local steps.
    stop : callable, optional
        Receives each `Evaluation`; the run ends when it returns True.
    callbacks : sequence of callables
        Called with each `Evaluation`.
    progress : bool
        Whether to show a progress line.
    refusals : RefusalPolicy
        Which updates are refused, and how many may be.
    grid : float, optional
        Round what agents send to multiples of this power of two, such as ``2**-32``, as in a
        federation with a secure sum; sums are then exact, in any order.
    checkpoint : path or Checkpointing, optional
        Save the run every few rounds and at its end; a path is ``Checkpointing(path)``. Ctrl-C and
        SIGTERM then end the run after the round, saved, with the status "interrupted". With
        ``resume=True`` the other arguments must be those of the saved run, except that ``rounds``
        may be larger where no number depends on them.
    journal : path, optional
        A file to which records are written, one per line (`read_journal`); ``result.history`` then
        has only the last one, and memory does not grow with the rounds.
    workers : int or "auto"
        Number of threads over which agents are spread; it does not change the results. ``"auto"``
        is the number of cores, and 1 for small problems and for losses and sets of your own. Each
        has one BLAS thread (if threadpoolctl is installed: ``pcfed[fast]``). With a backend, the
        number of every actor, 1 by default.
    backend : Ray, optional
        Run the agents in the actors of a Ray cluster (``pcfed[ray]``), with the same results.
    memory : Memory
        How the agents' private state is kept: in float64 or float32, in memory or in files.

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
    _check_objects(problem, algorithm, refusals, backend, memory)
    _check_arguments(rounds, eval_every, output, stop, callbacks, progress)
    _check_start(problem, x0)
    with one_blas_thread(), ExitStack() as stack:
        plan = Plan(
            problem,
            local_steps=local_steps,
            batch=batch,
            sampling=sampling,
            participation=participation,
            seed=seed,
        )
        algorithm = algorithm.for_center(problem.center)
        earlier = x0 if isinstance(x0, Result) and _continues(x0, problem, algorithm) else None
        first = earlier.state.round if earlier else 0
        indices = range(first, first + rounds)
        _check_privacy(problem, x0, stop, output, plan.seed)
        plan.plan_privacy(algorithm, indices)
        algorithm = algorithm.resolved(problem.public_view, plan.run_info(indices))
        integers = None if grid is None else Grid(check_step("run: grid", grid), problem.m)
        limit = refusals.norm_limit
        place = problem, plan, algorithm, backend, workers
        ranges = _ranges(*place, norm_limit=limit, grid=integers, memory=memory)
        engine = stack.enter_context(Engine(problem, algorithm, plan, ranges, integers))
        storage = _Storage(engine, output, rounds, checkpoint, journal, memory, stack)
        saved = storage.saved
        _start(engine, saved.state if saved else x0, seed)
        recorder = RunRecorder(engine, saved or earlier)
        iterate = OutputIterate(output, engine, indices)
        if saved:
            _restore(saved, iterate, stop)
        line = ProgressLine(rounds) if progress else None
        # Refusals of the run that is continued do not count against this one.
        allowed = refusals.max_refusals + (len(earlier.refusals) if earlier else 0)
        runner = Runner(
            engine,
            recorder,
            rounds=indices,
            eval_every=eval_every,
            max_refusals=max(allowed, len(recorder.refusals)),
            hooks=_hooks(iterate, storage, callbacks, line, stop, problem.is_private),
        )
        runner.run()
        result = runner.result(*iterate.models())
        if plan.privacy is None:
            return result
        return replace(result, privacy=tuple(map(plan.privacy.spent, range(problem.m))))


def _ranges(
    problem: Problem,
    plan: Plan,
    algorithm: Algorithm,
    backend: Ray | None,
    workers: Workers,
    *,
    norm_limit: float | None,
    grid: Grid | None,
    memory: Memory,
) -> Ranges:
    """Return the agents with their private state."""
    if backend is not None:
        threads = 1 if workers == "auto" else count("run: workers", workers)
        return RayRanges(
            *(backend, problem, plan, algorithm),
            workers=threads,
            norm_limit=norm_limit,
            grid=grid,
            memory=memory,
        )
    return LocalRanges(
        [
            AgentRange(
                plan.local,
                algorithm,
                problem.m,
                workers=num_workers(workers, problem, plan),
                norm_limit=norm_limit,
                grid=grid,
                memory=memory,
            )
        ]
    )


def _check_objects(
    problem: object, algorithm: object, refusals: object, backend: object, memory: object
) -> None:
    """Raise a ValueError for arguments of another type, for example because two were swapped."""
    order = "call run(problem, algorithm, rounds=100)"
    instance("run: problem", problem, Problem, order)
    instance("run: algorithm", algorithm, Algorithm, f"{order}, for example with PCFedSplit()")
    instance("run: refusals", refusals, RefusalPolicy, "give one such as RefusalPolicy(10)")
    if backend is not None:
        instance("run: backend", backend, Ray, "give one such as Ray(actors=8)")
    instance("run: memory", memory, Memory, 'give one such as Memory("float32")')


def _check_arguments(
    rounds: int, eval_every: int, output: str, stop: object, callbacks: object, progress: object
) -> None:
    """Raise a ValueError for arguments that no other class checks."""
    count("run: rounds", rounds)
    count("run: eval_every", eval_every)
    if output not in get_args(Output):
        raise ValueError(
            f"run: output must be one of {get_args(Output)}, got {short_repr(output)}; choose one."
        )
    # A class can be called, but what it returns, an object, would always stop the run.
    if stop is not None and (isinstance(stop, type) or not callable(stop)):
        raise ValueError(
            f"run: stop must be a function of an Evaluation, got {type_text(stop)}; "
            "give one such as Gap(1e-3)."
        )
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise ValueError(
            f"run: callbacks must be a list of functions, got {short_repr(callbacks)}; "
            "give a list, as in callbacks=[print]."
        )
    boolean("run: progress", progress)


def _check_start(problem: Problem, x0: object) -> None:
    """Raise a ValueError for texts that are no start, or none for agents made on demand."""
    if isinstance(x0, str) and x0 != "random":
        raise ValueError(
            f'run: x0 must be an array, "random" or a Result, got {x0!r}; give "random".'
        )
    if isinstance(x0, str) and problem.is_lazy:
        raise ValueError(
            'run: x0 must be an array for Problem.lazy, got "random", for which this process would '
            "make all agents; give one vector, or leave it out to start at zeros."
        )


def _check_privacy(problem: Problem, x0: object, stop: object, output: Output, seed: int) -> None:
    """Refuse what would spend more than the budgets of private agents, unseen."""
    if not problem.is_private:
        return
    if (reason := why_not_secret(seed)) is not None:
        raise ValueError(f"run: seed {reason}")
    for name, agent in zip(problem.names, problem.agents, strict=True):
        if agent.privacy is not None:
            warning = delta_warning(name, agent.privacy, agent.loss.size)
            if warning is not None:
                warnings.warn(warning, stacklevel=3)
            check_records(agent.loss)
    if isinstance(x0, Result):
        raise ValueError(
            "run: x0 must not be a result where agents have a privacy budget, got one: its rounds "
            "have spent the budget; plan all rounds in one run, or give x0=result.models and add "
            "up the epsilons of both runs."
        )
    if stop is not None:
        raise ValueError(
            "run: stop must be left out where agents have a privacy budget, got a function: the "
            "round in which it ends would depend on their records; plan the number of rounds."
        )
    if output == "random":
        raise ValueError(
            "run: output must be 'last' or 'average' where agents have a privacy budget, got "
            "'random', which may need further gradients; choose one of the two."
        )


def _restore(saved: Checkpoint, iterate: OutputIterate, stop: Stop | None) -> None:
    """Restore what the output iterate and the stopping rule need to go on."""
    iterate.load_state_dict(saved.output)
    if isinstance(stop, Stateful):
        stop.load_state_dict(saved.stop)


class _Storage:
    """The files of a run: its checkpoints and its journal, opened and locked.

    Attributes
    ----------
    saved : Checkpoint or None
        The checkpoint from which the run resumes.
    files, journal, signals
        The open checkpoint files and journal, and the signals that wait for the end of a round;
        None for a run without.
    """

    def __init__(
        self,
        engine: Engine,
        output: Output,
        rounds: int,
        checkpoint: PathLike | Checkpointing | None,
        journal: PathLike | None,
        memory: Memory,
        stack: ExitStack,
    ) -> None:
        self.saved: Checkpoint | None = None
        self.files: CheckpointFiles | None = None
        self.journal: Journal | None = None
        self.signals: PendingSignal | None = None
        self.every = 0
        if checkpoint is not None:
            settings = checkpoint
            if not isinstance(settings, Checkpointing):
                is_path("run: checkpoint", settings)
                settings = Checkpointing(settings)
            self.every = settings.every
            arguments = {"algorithm": engine.algorithm, **engine.plan.arguments}
            # A mean over rounds depends on how many they are.
            chosen = output if output == "last" else (output, rounds)
            arguments |= {"output": chosen, "journal": journal is not None}
            if engine.grid is not None:
                arguments["grid"] = engine.grid.step
            if memory.dtype != IN_MEMORY.dtype:
                arguments["memory"] = memory.dtype
            if not engine.problem.losses_at_average and not engine.problem.is_lazy:
                agents = engine.problem.agents
                arguments["personalization"] = [agent.personalization for agent in agents]
            identity = {name: _fingerprint(value) for name, value in arguments.items()}
            fresh = _fresh_state(engine.problem, engine.algorithm)
            files = CheckpointFiles(Path(settings.path), identity, probe_of(engine.problem), fresh)
            self.files = stack.enter_context(files)
            self.signals = stack.enter_context(deferred_signals())
            self.saved = files.load(resume=settings.resume)
        if journal is not None:
            is_path("run: journal", journal)
            known = self.saved.journal if self.saved else None
            self.journal = stack.enter_context(Journal(Path(journal), known))


def _hooks(
    iterate: OutputIterate,
    storage: _Storage,
    callbacks: Sequence[Callable[[Evaluation], object]],
    line: ProgressLine | None,
    stop: Stop | None,
    is_private: bool,
) -> list[Hook]:
    """Return the hooks of a run, in the order in which they are called."""
    hooks: list[Hook] = [iterate]
    if storage.journal:
        hooks.append(JournalHook(storage.journal))
    hooks.append(CallbackHook(callbacks))
    if line:
        hooks.append(ProgressHook(line))
    if not is_private:  # when a run ends must not depend on records
        hooks.append(DivergenceHook())
    saved = storage.saved
    if stop is not None:
        stopped_before = saved is not None and saved.status == "stopped"
        hooks.append(StopHook(stop, stopped_before=stopped_before))
    if storage.files and storage.signals:
        hooks.append(SignalHook(storage.signals, str(storage.files.path)))
        # Last, so that a checkpoint has what the other hooks did in the round.
        hooks.append(
            CheckpointHook(
                storage.files,
                every=storage.every,
                iterate=iterate,
                stop=stop if isinstance(stop, Stateful) else None,
                journal=storage.journal,
                is_new=saved is None,
            )
        )
    return hooks


def _fingerprint(value: object) -> str:
    """Return an argument as text that is the same in every process; a long one as its digest."""
    plain = value.tolist() if isinstance(value, np.ndarray) else value  # repr would abridge it
    text = " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(plain)).split())
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()


def _continues(earlier: Result, problem: Problem, algorithm: Algorithm) -> bool:
    """Return whether a run can continue the state of an earlier one, not only its models."""
    if earlier.models.shape != (problem.m, problem.n):
        raise ValueError(
            f"run: x0 must be a result of this problem, got models of shape {earlier.models.shape} "
            f"for ({problem.m}, {problem.n}); give a result with the same agents and parameters."
        )
    if earlier.state.algorithm != algorithm.state_kind:
        return False
    if earlier.state.layout(problem.m) != _fresh_state(problem, algorithm).layout(problem.m):
        raise ValueError(
            f"run: x0 must have a state of {algorithm.state_kind} for this problem, got other "
            "arrays; give its models, x0=result.models."
        )
    if not earlier.state.finite:
        raise ValueError(
            "run: x0 must have a finite state, got a run that diverged; start anew with a smaller "
            "step or a smaller penalty."
        )
    return True


def _fresh_state(problem: Problem, algorithm: Algorithm) -> State:
    """Return the state in which an algorithm starts, for one agent: all may take much memory."""
    return State(algorithm.state_kind, 0, *algorithm.start(np.zeros((1, problem.n))))


def _start(engine: Engine, start: Start | State, seed: int) -> None:
    """Put an engine into the state before its first round."""
    problem, algorithm = engine.problem, engine.algorithm
    if isinstance(start, State):
        engine.load(start)
    elif isinstance(start, Result) and start.state.algorithm == algorithm.state_kind:
        engine.load(start.state.copy())
    elif start is None:
        engine.start(np.zeros(problem.n))
    elif not isinstance(start, (str, Result)) and np.ndim(start) == 1:
        engine.start(problem.as_models("run: x0", start)[0])
    else:
        engine.load(_state_of_models(problem, algorithm, start, seed))


def _state_of_models(
    problem: Problem, algorithm: Algorithm, x0: Array | str | Result, seed: int
) -> State:
    """Return the state before the first round for agents that start at different models."""
    if isinstance(x0, str):
        models = _random_models(problem, seed)
    else:
        given = x0.models if isinstance(x0, Result) else x0
        models = problem.as_models("run: x0", given)
    server, private = algorithm.start(models)
    if algorithm.feasible:
        feasible = large_empty(models.shape)
        for span in chunks(slice(0, problem.m), MAX_MADE_AGENTS):
            sets = SetRows([agent.feasible_set for agent in problem.agents[span]])
            feasible[span] = sets.project(np.ascontiguousarray(models[span], np.float64))
        private = algorithm.start(feasible)[1]
    return State(algorithm.state_kind, 0, server, private)


def _random_models(problem: Problem, seed: int) -> Float64Array:
    """Return one random point that is in every set, or else every agent's own projection of it."""
    x: Array = random_stream(seed, Purpose.START).standard_normal(problem.n) / np.sqrt(problem.n)
    sets = [agent.feasible_set for agent in problem.agents]
    own = problem.as_models("run: x0", np.stack([each.project(x) for each in sets]))
    # Projecting onto one set after the other converges to a common point if there is one.
    for _ in range(50):
        for each in sets:
            x = each.project(x)
        if all(each.contains(x) for each in sets):
            return problem.as_models("run: x0", x)
    return own
