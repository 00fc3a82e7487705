"""Personalised methods against numbers of their papers or of their authors' code.

    python -m benchmarks.methods_fidelity            # all, or some: ditto pfedme perfedavg fedrep

Ditto: federated point estimation, whose best weight and error are known in closed form. pFedMe and
Per-FedAvg: softmax regression on MNIST with two digits per agent, in the setting of the code of
pFedMe's authors. FedRep: the linear representation of its theorem. All methods run without sets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Row:
    """A number of a paper or of its code, and ours."""

    method: str
    quantity: str
    reference: str
    ours: str
    source: str


# -- Ditto: point estimation ----------------------------------------------------------------------

TRIALS = 1000
SIGMA, SAMPLES, TAU = 0.8, 30, 0.1


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
    source = "litian96/ditto, point_estimation.ipynb (closed forms)"
    variance, grid = SIGMA**2 / SAMPLES, np.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 3.0, 5.0])
    for m, attackers, name in ((8, 0, "8 agents"), (16, 8, "16 agents, 8 attack")):
        wider = attackers * (0.5**2 - TAU**2) / (m - 1)
        best = variance * m / (m * TAU**2 + wider)
        smallest = 1 / (1 / variance + (m - 1) / (m * TAU**2 + variance + wider))
        errors = []
        for lam in grid:
            errors.append(point_estimation(float(lam), seed=0, m=m, attackers=attackers))
            print(f"Ditto, {name}: weight {lam:.2f}, squared error {errors[-1]:.5f}", flush=True)
        found = float(grid[np.argmin(errors)])
        with_it = [point_estimation(best, seed=k, m=m, attackers=attackers) for k in range(5)]
        yield Row("Ditto", f"best weight, {name}", f"{best:.2f}", f"{found:.1f} of {grid}", source)
        ours = f"{np.mean(with_it):.5f} (standard error {np.std(with_it) / 2:.5f})"
        yield Row("Ditto", f"error with it, {name}", f"{smallest:.5f}", ours, source)
        yield Row("Ditto", f"error alone, {name}", f"{variance:.5f}", f"{errors[0]:.5f}", source)


# -- pFedMe and Per-FedAvg: MNIST -----------------------------------------------------------------

ROUNDS, USERS, PRESENT = 200, 20, 5
RESULTS = "CharlieDinh/pFedMe, results/Mnist_{}.h5, round 200"


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
    print(f"MNIST: {algorithm}", flush=True)
    options: dict[str, Any] = {"batch": 20, "participation": absent, "progress": True}
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
    own_source = RESULTS.format("pFedMe_p_0.005_1_15_5u_20b_20_5_0.1_avg")
    shared_source = RESULTS.format("pFedMe_0.005_1_15_5u_20b_20_5_0.1_avg")
    for kind, means in ((WeightedPFedMe, "weighted"), (PFedMe, "plain")):
        algorithm = kind(0.005, own_step=0.1, prox=15.0, own_steps=5, constrained=False)
        own, shared = accuracies(problem, algorithm)
        quantity = f"accuracy of own models, {means} means"
        yield Row("PFedMe", quantity, "0.9364", f"{own:.4f}", own_source)
        quantity = f"accuracy of the shared model, {means} means"
        yield Row("PFedMe", quantity, "0.9207", f"{shared:.4f}", shared_source)
    source = RESULTS.format("FedAvg_0.005_1.0_15_5u_20b_20")
    for other, means in ((WeightedFedAvg(0.005), "weighted"), (FedAvg(0.005), "plain")):
        _, shared = accuracies(problem, other)
        yield Row("FedAvg", f"accuracy, {means} means", "0.9159", f"{shared:.4f}", source)


def perfedavg() -> Iterator[Row]:
    """Yield the accuracy of Per-FedAvg in the same setting."""
    own, _ = accuracies(two_digits_each(), PerFedAvg(0.005, own_step=0.005, constrained=False))
    source = RESULTS.format("PerAvg_p_0.005_0.001_15_5u_20b_20") + ", a variant, see below"
    yield Row("PerFedAvg", "accuracy of own models", "0.9184", f"{own:.4f}", source)


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
        print(f"FedRep, {own_steps} head steps: distance {found[-1]:.1e}", flush=True)
    return found


def fedrep() -> Iterator[Row]:
    """Yield the distances to the true representation with many head steps and with one."""
    source = "Collins et al. (2021), Theorem 1: linear convergence to the true representation"
    for own_steps in (10, 1):
        steps = "10 head steps" if own_steps == 10 else "1 head step"
        ours = ", ".join(f"{each:.1e}" for each in representation_distances(own_steps, 80))
        quantity = f"distance after 0, 20, 40, 60, 80 rounds, {steps}"
        claim = "falls geometrically" if own_steps == 10 else "falls more slowly"
        yield Row("FedRep", quantity, claim, ours, source)


METHODS: dict[str, Callable[[], Iterator[Row]]] = {
    "ditto": ditto,
    "fedrep": fedrep,
    "pfedme": pfedme,
    "perfedavg": perfedavg,
}


def main() -> None:
    """Print the table of the methods that are named, or of all."""
    rows = [row for name in sys.argv[1:] or METHODS for row in METHODS[name]()]
    print("\n| method | quantity | reference | ours | source |\n|---|---|---|---|---|")
    for row in rows:
        cells = (row.method, row.quantity, row.reference, row.ours, row.source)
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
