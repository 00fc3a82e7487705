r"""The paper's Algorithm 1 as it stands: every agent holds m blocks and sends all of them.

Slow and plain, m²·n numbers in memory. It is the oracle that the compact form is tested against,
and the place to see what the printed line 8 does.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from pcfed.algorithms import LocalContext, PCFedAvg
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Problem
from pcfed.sampling import Sampling
from pcfed.simulation.plan import Batch, LocalSteps, Participation, Plan

Rule = Literal["gradient", "printed"]


def reference(
    problem: Problem,
    algorithm: PCFedAvg,
    *,
    rounds: int,
    local_steps: LocalSteps = 1,
    batch: Batch = 1.0,
    sampling: Sampling = "without_replacement",
    participation: Participation = 1.0,
    x0: Array | None = None,
    seed: int = 0,
    rule: Rule = "gradient",
) -> Float64Array:
    r"""Run Algorithm 1 with m explicit blocks; same arguments and streams as `pcfed.run`.

    Parameters
    ----------
    problem, algorithm, rounds, local_steps, batch, sampling, participation, x0, seed
        As in `pcfed.run`.
    rule : {"gradient", "printed"}
        The update of a block $j \ne i$: ``"gradient"`` takes
        $-\frac{\sigma_i}{m}(x^{(i)} - \bar x_i)$, the gradient that the analysis (CR) uses;
        ``"printed"`` takes $-\frac{\sigma_i}{m}(x^{(j)} - \bar x_i)$, as line 8 is printed.

    Returns
    -------
    Array
        The server's blocks before the first and after every round: (rounds + 1, m, n).
    """
    if rule not in get_args(Rule):
        raise ValueError(f"reference: rule must be gradient or printed, got {rule!r}; choose one.")
    plan = Plan(
        problem,
        local_steps=local_steps,
        batch=batch,
        sampling=sampling,
        participation=participation,
        seed=seed,
    )
    algorithm = algorithm.resolved(problem, plan.run_info(range(rounds)))
    start = np.zeros(problem.n) if x0 is None else x0
    blocks = problem.as_models("reference: x0", start).copy()
    trajectory = [blocks]
    for r in range(rounds):
        present = plan.present(r)
        steps = dict(zip(present, plan.steps(r, present), strict=True))
        max_local_steps = max(steps.values(), default=0)
        round_info = algorithm.round_info(r, m=problem.m, max_local_steps=max_local_steps)
        held = np.repeat(blocks[None], problem.m, axis=0)  # line 3; an absent agent stays here
        for i in present:
            work = plan.context([i], r, steps[i])
            for k in range(work.steps):
                direction = _direction(work, k, i, held[i], round_info.penalty, rule)
                held[i] -= round_info.step * direction
        blocks = held.mean(axis=0)  # line 10
        trajectory.append(blocks)
    return np.stack(trajectory)


def _direction(
    work: LocalContext, step: int, i: int, x: Float64Array, rho: float, rule: Rule
) -> Float64Array:
    """Return what line 8 subtracts, over the step, from the m blocks x of agent i."""
    m, n = x.shape
    mean = x.mean(axis=0)
    theta = work.agents[0].personalization
    points = np.stack([x[i], mean])[None].astype(work.dtype)
    ((g_x, g_z),) = work.gradient(points, step, out=np.empty((1, 2, n), work.dtype))
    p = rho * (x[i] - work.project(x[i : i + 1], out=np.empty((1, n)))[0])
    sigma = work.agents[0].coupling
    s = sigma * (x[i] - mean)
    others = sigma * (x - mean) if rule == "printed" else s
    shared = (1 - theta) * g_z / m
    direction: Float64Array = np.repeat(shared[None], m, axis=0) - others / m
    direction[i] = shared + theta * g_x + p + s * (m - 1) / m
    return direction
