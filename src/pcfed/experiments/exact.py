r"""How many rounds and bytes it takes to be certainly near the optimum: exact PC-FedAvg and others.

Three problems: random least squares, softmax regression on digits, and on MNIST with budgets that
bind; with all data in every gradient, with batches of a tenth, and with batches that grow. Exact
PC-FedAvg runs once, with step and penalty ``"auto"``. PC-FedAvg runs with every pair of a grid, and
the best pair counts for each accuracy. The penalised baselines run once each, with the step and the
penalty ``"auto"``.

A run is looked at in rounds 1, 2, 3, … that grow by a fifth: its models are made feasible, and the
certificate bounds their distance from the optimum. A run that has hardly moved while its length
grew to the threefold has stalled and ends.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed.algorithms import Algorithm, FedAvg, FedProx, PCFedAvg, RunInfo, Scaffold
from pcfed.experiments.presets import load_preset
from pcfed.experiments.runner import build_problem
from pcfed.guarantees import Certificate, certify
from pcfed.losses import LeastSquares
from pcfed.problem import Agent, Problem
from pcfed.sampling import resolve_batch_size
from pcfed.sets import L1Ball, ProjectionError
from pcfed.simulation import run
from pcfed.simulation.result import Result
from pcfed.storage.atomic import write_atomically

EXACT = "exact"
"""The name of this experiment."""

OURS = "exact PC-FedAvg"
PAPER = "PC-FedAvg"

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
"""The grid for PC-FedAvg: penalties as multiples of L/m."""
STEPS = (1.0, 0.3, 0.1)
"""The grid for PC-FedAvg: steps as shares of ``"auto"``, near the largest stable one."""


@dataclass(frozen=True)
class Case:
    """A problem, the share of its data in a gradient, and how long runs may be.

    Attributes
    ----------
    problem : str
        ``least squares``, ``digits`` or ``MNIST``.
    batch : float
        Share of the local data in a gradient, in the first round.
    growth : float
        By which the share is multiplied from round to round, until it is all data.
    rounds, others : int
        Largest number of rounds of exact PC-FedAvg, and of the others.
    targets : tuple of float
        Relative gaps to reach.
    local_steps : int
        Local steps in a round.
    """

    problem: str
    batch: float
    growth: float
    rounds: int
    others: int
    targets: tuple[float, ...]
    local_steps: int = 20

    @property
    def title(self) -> str:
        """What figures are headed with."""
        if self.batch == 1.0:
            return f"{self.problem}, all data"
        growing = "growing from " if self.growth > 1.0 else ""
        return f"{self.problem}, batches {growing}{self.batch:.0%}"

    @property
    def slug(self) -> str:
        """What files are called."""
        kind = "full" if self.batch == 1.0 else "growing" if self.growth > 1.0 else "batches"
        return f"exact-{self.problem.replace(' ', '-').lower()}-{kind}"

    @property
    def data(self) -> str | None:
        """The data set that it needs."""
        return {"digits": "digits", "MNIST": "mnist"}.get(self.problem)

    def run_info(self, problem: Problem) -> RunInfo:
        """Return what methods may know of the runs."""
        sizes = [resolve_batch_size(self.batch, a.loss.size, agent=a.name) for a in problem.agents]
        return RunInfo(
            rounds=self.others,
            max_local_steps=self.local_steps,
            batches=None if self.batch == 1.0 else tuple(sizes),
            noisy=self.batches(self.rounds) < 1.0,
        )

    def batches(self, index: int) -> float:
        """Return the share of the data in a gradient of the round with this index."""
        return min(1.0, self.batch * self.growth**index)


def _cases(problem: str, rounds: int, noisy: int, others: int) -> Iterator[Case]:
    """Yield a problem with all data, with batches of a tenth, and with batches that grow."""
    yield Case(problem, 1.0, 1.0, rounds, others, (1e-1, 1e-2, 1e-3, 1e-6))
    yield Case(problem, 0.1, 1.0, noisy, min(noisy, others), (1e-1, 1e-2))
    yield Case(problem, 0.1, 1.02, noisy, min(noisy, others), (1e-1, 1e-2, 1e-3))


CASES = (
    *_cases("least squares", 2000, 1000, 2000),
    *_cases("digits", 1500, 500, 500),
    *_cases("MNIST", 2500, 500, 300),
)
QUICK = tuple(_cases("least squares", 300, 100, 100))


@dataclass(frozen=True)
class Look:
    """A run after some rounds.

    Attributes
    ----------
    round, bytes : int
        Rounds done, and bytes up and down of all agents together.
    gap : float
        Certified, relative to the objective.
    objective, infeasibility : float
        Of the feasible models; largest distance of a model from its set before that.
    """

    round: int
    bytes: int
    gap: float
    objective: float
    infeasibility: float


@dataclass(frozen=True)
class Course:
    """One run, as it was looked at.

    Attributes
    ----------
    case : Case
        What was solved.
    method : str
        Its name; that of PC-FedAvg is the same for all pairs of the grid.
    algorithm : str
        With its parameters.
    looks : tuple of Look
        In the order of rounds.
    status : str
        How it ended: ``reached`` the smallest gap asked for, ``stalled``, ``diverged`` or
        ``finished`` its rounds.
    """

    case: Case
    method: str
    algorithm: str
    looks: tuple[Look, ...] = ()
    status: str = "finished"

    def reach(self, target: float) -> Look | None:
        """Return the first look with a gap that is small enough; None if there is none."""
        return next((look for look in self.looks if look.gap <= target), None)

    def at(self, sent: int) -> Look | None:
        """Return the last look before more than ``sent`` bytes were sent."""
        return next((look for look in reversed(self.looks) if look.bytes <= sent), None)

    @property
    def smallest_gap(self) -> float:
        """The smallest gap of all looks."""
        return min((look.gap for look in self.looks), default=math.inf)


@dataclass(frozen=True)
class Race:
    """All runs of the experiment."""

    courses: tuple[Course, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases, in the order of the runs."""
        return tuple(dict.fromkeys(course.case for course in self.courses))

    def of(self, case: Case, method: str) -> list[Course]:
        """Return the runs of a method in a case."""
        return [each for each in self.courses if (each.case, each.method) == (case, method)]

    def methods(self, case: Case) -> list[str]:
        """Return the methods of a case."""
        return list(dict.fromkeys(each.method for each in self.courses if each.case == case))

    def first(self, case: Case, method: str, target: float) -> Look | None:
        """Return where a run of the method got there in the fewest rounds."""
        found = [course.reach(target) for course in self.of(case, method)]
        return min((look for look in found if look), key=lambda look: look.round, default=None)

    def best(self, case: Case, method: str) -> Course:
        """Return the run of the method with the smallest gap."""
        return min(self.of(case, method), key=lambda course: course.smallest_gap)


def measure_exact(
    out: Path,
    *,
    cases: Sequence[Case] = CASES,
    data_dir: Path | None = None,
    workers: int = 2,
    tick: Callable[[Course], None] = lambda course: None,
) -> Race:
    """Run everything; finished runs are not run again.

    Parameters
    ----------
    out : Path
        Directory of the results.
    cases : sequence of Case
        What to solve.
    data_dir : Path, optional
        Where the user keeps data sets.
    workers : int
        Processes side by side.
    tick : callable
        Told of every run that is done.
    """
    jobs = [(case, k) for case in cases for k in range(len(METHODS))]
    longest = sorted(jobs, key=lambda job: job[0].problem != "MNIST")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_course, out, *job, data_dir): job for job in longest}
        try:
            for future in as_completed(running):
                tick(future.result())
        finally:
            pool.shutdown(cancel_futures=True)
        done = {job: future.result() for future, job in running.items()}
    return Race(tuple(done[job] for job in jobs))


def least_squares() -> Problem:
    """Return five agents with ill-conditioned data that disagree, and budgets that bind."""
    rng = np.random.default_rng(0)
    agents = []
    for radius in (0.5, 1.0, 2.0, 4.0, 8.0):
        X = rng.normal(size=(60, 30)) * np.logspace(0, -1, 30)
        y = X @ (2 * rng.normal(size=30)) + 0.1 * rng.normal(size=60)
        agents.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling=0.1))
    return Problem(agents)


def problem_of(case: Case, data_dir: Path | None) -> Problem:
    """Return the agents of a case."""
    if case.problem == "least squares":
        return least_squares()
    preset = load_preset("binding")
    preset = preset if case.problem == "MNIST" else preset.quick()
    return build_problem(preset.settings[0], 0, data_dir)


@dataclass(frozen=True)
class _Method:
    """A method, as a function of the problem."""

    name: str
    make: Callable[[Problem], Algorithm] = field(repr=False)


def _methods() -> Iterator[_Method]:
    """Yield ours, the paper's with every pair of the grid, and the baselines."""
    yield _Method(OURS, lambda problem: PCFedAvg("auto", "auto", exact=True))
    for penalty in PENALTIES:
        for share in STEPS:
            yield _Method(PAPER, partial(_pair, penalty, share))
    yield _Method("FedAvg", lambda problem: FedAvg("auto", "auto"))
    yield _Method("FedProx", lambda problem: FedProx("auto", "auto", prox=0.1))
    yield _Method("SCAFFOLD", lambda problem: Scaffold("auto", "auto"))


def _pair(penalty: float, share: float, problem: Problem) -> PCFedAvg:
    """Return PC-FedAvg with a pair of the grid."""
    rho = penalty * problem.L_f / problem.m
    auto = PCFedAvg("auto", rho).resolved(problem, RunInfo(rounds=1, max_local_steps=1))
    return PCFedAvg(share * auto.round_info(0, m=problem.m, max_local_steps=1).step, rho)


METHODS = tuple(_methods())


def _course(out: Path, case: Case, which: int, data_dir: Path | None) -> Course:
    """Return a run from its file, or run it and write the file, whole or not at all."""
    problem = problem_of(case, data_dir)
    method = METHODS[which]
    algorithm = method.make(problem).resolved(problem, case.run_info(problem))
    start = Course(case, method.name, repr(algorithm))
    path = out / "runs" / f"{case.slug}-{which}.json"
    if path.exists():
        kept = json.loads(path.read_text("utf-8"))
        seen = tuple(Look(**look) for look in kept["looks"])
        known = Case(**{**kept["case"], "targets": tuple(kept["case"]["targets"])})
        found = Course(**{**kept, "case": known, "looks": seen})
        if (found.case, found.algorithm) == (start.case, start.algorithm):
            return found
    with threadpool_limits(1):
        course = _run(problem, algorithm, start)
    write_atomically(path, json.dumps(asdict(course)).encode())
    return course


def looks(rounds: int) -> list[int]:
    """Return the rounds after which a run is looked at: 1, 2, 3, … growing by a fifth."""
    found = [1]
    while found[-1] < rounds:
        found.append(min(rounds, max(found[-1] + 1, round(1.2 * found[-1]))))
    return found


def _run(problem: Problem, algorithm: Algorithm, start: Course) -> Course:
    """Run until the smallest target, a standstill or the last round."""
    case, status = start.case, "finished"
    result: Result | None = None
    seen: Certificate | None = None
    rows: list[Look] = []
    for at in looks(case.rounds if start.method == OURS else case.others):
        result = run(
            problem,
            algorithm,
            rounds=at - (result.state.round if result else 0),
            local_steps=case.local_steps,
            batch=case.batches,
            x0=result,
            eval_every=at,
        )
        seen = None if result.status == "diverged" else _certified(problem, result, seen)
        if seen is None:
            status = "diverged"
            break
        rows.append(_look(result, seen))
        gap = rows[-1].gap
        if gap <= min(case.targets):
            status = "reached"
            break
        if start.method != OURS and at >= 200:
            third = [row.gap for row in rows if row.round <= at / 3]
            if gap > 0.8 * third[-1]:
                status = "stalled"
                break
    return replace(start, looks=tuple(rows), status=status)


def _certified(problem: Problem, result: Result, nearby: Certificate | None) -> Certificate | None:
    """Return the certificate, None where models are too wild to project."""
    try:
        return certify(problem, result, witness=None if nearby is None else nearby.witness)
    except (ProjectionError, ValueError):
        return None


def _look(result: Result, seen: Certificate) -> Look:
    """Return what is kept of a round."""
    last = result.history[-1]
    return Look(
        round=last.round,
        bytes=last.bytes_up + last.bytes_down,
        gap=math.inf if seen.gap is None else seen.gap / abs(seen.objective),
        objective=seen.objective,
        infeasibility=float(seen.infeasibility.max()),
    )


def write_race(race: Race, path: Path) -> None:
    """Write every look at every run as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    header = ["case", "method", "algorithm", "round", "bytes", "gap"]
    writer.writerow([*header, "objective", "infeasibility"])
    for c in race.courses:
        for look in c.looks:
            writer.writerow([c.case.title, c.method, c.algorithm, *asdict(look).values()])
    write_atomically(path, text.getvalue().encode())
