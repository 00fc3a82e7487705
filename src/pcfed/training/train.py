"""Run a training that a file describes, in a folder from which it can always go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pcfed.guarantees import Gap
from pcfed.result import Result
from pcfed.sets import ProjectionError
from pcfed.simulate import Evaluation, run
from pcfed.training.assemble import Assembled, assemble
from pcfed.training.config import Config, load_config
from pcfed.training.delivered import deliver
from pcfed.training.directory import RunDirectory


@dataclass(frozen=True, eq=False)
class Job:
    """A training whose files have all been read and checked, and nothing written yet.

    Attributes
    ----------
    config : Config
        What the file says.
    made : Assembled
        The problem and the method.
    folder : RunDirectory
        Where it is saved.
    """

    config: Config
    made: Assembled
    folder: RunDirectory

    def run(
        self,
        *,
        workers: int = 1,
        callbacks: Sequence[Callable[[Evaluation], object]] = (),
        tell: Callable[[str], object] = lambda text: None,
    ) -> Result:
        """Train, from where the folder is, and save the result there.

        Parameters
        ----------
        workers : int
            Number of threads.
        callbacks : sequence of callables
            Called with each evaluated round.
        tell : callable
            Called with sentences that a person should read now.

        Returns
        -------
        Result
            Its history has only the last record: the folder has them all.
        """
        with self.folder.open():
            return self._train(workers, callbacks, tell)

    def _train(
        self,
        workers: int,
        callbacks: Sequence[Callable[[Evaluation], object]],
        tell: Callable[[str], object],
    ) -> Result:
        folder, training = self.folder, self.config.training

        def note(text: str) -> None:
            folder.log(text)
            tell(text)

        folder.log(f"begin or go on: {self.made.problem!r}, {self.made.algorithm!r}")
        for warning in self.made.warnings:
            note(warning)
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: note(str(message))
            result = run(
                self.made.problem,
                self.made.algorithm,
                rounds=training.rounds,
                local_steps=training.local_steps,
                batch=training.batch,
                participation=training.participation,
                seed=training.seed,
                eval_every=training.eval_every,
                stop=None if training.gap is None else Gap(training.gap, relative=True),
                callbacks=callbacks,
                max_refusals=training.max_refusals,
                norm_limit=training.norm_limit,
                checkpoint=folder.checkpoint,
                every=training.save_every,
                resume=True,
                journal=folder.history,
                workers=workers,
            )
        names = self.made.problem.names
        for refusal in result.refusals:
            note(f"round {refusal.round}: {names[refusal.agent]} was refused, {refusal.reason}")
        folder.log(f"{result.status}: {result.message}")
        if result.status in ("finished", "stopped"):
            result.save(folder.result)
            try:
                deliver(self.config.model, self.made, result).save(folder.models)
            except ProjectionError as error:
                note(f"no models are handed out: {error}")
        return result


def prepare(path: str | Path, out: str | Path | None = None) -> Job:
    r"""Read and check everything that a training needs, without writing anything.

    Parameters
    ----------
    path : str or Path
        The TOML file (`pcfed.training.config`).
    out : str or Path, optional
        The folder of the training; ``runs/`` and the name of the file by default.

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
    made = assemble(config)
    return Job(config, made, RunDirectory(folder, config))
