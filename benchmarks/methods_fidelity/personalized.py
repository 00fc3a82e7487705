"""Personalised methods against numbers of their papers or of their authors' code.

Ditto: federated point estimation, whose best weight and error are known in closed form. pFedMe and
Per-FedAvg: softmax regression on MNIST with two digits per agent, in the setting of the code of
pFedMe's authors. FedRep: the linear representation of its theorem. All methods run without sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed import Agent, Ditto, FedAvg, FedRep, PerFedAvg, PFedMe, Problem, run
from pcfed.algorithms import (
    STATISTICS,
    Algorithm,
    LocalContext,
    RoundInfo,
    Sums,
    Update,
    Vectors,
)
from pcfed.data import mnist
from pcfed.losses import LeastSquares, Loss, SoftmaxRegression
from pcfed.sets import WholeSpace

from .table import Row, progress

# -- Ditto: point estimation ----------------------------------------------------------------------

TRIALS = 1000
SIGMA, SAMPLES, TAU = 0.8, 30, 0.1
CLOSED_FORM = "[1], closed form"


class Setting(NamedTuple):
    """Agents, some of which attack, with the names of the setting in the table."""

    m: int
    attackers: int
    name: str
    short_name: str
    weights: str


SETTINGS = (
    Setting(8, 0, "8 agents", "8 agents", "0, 0.4, …, 2.0, 2.4, 3, 5"),
    Setting(16, 8, "16 agents of which 8 attack", "8 of 16 attack", "the same"),
)
WEIGHTS = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 3.0, 5.0)


def point_estimation(lam: float, seed: int, m: int, attackers: int = 0) -> float:
    """Return the mean squared error of Ditto's own models, over honest agents and all trials.

    Every entry of a model is a trial of its own: agent i estimates the mean $w_i$ of its samples,
    where the means of all agents are normally distributed, those of attackers more widely.
    """
    rng = np.random.default_rng(seed)
    spread = np.where(np.arange(m) < attackers, 0.5, TAU)
    true = spread[:, None] * rng.normal(size=(m, TRIALS))
    observed = true + SIGMA / np.sqrt(SAMPLES) * rng.normal(size=(m, TRIALS))
    X = np.sqrt(TRIALS) * np.eye(TRIALS)  # f_i(w) is half the squared distance to what i observed
    losses = [LeastSquares(X, np.sqrt(TRIALS) * row) for row in observed]
    problem = Problem(Agent(loss, WholeSpace()) for loss in losses)
    algorithm = Ditto(0.8, own_step=0.8 / (1 + lam), prox=lam, constrained=False)
    models = run(problem, algorithm, rounds=12, eval_every=12).models
    return float(np.mean((models - true)[attackers:] ** 2))


def ditto() -> Iterator[Row]:
    """Yield the best weight and the smallest error, without and with attackers."""
    variance = SIGMA**2 / SAMPLES
    for m, attackers, name, short_name, weights in SETTINGS:
        wider = attackers * (0.5**2 - TAU**2) / (m - 1)
        best = variance * m / (m * TAU**2 + wider)
        smallest = 1 / (1 / variance + (m - 1) / (m * TAU**2 + variance + wider))
        errors = []
        for lam in WEIGHTS:
            errors.append(point_estimation(lam, seed=0, m=m, attackers=attackers))
            progress(f"Ditto, {name}: weight {lam:.2f}, squared error {errors[-1]:.5f}")
        found = WEIGHTS[int(np.argmin(errors))]
        with_it = [point_estimation(best, seed=k, m=m, attackers=attackers) for k in range(5)]
        ours = f"{found:.1f} of {weights}"
        yield Row("Ditto", f"best weight, {name}", f"{best:.2f}", ours, CLOSED_FORM)
        quantity = f"squared error with the best weight, {short_name}"
        ours = f"{np.mean(with_it):.5f} ± {np.std(with_it) / 2:.5f}"
        yield Row("Ditto", quantity, f"{smallest:.5f}", ours, CLOSED_FORM)
        quantity = f"squared error alone (weight 0), {short_name}"
        yield Row("Ditto", quantity, f"{variance:.5f}", f"{errors[0]:.5f}", CLOSED_FORM)


# -- pFedMe and Per-FedAvg: MNIST -----------------------------------------------------------------

ROUNDS, USERS, PRESENT = 200, 20, 5
WEIGHTED = ", weighted means"
"""The end of the quantities of rows that the table does not have; its text has their numbers."""


# The code of pFedMe's authors weighs participants by their numbers of samples; pcfed does not.


def weighted(context: LocalContext, update: Update) -> Update:
    """Return an update whose sum is weighted by the agents' numbers of samples."""
    sizes = np.array([[float(agent.loss.size)] for agent in context.agents])
    delta = update.sent["delta"] * sizes.astype(context.dtype)
    return Update({"delta": delta, STATISTICS: sizes}, update.pending)


def weighted_mean(server: Vectors, sums: Sums) -> Vectors:
    """Return the shared model, moved by the weighted mean of the differences."""
    return {"x": server["x"] + sums.vectors["delta"] / sums.vectors[STATISTICS][0]}


class WeightedFedAvg(FedAvg):
    """FedAvg with weights."""

    statistics = ("samples",)

    def local(self, context: LocalContext, *arguments: Any) -> Update:
        """Return weighted updates."""
        return weighted(context, super().local(context, *arguments))

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the weighted mean difference."""
        return weighted_mean(server, sums)


class WeightedPFedMe(PFedMe):
    """pFedMe with weights."""

    statistics = ("samples",)

    def local(self, context: LocalContext, *arguments: Any) -> Update:
        """Return weighted updates."""
        return weighted(context, super().local(context, *arguments))

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the weighted mean difference."""
        return weighted_mean(server, sums)


def two_digits_each(seed: int = 1) -> Problem:
    """Return 20 agents with two digits each, in numbers that differ; a quarter is held out."""
    rng = np.random.default_rng(seed)
    data = mnist()
    X = np.concatenate([data.train_images, data.test_images]).astype(np.float32)
    y = np.concatenate([data.train_labels, data.test_labels]).astype(np.intp)
    X -= X.mean(axis=0)
    X /= X.std(axis=0) + 0.001
    parts: list[list[NDArray[np.intp]]] = [[] for _ in range(USERS)]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(y == digit))
        holders = [user for user in range(USERS) if digit in (user % 10, (user + 1) % 10)]
        left, sizes = len(rows), []
        for _ in holders[1:]:
            sizes.append(int(rng.integers(left // (len(holders) + 1), left // 2)))
            left -= sizes[-1]
        for user, share in zip(holders, np.split(rows, np.cumsum(sizes)), strict=True):
            parts[user].append(share)
    agents = []
    for part in parts:
        order = rng.permutation(np.concatenate(part))
        train, test = np.split(order, [int(0.75 * len(order))])
        losses = (SoftmaxRegression(X[k], y[k], classes=10, intercept=True) for k in (train, test))
        loss, held_out = losses
        agents.append(Agent(loss, WholeSpace(), test=held_out))
    return Problem(agents)


def absent(index: int) -> list[int]:
    """Return who is absent: all but five, except in the last round, which tests everybody."""
    if index == ROUNDS - 1:
        return []
    order = np.random.default_rng([7, index]).permutation(USERS)
    return [int(user) for user in order[PRESENT:]]


def accuracies(problem: Problem, algorithm: Algorithm) -> tuple[float, float]:
    """Return the accuracies of the own models and of the shared model on all held-out images."""
    progress(f"MNIST: {algorithm}")
    options: dict[str, Any] = {"batch": 20, "participation": absent}
    result = run(problem, algorithm, rounds=ROUNDS, local_steps=20, eval_every=ROUNDS, **options)
    shared = result.state.server["x"]
    tests = [agent.test for agent in problem.agents if agent.test is not None]
    sizes = np.array([test.size for test in tests])
    own = [test.accuracy(x) for test, x in zip(tests, result.models, strict=True)]
    common = [test.accuracy(shared) for test in tests]
    return float(sizes @ own / sizes.sum()), float(sizes @ common / sizes.sum())


def pfedme() -> Iterator[Row]:
    """Yield the accuracies of pFedMe, and of FedAvg on the same data."""
    problem = two_digits_each()
    own_source = "[2], `pFedMe_p_0.005_1_15_5u_20b_20_5_0.1_avg`"
    shared_source = "[2], `pFedMe_0.005_1_15_5u_20b_20_5_0.1_avg`"
    for kind, means in ((PFedMe, ""), (WeightedPFedMe, WEIGHTED)):
        algorithm = kind(0.005, own_step=0.1, prox=15.0, own_steps=5, constrained=False)
        own, shared = accuracies(problem, algorithm)
        quantity = f"accuracy of own models, MNIST, round {ROUNDS}{means}"
        yield Row("pFedMe", quantity, "0.9364", f"{own:.4f}", own_source)
        quantity = f"accuracy of the shared model, MNIST, round {ROUNDS}{means}"
        yield Row("pFedMe", quantity, "0.9207", f"{shared:.4f}", shared_source)
    source = "[2], `FedAvg_0.005_1.0_15_5u_20b_20`"
    for other, means in ((FedAvg(0.005), ""), (WeightedFedAvg(0.005), WEIGHTED)):
        _, shared = accuracies(problem, other)
        quantity = f"accuracy, MNIST, round {ROUNDS}{means}"
        yield Row("FedAvg", quantity, "0.9159", f"{shared:.4f}", source)


def perfedavg() -> Iterator[Row]:
    """Yield the accuracy of Per-FedAvg in the same setting."""
    own, _ = accuracies(two_digits_each(), PerFedAvg(0.005, own_step=0.005, constrained=False))
    source = "[2], `PerAvg_p_0.005_0.001_15_5u_20b_20`"
    quantity = f"accuracy of own models, MNIST, round {ROUNDS}"
    yield Row("Per-FedAvg", quantity, "0.9184 (a variant)", f"{own:.4f}", source)


# -- FedRep: a linear representation --------------------------------------------------------------

FEATURES, WIDTH = 10, 2


class LinearRepresentation(Loss):
    r"""Half the mean squared error of $y = h^\top B^\top x$; the flat vector holds B, then h."""

    convex = False

    def __init__(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        self.X, self.y = X, y
        self.size, self.n = len(y), (FEATURES + 1) * WIDTH
        self.shape, self.dtype = (self.n,), X.dtype

    def _residuals(self, x: Any, rows: Any = None) -> tuple[Any, Any, Any, Any]:
        B, h = np.reshape(x[:-WIDTH], (FEATURES, WIDTH)), x[-WIDTH:]
        X, y = (self.X, self.y) if rows is None else (self.X[rows], self.y[rows])
        return X, B, h, X @ (B @ h) - y

    def value(self, x: Any) -> float:
        """Return half the mean squared error."""
        return float(np.mean(self._residuals(x)[-1] ** 2) / 2)

    def gradient(self, x: Any, rows: Any = None, out: Any = None) -> Any:
        """Return the gradient in B and h."""
        X, B, h, r = self._residuals(x, rows)
        g = r @ X / len(r)
        found = np.concatenate([np.outer(g, h).ravel(), B.T @ g])
        if out is None:
            return found
        out[...] = found
        return out

    def smoothness(self) -> float:
        """Return infinity: the loss has no smoothness constant."""
        return float("inf")

    def permute_samples(self, order: Any) -> LinearRepresentation:
        """Return the same loss with its samples in another order."""
        return LinearRepresentation(self.X[order], self.y[order])


def representation_distances(own_steps: int, rounds: int) -> list[float]:
    """Return the principal angle distance to the true representation, at the start and later."""
    rng = np.random.default_rng(0)
    true = np.linalg.qr(rng.normal(size=(FEATURES, WIDTH)))[0]
    agents = []
    for _ in range(30):
        X = rng.normal(size=(40, FEATURES))
        agents.append(
            Agent(LinearRepresentation(X, X @ true @ rng.normal(size=WIDTH)), WholeSpace())
        )
    start = np.zeros((FEATURES + 1) * WIDTH)
    start[:-WIDTH] = np.linalg.qr(rng.normal(size=(FEATURES, WIDTH)))[0].ravel()
    algorithm = FedRep(
        0.5, own_step=0.5, own=((-WIDTH, None),), own_steps=own_steps, constrained=False
    )

    def distance(x: NDArray[np.float64]) -> float:
        B = np.linalg.qr(x[:-WIDTH].reshape(FEATURES, WIDTH))[0]
        return float(np.linalg.norm(B - true @ (true.T @ B), 2))

    found = [distance(start)]
    result: Any = start
    for _ in range(4):
        options: dict[str, Any] = {"rounds": rounds // 4, "eval_every": rounds // 4, "x0": result}
        result = run(Problem(agents), algorithm, **options)
        found.append(distance(result.state.server["x"]))
        progress(f"FedRep, {own_steps} head steps: distance {found[-1]:.1e}")
    return found


def distances(own_steps: int) -> str:
    """Return the distances after 0, 20, 40, 60 and 80 rounds as a text."""
    found = representation_distances(own_steps, 80)
    return ", ".join(f"{each:.1e}" for each in found).replace("e-0", "e-")


def fedrep() -> Iterator[Row]:
    """Yield the distances to the true representation with many head steps and with one."""
    quantity = "distance to the true representation after 0, 20, 40, 60, 80 rounds"
    yield Row("FedRep", quantity, "falls geometrically", distances(own_steps=10), "[3]")
    quantity = "the same with one head step instead of ten"
    yield Row("FedRep", quantity, "", distances(own_steps=1), "")
