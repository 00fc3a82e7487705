"""Compare QP solvers for projections onto polyhedra: accuracy and time, as ratios in one run.

The problem is the one that ``pcfed.sets.Polyhedron`` solves: min ½‖u‖² subject to G u ≤ h, with
rows of G of unit norm. Reported for every kind and size: the largest violation of a row and the
largest distance to the reference (the active rows solved by least squares), both divided by the
norm of the solution, the number of failures, and the time divided by that of quadprog.
Nonnegative least squares on the dual problem (SciPy's ``nnls``) is not included: version 1.17.1
crashed (double free) on repeated rows. Run:

    OMP_NUM_THREADS=1 python benchmarks/qp_solvers.py
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import clarabel
import daqp
import numpy as np
import osqp
import proxsuite
import quadprog
from numpy.typing import NDArray
from scipy import sparse

Matrix = NDArray[np.float64]
Solver = Callable[[Matrix, Matrix], Matrix]

SIZES = ((5, 10), (50, 200), (200, 400))
KINDS = ("random", "redundant", "degenerate", "cube", "far")
PROBLEMS = 10


def by_quadprog(G: Matrix, h: Matrix) -> Matrix:
    n = G.shape[1]
    return np.asarray(quadprog.solve_qp(np.eye(n), np.zeros(n), -G.T, -h, 0, True)[0])


def by_proxsuite(G: Matrix, h: Matrix) -> Matrix:
    n = G.shape[1]
    result = proxsuite.proxqp.dense.solve(
        H=np.eye(n), g=np.zeros(n), C=G, l=np.full(h.size, -1e20), u=h, eps_abs=1e-9, max_iter=1_000
    )
    return np.asarray(result.x)


def by_clarabel(G: Matrix, h: Matrix) -> Matrix:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    n = G.shape[1]
    solver = clarabel.DefaultSolver(
        sparse.eye(n, format="csc"),
        np.zeros(n),
        sparse.csc_matrix(G),
        h,
        [clarabel.NonnegativeConeT(h.size)],
        settings,
    )
    return np.asarray(solver.solve().x)


def by_osqp(G: Matrix, h: Matrix) -> Matrix:
    n = G.shape[1]
    solver: Any = osqp.OSQP()
    solver.setup(
        P=sparse.eye(n, format="csc"),
        q=np.zeros(n),
        A=sparse.csc_matrix(G),
        l=np.full(h.size, -np.inf),
        u=h,
        verbose=False,
        polishing=True,
        eps_abs=1e-9,
        eps_rel=1e-9,
        max_iter=100_000,
    )
    return np.asarray(solver.solve(raise_error=False).x)


def by_daqp(G: Matrix, h: Matrix) -> Matrix:
    n = G.shape[1]
    u, _, flag, _ = daqp.solve(
        np.eye(n),
        np.zeros(n),
        np.ascontiguousarray(G),
        h,
        np.full(h.size, -1e30),
        np.zeros(h.size, dtype=np.intc),
        primal_tol=1e-12,
    )
    if flag < 1:
        raise ArithmeticError(f"exit flag {flag}")
    return np.asarray(u)


SOLVERS: dict[str, Solver] = {
    "quadprog": by_quadprog,
    "proxsuite": by_proxsuite,
    "clarabel": by_clarabel,
    "osqp": by_osqp,
    "daqp": by_daqp,
}


def problem(kind: str, n: int, m: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Return unit rows and right-hand sides; the problem is feasible, and 0 is infeasible."""
    inside = rng.standard_normal(n)
    cube = np.vstack((np.eye(n), -np.eye(n)))
    G = cube[:m] if kind == "cube" else rng.standard_normal((m, n))
    if kind == "redundant":
        G[m // 2 :] = G[: m - m // 2]
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    slack = rng.random((G.shape[0],))
    if kind == "degenerate":  # all hyperplanes intersect in one point
        slack[:] = 0.0
    if kind == "redundant":
        slack[m // 2 :] = slack[: m - m // 2]
    h = G @ inside + slack
    if kind == "far":
        h = h + 1e8 * (G @ inside)
    return G, h


def reference(G: Matrix, h: Matrix) -> Matrix:
    """Return the least-squares solution of the active rows of daqp's solution."""
    n = G.shape[1]
    _, _, _, info = daqp.solve(
        np.eye(n),
        np.zeros(n),
        np.ascontiguousarray(G),
        h,
        np.full(h.size, -1e30),
        np.zeros(h.size, dtype=np.intc),
    )
    active = np.asarray(info["lam"]) > 0.0
    return np.asarray(np.linalg.lstsq(G[active], h[active], rcond=None)[0])


def main() -> None:
    warnings.simplefilter("ignore")
    heads = ("violation", "error", "failed", "time")
    print(f"{'kind':<11}{'n × m':>10}  {'solver':<10}{heads[0]:>10}{heads[1]:>10}", end="")
    print(f"{heads[2]:>7}{heads[3]:>8}")
    for kind in KINDS:
        for n, m in SIZES:
            report(kind, n, m)


def report(kind: str, n: int, m: int) -> None:
    rng = np.random.default_rng([n, m])
    problems = [problem(kind, n, m, rng) for _ in range(PROBLEMS)]
    references = [reference(G, h) for G, h in problems]
    base = 0.0
    for name, solve in SOLVERS.items():
        violation = error = seconds = 0.0
        failed = 0
        for (G, h), best in zip(problems, references, strict=True):
            length = max(float(np.linalg.norm(best)), 1e-300)
            start = time.perf_counter()
            try:
                u = solve(G, h)
            except (ArithmeticError, ValueError, RuntimeError):
                failed += 1
                continue
            finally:
                seconds += time.perf_counter() - start
            gap = float(np.linalg.norm(u - best)) / length
            if not gap < 1e-3:
                failed += 1
                continue
            violation = max(violation, float(np.max(G @ u - h)) / length)
            error = max(error, gap)
        base = base or seconds
        print(
            f"{kind:<11}{n:>4} ×{m:>4}  {name:<10}{violation:>10.0e}{error:>10.0e}"
            f"{failed:>7}{seconds / base:>8.2f}"
        )


if __name__ == "__main__":
    main()
