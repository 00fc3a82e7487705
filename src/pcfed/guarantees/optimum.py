r"""The optimum of a problem, constrained or penalised, to a requested accuracy.

$$ x^* = \arg\min_{x_i \in X_i} f(x), \qquad
   x^*_\rho = \arg\min_x G_\rho(x),
   \quad G_\rho(x) = f(x) + \frac{\rho}{2m} \sum_i \operatorname{dist}(x_i, X_i)^2 $$

The data enter f only through $F(z) = \frac1m \sum_i f_i(z)$ at the average z. The coupling, the
distances and the sets need no pass over the data. So only F is replaced by a quadratic model, whose
curvature B is a BFGS matrix, and the other terms are kept:

    x⁺ = argmin  ⟨∇F(z), z⁺⟩ + ½ ⟨z⁺ − z, B (z⁺ − z)⟩ + coupling and distances, over the sets
    x ← x + t (x⁺ − x),  t such that the directional derivative at the new x is near 0 or negative

Accelerated projected gradients solve the inner problem; an iteration costs one gradient of F. If
losses are taken at own models, or the centre is free, `pcfed.guarantees.personal_optimum` searches.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.accelerated_gradient import accelerated_steps
from pcfed.guarantees.certificate import certify
from pcfed.guarantees.personal_optimum import search_personal_optimum
from pcfed.guarantees.quasi_newton import BFGSMatrix
from pcfed.guarantees.tighten import MAX_TIGHTENING_FACTOR, Tangents, couplings, tighten
from pcfed.problem import Problem
from pcfed.sets import WarmStart
from pcfed.validation import count, instance, positive

PATIENCE = 10
"""Iterations without progress, at the level of rounding errors, after which the search ends."""
EPS = float(np.finfo(np.float64).eps)
MAX_INNER_STEPS = 100
"""Maximal number of steps on one quadratic model."""
LOW_ACCURACY = 1e-4
"""For tolerances from this on, gradients in the dtype of the data (perhaps float32) suffice."""
TIGHTEN_EVERY = 25
"""Iterations between two attempts to certify a smaller gap."""

Status = Literal["converged", "stalled", "stopped"]


@dataclass(frozen=True, eq=False)
class Optimum:
    r"""An approximate optimum with a known error.

    Attributes
    ----------
    models : Array
        (m, n): the point, one row per agent.
    center : Array
        (n,): their average, or the free centre.
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
        Number of quadratic models, and of passes over all data.
    seconds : float
        Time that the search took.
    status : {"converged", "stalled", "stopped"}
        Whether the tolerance was met, progress ended before that, or the limit was reached.
    message : str
        The status as a sentence.
    """

    models: Float64Array
    center: Float64Array
    objective: float
    penalty: float | None
    gap: float
    residual: float
    iterations: int
    gradients: int
    seconds: float
    status: Status
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

    Losses are evaluated in float64, whatever the dtype of their data; for tolerances of 1e-4 and
    more in the dtype of their data, which suffices. The final gap is always computed in float64.

    Parameters
    ----------
    problem : Problem
        The agents.
    penalty : float, optional
        $\rho > 0$ for the minimum of $G_\rho$; None for that of f over the sets.
    tolerance : float, optional
        1e-8 by default. Constrained: of the certified gap; where a set gives no bound, of
        ``residual``, so that the optimum is not certified. Penalised: of $\|\nabla G_\rho\|$.
    x0 : array, optional
        The start, (n,) or (m, n): zeros by default.
    iterations : int
        Maximal number of quadratic models.
    progress : bool
        Whether to show progress on stderr.

    Returns
    -------
    Optimum
        The best point found; ``status`` says whether it meets the tolerance.

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
    instance("optimum: problem", problem, Problem, "call optimum(problem)")
    _check_losses(problem)
    count("optimum: iterations", iterations)
    rho = None if penalty is None else positive("optimum: penalty", penalty)
    goal = positive("optimum: tolerance", 1e-8 if tolerance is None else tolerance)
    start = problem.as_models("optimum: x0", np.zeros(problem.n) if x0 is None else x0)
    if not problem.losses_at_average:
        if rho is not None:
            raise ValueError(
                "optimum: penalty must be None unless all losses are taken at the average, got "
                f"{penalty!r}; the penalised optimum belongs to the paper's problem."
            )
        return _personal_optimum(problem, start, goal, iterations)
    search = _Search(problem, rho, start, goal)
    while not search.converged and not search.stalled and search.iterations < iterations:
        search.step()
        search.evaluate()
        if progress:
            search.show_progress()
    if progress and sys.stderr.isatty():
        sys.stderr.write("\n")
    return search.result()


def _personal_optimum(
    problem: Problem, start: Float64Array, goal: float, iterations: int
) -> Optimum:
    """Return the optimum of a problem with losses at own models or a free centre."""
    begun = time.perf_counter()
    found = search_personal_optimum(problem, start, tolerance=goal, iterations=iterations)
    certificate = found.certificate
    gap = math.inf if certificate.gap is None else certificate.gap
    status, end = _status(goal, converged=found.converged, stalled=found.stalled)
    return Optimum(
        models=certificate.models,
        center=certificate.center,
        objective=certificate.objective,
        penalty=None,
        gap=gap,
        residual=found.residual,
        iterations=found.iterations,
        gradients=found.gradients,
        seconds=time.perf_counter() - begun,
        status=status,
        message=_message(gap, found.residual, found.iterations, end),
    )


def _message(gap: float, residual: float, iterations: int, end: str) -> str:
    """Return how the search ended, as a sentence."""
    error = f"gap {gap:.3g}" if math.isfinite(gap) else f"length of the gradient {residual:.3g}"
    return f"{error} after {iterations} iterations: {end}".capitalize()


def _status(goal: float, *, converged: bool, stalled: bool) -> tuple[Status, str]:
    """Return how a search ended, and the end of the message about it."""
    if converged:
        return "converged", f"asked for {goal:.3g}."
    if stalled:
        cause = "rounding, or a set whose support bound is not exact"
        return "stalled", f"no more progress ({cause})."
    return "stopped", "the limit was reached; allow more iterations."


def _check_losses(problem: Problem) -> None:
    """Raise unless all losses are convex and smooth."""
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


class _Search:
    """The state of the search: the iterate, the quadratic model and the best points so far.

    Errors are pairs (gap, residual) that are compared in this order, so that the residual decides
    where the gap is infinite.
    """

    def __init__(self, problem: Problem, rho: float | None, x: Float64Array, goal: float) -> None:
        self.problem = problem.to_float64() if goal < LOW_ACCURACY else problem
        self.rho, self.goal = rho, goal
        self.sigma = couplings(problem.agents)
        self.warm_starts = [WarmStart() for _ in problem.agents]
        self.m = problem.m
        self.start_time = self.shown_time = time.perf_counter()
        self.iterations = self.gradients = self.iterations_without_progress = 0
        self.stalled = self.at_rounding_level = False
        self.witness: Float64Array | None = None
        self.residual = self.smallest_residual = math.inf
        self.smallest_error = (math.inf, math.inf)
        scale = sum(agent.loss.smoothness() for agent in problem.agents) / self.m
        self.B = BFGSMatrix(scale or 1.0)
        self.L = (scale + problem.sigma) / self.m or 1.0
        self.x = self.project(x) if rho is None else x.copy()
        self.g = self.loss_gradient(self.x.mean(axis=0))
        self.x_smallest_error = self.x_smallest_residual = self.x
        self.evaluate()

    # -- the two parts of the gradient --------------------------------------------------------

    def loss_gradient(self, z: Float64Array) -> Float64Array:
        """Return ∇F(z), by a pass over all data."""
        self.gradients += 1
        g = np.zeros(self.problem.n)
        for agent in self.problem.agents:
            g += agent.loss.gradient(z)
        return g / self.m

    def objective_gradient(self, x: Float64Array, g: Float64Array) -> Float64Array:
        """Return the gradient of f at x, for a gradient g of F or of its model."""
        s = self.sigma * (x - x.mean(axis=0))
        s += g - s.mean(axis=0)
        s /= self.m
        return np.asarray(s)

    def penalised_gradient(self, x: Float64Array, g: Float64Array) -> Float64Array:
        """Return the gradient of G_ρ at x, or of f if there is no penalty."""
        if self.rho is None:
            return self.objective_gradient(x, g)
        return self.objective_gradient(x, g) + self.rho / self.m * (x - self.project(x))

    def project(self, x: Float64Array) -> Float64Array:
        """Return every agent's projection."""
        rows = zip(self.problem.agents, x, self.warm_starts, strict=True)
        return np.stack([a.feasible_set.project_unchecked(r, warm_start=h) for a, r, h in rows])

    def prox(self, x: Float64Array, L: float) -> Float64Array:
        """Return the minimum of L/2 ‖· − x‖² plus the penalty, or over the sets without one."""
        p = self.project(x)
        if self.rho is None:
            return p
        weight = self.rho / (self.m * L)
        return np.asarray((x + weight * p) / (1 + weight))

    # -- one step -----------------------------------------------------------------------------

    def step(self) -> None:
        """Minimize the quadratic model, then search along the line to its minimum."""
        self.iterations += 1
        new = self.model_minimum()
        d = new - self.x
        q = self.penalised_gradient(self.x, self.g)
        derivative = float(np.vdot(q, d))
        rounding_error = EPS * _norm(q) * _norm(self.x)
        self.at_rounding_level = derivative >= -rounding_error
        if derivative > rounding_error:  # not a descent direction: B is wrong, so start it again
            self.stalled = not self.B.has_pairs
            self.B.reset()
            return
        x, g = self.line_search(new, d, derivative, rounding_error)
        self.B.update(x.mean(axis=0) - self.x.mean(axis=0), g - self.g)
        self.x, self.g = x, g

    def model_minimum(self) -> Float64Array:
        """Return an approximate minimum of the quadratic model."""
        z, g = self.x.mean(axis=0), self.g
        L = (self.B.largest_eigenvalue + self.sigma.max()) / self.m

        def gradient_step(x: Float64Array) -> Float64Array:
            gradient = self.objective_gradient(x, g + self.B @ (x.mean(axis=0) - z))
            return self.prox(x - gradient / L, L)

        x = self.x
        for new, back in islice(accelerated_steps(gradient_step, x), MAX_INNER_STEPS):
            x = new
            if L * _norm(back) <= 0.3 * self.residual:  # more would be lost in the next model
                break
        return x

    def line_search(
        self, new: Float64Array, d: Float64Array, derivative: float, rounding_error: float
    ) -> tuple[Float64Array, Float64Array]:
        """Return a point between the iterate and ``new``, and ∇F there.

        The test uses derivatives, because near the optimum differences of the objective are lost in
        rounding. The objective is convex, so it falls along d while its derivative is negative.
        """
        x, t, g = new, 1.0, self.loss_gradient(new.mean(axis=0))
        for _ in range(10):
            new_derivative = float(np.vdot(self.penalised_gradient(x, g), d))
            if new_derivative <= 0.1 * abs(derivative) + rounding_error:
                break
            t *= float(np.clip(derivative / (derivative - new_derivative), 0.1, 0.9))
            x = self.x + t * d
            g = self.loss_gradient(x.mean(axis=0))
        return x, g

    # -- the error ----------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Compute the error of the iterate, keep the best points, and detect a standstill."""
        q = self.objective_gradient(self.x, self.g)
        self.residual = self.L * _norm(self.x - self.prox(self.x - q / self.L, self.L))
        if self.rho is None:
            error = (self.gap(q), self.residual)
        else:
            error = (math.inf, _norm(self.penalised_gradient(self.x, self.g)))
        better = error < self.smallest_error or self.residual < self.smallest_residual
        if better or not self.at_rounding_level:
            self.iterations_without_progress = 0
        else:
            self.iterations_without_progress += 1
        self.stalled = self.stalled or self.iterations_without_progress > PATIENCE
        if self.residual < self.smallest_residual:
            self.x_smallest_residual, self.smallest_residual = self.x, self.residual
        if error < self.smallest_error:
            self.x_smallest_error, self.smallest_error = self.x, error

    def gap(self, q: Float64Array) -> float:
        """Return a bound on the distance of the iterate from the optimum, see `certify`."""
        rows = zip(self.problem.agents, self.x, q, strict=True)
        gap = sum(q_j @ x_j + a.feasible_set.support_bound(-q_j, near=x_j) for a, x_j, q_j in rows)
        in_reach = self.goal < gap < MAX_TIGHTENING_FACTOR * self.goal
        if in_reach and self.iterations % TIGHTEN_EVERY == 0:
            tangents = Tangents(
                self.problem.agents, self.x, self.x.mean(axis=0), np.zeros((1, len(self.g))), self.g
            )
            tight = tighten(tangents, 500, self.witness)
            gap, self.witness = tight.gap, tight.witness
        return max(float(gap), 0.0)

    @property
    def converged(self) -> bool:
        """Whether the best point meets the tolerance."""
        gap, residual = self.smallest_error
        return (gap if math.isfinite(gap) else residual) <= self.goal

    def show_progress(self) -> None:
        """Write the state of the search to stderr: one line on a terminal, else every 10 s."""
        terminal, now = sys.stderr.isatty(), time.perf_counter()
        if now - self.shown_time < (0.1 if terminal else 10.0):
            return
        self.shown_time, (gap, residual) = now, self.smallest_error
        line = (
            f"{self.iterations} steps  {self.gradients} gradients  {now - self.start_time:.0f} s  "
            f"gap {gap:.1e}  gradient {residual:.1e}  goal {self.goal:.0e}"
        )
        sys.stderr.write(f"\r{line}  " if terminal else f"{line}\n")
        sys.stderr.flush()

    # -- the result ---------------------------------------------------------------------------

    def result(self) -> Optimum:
        """Return the best point, evaluated in float64."""
        (gap, residual), x = self.smallest_error, self.x_smallest_error
        if self.rho is None:
            if self.stalled and not self.converged:
                # Where the gap can't fall any further, the residual is the better criterion.
                x, residual = self.x_smallest_residual, self.smallest_residual
            certificate = certify(self.problem, x)
            x, objective = certificate.models, certificate.objective
            gap = math.inf if certificate.gap is None else certificate.gap
        else:
            far = self.problem.infeasibility(x)
            objective = self.problem.objective(x) + self.rho / (2 * self.m) * float(far @ far)
        status, end = _status(self.goal, converged=self.converged, stalled=self.stalled)
        return Optimum(
            models=x,
            center=x.mean(axis=0),
            objective=objective,
            penalty=self.rho,
            gap=gap,
            residual=residual,
            iterations=self.iterations,
            gradients=self.gradients,
            seconds=time.perf_counter() - self.start_time,
            status=status,
            message=_message(gap, residual, self.iterations, end),
        )


def _norm(x: Float64Array) -> float:
    """Return the Euclidean norm of all rows together."""
    return float(np.linalg.norm(x))
