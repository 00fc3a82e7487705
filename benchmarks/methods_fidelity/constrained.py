"""FedMiD, FedDualAvg and ProxAL against what their authors report.

`proxal` repeats the authors' experiment with linear equality constrained quadratic programs, with
their data: their generator is seeded, and their repository has a log of the results. `composite`
is a sparse regression in the manner of Yuan, Zaheer and Reddi, whose data are not public.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pcfed import Agent, FedDualAvg, FedMiD, Problem, ProxAL, Result, run
from pcfed.arrays import Array, Float64Array
from pcfed.losses import LeastSquares, Loss
from pcfed.losses.base import Rows
from pcfed.sets import Affine, L1Ball

from .table import Row, progress

# -- ProxAL: linear equality constrained quadratic programs ---------------------------------------


class Reported(NamedTuple):
    """A size of the quadratic programs, and the means of the federated method in the log."""

    parameters: int
    agents: int
    constraints: int
    objective: float
    violation: float


REPORTED = (
    Reported(100, 1, 1, -0.2324582734596734, 0.0003333323740885359),
    Reported(100, 5, 1, 9.812357456149659, 0.0001344550877358963),
    Reported(100, 10, 1, 49.39804950371197, 7.307133253968701e-05),
    Reported(300, 1, 3, -0.3716794445459148, 0.0003514952694825851),
    Reported(300, 5, 3, 8.465906781720282, 0.000109197595495304),
    Reported(300, 10, 3, 41.48582528976081, 8.559924283498555e-05),
)
LOG = "PL97/Constr_FL, LCQP/new_log.txt"
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


def proxal() -> Iterator[Row]:
    """Repeat the table of the authors' log."""
    for size in REPORTED:
        data = program(size)
        start = np.random.RandomState(0).rand(size.parameters)
        result: Result | Float64Array = start / np.linalg.norm(start)
        algorithm = ProxAL(
            1 / (1 + BETA + RHO),
            BETA,
            prox=RHO,
            inner_rounds=100,
            tolerance=TOLERANCE,
            constrained=False,
        )
        problem, outer, rounds, x = data.problem, 0, 0, start
        while outer < MIN_OUTER or data.violation(x) > MAX_VIOLATION:
            result = run(problem, algorithm, rounds=5, local_steps=30, x0=result, eval_every=5)
            server, rounds = result.state.server, result.state.round
            x, outer = server["anchor"].astype(np.float64), int(server["outer"][0])
            progress(f"{name_of(size)}: {outer} outer iterations, {rounds} rounds")
        ours = f"{data.objective(x):.6g} (optimum {data.optimum():.6g}, {rounds} rounds)"
        yield Row("ProxAL", f"objective, {name_of(size)}", f"{size.objective:.6g}", ours, LOG)
        violations = f"{size.violation:.1e}", f"{data.violation(x):.1e}"
        yield Row("ProxAL", f"largest violation, {name_of(size)}", *violations, LOG)


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
