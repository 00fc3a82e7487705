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


def project_free_consensus(v: np.ndarray) -> np.ndarray:
    """Return the nearest point with z_1 = … = z_m."""
    return np.stack([v[:, 0], np.broadcast_to(v[:, 1].mean(axis=0), v[:, 1].shape)], axis=1)


def proximal_map(agent, a: np.ndarray, b: np.ndarray, tau: float, alpha: float) -> np.ndarray:
    """Minimise φ(x, z) + ‖x − a‖²/(2ατ) + ‖z − b‖²/(2τ) over x in the set."""
    sigma, theta, pull = agent.coupling, agent.personalization, 1 / (alpha * tau)
    step = 1 / (agent.loss.smoothness() + 2 * sigma + 1 / tau + pull)
    x, z = agent.feasible_set.project(a), b
    for _ in range(100_000):
        coupling = sigma * (x - z)
        g_x, g_z = theta * agent.loss.gradient(x), (1 - theta) * agent.loss.gradient(z)
        new_x = agent.feasible_set.project(x - step * (g_x + coupling + pull * (x - a)))
        new_z = z - step * (g_z - coupling + (z - b) / tau)
        moved = max(np.abs(new_x - x).max(), np.abs(new_z - z).max())
        x, z = new_x, new_z
        if moved < 1e-15:
            break
    return np.stack([x, z])


def douglas_rachford(
    problem: Problem,
    present: Iterable[Iterable[int]],
    *,
    tau: float,
    alpha: float,
    kappa: float,
    idle: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the models and the centre after these rounds, each with the agents that took part.

    In the first ``idle`` rounds agents only join.

    An agent joins in its first round, with its projection of 0 as its model and with the mean
    multiplier of the others; the centre then moves to the new mean. Before, it does not count.
    Models of agents that never came are NaN.
    """
    joined: list[int] = []
    models = np.full((problem.m, problem.n), np.nan)
    v, c = np.empty((2, problem.m, 2, problem.n))
    center, y_mean = np.zeros(problem.n), np.zeros(problem.n)
    for index, agents in enumerate(present):
        offset = np.zeros(problem.n)
        for i in agents:
            if i not in joined:
                joined.append(i)
                x = problem.agents[i].feasible_set.project(np.zeros(problem.n))
                c[i] = x, center
                v[i] = x - alpha * tau * y_mean, center + tau * y_mean
                offset += x - center
        for i in agents if index >= idle else ():
            at = 2 * c[i] - v[i]
            u = proximal_map(problem.agents[i], at[0], at[1], tau, alpha)
            models[i] = u[0]
            v[i] += kappa * (u - c[i])
        v[joined, 1] += offset / len(joined)
        c[joined] = project_consensus(v[joined], alpha)
        center = c[joined[0], 1]
        y_mean = ((c - v)[joined, 0] / (alpha * tau)).mean(axis=0)
    return models, center


def free_douglas_rachford(
    problem: Problem, rounds: int, *, tau: float, kappa: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the models and the free centre after these rounds, in which all agents took part.

    The own models have no proximal term: they belong to single agents.
    """
    models = np.empty((problem.m, problem.n))
    start = [agent.feasible_set.project(np.zeros(problem.n)) for agent in problem.agents]
    v = np.stack([np.stack([x, np.mean(start, axis=0)]) for x in start])
    for _ in range(rounds):
        c = project_free_consensus(v)
        for i, agent in enumerate(problem.agents):
            at = 2 * c[i] - v[i]
            u = proximal_map(agent, at[0], at[1], tau, np.inf)
            models[i] = u[0]
            v[i, 1] += kappa * (u[1] - c[i, 1])
    return models, project_free_consensus(v)[0, 1]
