r"""The optimum of a problem, constrained or penalised, to a requested accuracy.

$$ x^* = \arg\min_{x_i \in X_i} f(x), \qquad
   x^*_\rho = \arg\min_x G_\rho(x),
   \quad G_\rho(x) = f(x) + \frac{\rho}{2m} \sum_i \operatorname{dist}(x_i, X_i)^2 $$

The data enter f only through $F(z) = \frac1m \sum_i f_i(z)$ at the average z. All else (coupling,
distances, sets) costs no pass over the data. So F alone is replaced by a quadratic model, with a
curvature B that is learned from its gradients, and the rest is kept as it is:

    x⁺ = argmin  ⟨∇F(z), z⁺⟩ + ½ ⟨z⁺ − z, B (z⁺ − z)⟩ + coupling and distances, in the sets
    x ← x + t (x⁺ − x),  t where the slope of the objective along the way is near 0 or negative

The inner problem is solved by accelerated projected gradients; a step costs one gradient of F.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.certificate import HOPE, certify
from pcfed.guarantees.quasi_newton import Curvature, accelerate
from pcfed.guarantees.tighten import tighten
from pcfed.problem import Problem
from pcfed.sets import Hint
from pcfed.validation import count, positive

PATIENCE = 10
"""Iterations without progress, at the level of rounding, after which the search ends."""
EPS = float(np.finfo(np.float64).eps)
INNER = 100
"""Steps on one quadratic model, at most."""
COARSE = 1e-4
"""From this tolerance on gradients in the dtype of the data, perhaps float32, are good enough."""
TIGHTEN_EVERY = 25
"""Iterations between two attempts to certify a smaller gap, once it is in reach."""


@dataclass(frozen=True, eq=False)
class Optimum:
    r"""A point that is optimal up to a known error.

    Attributes
    ----------
    models : Array
        (m, n): the point, one row an agent.
    objective : float
        $f$ there, or $G_\rho$ if there is a penalty.
    penalty : float or None
        $\rho$, or None for the constrained problem.
    gap : float
        Constrained: $f(x) - f^* \le$ ``gap``, certified. Penalised: infinite, see ``residual``.
    residual : float
        Constrained: length of the projected gradient, $L \|x - \Pi[x - \nabla f(x)/L]\|$ with
        L a Lipschitz constant of $\nabla f$. Penalised: $\|\nabla G_\rho(x)\|$.
    iterations, gradients : int
        Quadratic models, and passes over all data.
    seconds : float
        How long it took.
    status : {"converged", "stalled", "stopped"}
        Whether the tolerance was met, no more progress was made, or the limit was reached.
    message : str
        What happened, in a sentence.
    """

    models: Float64Array
    objective: float
    penalty: float | None
    gap: float
    residual: float
    iterations: int
    gradients: int
    seconds: float
    status: Literal["converged", "stalled", "stopped"]
    message: str

    def __repr__(self) -> str:
        error = f"gap {self.gap:.3g}" if self.penalty is None else f"gradient {self.residual:.3g}"
        return f"Optimum({self.status}, objective {self.objective:.9g}, {error})"


def optimum(
    problem: Problem,
    *,
    penalty: float | None = None,
    tolerance: float | None = None,
    x0: Array | None = None,
    iterations: int = 1000,
    progress: bool = False,
) -> Optimum:
    r"""Find the constrained optimum $x^*$, or the penalised one $x^*_\rho$, of a convex problem.

    Losses are evaluated in float64, whatever the dtype of their data; in the dtype of their data
    for tolerances of 1e-4 and more, where that is enough. The gap at the end is always in float64.

    Parameters
    ----------
    problem : Problem
        The agents.
    penalty : float, optional
        $\rho > 0$ for the minimum of $G_\rho$; None for that of f over the sets.
    tolerance : float, optional
        The end. Constrained: for the certified gap, 1e-8 by default; where a set gives no
        bound, for ``residual``, so that the optimum is not certified. Penalised: for
        $\|\nabla G_\rho\|$, 1e-8 by default.
    x0 : array, optional
        Where to start, (n,) or (m, n): zeros by default.
    iterations : int
        Largest number of quadratic models.
    progress : bool
        Whether to show how far it is.

    Returns
    -------
    Optimum
        Whatever was reached; ``status`` says whether that is what was asked for.

    Raises
    ------
    ValueError
        If a loss is not convex or not smooth.
    ProjectionError
        If a projection fails, for example because a set is empty.

    References
    ----------
    Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite functions" (2014).

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed import Agent, Problem
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    >>> problem = Problem([Agent(loss, L1Ball(radius), coupling=0.1) for radius in (1, 5)])
    >>> best = optimum(problem)
    >>> best.status
    'converged'
    >>> best.models.round(3) + 0.0
    array([[1.   , 0.   ],
           [3.833, 1.167]])
    """
    for agent, name in zip(problem.agents, problem.names, strict=True):
        if not agent.loss.convex:
            raise ValueError(
                f"optimum: losses must be convex, got one of {name} that is not; "
                "a local search gives no optimum."
            )
    if not math.isfinite(problem.L_f):
        raise ValueError(
            f"optimum: losses must have a finite smoothness, got {problem.L_f}; rescale the data."
        )
    count("optimum: iterations", iterations)
    rho = None if penalty is None else positive("optimum: penalty", penalty)
    goal = positive("optimum: tolerance", 1e-8 if tolerance is None else tolerance)
    start = np.zeros(problem.n) if x0 is None else x0
    search = _Search(problem, rho, problem.as_models("optimum: x0", start), goal)
    while not search.reached and not search.stuck and search.iterations < iterations:
        search.step()
        search.measure()
        if progress:
            search.show()
    if progress and sys.stderr.isatty():
        sys.stderr.write("\n")
    return search.outcome()


class _Search:
    """An iterate and everything that belongs to it."""

    def __init__(self, problem: Problem, rho: float | None, x: Float64Array, goal: float) -> None:
        self.problem = problem.to_float64() if goal < COARSE else problem
        self.rho, self.goal = rho, goal
        self.sigma = np.array([[agent.coupling] for agent in problem.agents])
        self.hints = [Hint() for _ in problem.agents]
        self.m = problem.m
        self.began = self.shown = time.perf_counter()
        self.iterations = self.gradients = self.waited = 0
        self.stuck = self.quiet = False
        self.witness: Float64Array | None = None
        self.move = self.least = math.inf
        self.error = (math.inf, math.inf)
        scale = sum(agent.loss.smoothness() for agent in problem.agents) / self.m
        self.B = Curvature(scale or 1.0)
        self.L = (scale + problem.sigma) / self.m or 1.0
        self.x = self.nearest(x) if rho is None else x.copy()
        self.g = self.loss_gradient(self.x.mean(axis=0))
        self.best = self.calmest = self.x
        self.measure()

    # -- the two parts of the gradient --------------------------------------------------------

    def loss_gradient(self, z: Float64Array) -> Float64Array:
        """Return ∇F(z), by a pass over all data."""
        self.gradients += 1
        g = np.zeros(self.problem.n)
        for agent in self.problem.agents:
            g += agent.loss.gradient(z)
        return g / self.m

    def smooth(self, x: Float64Array, g: Float64Array) -> Float64Array:
        """Return the gradient of f at x, for a gradient g of F or of its model."""
        s = self.sigma * (x - x.mean(axis=0))
        s += g - s.mean(axis=0)
        s /= self.m
        return np.asarray(s)

    def whole(self, x: Float64Array, g: Float64Array) -> Float64Array:
        """Return the gradient of f or of G at x."""
        if self.rho is None:
            return self.smooth(x, g)
        return self.smooth(x, g) + self.rho / self.m * (x - self.nearest(x))

    def nearest(self, x: Float64Array) -> Float64Array:
        """Return every agent's projection."""
        rows = zip(self.problem.agents, x, self.hints, strict=True)
        return np.stack([a.feasible_set.project_unchecked(r, hint=h) for a, r, h in rows])

    def prox(self, x: Float64Array, L: float) -> Float64Array:
        """Return the minimum of L/2 ‖· − x‖² plus the penalty, or in the sets if there is none."""
        p = self.nearest(x)
        if self.rho is None:
            return p
        weight = self.rho / (self.m * L)
        return np.asarray((x + weight * p) / (1 + weight))

    # -- one step -----------------------------------------------------------------------------

    def step(self) -> None:
        """Minimize a model and go as far towards its minimum as the objective falls."""
        self.iterations += 1
        z, g = self.x.mean(axis=0), self.g
        L = (self.B.largest + self.sigma.max()) / self.m
        new = accelerate(
            lambda x: self.smooth(x, g + self.B @ (x.mean(axis=0) - z)),
            lambda x: self.prox(x, L),
            self.x,
            smoothness=L,
            tolerance=0.3 * self.move,
            limit=INNER,
        )
        d = new - self.x
        q = self.whole(self.x, g)
        before = float(np.vdot(q, d))
        noise = EPS * _norm(q) * _norm(self.x)
        self.quiet = before >= -noise
        if before > noise:  # the model was no good: begin again with a plain one
            self.stuck = not self.B.learned
            self.B.forget()
            return
        x, t, new_g = new, 1.0, self.loss_gradient(new.mean(axis=0))
        for _ in range(10):
            slope = float(np.vdot(self.whole(x, new_g), d))
            if slope <= 0.1 * abs(before) + noise:
                break
            t *= float(np.clip(before / (before - slope), 0.1, 0.9))
            x = self.x + t * d
            new_g = self.loss_gradient(x.mean(axis=0))
        self.B.learn(x.mean(axis=0) - z, new_g - g)
        self.x, self.g = x, new_g

    # -- how good it is -----------------------------------------------------------------------

    def measure(self) -> None:
        """Find the error of the iterate, keep the best one, and see whether there is progress."""
        q = self.smooth(self.x, self.g)
        self.move = self.L * _norm(self.x - self.prox(self.x - q / self.L, self.L))
        if self.rho is None:
            rows = zip(self.problem.agents, self.x, q, strict=True)
            gap = sum(q_j @ x_j + a.feasible_set.support_bound(-q_j) for a, x_j, q_j in rows)
            if self.goal < gap < HOPE * self.goal and self.iterations % TIGHTEN_EVERY == 0:
                found = tighten(self.problem.agents, self.x, self.g, 500, self.witness)
                gap, self.witness = found.shares.sum(), found.witness
            error = (max(float(gap), 0.0), self.move)  # where gaps are infinite the other decides
        else:
            error = (math.inf, _norm(self.whole(self.x, self.g)))
        better = error < self.error or self.move < self.least
        self.waited = 0 if better or not self.quiet else self.waited + 1
        self.stuck = self.stuck or self.waited > PATIENCE
        if self.move < self.least:
            self.calmest, self.least = self.x, self.move
        if error < self.error:
            self.best, self.error = self.x, error

    @property
    def reached(self) -> bool:
        """Whether the best point is good enough."""
        gap, residual = self.error
        return (gap if math.isfinite(gap) else residual) <= self.goal

    def show(self) -> None:
        """Write how far the search is: over the same line on a terminal, else now and then."""
        terminal, now = sys.stderr.isatty(), time.perf_counter()
        if now - self.shown < (0.1 if terminal else 10.0):
            return
        self.shown, (gap, residual) = now, self.error
        line = (
            f"{self.iterations} steps  {self.gradients} gradients  {now - self.began:.0f} s  "
            f"gap {gap:.1e}  gradient {residual:.1e}  goal {self.goal:.0e}"
        )
        sys.stderr.write(f"\r{line}  " if terminal else f"{line}\n")
        sys.stderr.flush()

    def outcome(self) -> Optimum:
        """Return the best point, evaluated."""
        gap, residual = self.error
        done = self.reached
        if self.rho is None:
            if self.stuck and not done:  # at the floor of the gap, nearer points need not lower it
                self.best, residual = self.calmest, self.least
            certificate = certify(self.problem, self.best)
            models, objective = certificate.models, certificate.objective
            gap = math.inf if certificate.gap is None else certificate.gap
        else:
            models = self.best
            far = self.problem.infeasibility(models)
            objective = self.problem.objective(models) + self.rho / (2 * self.m) * float(far @ far)
        error = gap if math.isfinite(gap) else residual
        name = "gap" if math.isfinite(gap) else "length of the gradient"
        status: Literal["converged", "stalled", "stopped"]
        if done:
            status, end = "converged", f"asked for {self.goal:.3g}."
        elif self.stuck:
            cause = "rounding, or a set whose support bound is not exact"
            status, end = "stalled", f"no more progress ({cause})."
        else:
            status, end = "stopped", "the limit was reached; allow more iterations."
        return Optimum(
            models=models,
            objective=objective,
            penalty=self.rho,
            gap=gap,
            residual=residual,
            iterations=self.iterations,
            gradients=self.gradients,
            seconds=time.perf_counter() - self.began,
            status=status,
            message=f"{name} {error:.3g} after {self.iterations} iterations: {end}".capitalize(),
        )


def _norm(x: Float64Array) -> float:
    """Return the Euclidean length of all rows together."""
    return float(np.linalg.norm(x))
