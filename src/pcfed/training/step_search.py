"""The step ``"auto"`` where the smoothness of a loss is not known: try, and halve what explodes.

A training of a PyTorch module begins as if its losses had the smoothness 1. Should the loss grow
beyond ten times what it was at the start, or stop being a number, the training begins again with
half the step. How often that was is in ``steps.json``, written before anything is removed: killed
at any moment, the training goes on to the same bits.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pcfed.algorithms import Algorithm, PCFedAvg
from pcfed.algorithms.base import STEP_FACTOR
from pcfed.problem import Problem
from pcfed.simulation import Evaluation
from pcfed.storage.atomic import write_atomically

MOST = 30
"""Halvings before a training gives up."""

EXPLOSION = 10.0
"""A loss this many times as large as that of the start is not coming back."""


def is_tried(algorithm: Algorithm, problem: Problem) -> bool:
    """Say whether the step has to be found by trying."""
    return algorithm.step == "auto" and math.isinf(problem.L_f)


def first_step(algorithm: Algorithm, problem: Problem, halvings: int = 0) -> Algorithm:
    r"""Return the method with a number for a step that has to be tried, else as it is.

    It is that of ``"auto"`` for $L = 1$: 0.6 over $1/m + \sigma/2$ for PC-FedAvg, whose average
    moves by the m-th part of a step, and 0.6 for the others; halved so many times.
    """
    if not is_tried(algorithm, problem):
        return algorithm
    personal = isinstance(algorithm, PCFedAvg)
    curvature = 1 / problem.m + problem.sigma / 2 if personal else 1.0
    return replace(algorithm, step=STEP_FACTOR / curvature / 2**halvings)


@dataclass(frozen=True)
class Explosion:
    """Stop a run whose loss has grown beyond a limit: ``run(..., stop=Explosion(23.0))``."""

    limit: float

    def __call__(self, seen: Evaluation) -> bool:
        """Say whether the loss of an evaluated round is too large, or no number."""
        return not seen.record.loss <= self.limit


class Halvings:
    """How often the step was halved, in a file that outlives the process.

    Parameters
    ----------
    path : Path
        The file; none is there before the first halving.
    files : tuple of Path
        What a training writes and must not go on from with another step.
    """

    def __init__(self, path: Path, files: tuple[Path, ...]) -> None:
        self._path, self._files = path, files

    @property
    def number(self) -> int:
        """How often so far."""
        try:
            known: Any = json.loads(self._path.read_text("utf-8"))
            number = known["halvings"]
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            number = None
        if type(number) is not int or not 0 < number <= MOST:
            raise ValueError(
                f"train: {self._path} must say how often the step was halved, and is damaged; give "
                "another folder with --out."
            )
        if not known.get("begun"):
            self._begin(number)
        return number

    def add(self, number: int) -> None:
        """Note that the step is to be halved once more, and remove what was trained before."""
        self._write(number, begun=False)
        self._begin(number)

    def _begin(self, number: int) -> None:
        for file in self._files:
            file.unlink(missing_ok=True)
        self._write(number, begun=True)

    def _write(self, number: int, *, begun: bool) -> None:
        text = json.dumps({"halvings": number, "begun": begun})
        write_atomically(self._path, text.encode())
