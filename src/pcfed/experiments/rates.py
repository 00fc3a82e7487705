r"""The rates of the theorem, measured: suboptimality and infeasibility by number of rounds.

The problem is logistic regression with an l2 term, on different data for each agent, with l1
budgets that are active at the optimum. It is well conditioned, so that the runs are long enough to
show the rate, and its optimum is known to a certified gap of 1e-10. Every agent starts from the
worst corner of its set. For every R the penalty is $\rho = \sqrt R$, and the step is the largest
that the theorem admits. We measure means over the run, because these are the expectations for
$K^*$, which is uniform over all local steps; they are integrals over evaluated rounds, which are
dense where the models move fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import linregress, t
from threadpoolctl import threadpool_limits

from pcfed.algorithms import PCFedAvg
from pcfed.arrays import Float64Array
from pcfed.experiments.jobs import process_pool, run_in_pool
from pcfed.guarantees import bounds, constants, optimum
from pcfed.losses import LogisticRegression
from pcfed.problem import Agent, Problem
from pcfed.sets import L1Ball
from pcfed.simulation import run
from pcfed.simulation.result import Record, Result
from pcfed.storage.saved import Metadata, SavedJson

RATES = "rates"
"""The name of this experiment."""

LENGTHS = (100, 316, 1_000, 3_162, 10_000, 31_623, 100_000)
QUICK_LENGTHS = (100, 316, 1_000, 3_162)
RADII = (0.1, 0.3)
SAMPLES, FEATURES, L2 = 100, 8, 0.5
LOCAL_STEPS = 2
BATCH = 0.2
EVALUATIONS = 64
"""Number of evaluations each time that a run doubles its length."""


@dataclass(frozen=True)
class RatePoint(SavedJson):
    """One run: the measured values, and the bounds of the theorem."""

    rounds: int
    seed: int
    # Mean over the run of f − f*; infeasible models can do better than the optimum.
    suboptimality: float
    infeasibility: float  # mean over the run of the sum of squared distances from the sets
    upper: float  # bounds suboptimality from above
    infeasibility_bound: float
    lower: float  # bounds suboptimality from below

    file_kind = "measurement of the rates"
    format = 1
    advice = "delete it, then rerun the command."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls(**{key: value for key, value in contents.items() if key != "format"})


@dataclass(frozen=True)
class Fit:
    """The slope of a straight line fitted to logarithms, with its 95 % confidence interval."""

    slope: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.slope:.2f} (95 %: {self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Rates:
    """All runs, and the slopes fitted to them."""

    points: tuple[RatePoint, ...]

    def fit(self, quantity: Callable[[RatePoint], float]) -> Fit:
        """Fit log |quantity| = slope · log R + const to all runs."""
        x = np.log([point.rounds for point in self.points])
        y = np.log([abs(quantity(point)) for point in self.points])
        line = linregress(x, y)
        width = float(t.ppf(0.975, len(x) - 2)) * float(line.stderr)
        return Fit(float(line.slope), float(line.slope) - width, float(line.slope) + width)

    @property
    def tail(self) -> Rates:
        """The longer half of the runs, where the asymptotic rate should be visible."""
        sizes = sorted({point.rounds for point in self.points})
        long = set(sizes[len(sizes) // 2 :])
        return Rates(tuple(point for point in self.points if point.rounds in long))

    @property
    def violations(self) -> tuple[RatePoint, ...]:
        """The runs that violate a bound."""
        return tuple(
            point
            for point in self.points
            if not (
                point.lower <= point.suboptimality <= point.upper
                and point.infeasibility <= point.infeasibility_bound
            )
        )


def rates_problem() -> Problem:
    """Return two agents with different data, and budgets that are active at the optimum."""
    rng = np.random.default_rng(0)
    agents = []
    for radius in RADII:
        X = 1.5 * rng.normal(size=(SAMPLES, FEATURES))
        own = rng.normal(size=FEATURES)
        y = (X @ own + rng.logistic(size=SAMPLES) > 0).astype(int)
        agents.append(Agent(LogisticRegression(X, y, l2=L2), L1Ball(radius), coupling=0.1))
    return Problem(agents)


def measure_rates(
    out: Path,
    *,
    rounds: Sequence[int] = LENGTHS,
    seeds: int = 3,
    workers: int = 2,
    on_progress: Callable[[int], None] = lambda rounds: None,
) -> Rates:
    """Run PC-FedAvg for every number of rounds and seed; finished runs are loaded.

    ``on_progress`` is called with the number of rounds of every finished run.
    """
    jobs = [(out, R, seed) for R in sorted(rounds, reverse=True) for seed in range(seeds)]
    with process_pool(workers) as pool:
        points = run_in_pool(pool, _point, jobs, lambda point: on_progress(point.rounds))
    return Rates(tuple(sorted(points, key=lambda point: (point.rounds, point.seed))))


def _point(out: Path, R: int, seed: int) -> RatePoint:
    """Load a run from its file, or run it and save the file."""
    path = out / "runs" / f"rates-R{R}-seed{seed}.json"
    if path.exists():
        return RatePoint.load(path)
    with threadpool_limits(1):
        point = _measure(rates_problem(), R, seed)
    point.save(path)
    return point


def _measure(problem: Problem, R: int, seed: int) -> RatePoint:
    """Run once and compute the bounds."""
    best = optimum(problem, tolerance=1e-10)
    if best.status != "converged":
        raise ArithmeticError(f"rates: the optimum was not found: {best.message}")
    gradient = problem.gradient(np.zeros(problem.n))
    start = np.stack(
        [agent.constraint.minimize_linear(-gradient[i]) for i, agent in enumerate(problem.agents)]
    ).astype(np.float64)
    rho = math.sqrt(R)
    known = constants(
        problem,
        penalty=rho,
        local_steps=LOCAL_STEPS,
        batch=BATCH,
        x0=start,
        constrained=best,
        penalised=optimum(problem, penalty=rho),
    )
    bound = bounds(known, rounds=R)
    records = _records(problem, PCFedAvg(step=bound.step, penalty=rho), R, start, seed)
    rounds = [record.round for record in records]
    objectives = [record.objective for record in records]
    squares = [float(np.sum(record.infeasibility**2)) for record in records]
    return RatePoint(
        rounds=R,
        seed=seed,
        suboptimality=float(np.trapezoid(objectives, rounds)) / R - best.objective,
        infeasibility=float(np.trapezoid(squares, rounds)) / R,
        upper=bound.upper.value,
        infeasibility_bound=bound.infeasibility.value,
        lower=bound.lower.value,
    )


def _records(
    problem: Problem, algorithm: PCFedAvg, R: int, start: Float64Array, seed: int
) -> tuple[Record, ...]:
    """Run R rounds; evaluate all of the first rounds, then fewer and fewer."""
    result: Result | None = None
    done = 0
    while done < R:
        rounds = min(max(EVALUATIONS, done), R - done)
        result = run(
            problem,
            algorithm,
            rounds=rounds,
            local_steps=LOCAL_STEPS,
            batch=BATCH,
            seed=seed,
            x0=start if result is None else result,
            workers=1,  # runs are in parallel
            eval_every=max(1, rounds // EVALUATIONS),
        )
        done += rounds
    return (result.start, *result.history) if result else ()
