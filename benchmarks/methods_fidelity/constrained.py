"""FedMiD, FedDualAvg and ProxAL against what their authors report.

`proxal` repeats the authors' experiment with linear equality constrained quadratic programs, with
their data: their generator is seeded, and their repository has a log of the results. `composite`
is a sparse regression in the manner of Yuan, Zaheer and Reddi, whose data are not public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pcfed import Agent, FedDualAvg, FedMiD, Problem, ProxAL, Result, run
from pcfed.algorithms import Vectors
from pcfed.arrays import Array, Float64Array
from pcfed.losses import LeastSquares, Loss
from pcfed.losses.base import Rows
from pcfed.sets import Affine, L1Ball

from .table import Row, progress

# -- ProxAL: linear equality constrained quadratic programs ---------------------------------------


class Reported(NamedTuple):
    """A size of the quadratic programs, with objectives and largest violations of the authors.

    `log` are the means of the federated method in their log, whose runs started from the
    multipliers of a centralised method, and `fresh` is one run of their code from zero multipliers.
    """

    parameters: int
    agents: int
    constraints: int
    log: tuple[float, float]
    fresh: tuple[float, float]


REPORTED = (
    Reported(100, 1, 1, (-0.2324582735, 3.333323741e-4), (-0.2324370670, 3.140288787e-4)),
    Reported(100, 5, 1, (9.812357456, 1.344550878e-4), (9.811381402, 1.164951624e-4)),
    Reported(100, 10, 1, (49.39804950, 7.307133254e-5), (49.37136913, 5.721067900e-4)),
    Reported(300, 1, 3, (-0.3716794445, 3.514952695e-4), (-0.3716830611, 3.445805440e-4)),
    Reported(300, 5, 3, (8.465906782, 1.091975955e-4), (8.465785602, 8.974960407e-5)),
    Reported(300, 10, 3, (41.48582529, 8.559924283e-5), (41.43705845, 8.951331471e-4)),
)
BETA, RHO, TOLERANCE = 10.0, 1.0, 0.1
MIN_OUTER, MAX_VIOLATION = 11, 1e-3
"""The parameters and the stopping rule of the authors, with which all their runs took 11
iterations: multipliers that change by at most 0.001 β are a violation of at most 0.001."""


class Quadratic(Loss):
    r"""The loss $\frac12 x^\top Q x + c^\top x$ of an agent."""

    convex = True

    def __init__(self, Q: Float64Array, c: Float64Array) -> None:
        self.Q, self.c = Q, c
        self.n, self.size, self.shape, self.dtype = len(c), 1, (len(c),), c.dtype

    def value(self, x: ArrayLike) -> float:
        """Return the loss at x."""
        x = np.asarray(x)
        return float(x @ self.Q @ x / 2 + self.c @ x)

    def gradient(self, x: ArrayLike, rows: Rows = None, out: Array | None = None) -> Array:
        """Return the gradient at x."""
        g = np.matmul(self.Q, np.asarray(x), out=out)
        g += self.c
        return g

    def smoothness(self) -> float:
        """Return the largest curvature."""
        return float(np.linalg.norm(self.Q, 2))

    def permute_samples(self, order: ArrayLike) -> Loss:
        """Return the loss, which has no samples."""
        return self


class Program(NamedTuple):
    """A quadratic program, with the coefficients of all agents."""

    Q: list[Float64Array]
    c: Float64Array
    A: list[Float64Array]
    b: Float64Array

    @property
    def problem(self) -> Problem:
        """The agents."""
        rows = zip(self.Q, self.c, self.A, self.b, strict=True)
        return Problem([Agent(Quadratic(Q, c), Affine(A, b)) for Q, c, A, b in rows])

    def objective(self, x: Float64Array) -> float:
        """Return the sum of the losses."""
        return sum(float(x @ Q @ x / 2 + c @ x) for Q, c in zip(self.Q, self.c, strict=True))

    def violation(self, x: Float64Array) -> float:
        """Return the largest difference of the two sides of an equation."""
        return max(float(np.abs(A @ x - b).max()) for A, b in zip(self.A, self.b, strict=True))

    def optimum(self) -> float:
        """Solve the KKT system."""
        A, n = np.concatenate(self.A), len(self.c[0])
        system = np.block([[sum(self.Q), A.T], [A, np.zeros((len(A), len(A)))]])
        right = np.concatenate([-self.c.sum(axis=0), self.b.ravel()])
        return self.objective(np.linalg.solve(system, right)[:n])


def program(size: Reported) -> Program:
    """Return the authors' data: curvatures in [½, 1], unit vectors, constraints of unit length.

    They are drawn as the authors draw them, from NumPy's old generator and in the same order.

    The last agent has no loss; its constraint is the global one of the paper.
    """
    n, m, k = size.parameters, size.agents + 1, size.constraints
    rng = np.random.RandomState(10)
    Q = []
    for _ in range(m):
        curvatures = rng.rand(n) * 0.5 + 0.5
        rng.shuffle(list(range(n)))  # the authors draw it and do not use it
        U = np.linalg.svd(rng.randn(n, n))[0]
        Q.append((U * curvatures) @ U.T)
    c = rng.randn(n, m)
    A = rng.normal(0, 1 / np.sqrt(n), (k, n, m))
    d = rng.randn(k, m)
    c, d = c / np.linalg.norm(c, axis=0), d / np.linalg.norm(d, axis=0)
    Q[-1], c[:, -1], d[:, -1] = np.zeros((n, n)), 0, 0
    return Program(Q, c.T.copy(), [A[:, :, i].copy() for i in range(m)], -d.T)


def first_point(size: Reported) -> Float64Array:
    """Return the first of the authors' ten starting points."""
    start = np.random.RandomState(0).rand(size.parameters)
    return start / np.linalg.norm(start)


def centralised_multipliers(size: Reported, data: Program) -> Float64Array:
    """Return the multipliers with which a proximal augmented Lagrangian method ends.

    It minimises exactly and has the parameters and the stopping rule of the federated method. The
    multipliers are those of the sets, one row per agent.
    """
    A = np.concatenate(data.A)
    x, mu, b = first_point(size), np.zeros(len(A)), data.b.ravel()
    pull = len(data.A) / ((len(data.A) + 1) * BETA)
    H = sum(data.Q) + BETA * A.T @ A + pull * np.eye(len(x))
    steps = np.full(2, np.inf)
    while steps.max() > BETA * MAX_VIOLATION:
        g = data.c.sum(axis=0) + A.T @ (mu - BETA * b) - pull * x
        x, previous = np.linalg.solve(H, -g), x
        change = BETA * (A @ x - b)
        mu += change
        steps = np.array([np.abs(x - previous).max(), np.abs(change).max()])
    rows = mu.reshape(data.b.shape)
    return np.stack([each.T @ row for each, row in zip(data.A, rows, strict=True)])


@dataclass(frozen=True, eq=False)
class ProxALFrom(ProxAL):
    """ProxAL that starts with multipliers that are given."""

    _: KW_ONLY
    multipliers: Float64Array

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start with the multipliers."""
        server, private = super().start(models)
        return server, {**private, "mu": self.multipliers.copy()}


def solved(size: Reported, data: Program, multipliers: Float64Array) -> str:
    """Return the objective, the largest violation and the number of rounds of ProxAL."""
    # A row per agent, so that the algorithm starts all agents at once and not one for all.
    result: Result | Float64Array = np.tile(first_point(size), (len(data.A), 1))
    algorithm = ProxALFrom(
        1 / (1 + BETA + RHO),
        BETA,
        prox=RHO,
        inner_rounds=100,
        tolerance=TOLERANCE,
        constrained=False,
        multipliers=multipliers,
    )
    problem, outer, rounds, x = data.problem, 0, 0, first_point(size)
    while outer < MIN_OUTER or data.violation(x) > MAX_VIOLATION:
        result = run(problem, algorithm, rounds=5, local_steps=30, x0=result, eval_every=5)
        server, rounds = result.state.server, result.state.round
        x, outer = server["anchor"].astype(np.float64), int(server["outer"][0])
        progress(f"{name_of(size)}: {outer} outer iterations, {rounds} rounds")
    return f"{pair(data.objective(x), data.violation(x))}, {rounds} rounds"


def proxal() -> Iterator[Row]:
    """Repeat the table of the authors' log."""
    for size in REPORTED:
        data = program(size)
        multipliers = centralised_multipliers(size, data)
        yield Row(
            "ProxAL",
            name_of(size),
            f"{data.optimum():.6g}",
            pair(*size.log),
            solved(size, data, multipliers),
            pair(*size.fresh),
            solved(size, data, np.zeros_like(multipliers)),
        )


def pair(objective: float, violation: float) -> str:
    """Return an objective, with a violation in parentheses."""
    return f"{objective:.6g} ({violation:.1e})"


def name_of(size: Reported) -> str:
    """Return a size as the paper writes it."""
    return f"d = {size.parameters}, n = {size.agents}, m = {size.constraints}"


# -- FedMiD and FedDualAvg: sparse regression -----------------------------------------------------

AGENTS, FEATURES, NONZERO, SAMPLES = 64, 128, 32, 32
CUTOFF = 1e-4
"""Entries above it count as not zero, as in the authors' code."""

COMPOSITE = "Yuan, Zaheer, Reddi (2021), abstract; metrics of hongliny/FCO-ICML21"


def sparse_regression() -> tuple[list[Float64Array], list[Float64Array]]:
    """Return the samples of agents whose features have means and scales of their own."""
    rng = np.random.default_rng(0)
    truth = np.r_[np.ones(NONZERO), np.zeros(FEATURES - NONZERO)]
    X = [
        rng.normal(size=FEATURES) + rng.normal(size=(SAMPLES, FEATURES)) * rng.uniform(0.5, 1.5)
        for _ in range(AGENTS)
    ]
    return X, [each @ truth + rng.normal(size=SAMPLES) for each in X]


def composite() -> Iterator[Row]:
    """Compare the models of FedMiD and FedDualAvg after the same rounds, for the best of steps."""
    X, y = sparse_regression()
    ball = L1Ball(float(NONZERO))
    problem = Problem([Agent(LeastSquares(*data), ball) for data in zip(X, y, strict=True)])
    for method in (FedMiD, FedDualAvg):
        found = {}
        for step in (3e-4, 1e-3, 3e-3, 1e-2):
            algorithm = method(step, project_onto=f"l1({NONZERO})")
            result = run(
                problem,
                algorithm,
                rounds=200,
                local_steps=10,
                batch=10,
                participation=10,
                seed=1,
                eval_every=200,
            )
            progress(f"{method.__name__}, step {step:g}: {result.status}")
            if result.status == "finished":
                found[step] = result.history[-1].loss, result.average
        step, (loss, x) = min(found.items(), key=lambda item: item[1][0])
        chosen = np.abs(x) > CUTOFF
        hits = int(chosen[:NONZERO].sum())
        precision, recall = hits / max(1, int(chosen.sum())), hits / NONZERO
        f1 = 2 * precision * recall / max(precision + recall, 1e-300)
        text = (
            f"loss {loss:.4g}, F1 {f1:.3f}, precision {precision:.3f}, recall {recall:.3f}, "
            f"density {chosen.mean():.3f} (step {step:g})"
        )
        expected = "FedDualAvg is better than FedMiD" if method is FedDualAvg else "worse"
        yield Row(method.__name__, "sparse regression in an l1 ball", expected, text, COMPOSITE)
