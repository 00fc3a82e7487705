"""Compare the paper's runs with their bare matrix products, and show where the time is spent.

    python -m benchmarks.paper_runs

"Products" are the two matrix products of every local step and the one of every evaluation, on the
same features, already converted to float32; nothing is sampled, gathered, converted or added. "Run"
is ``pcfed.run`` as in the experiments, including the evaluation of every round. Both use one BLAS
thread and one worker. They are measured alternately, and the fastest time of each is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed import PCFedAvg, Problem, run
from pcfed.algorithms import LocalContext, pcfedavg_steps
from pcfed.experiments.jobs import build_problem
from pcfed.experiments.presets import RunSpec, Setting, load_preset
from pcfed.losses.linear import LinearModel
from pcfed.sampling import Sampling
from pcfed.sets import SetRows
from pcfed.simulation.engine import Engine

ROUNDS = 5
REPEATS = 5
BLOCK = 4096


@dataclass(frozen=True)
class Row:
    """The measurements of one experiment.

    Attributes
    ----------
    experiment, sampling
        Name of the experiment, and how it samples batches.
    products, run : float
        Seconds per round.
    shares : dict
        Fractions of the run's time by part, as in ``PARTS``.
    """

    experiment: str
    sampling: str
    products: float
    run: float
    shares: dict[str, float]


def products(problem: Problem, setting: Setting, steps: int) -> Callable[[], None]:
    """Return a function that computes the bare products of ``ROUNDS`` rounds."""
    data: list[tuple[Any, int]] = []
    for agent in problem.agents:
        if not isinstance(agent.loss, LinearModel):
            raise TypeError(f"the loss must be a linear model, got {agent.loss!r}")
        X = agent.loss._features.matrix.astype(np.float32)
        data.append((X, round(float(setting.batch) * len(X))))
    W = np.zeros(problem.shape, np.float32)
    G = np.empty_like(W)

    def compute() -> None:
        for _ in range(ROUNDS):
            for X, batch in data:
                for first in range(0, steps * batch, batch):
                    rows = X[first % len(X) :][:batch]
                    np.matmul((rows @ W.T).T, rows, out=G)
                for first in range(0, len(X), BLOCK):
                    X[first : first + BLOCK] @ W.T

    return compute


def complete_run(
    problem: Problem, setting: Setting, spec: RunSpec, sampling: Sampling
) -> Callable[[], None]:
    """Return a function that runs the same number of rounds completely."""

    def train() -> None:
        run(
            problem,
            spec.algorithm,
            rounds=ROUNDS,
            local_steps=spec.local_steps,
            batch=setting.batch,
            sampling=sampling,
        )

    return train


def seconds(function: Callable[[], None]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


PARTS: dict[str, tuple[Any, str]] = {
    "gradients": (LocalContext, "gradient"),
    "projections": (LocalContext, "project"),
    "local steps": (pcfedavg_steps, "_single_steps"),
    "evaluation": (Engine, "evaluate"),
}


def shares(function: Callable[[], None]) -> dict[str, float]:
    """Return the fractions of a call's time for gradients, projections, steps and evaluation.

    To measure them separately, local steps are computed by NumPy instead of one compiled loop.
    """
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                spent[name] += time.perf_counter() - start

        return inner

    patches: list[Any] = [mock.patch.object(SetRows, "threshold_sets", return_value=None)]
    patches += [
        mock.patch.object(owner, method, timed(name, getattr(owner, method)))
        for name, (owner, method) in PARTS.items()
    ]
    for patch in patches:
        patch.start()
    try:
        function()  # compile the loops that the fused loop replaces otherwise
        spent.update(dict.fromkeys(PARTS, 0.0))
        total = seconds(function)
    finally:
        for patch in patches:
            patch.stop()
    spent["local steps"] -= spent["projections"] + spent["gradients"]
    return {name: part / total for name, part in spent.items()}


def measure(names: Sequence[str] = ("mnist", "cifar10")) -> list[Row]:
    """Measure the first setting of each experiment, with two ways to sample batches."""
    rows = []
    with threadpool_limits(1):
        for name in names:
            setting = load_preset(name).settings[0]
            spec = next(each for each in setting.runs if isinstance(each.algorithm, PCFedAvg))
            problem = build_problem(setting, 0, None)
            bare = products(problem, setting, spec.local_steps)
            samplings: tuple[Sampling, ...] = ("without_replacement", "blocks")
            runs = {each: complete_run(problem, setting, spec, each) for each in samplings}
            times: dict[str, list[float]] = {"products": [], **{each: [] for each in samplings}}
            for _ in range(REPEATS):
                times["products"].append(seconds(bare))
                for each in samplings:
                    times[each].append(seconds(runs[each]))
            best = {key: min(measured) / ROUNDS for key, measured in times.items()}
            rows += [
                Row(name, each, best["products"], best[each], shares(runs[each]))
                for each in samplings
            ]
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the measurements as a table."""
    head = ("experiment", "batches", "products, ms", "run, ms", "run / products", *PARTS, "rest")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        parts = [*row.shares.values(), 1 - sum(row.shares.values())]
        cells = (
            row.experiment,
            row.sampling,
            f"{1e3 * row.products:.1f}",
            f"{1e3 * row.run:.1f}",
            f"{row.run / row.products:.2f}",
            *(f"{part:.1%}" for part in parts),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(measure()))
