"""The averaged iterates of PC-FedAvg after every local step, which the theorem is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pcfed import Problem
from pcfed.simulation.plan import Plan


def iterates(
    problem: Problem,
    *,
    step: float,
    penalty: float,
    rounds: int,
    local_steps: int = 1,
    batch: float | int = 1.0,
    sampling: str = "without_replacement",
    x0: np.ndarray | None = None,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Yield the average over agents of their m blocks before every local step and at the end."""
    plan = Plan(
        problem,
        local_steps=local_steps,
        batch=batch,
        sampling=sampling,
        participation=1.0,
        seed=seed,
    )
    m, n = problem.m, problem.n
    start = problem.as_models("x0", np.zeros(n) if x0 is None else x0)
    C, w = start.mean(axis=0), start - start.mean(axis=0)
    sigma = [agent.coupling for agent in problem.agents]
    for r in range(rounds):
        works = [plan.context([i], r, local_steps) for i in range(m)]
        v, u = np.zeros((m, n)), np.zeros((m, n))
        for k in range(local_steps):
            yield C + w + v.mean(axis=0) + u / m
            for i, work in enumerate(works):
                x = C + w[i] + v[i] + u[i]
                z = C + w.mean(axis=0) + v[i] + u[i] / m
                (g,) = work.gradient(z[None], k, out=np.empty((1, n)))
                s = sigma[i] * (x - z)
                v[i] -= step * (g - s) / m
                (p,) = work.project(x[None], out=np.empty((1, n)))
                u[i] -= step * (penalty * (x - p) + s)
        C, w = C + v.mean(axis=0), w + u / m
    yield C + w


@dataclass(frozen=True)
class Means:
    """Means over all K local steps: suboptimality, and squared distances, per agent."""

    suboptimality: float
    squares: np.ndarray


def means(problem: Problem, best: float, **options) -> Means:
    """Return the plain means over the K iterates; the last one is not among them."""
    values, squares = [], []
    *counted, _ = iterates(problem, **options)
    for models in counted:
        values.append(problem.objective(models) - best)
        squares.append(problem.infeasibility(models) ** 2)
    return Means(float(np.mean(values)), np.mean(squares, axis=0))
