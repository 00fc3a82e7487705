"""The pseudocodes of published methods in plain NumPy, and small problems to run them on.

Gradients and projections are written out here, so that nothing of pcfed is in the numbers that its
algorithms are compared with, except which rows are in which batch. Variables have the names of the
papers, and all methods start from zero. Where pcfed adds projections onto the agents' own sets, so
do the pseudocodes; with ``constrained=False`` they are those of the papers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from pcfed import Agent, Problem
from pcfed.losses import LeastSquares, LogisticRegression
from pcfed.sampling import BatchSampler
from pcfed.sets import Box, ConvexSet, Halfspace, Hyperplane, L1Ball, L2Ball, WholeSpace

N, STEPS, SEED = 6, 4, 3
KINDS = ("least squares", "logistic")
SETS = (L1Ball(0.15), L2Ball(0.1), Box(-0.05, 0.1), L1Ball(1.5))

ABSENT = [[], [0], [1, 2], [3], [], [0, 3], [2], [], [1], [], [0, 1], []]
"""Who is absent in each round."""

OPTIONS = {
    "rounds": len(ABSENT),
    "local_steps": STEPS,
    "participation": ABSENT,
    "seed": SEED,
}
"""The options of `run` that go with the pseudocodes, except for the batch."""

Vector = np.ndarray
Projection = Callable[[Vector], Vector]


# -- problems -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainAgent:
    """One agent's data, gradient and projection."""

    index: int
    kind: str
    X: np.ndarray
    y: np.ndarray
    convex_set: ConvexSet
    project: Projection
    batch: float

    def batches(self, t: int, number: int) -> list:
        """Return the rows of the first batches of round t."""
        samples = len(self.y)
        sampler = BatchSampler(samples, max(1, round(self.batch * samples)))
        return list(sampler.draw(SEED, self.index, t, number))

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        """Return the gradient of the mean loss over some rows, or over all."""
        X, y = (self.X, self.y) if rows is None else (self.X[rows], self.y[rows])
        outputs = X @ x if self.kind == "least squares" else 1 / (1 + np.exp(-(X @ x)))
        return X.T @ (outputs - y) / len(y)


def plain_agents(
    kind: str,
    sets: Sequence[ConvexSet] = SETS,
    *,
    batch: float = 0.3,
    constrained: bool = True,
) -> list[PlainAgent]:
    """Return agents with different data and different solutions, which may ignore their sets."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(20 + i, N)) for i in range(len(sets))]
    outputs = [each @ (2 * rng.normal(size=N)) + rng.normal(size=len(each)) for each in X]
    y = outputs if kind == "least squares" else [(each > 0).astype(float) for each in outputs]
    return [
        PlainAgent(i, kind, X[i], y[i], each, projection(each) if constrained else np.copy, batch)
        for i, each in enumerate(sets)
    ]


def one_data_set(sets: Sequence[ConvexSet]) -> list[PlainAgent]:
    """Return agents that all have the same data, with full batches, and differ in their sets."""
    first, *others = plain_agents("least squares", sets, batch=1.0)
    return [first, *(replace(each, X=first.X, y=first.y) for each in others)]


def problem_of(agents: list[PlainAgent]) -> Problem:
    """Return the same agents as a problem of pcfed."""
    losses = {"least squares": LeastSquares, "logistic": LogisticRegression}
    return Problem([Agent(losses[each.kind](each.X, each.y), each.convex_set) for each in agents])


def projection(convex_set: ConvexSet) -> Projection:
    """Return the projection onto a set, written out."""
    match convex_set:
        case L1Ball(radius=radius):
            return lambda x: project_l1(x, radius)
        case L2Ball(radius=radius):
            return lambda x: x * min(1.0, radius / max(np.linalg.norm(x), 1e-300))
        case Box(lower=lower, upper=upper):
            return lambda x: np.clip(x, lower, upper)
        case Halfspace(a=a, b=b):
            return lambda x: x - max(0.0, a @ x - b) / (a @ a) * a
        case Hyperplane(a=a, b=b):
            return lambda x: x - (a @ x - b) / (a @ a) * a
        case WholeSpace():
            return np.copy
    raise NotImplementedError(f"no projection onto {convex_set}")


def project_l1(x: Vector, radius: float) -> Vector:
    """Return the projection onto an l1 ball: shrink all entries by the same threshold."""
    sizes = np.sort(np.abs(x))[::-1]
    if sizes.sum() <= radius:
        return x.copy()
    thresholds = (np.cumsum(sizes) - radius) / np.arange(1, len(x) + 1)
    threshold = thresholds[sizes > thresholds][-1]
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0)


def optimum(agents: list[PlainAgent]) -> Vector:
    """Return CVXPY's model with the least mean loss in all sets, which are l1 balls."""
    x = cp.Variable(N)
    losses = [
        cp.sum_squares(each.X @ x - each.y) / (2 * len(each.y))
        if each.kind == "least squares"
        else cp.sum(cp.logistic(each.X @ x) - cp.multiply(each.y, each.X @ x)) / len(each.y)
        for each in agents
    ]
    inside = [cp.norm1(x) <= each.convex_set.radius for each in agents]
    problem = cp.Problem(cp.Minimize(sum(losses) / len(losses)), inside)
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return x.value


def rounds(agents: list[PlainAgent]) -> Iterator[tuple[int, list[PlainAgent]]]:
    """Yield every round and its participants."""
    for t, absent in enumerate(ABSENT):
        yield t, [agent for agent in agents if agent.index not in absent]


def mean(vectors: list[Vector]) -> Vector:
    return sum(vectors) / len(vectors)


# -- a shared model and own models ----------------------------------------------------------------


def ditto(agents, *, eta, lam, own_eta):
    """Li et al. (2021), Algorithm 1: w is the global model, v[k] the personalized ones."""
    w, v = np.zeros(N), np.zeros((len(agents), N))
    for t, chosen in rounds(agents):
        differences = []
        for k in chosen:
            w_k, v_k = w, v[k.index]
            for rows in k.batches(t, STEPS):
                w_k = w_k - eta * k.gradient(w_k, rows)
            for rows in k.batches(t, STEPS):
                v_k = k.project(v_k - own_eta * (k.gradient(v_k, rows) + lam * (v_k - w)))
            v[k.index] = v_k
            differences.append(w_k - w)
        w = w + mean(differences)
    return w, v


def pfedme(agents, *, eta, lam, beta, K, own_eta):
    """Dinh et al. (2020), Algorithm 1, with K gradient steps as the solver of θ."""
    w, theta = np.zeros(N), np.zeros((len(agents), N))
    for t, chosen in rounds(agents):
        local = []
        for i in chosen:
            w_i = theta_i = w
            for rows in i.batches(t, STEPS):
                for _ in range(K):
                    slope = i.gradient(theta_i, rows) + lam * (theta_i - w_i)
                    theta_i = i.project(theta_i - own_eta * slope)
                w_i = w_i - eta * lam * (w_i - theta_i)
            theta[i.index] = theta_i
            local.append(w_i)
        w = (1 - beta) * w + beta * mean(local)
    return w, theta


def per_fedavg(agents, *, alpha, beta, hessian_free, delta, own_steps):
    """Fallah et al. (2020), Algorithm 1 with its first-order or Hessian-free update."""
    w, v = np.zeros(N), np.zeros((len(agents), N))
    needed = 3 if hessian_free else 2
    for t, chosen in rounds(agents):
        local = []
        for i in chosen:
            w_i, batches = w, i.batches(t, needed * STEPS + own_steps)
            for k in range(0, needed * STEPS, needed):
                adapted = w_i - alpha * i.gradient(w_i, batches[k])
                d = i.gradient(adapted, batches[k + 1])
                if hessian_free:
                    above = i.gradient(w_i + delta * d, batches[k + 2])
                    below = i.gradient(w_i - delta * d, batches[k + 2])
                    d = d - alpha * (above - below) / (2 * delta)
                w_i = w_i - beta * d
            local.append(w_i)
            v_i = w
            for rows in batches[needed * STEPS :]:
                v_i = i.project(v_i - alpha * i.gradient(v_i, rows))
            v[i.index] = v_i
        w = mean(local)
    return w, v


def fedrep(agents, head, *, alpha, own_alpha, tau):
    """Collins et al. (2021), Algorithm 1: τ steps on the head h, then steps on φ, all the rest.

    ``head`` are the indices of the head. Returns φ and all models.
    """
    body = np.setdiff1d(np.arange(N), head)
    phi, h = np.zeros(len(body)), np.zeros((len(agents), len(head)))

    def joined(phi, h):
        x = np.empty(N)
        x[body], x[head] = phi, h
        return x

    for t, chosen in rounds(agents):
        local = []
        for i in chosen:
            phi_i, h_i, batches = phi, h[i.index], i.batches(t, tau + STEPS)
            for rows in batches[:tau]:
                slope = i.gradient(joined(phi, h_i), rows)[head]
                h_i = i.project(joined(phi, h_i - own_alpha * slope))[head]
            for rows in batches[tau:]:
                phi_i = phi_i - alpha * i.gradient(joined(phi_i, h_i), rows)[body]
            h[i.index] = h_i
            local.append(phi_i)
        phi = mean(local)
    return phi, np.stack([i.project(joined(phi, h[i.index])) for i in agents])


# -- a shared model in a set ----------------------------------------------------------------------


def fedmid(agents, *, eta, server_eta=1.0, common=None, rho=0.0):
    """Yuan et al. (2021), Algorithm 2 with the Euclidean mirror map: the shared model.

    ``common`` is the projection onto a common set; without one, agents project onto their own, and
    the server does not project. ``rho`` is the penalty on the distance from the own set.
    """
    w = np.zeros(N)
    for t, chosen in rounds(agents):
        differences = []
        for i in chosen:
            w_i, project = w, common or i.project
            for rows in i.batches(t, STEPS):
                g = i.gradient(w_i, rows) + rho * (w_i - i.project(w_i))
                w_i = project(w_i - eta * g)
            differences.append(w_i - w)
        w = w + server_eta * mean(differences)
        w = w if common is None else common(w)
    return w


def feddualavg(agents, *, eta, server_eta=1.0, common=None):
    """Yuan et al. (2021), Algorithm 3 with the Euclidean mirror map: the dual point."""
    z = np.zeros(N)
    for t, chosen in rounds(agents):
        differences = []
        for i in chosen:
            z_i, project = z, common or i.project
            for rows in i.batches(t, STEPS):
                z_i = z_i - eta * i.gradient(project(z_i), rows)
            differences.append(z_i - z)
        z = z + server_eta * mean(differences)
    return z


def set_multiplier(agent, mu, beta, w):
    """Return the new multiplier of w in the set, twice: the Jacobian of w is the identity."""
    s = mu + beta * w
    mu = s - beta * agent.project(s / beta)
    return mu, mu


@dataclass
class ProxALClient:
    """The variables of a client of ProxAL, and the outer iteration in which it last took part."""

    u: Vector
    lam: Vector
    mu: float | Vector = 0.0
    k: int = -1


def proxal(agents, multiplier=set_multiplier, *, eta, beta, rho, inner_rounds, tolerance):
    """He et al. (2024), Algorithm 1 with the inexact ADMM of Algorithm 2, and gradient steps η.

    ``multiplier`` returns an agent's new multiplier at a point, and its product with the Jacobian
    of the constraint. Returns the model, the multipliers and the number of outer iterations. The
    server of the paper knows the copies of all clients; of those that are absent, it has the last.
    """
    w = anchor = np.zeros(N)
    clients = [ProxALClient(*np.zeros((2, N))) for _ in agents]
    k = inner = 0
    c = 1 / ((len(agents) + 1) * beta)

    def gradient(i, x, rows):
        """The gradient of P_i, the client's part of the augmented Lagrangian."""
        _, pull = multiplier(i, clients[i.index].mu, beta, x)
        return i.gradient(x, rows) + pull + c * (x - anchor)

    for t, chosen in rounds(agents):
        residuals = []
        for i in chosen:
            client, batches = clients[i.index], i.batches(t, STEPS)
            if client.k != k:
                if client.k >= 0:
                    client.mu, _ = multiplier(i, client.mu, beta, anchor)
                client.u, client.lam = anchor, -gradient(i, anchor, batches[0])
                client.k = k
            if inner == 0:
                continue
            residual = gradient(i, w, batches[0]) + client.lam - rho * (w - client.u)
            residuals.append(np.abs(residual).max())
            u = w
            for rows in batches:
                u = u - eta * (gradient(i, u, rows) + client.lam + rho * (u - w))
            client.u, client.lam = u, client.lam + rho * (u - w)
        joined = [client for client in clients if client.k >= 0]
        bound = sum(residuals) * len(joined) / len(chosen)
        if inner > 0 and (bound <= tolerance / (k + 1) ** 2 or inner == inner_rounds):
            anchor, k, inner = w, k + 1, 0
        else:
            w = sum(rho * client.u + client.lam for client in joined) + c * anchor
            w /= rho * len(joined) + c
            inner += 1
    return w, np.stack([np.broadcast_to(client.mu, N) for client in clients]), k


# -- a hypernetwork -------------------------------------------------------------------------------


def hypernetwork(layers, v):
    """Linear, then ReLU and linear for each further hidden layer, then the last linear layer."""
    value = v @ layers[0] + layers[1]
    for W, b in zip(layers[2:-2:2], layers[3:-2:2], strict=True):
        value = value.relu() @ W + b
    return value @ layers[-2] + layers[-1]


def pfedhn(agents, phi, v, *, eta, alpha):
    """Shamsian et al. (2021), Algorithm 1 with several agents in a round, and autograd.

    ``phi`` are the layers of the hypernetwork at the start and ``v`` the embeddings, as tensors of
    PyTorch. Returns the models and the embeddings.
    """
    import torch

    for t, chosen in rounds(agents):
        totals, slopes = [torch.zeros_like(each) for each in phi], {}
        for i in chosen:
            theta = hypernetwork(phi, v[i.index])
            local = theta.detach().numpy()
            for rows in i.batches(t, STEPS):
                local = i.project(local - eta * i.gradient(local, rows))
            delta = theta.detach() - torch.tensor(local)
            variables = [*phi, v[i.index]]
            *gradients, slopes[i.index] = torch.autograd.grad(theta, variables, grad_outputs=delta)
            totals = [a + b for a, b in zip(totals, gradients, strict=True)]
        with torch.no_grad():
            for each, total in zip(phi, totals, strict=True):
                each -= alpha * total / len(chosen)
            for index, slope in slopes.items():
                v[index] -= alpha * slope
    models = [hypernetwork(phi, each).detach().numpy() for each in v]
    return np.stack(models), np.stack([each.detach().numpy() for each in v])
