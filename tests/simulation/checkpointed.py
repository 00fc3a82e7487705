"""Runs with checkpoints, for tests that pass the arguments around one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pcfed
from pcfed import Checkpointing, Problem, Result
from pcfed.algorithms import Algorithm


def run(
    problem: Problem,
    algorithm: Algorithm,
    *,
    checkpoint: Path | None = None,
    every: int = 10,
    resume: bool = False,
    **options: Any,
) -> Result:
    """Call `pcfed.run`, with a checkpoint if a path is given."""
    settings = None if checkpoint is None else Checkpointing(checkpoint, every, resume)
    return pcfed.run(problem, algorithm, checkpoint=settings, **options)
