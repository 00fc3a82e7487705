"""Run a training that a file describes, in a run directory from which it can always be resumed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.arrays import Float64Array
from pcfed.config.train_file import Config, load_config
from pcfed.guarantees import Gap
from pcfed.problem import Problem
from pcfed.sets import ProjectionError
from pcfed.simulation import Checkpointing, Evaluation, Ray, RefusalPolicy, run
from pcfed.simulation.ray_ranges import pickle_by_value
from pcfed.simulation.result import Result
from pcfed.simulation.runner import rounds_text
from pcfed.simulation.threads import Workers
from pcfed.training.alone import can_be_solved, solve_alone
from pcfed.training.directory import RunDirectory
from pcfed.training.modules import RUN_MODULES, user_code_errors
from pcfed.training.outcome import Outcome, evaluate_training
from pcfed.training.setup import TrainingSetup, build_setup
from pcfed.training.step_search import (
    DIVERGENCE_FACTOR,
    local_algorithm,
    needs_step_search,
    trial_step,
    with_trial_step,
)
from pcfed.training.trained_models import TrainedModels
from pcfed.training.tuned_config import find_coupling

Callback = Callable[[Evaluation], object]
"""A function of an evaluated round."""

OnProgress = Callable[[int, int], None]
"""A function of how much is done, and of how much there is to do."""

Notify = Callable[[str], object]
"""A function that shows a message to the user."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """A training whose files have been read and checked; nothing is written before `run`.

    Attributes
    ----------
    config : Config
        The contents of the TOML file.
    setup : TrainingSetup
        The problem and the algorithm.
    directory : RunDirectory
        Where the training is saved.
    stop : Gap or None
        The certified gap at which it ends, if there is one.
    backend : Ray or None
        The cluster on which the agents run; None for this process.
    """

    config: Config
    setup: TrainingSetup
    directory: RunDirectory
    stop: Gap | None = None
    backend: Ray | None = None

    def run(
        self,
        *,
        workers: Workers = "auto",
        callbacks: Sequence[Callback] = (),
        on_search: OnProgress = lambda done, total: None,
        on_alone: OnProgress = lambda done, total: None,
        notify: Notify = lambda text: None,
    ) -> Result:
        """Start or resume the training, and save its models and its summary.

        Parameters
        ----------
        workers : int or "auto"
            Number of threads, which does not change the results (`pcfed.run`).
        callbacks : sequence of callables
            Called with each evaluated round.
        on_search : callable
            Called while a coupling is searched, with the number of trainings that are done, and of
            all.
        on_alone : callable
            Called while agents train alone, for comparison, with what is done, and all: agents, or
            rounds of modules.
        notify : callable
            Called with warnings and other messages for the user, which are also logged.

        Returns
        -------
        Result
            Its models are in the coordinates of the training (`pcfed.standardize`), those
            in ``models.npz`` in the units of the data. Its history has only the last record: the
            run directory has them all.
        """

        def log_and_notify(text: str) -> None:
            self.directory.log(text)
            notify(text)

        with (
            self.directory.open(),
            user_code_errors(self.config),
            _warnings_sent_to(log_and_notify),
        ):
            trainer = self._with_coupling(log_and_notify, on_search)
            return trainer._train_and_save(workers, callbacks, on_alone, log_and_notify)

    def _with_coupling(self, notify: Notify, on_search: OnProgress) -> Trainer:
        """Return the training with a number for the coupling "auto", if that is used.

        It is recorded in config.json, so that a training that is resumed does not search again.
        """
        names = self.setup.problem.names
        is_auto = [self.config.agent(name).coupling == "auto" for name in names]
        if not any(is_auto):
            return self
        coupling = self.directory.found_coupling()
        if coupling is None:
            notify("searching a coupling by cross-validation ...")
            found = find_coupling(self.config, self.setup, is_auto, on_search)
            coupling = found.chosen.candidate.coupling
            notify(
                f'coupling = "auto" is {coupling:g}: {found.score_name} {found.chosen.score:.3f} '
                f"in cross-validation, {found.ranking[0].score:.3f} at best."
            )
            self.directory.save_config(self.config.with_coupling(coupling))
        config = self.config.with_coupling(coupling)
        agents = (
            replace(agent, coupling=coupling) if auto else agent
            for agent, auto in zip(self.setup.problem.agents, is_auto, strict=True)
        )
        problem = Problem(agents, self.setup.problem.center)
        return replace(self, config=config, setup=replace(self.setup, problem=problem))

    def _train_and_save(
        self,
        workers: Workers,
        callbacks: Sequence[Callback],
        on_alone: OnProgress,
        notify: Notify,
    ) -> Result:
        """Run the training, and save its models and its summary."""
        earlier = self.directory.load_outcome()
        result = self._train(workers, callbacks, notify)
        if result.status not in ("finished", "stopped"):
            return result
        result.save(self.directory.result)
        if earlier is None or earlier.rounds != result.state.round:
            # A summary of fewer rounds must not stay beside these models.
            self.directory.outcome.unlink(missing_ok=True)
            earlier = None
        result = replace(result, message=self._message(result, earlier))
        try:
            return self._finish(result, workers, on_alone)
        except ProjectionError as error:
            self.directory.outcome.unlink(missing_ok=True)
            notify(f"no models are saved: {error}")
            return result

    def _message(self, result: Result, earlier: Outcome | None) -> str:
        """Return what was done; ``earlier`` is the summary of a training that was done before."""
        done, asked = result.state.round, self.config.training.rounds
        if done > asked:
            return (
                f"{done} rounds are done already, more than the {asked} of {self.config.where}; "
                f"the models are those of round {done}. To train {rounds_text(asked)}, choose "
                "another directory with --out."
            )
        if earlier is None:
            return result.message
        when = self.directory.finished_at().strftime("%Y-%m-%d %H:%M")
        is_stopped = done < asked
        reason = "the certified gap was reached after" if is_stopped else "it has"
        change = "lower training.gap" if is_stopped else "raise training.rounds"
        return (
            f"Already finished on {when}: {reason} {rounds_text(done)}, and nothing was trained "
            f"now. To train longer, {change}; to train again, choose another directory with --out."
        )

    def _train(self, workers: Workers, callbacks: Sequence[Callback], notify: Notify) -> Result:
        """Run all rounds, or until the run is interrupted."""
        setup, directory = self.setup, self.directory
        directory.log(f"start or resume: {setup.problem!r}, {setup.algorithm!r}")
        for warning in setup.warnings:
            notify(warning)
        unstable = setup.algorithm.stability_warning(self.config.training.local_steps)
        if unstable is not None:
            notify(unstable)
        if needs_step_search(setup.algorithm, setup.problem):
            result = self._search_step(workers, callbacks, notify)
        else:
            result = self._run_rounds(
                setup.algorithm,
                workers=workers,
                callbacks=callbacks,
                stop=self.stop,
                max_refusals=self.config.training.max_refusals,
            )
        for refusal in result.refusals:
            name = setup.problem.names[refusal.agent]
            notify(f"round {refusal.round}: {name} was refused, {refusal.reason}")
        directory.log(f"{result.status}: {result.message}")
        return result

    def _search_step(
        self, workers: Workers, callbacks: Sequence[Callback], notify: Notify
    ) -> Result:
        """Run all rounds, and restart with half the step whenever the loss diverges."""
        problem, algorithm, max_loss = self.setup.problem, self.setup.algorithm, self._max_loss()

        def train(num_halvings: int) -> Result:
            return self._run_rounds(
                with_trial_step(algorithm, problem, num_halvings),
                workers=workers,
                callbacks=callbacks,
                stop=lambda evaluation: not evaluation.record.loss <= max_loss,  # or not a number
                max_refusals=0,
            )

        def on_restart(result: Result, num_halvings: int) -> None:
            step = trial_step(algorithm, problem, num_halvings)
            notify(
                f"the loss diverged in round {result.state.round}; the training restarts with "
                f"half the step, {step:.3g}."
            )

        result = self.directory.halvings.search(train, on_restart)
        if result.status == "diverged":
            return replace(result, message=f"{result.message} Give algorithm.step as a number.")
        return result

    def _max_loss(self) -> float:
        """Return the loss from which on a training has diverged."""
        problem, start = self.setup.problem, self.setup.start
        return DIVERGENCE_FACTOR * problem.loss(np.zeros(problem.n) if start is None else start)

    def _finish(self, result: Result, workers: Workers, on_alone: OnProgress) -> Result:
        """Save the models, compare them with those of agents that train alone, and summarize."""
        model = self.config.model
        trained = TrainedModels.from_result(model.kind, self.setup, result, model.module)
        trained.save(self.directory.models)
        alone, note = None, self._why_not_compared()
        if note is None:
            try:
                alone, note = self._train_alone(result.state.round, workers, on_alone)
            except KeyboardInterrupt:
                return replace(result, status="interrupted", message="The comparison was stopped.")
        notes = [] if note is None else [note]
        if self.setup.problem.is_private:
            notes.insert(0, privacy_note(self.setup.problem, result))
        if not any(self.setup.tests):
            notes.append(
                "No rows are held out, so there are no scores and no intervals; see data.held_out."
            )
        outcome = evaluate_training(self.setup, result, trained, alone, tuple(notes))
        # The time of the file is that of the end of the training.
        if outcome != self.directory.load_outcome():
            outcome.save(self.directory.outcome)
        return result

    def _why_not_compared(self) -> str | None:
        """Return why no agent trains alone; None if all do."""
        if self.setup.problem.is_private:
            return "No agent trained alone, because agents have a privacy budget."
        if not self.config.training.local_only:
            return "No agent trained alone, because training.local_only is false."
        return None

    def _train_alone(
        self, rounds: int, workers: Workers, on_alone: OnProgress
    ) -> tuple[Float64Array | None, str | None]:
        """Return the models of agents that train alone, to compare with, or why there are none."""
        if can_be_solved(self.setup.problem):
            self.directory.log("agents alone: the best models inside their sets")
            return solve_alone(self.setup.problem, on_alone), None
        result = self._run_alone(rounds, workers, on_alone)
        if result.status == "interrupted":
            raise KeyboardInterrupt
        if result.status == "diverged":
            return None, f"No scores of agents alone: {result.message}"
        return result.models, None

    def _run_alone(self, rounds: int, workers: Workers, on_alone: OnProgress) -> Result:
        """Train every agent alone, for the same number of rounds."""
        problem = self.setup.problem
        unknown = math.isinf(problem.L_f)  # then steps may diverge
        max_loss = self._max_loss() if unknown else math.inf

        def has_diverged(evaluation: Evaluation) -> bool:
            pairs = zip(problem.agents, evaluation.models, strict=True)
            return not sum(agent.loss.value(x) for agent, x in pairs) / problem.m <= max_loss

        def train(num_halvings: int) -> Result:
            return self._run(
                local_algorithm(problem, self.setup.algorithm, num_halvings),
                rounds=rounds,
                eval_every=max(1, rounds // 50),
                max_refusals=0 if unknown else self.config.training.max_refusals,
                callbacks=[lambda evaluation: on_alone(evaluation.record.round, rounds)],
                stop=has_diverged if unknown else None,
                checkpoint=self.directory.local,
                workers=workers,
            )

        def on_restart(result: Result, num_halvings: int) -> None:
            self.directory.log(
                f"agents alone: the loss diverged in round {result.state.round}; they restart with "
                "half the step"
            )

        result = self.directory.local_halvings.search(train, on_restart) if unknown else train(0)
        self.directory.log(f"agents alone: {result.status}: {result.message}")
        return result

    def _run_rounds(self, algorithm: Algorithm, **options: Any) -> Result:
        """Run the rounds of the training, from its last checkpoint."""
        return self._run(
            algorithm,
            rounds=self.config.training.rounds,
            eval_every=self.config.training.eval_every,
            checkpoint=self.directory.checkpoint,
            journal=self.directory.history,
            **options,
        )

    def _run(
        self, algorithm: Algorithm, *, checkpoint: Path, max_refusals: int, **options: Any
    ) -> Result:
        """Call `pcfed.run` with the settings that training and comparison have in common."""
        training = self.config.training
        if self.backend is not None:
            pickle_by_value(RUN_MODULES)
        return run(
            self.setup.problem,
            algorithm,
            local_steps=training.local_steps,
            batch=training.batch,
            participation=training.participation,
            x0=self.setup.start,
            seed=training.seed,
            refusals=RefusalPolicy(max_refusals, training.norm_limit),
            checkpoint=Checkpointing(checkpoint, training.save_every, resume=True),
            backend=self.backend,
            **options,
        )


def privacy_note(problem: Problem, result: Result) -> str:
    """Return what is private for whose rows, and what is not."""
    budgets = zip(problem.names, result.privacy, strict=True)
    spent = [f"{name} (ε {each.epsilon:.3g}, δ {each.delta:g})" for name, each in budgets if each]
    return (
        f"The models, models.npz, are private for the rows of {', '.join(spent)}. All other files "
        "of this directory, this summary too, are not: they must stay with the owners of the rows."
    )


@contextmanager
def _warnings_sent_to(notify: Notify) -> Iterator[None]:
    """Pass the text of every Python warning to a function instead of the terminal."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        notify(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def prepare(
    path: str | Path,
    out: str | Path | None = None,
    *,
    allow_import: bool = False,
    overrides: Iterable[str] = (),
    backend: Ray | None = None,
) -> Trainer:
    r"""Read and check everything that a training needs, without writing anything.

    Parameters
    ----------
    path : str or Path
        The TOML file (`pcfed.config.train_file`).
    out : str or Path, optional
        The run directory; ``runs/`` and the name of the file by default.
    allow_import : bool
        Whether ``model.module`` may be imported, which runs the code in that file.
    overrides : iterable of str
        Values that replace those of the file, such as ``"training.rounds=30"``.
    backend : Ray, optional
        The cluster on which the agents run, with the same results (`pcfed.run`).

    Raises
    ------
    ValueError
        If a file is missing or wrong, or the run directory is that of something else.

    Examples
    --------
    >>> import tempfile
    >>> home = tempfile.TemporaryDirectory()
    >>> folder = Path(home.name)
    >>> _ = (folder / "homes.csv").write_text(
    ...     "home,area,load\nnorth,1,3\nnorth,2,5\nsouth,1,2\nsouth,4,6\n")
    >>> _ = (folder / "train.toml").write_text('''
    ... model.kind = "least-squares"
    ... data = {file = "homes.csv", agent = "home", target = "load", held_out = 0}
    ... agents.north.constraint = {l1 = 1}
    ... training = {rounds = 50}
    ... ''')
    >>> result = prepare(folder / "train.toml", folder / "run").run()
    >>> TrainedModels.load(folder / "run" / "models.npz").parts("north")
    {'coefficients': array([1.]), 'intercept': array([2.41...])}
    >>> home.cleanup()
    """
    config = load_config(path, overrides)
    directory = Path("runs", config.path.stem) if out is None else Path(out)
    setup = build_setup(config, allow_import=allow_import)
    saved = config.with_intercept_bound(setup.problem.agents[0].intercept_bound)
    gap = config.training.gap
    stop = None if gap is None else Gap(gap, relative=True)
    return Trainer(config, setup, RunDirectory(directory, saved, setup.digest), stop, backend)
