"""Textbook Douglas–Rachford splitting on the lifted problem, the oracle of PCFedSplit.

The lifted variables are the pairs (x_i, z_i) of all agents, an (m, 2, n) array. The consensus set
is the subspace z_1 = … = z_m = mean x_j, and the metric weighs x with 1/(ατ) and z with 1/τ. With
c = Π_C(v) and the proximal map of the agents' own problems, solved to the end,

    u = prox(2c − v),   v ← v + κ (u − c).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pcfed import Problem


def project_consensus(v: np.ndarray, alpha: float) -> np.ndarray:
    """Return the nearest point with z_1 = … = z_m = mean x_j, in the metric (1/α, 1)."""
    x, z = v[:, 0], v[:, 1]
    center = (x.mean(axis=0) + alpha * z.mean(axis=0)) / (1 + alpha)
    return np.stack([x - x.mean(axis=0) + center, np.broadcast_to(center, z.shape)], axis=1)


def proximal_map(agent, a: np.ndarray, b: np.ndarray, tau: float, alpha: float) -> np.ndarray:
    """Minimise f(z) + σ/2 ‖x − z‖² + ‖x − a‖²/(2ατ) + ‖z − b‖²/(2τ) over x in the set."""
    sigma, tau_x = agent.coupling, alpha * tau
    step = 1 / (agent.loss.smoothness() + 2 * sigma + 1 / tau + 1 / tau_x)
    x, z = agent.feasible_set.project(a), b
    for _ in range(100_000):
        coupling = sigma * (x - z)
        new_x = agent.feasible_set.project(x - step * (coupling + (x - a) / tau_x))
        new_z = z - step * (agent.loss.gradient(z) - coupling + (z - b) / tau)
        moved = max(np.abs(new_x - x).max(), np.abs(new_z - z).max())
        x, z = new_x, new_z
        if moved < 1e-15:
            break
    return np.stack([x, z])


def douglas_rachford(
    problem: Problem, present: Iterable[Iterable[int]], *, tau: float, alpha: float, kappa: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the models and the centre after these rounds, each with the agents that took part.

    An agent joins in its first round, at the centre and with the mean multiplier of the others;
    before, it does not count. Models of agents that never came are NaN.
    """
    joined: list[int] = []
    models = np.full((problem.m, problem.n), np.nan)
    v = np.empty((problem.m, 2, problem.n))
    center, y_mean = np.zeros(problem.n), np.zeros(problem.n)
    for agents in present:
        for i in agents:
            if i not in joined:
                joined.append(i)
                v[i] = center - alpha * tau * y_mean, center + tau * y_mean
        c = project_consensus(v[joined], alpha)
        for i in agents:
            at = 2 * c[joined.index(i)] - v[i]
            u = proximal_map(problem.agents[i], at[0], at[1], tau, alpha)
            models[i] = u[0]
            v[i] += kappa * (u - c[joined.index(i)])
        c = project_consensus(v[joined], alpha)
        center = c[0, 1]
        y_mean = ((c - v[joined])[:, 0] / (alpha * tau)).mean(axis=0)
    return models, center
