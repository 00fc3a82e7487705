"""Run a training that a file describes, in a folder from which it can always go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.config.train_file import Config, load_config
from pcfed.guarantees import Gap
from pcfed.sets import ProjectionError
from pcfed.simulation.result import Result
from pcfed.simulation.run import Evaluation, run
from pcfed.training.directory import RunDirectory
from pcfed.training.finish import alone, outcome_of
from pcfed.training.modules import user_code_errors
from pcfed.training.setup import TrainingSetup, build_setup
from pcfed.training.step_search import EXPLOSION, MOST, Explosion, first_step, is_tried
from pcfed.training.trained_models import deliver

Watcher = Callable[[Evaluation], object]
"""What is called with evaluated rounds."""

Tell = Callable[[str], object]
"""What is called with sentences that a person should read now."""


@dataclass(frozen=True, eq=False)
class Job:
    """A training whose files have all been read and checked, and nothing written yet.

    Attributes
    ----------
    config : Config
        What the file says.
    made : TrainingSetup
        The problem and the method.
    folder : RunDirectory
        Where it is saved.
    """

    config: Config
    made: TrainingSetup
    folder: RunDirectory

    def run(
        self,
        *,
        workers: int = 1,
        callbacks: Sequence[Watcher] = (),
        watch_alone: Sequence[Watcher] = (),
        tell: Tell = lambda text: None,
    ) -> Result:
        """Train, from where the folder is, and save what came of it there.

        Parameters
        ----------
        workers : int
            Number of threads.
        callbacks : sequence of callables
            Called with each evaluated round.
        watch_alone : sequence of callables
            The same while every agent trains alone, to compare with.
        tell : callable
            Called with sentences that a person should read now.

        Returns
        -------
        Result
            Its history has only the last record: the folder has them all.
        """
        with self.folder.open(), user_code_errors(self.config):

            def note(text: str) -> None:
                self.folder.log(text)
                tell(text)

            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = lambda message, *_, **__: note(str(message))
                result = self._train(workers, callbacks, note)
                if result.status not in ("finished", "stopped"):
                    return result
                result.save(self.folder.result)
                self.folder.outcome.unlink(missing_ok=True)  # of fewer rounds
                try:
                    return self._finish(result, workers, watch_alone)
                except ProjectionError as error:
                    note(f"no models are handed out: {error}")
                    return result

    def _train(self, workers: int, callbacks: Sequence[Watcher], note: Tell) -> Result:
        """Run the training to its end, or until it is interrupted."""
        folder = self.folder
        folder.log(f"begin or go on: {self.made.problem!r}, {self.made.algorithm!r}")
        for warning in self.made.warnings:
            note(warning)
        tried = is_tried(self.made.algorithm, self.made.problem)
        result = self._tried(workers, callbacks, note) if tried else self._once(workers, callbacks)
        names = self.made.problem.names
        for refusal in result.refusals:
            note(f"round {refusal.round}: {names[refusal.agent]} was refused, {refusal.reason}")
        folder.log(f"{result.status}: {result.message}")
        return result

    def _once(
        self, workers: int, callbacks: Sequence[Watcher], halvings: int = 0, **more: Any
    ) -> Result:
        """Run the training with a step that may have been halved."""
        folder, training = self.folder, self.config.training
        options = {
            "stop": None if training.gap is None else Gap(training.gap, relative=True),
            "max_refusals": training.max_refusals,
        }
        return self._run(
            first_step(self.made.algorithm, self.made.problem, halvings),
            rounds=training.rounds,
            eval_every=training.eval_every,
            callbacks=callbacks,
            checkpoint=folder.checkpoint,
            journal=folder.history,
            workers=workers,
            **{**options, **more},
        )

    def _tried(self, workers: int, callbacks: Sequence[Watcher], note: Tell) -> Result:
        """Run the training, and begin again with half the step as long as it explodes."""
        problem, start = self.made.problem, self.made.start
        stop = Explosion(EXPLOSION * problem.loss(np.zeros(problem.n) if start is None else start))
        while True:
            number = self.folder.halvings.number
            result = self._once(workers, callbacks, number, stop=stop, max_refusals=0)
            if result.status not in ("stopped", "diverged"):
                return result
            if number == MOST:
                return replace(
                    result,
                    status="diverged",
                    message=f"The loss explodes with a step "
                    f"that was halved {number} times; give algorithm.step as a number.",
                )
            step = first_step(self.made.algorithm, problem, number + 1).step
            note(
                f"the loss exploded in round {result.state.round}; the training begins again with "
                f"half the step, {step:.3g}."
            )
            self.folder.halvings.add(number + 1)

    def _finish(self, result: Result, workers: int, callbacks: Sequence[Watcher]) -> Result:
        """Hand out the models, compare with agents that train alone, save what came of it."""
        delivered = deliver(self.config.model, self.made, result)
        delivered.save(self.folder.models)
        why_not = self._not_alone()
        local = None
        if why_not is None:
            local = self._alone(result.state.round, workers, callbacks)
            if local.status == "interrupted":
                return replace(result, status="interrupted", message=local.message)
            if local.status == "diverged":
                why_not = f"No scores of agents alone: {local.message}"
        notes = () if why_not is None else (why_not,)
        found = None if notes else local
        outcome_of(self.made, result, delivered, found, notes).save(self.folder.outcome)
        return result

    def _not_alone(self) -> str | None:
        """Return why no agent trains alone, or None if they do."""
        if not any(self.made.tests):
            return "No rows are held out, so there are no scores; see data.held_out."
        if not self.config.training.local_only:
            return "No agent trained alone, as training.local_only says."
        return None

    def _alone(self, rounds: int, workers: int, callbacks: Sequence[Watcher]) -> Result:
        """Train every agent alone, for as many rounds."""
        local = self._run(
            alone(self.made.problem, self.made.algorithm, self.folder.halvings.number),
            rounds=rounds,
            eval_every=max(1, rounds // 50),
            max_refusals=self.config.training.max_refusals,
            callbacks=callbacks,
            checkpoint=self.folder.local,
            workers=workers,
        )
        self.folder.log(f"agents alone: {local.status}: {local.message}")
        return local

    def _run(self, algorithm: Algorithm, **more: Any) -> Result:
        """Run a method with the settings of the training."""
        training = self.config.training
        return run(
            self.made.problem,
            algorithm,
            local_steps=training.local_steps,
            batch=training.batch,
            participation=training.participation,
            x0=self.made.start,
            seed=training.seed,
            norm_limit=training.norm_limit,
            every=training.save_every,
            resume=True,
            **more,
        )


def prepare(path: str | Path, out: str | Path | None = None, *, allow_import: bool = False) -> Job:
    r"""Read and check everything that a training needs, without writing anything.

    Parameters
    ----------
    path : str or Path
        The TOML file (`pcfed.config.train_file`).
    out : str or Path, optional
        The folder of the training; ``runs/`` and the name of the file by default.
    allow_import : bool
        Whether ``model.module`` may be imported, which runs the code in that file.

    Raises
    ------
    ValueError
        If a file is missing or wrong, or the folder holds something else: one sentence.

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
    >>> result.models.round(2)
    array([[1.  ],
           [2.52]])
    >>> home.cleanup()
    """
    config = load_config(path)
    folder = Path("runs", config.path.stem) if out is None else Path(out)
    made = build_setup(config, allow_import=allow_import)
    return Job(config, made, RunDirectory(folder, config, made.digest))
