r"""The theorem, measured: how suboptimality and infeasibility fall with the number of rounds.

Logistic regression with an l2 term, on data that disagree between agents, with l1 budgets that
bind: well conditioned, so that runs are long enough to show the rate, and with an optimum that is
known to a certified gap of 1e-10. Every agent starts from the worst corner of its set. For every R
the penalty is $\rho = \sqrt R$ and the step the largest that the theorem admits. Measured is the
mean over the run, which is what $K^*$, uniform over all local steps, has in expectation; it is
integrated from rounds that are dense where the models move fast.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from scipy.stats import linregress, t
from threadpoolctl import threadpool_limits

from pcfed.algorithms import PCFedAvg
from pcfed.arrays import Float64Array
from pcfed.guarantees import bounds, constants, optimum
from pcfed.losses import LogisticRegression
from pcfed.problem import Agent, Problem
from pcfed.sets import L1Ball
from pcfed.simulation import run
from pcfed.simulation.result import Record, Result
from pcfed.storage.atomic import write_atomically

RATES = "rates"
"""The name of this experiment."""

ROUNDS = (100, 316, 1_000, 3_162, 10_000, 31_623, 100_000)
QUICK = (100, 316, 1_000, 3_162)
RADII = (0.1, 0.3)
SAMPLES, FEATURES, L2 = 100, 8, 0.5
LOCAL_STEPS = 2
BATCH = 0.2
LOOKS = 64
"""A run is looked at so many times whenever it has doubled its length."""


@dataclass(frozen=True)
class RatePoint:
    """One run: what was measured, and what the theorem promises.

    Attributes
    ----------
    rounds, seed : int
        R, and the seed of the batches.
    suboptimality : float
        Mean over the run of f − f*; infeasible models can do better than the optimum.
    infeasibility : float
        Mean over the run of the sum over agents of squared distances from their sets.
    upper, infeasibility_bound, lower : float
        The bounds on them: from above, from above, from below.
    """

    rounds: int
    seed: int
    suboptimality: float
    infeasibility: float
    upper: float
    infeasibility_bound: float
    lower: float


@dataclass(frozen=True)
class Fit:
    """The slope of a straight line through logarithms, with its 95 % confidence interval."""

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
        """The longer half of the runs, where the rate should show."""
        sizes = sorted({point.rounds for point in self.points})
        long = set(sizes[len(sizes) // 2 :])
        return Rates(tuple(point for point in self.points if point.rounds in long))

    @property
    def broken(self) -> tuple[RatePoint, ...]:
        """The runs that break a bound."""
        return tuple(
            point
            for point in self.points
            if not (
                point.lower <= point.suboptimality <= point.upper
                and point.infeasibility <= point.infeasibility_bound
            )
        )


def rates_problem() -> Problem:
    """Return two agents whose data disagree, with budgets that bind at the optimum."""
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
    rounds: Sequence[int] = ROUNDS,
    seeds: int = 3,
    workers: int = 2,
    tick: Callable[[int], None] = lambda done: None,
) -> Rates:
    """Run PC-FedAvg for every number of rounds and seed; finished runs are not run again.

    Parameters
    ----------
    out : Path
        Directory of the results.
    rounds : sequence of int
        The numbers of rounds R.
    seeds : int
        Number of seeds for each.
    workers : int
        Processes side by side.
    tick : callable
        Told how many rounds have been done since the last call.
    """
    jobs = [(R, seed) for R in sorted(rounds, reverse=True) for seed in range(seeds)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_point, out, R, seed): R for R, seed in jobs}
        try:
            for future in as_completed(running):
                future.result()
                tick(running[future])
        finally:
            pool.shutdown(cancel_futures=True)
        points = [future.result() for future in running]
    return Rates(tuple(sorted(points, key=lambda point: (point.rounds, point.seed))))


def _point(out: Path, R: int, seed: int) -> RatePoint:
    """Return a run from its file, or run it and write the file, whole or not at all."""
    path = out / "runs" / f"rates-R{R}-seed{seed}.json"
    if path.exists():
        return RatePoint(**json.loads(path.read_text("utf-8")))
    with threadpool_limits(1):
        point = _measure(rates_problem(), R, seed)
    write_atomically(path, json.dumps(asdict(point)).encode())
    return point


def _measure(problem: Problem, R: int, seed: int) -> RatePoint:
    """Run once and compare with the theorem."""
    best = optimum(problem, tolerance=1e-10)
    if best.status != "converged":
        raise ArithmeticError(f"rates: the optimum was not reached: {best.message}")
    slope = problem.gradient(np.zeros(problem.n))
    start = np.stack(
        [agent.constraint.minimize_linear(-slope[i]) for i, agent in enumerate(problem.agents)]
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
    promised = bounds(known, rounds=R)
    seen = _records(problem, PCFedAvg(step=promised.step, penalty=rho), R, start, seed)
    at = [record.round for record in seen]
    objectives = [record.objective for record in seen]
    squares = [float(np.sum(record.infeasibility**2)) for record in seen]
    return RatePoint(
        rounds=R,
        seed=seed,
        suboptimality=float(np.trapezoid(objectives, at)) / R - best.objective,
        infeasibility=float(np.trapezoid(squares, at)) / R,
        upper=promised.upper.value,
        infeasibility_bound=promised.infeasibility.value,
        lower=promised.lower.value,
    )


def _records(
    problem: Problem, algorithm: PCFedAvg, R: int, start: Float64Array, seed: int
) -> tuple[Record, ...]:
    """Run R rounds and look at the first ones all, later ones less and less often."""
    result: Result | None = None
    done = 0
    while done < R:
        rounds = min(max(LOOKS, done), R - done)
        result = run(
            problem,
            algorithm,
            rounds=rounds,
            local_steps=LOCAL_STEPS,
            batch=BATCH,
            seed=seed,
            x0=start if result is None else result,
            eval_every=max(1, rounds // LOOKS),
        )
        done += rounds
    return (result.start, *result.history) if result else ()


def write_rates(rates: Rates, path: Path) -> None:
    """Write all runs as CSV, one row each."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(asdict(rates.points[0])))
    writer.writeheader()
    writer.writerows(asdict(point) for point in rates.points)
    write_atomically(path, text.getvalue().encode())
