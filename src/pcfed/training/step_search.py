"""The step ``"auto"`` where the smoothness of a loss is not known: halve it until nothing diverges.

A training of a PyTorch module by an algorithm with a step starts as if its losses had the
smoothness 1. If the loss exceeds ten times its value at the start, or is not a number, the training
restarts with half the step. The file ``steps.json`` counts the halvings. It is written before old
files are removed, so that a training that is killed at any moment resumes to the same bits.

PCFedSplit has no step. Where every agent trains alone, for comparison, there is always one, and
``local_steps.json`` counts its halvings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeGuard

from pcfed.algorithms import Algorithm, Local, PCFedAvg, StepAlgorithm
from pcfed.algorithms.base import STEP_FACTOR
from pcfed.problem import Problem
from pcfed.simulation.result import Result
from pcfed.storage.saved import Metadata, SavedJson, Upgrades

MAX_HALVINGS = 30
"""A training that still diverges after so many halvings ends."""

DIVERGENCE_FACTOR = 10.0
"""A training has diverged if its loss is this many times as large as at the start."""

LOCAL_PENALTY = 0.3
"""The penalty of agents that train alone where no smoothness is known, times their step."""


def needs_step_search(algorithm: Algorithm, problem: Problem) -> TypeGuard[StepAlgorithm]:
    """Return whether the step is ``"auto"`` and no smoothness is known to derive it from."""
    is_auto = isinstance(algorithm, StepAlgorithm) and algorithm.step == "auto"
    return is_auto and math.isinf(problem.L_f)


def trial_step(algorithm: Algorithm, problem: Problem, num_halvings: int) -> float:
    r"""Return the step to try.

    The first is that of ``"auto"`` for $L = 1$: 0.6 over $1/m + \sigma/2$ for PC-FedAvg, whose
    average moves by the m-th part of a step, and 0.6 for the others.
    """
    curvature = 1 / problem.m + problem.sigma / 2 if isinstance(algorithm, PCFedAvg) else 1.0
    return float(STEP_FACTOR / curvature / 2**num_halvings)


def with_trial_step(algorithm: Algorithm, problem: Problem, num_halvings: int = 0) -> Algorithm:
    """Return the algorithm with the step to try; the same algorithm if no search is needed."""
    if not needs_step_search(algorithm, problem):
        return algorithm
    return replace(algorithm, step=trial_step(algorithm, problem, num_halvings))


def local_algorithm(problem: Problem, algorithm: Algorithm, num_halvings: int) -> Local:
    r"""Return the algorithm with which every agent trains alone, with the penalty $\rho = L_f$.

    Where no smoothness is known, its first step is that of the training if that is a number, and
    otherwise 0.6. Its parameters do not depend on the number of rounds, so that the comparison can
    be resumed with more of them.
    """
    if 0 < problem.L_f < math.inf:
        return Local("auto", problem.L_f)
    step = STEP_FACTOR
    if isinstance(algorithm, StepAlgorithm) and isinstance(algorithm.step, float):
        step = algorithm.step / (problem.m if isinstance(algorithm, PCFedAvg) else 1)
    step /= 2**num_halvings
    return Local(step, LOCAL_PENALTY / step)


@dataclass(frozen=True)
class StepsFile(SavedJson):
    """The contents of ``steps.json`` and ``local_steps.json``."""

    file_kind: ClassVar[str] = "count of step halvings"
    format: ClassVar[int] = 1
    # The first version did not write the format.
    upgrades: ClassVar[Upgrades] = {0: lambda contents: contents}
    advice: ClassVar[str] = "train into another folder with --out."

    halvings: int
    begun: bool  # whether the files of the training with the larger step have been removed

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> StepsFile:
        halvings = contents["halvings"]
        if type(halvings) is not int or not 0 < halvings <= MAX_HALVINGS:
            raise ValueError(f"halvings must be an integer from 1 to {MAX_HALVINGS}")
        return cls(halvings, contents.get("begun") is True)


class StepHalvings:
    """The number of halvings of the step, kept in a file that exists only after the first one.

    The files of the training, ``run_files``, are removed when it restarts with another step.
    """

    def __init__(self, path: Path, run_files: tuple[Path, ...]) -> None:
        self._path, self._run_files = path, run_files

    def search(
        self, train: Callable[[int], Result], on_restart: Callable[[Result, int], None]
    ) -> Result:
        """Train, and restart with half the step whenever the training diverges.

        Parameters
        ----------
        train : callable
            Takes the number of halvings and returns the result of all rounds with that step; it
            has diverged if its status is "stopped" or "diverged".
        on_restart : callable
            Called before a restart, with the result that diverged and the new number of halvings.
        """
        while True:
            num_halvings = self.load()
            result = train(num_halvings)
            if result.status not in ("stopped", "diverged"):
                return result
            if num_halvings == MAX_HALVINGS:
                message = f"The loss diverges with a step that was halved {num_halvings} times."
                return replace(result, status="diverged", message=message)
            on_restart(result, num_halvings + 1)
            self.restart(num_halvings + 1)

    def load(self) -> int:
        """Return the number of halvings so far, and complete a restart that was interrupted."""
        if not self._path.exists():
            return 0
        steps = StepsFile.load(self._path)
        if not steps.begun:
            self._remove_run_files(steps.halvings)
        return steps.halvings

    def restart(self, num_halvings: int) -> None:
        """Record a halving, and remove the files of the training with the larger step."""
        StepsFile(num_halvings, begun=False).save(self._path)
        self._remove_run_files(num_halvings)

    def _remove_run_files(self, num_halvings: int) -> None:
        for file in self._run_files:
            file.unlink(missing_ok=True)
        StepsFile(num_halvings, begun=True).save(self._path)
