"""The paper's runs beside their bare matrix products, as ratios in one run, and where time goes.

    python -m benchmarks.paper_runs

"Products" are the two products of every local step and the one of every evaluation, on the same
features, which lie ready in float32: nothing is drawn, gathered, converted or added. The run is
``pcfed.run`` as in the experiments, evaluation of every round included. Both have one BLAS thread
and one worker, and are measured in turn, again and again; the best of each is taken.
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
from pcfed.experiments.presets import RunSpec, Setting, load_preset
from pcfed.experiments.runner import build_problem
from pcfed.losses.linear import LinearModel
from pcfed.sampling import Sampling
from pcfed.sets import SetRows
from pcfed.simulation.engine import Engine

ROUNDS = 5
TIMES = 5
BLOCK = 4096


@dataclass(frozen=True)
class Row:
    """What was measured of one experiment.

    Attributes
    ----------
    experiment, sampling
        Which, and how it drew its batches.
    products, run : float
        Seconds of a round.
    shares : dict
        Shares of the run: gradients and evaluations, of which products; projections; steps.
    """

    experiment: str
    sampling: str
    products: float
    run: float
    shares: dict[str, float]


def products(problem: Problem, setting: Setting, steps: int) -> Callable[[], None]:
    """Return the bare products of some rounds."""
    data: list[tuple[Any, int]] = []
    for agent in problem.agents:
        if not isinstance(agent.loss, LinearModel):
            raise TypeError(f"the loss must be a linear model, got {agent.loss!r}")
        X = agent.loss._features.matrix.astype(np.float32)
        data.append((X, round(float(setting.batch) * len(X))))
    W = np.zeros(problem.shape, np.float32)
    G = np.empty_like(W)

    def go() -> None:
        for _ in range(ROUNDS):
            for X, batch in data:
                for first in range(0, steps * batch, batch):
                    rows = X[first % len(X) :][:batch]
                    np.matmul((rows @ W.T).T, rows, out=G)
                for first in range(0, len(X), BLOCK):
                    X[first : first + BLOCK] @ W.T

    return go


def whole(
    problem: Problem, setting: Setting, method: RunSpec, sampling: Sampling
) -> Callable[[], None]:
    """Return the same rounds of a whole run."""

    def go() -> None:
        run(
            problem,
            method.algorithm,
            rounds=ROUNDS,
            local_steps=method.local_steps,
            batch=setting.batch,
            sampling=sampling,
        )

    return go


def seconds(function: Callable[[], None]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


PARTS: dict[str, tuple[Any, str]] = {
    "gradients": (LocalContext, "gradient"),
    "projections": (LocalContext, "project"),
    "local steps": (pcfedavg_steps, "_single_steps"),
    "evaluation": (Engine, "figures"),
}


def shares(function: Callable[[], None]) -> dict[str, float]:
    """Return which share of a call goes into gradients, projections, steps and evaluation.

    To tell them apart, local steps are taken by NumPy instead of one compiled loop.
    """
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                spent[name] += time.perf_counter() - began

        return inner

    patches: list[Any] = [mock.patch.object(SetRows, "threshold_sets", return_value=None)]
    patches += [
        mock.patch.object(owner, method, timed(name, getattr(owner, method)))
        for name, (owner, method) in PARTS.items()
    ]
    for patch in patches:
        patch.start()
    try:
        function()  # compiles what is not used otherwise
        spent.update(dict.fromkeys(PARTS, 0.0))
        total = seconds(function)
    finally:
        for patch in patches:
            patch.stop()
    spent["local steps"] -= spent["projections"] + spent["gradients"]
    return {name: part / total for name, part in spent.items()}


def measure(names: Sequence[str] = ("mnist", "cifar10")) -> list[Row]:
    """Measure the first setting of each experiment, with both ways to draw batches."""
    rows = []
    with threadpool_limits(1):
        for name in names:
            setting = load_preset(name).settings[0]
            method = next(m for m in setting.runs if isinstance(m.algorithm, PCFedAvg))
            problem = build_problem(setting, 0, None)
            bare = products(problem, setting, method.local_steps)
            ways: tuple[Sampling, ...] = ("without_replacement", "blocks")
            runs = {way: whole(problem, setting, method, way) for way in ways}
            times: dict[str, list[float]] = {"products": [], **{way: [] for way in ways}}
            for _ in range(TIMES):
                times["products"].append(seconds(bare))
                for way in ways:
                    times[way].append(seconds(runs[way]))
            best = {key: min(each) / ROUNDS for key, each in times.items()}
            rows += [Row(name, way, best["products"], best[way], shares(runs[way])) for way in ways]
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
