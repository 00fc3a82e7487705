r"""Rounds and bytes to a certified gap: exact PC-FedAvg and other algorithms.

There are three problems: random least squares, softmax regression on digits, and on MNIST with
active budgets; each with full batches, with batches of 10 %, and with growing batches. Exact
PC-FedAvg runs once, with step and penalty ``"auto"``. PC-FedAvg runs with every pair of a grid, and
we take the best pair for each accuracy. The penalised baselines run once each, with the step and
the penalty ``"auto"``.

Runs are certified after 1, 2, 3, … rounds, later with distances that grow by a fifth. A run ends as
stalled if its gap has fallen by less than 20 % while its number of rounds was tripled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Self

import numpy as np
from threadpoolctl import threadpool_limits

from pcfed.algorithms import Algorithm, FedAvg, FedProx, PCFedAvg, RunInfo, Scaffold
from pcfed.experiments.jobs import build_problem, run_in_processes
from pcfed.experiments.presets import load_preset
from pcfed.guarantees import Certificate, certify
from pcfed.losses import LeastSquares
from pcfed.problem import Agent, Problem
from pcfed.sampling import resolve_batch_size
from pcfed.sets import L1Ball, ProjectionError
from pcfed.simulation import run
from pcfed.simulation.result import Result
from pcfed.storage.saved import Metadata, SavedJson

EXACT = "exact"
"""The name of this experiment."""

OURS = "exact PC-FedAvg"
PAPER = "PC-FedAvg"

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
"""The grid for PC-FedAvg: penalties as multiples of L/m."""
STEPS = (1.0, 0.3, 0.1)
"""The grid for PC-FedAvg: steps as fractions of ``"auto"``, near the largest stable one."""


@dataclass(frozen=True)
class Case:
    """A problem, its batches, and limits on the number of rounds."""

    problem: str  # ``least squares``, ``digits`` or ``MNIST``
    batch: float  # fraction of the local data in a gradient, in the first round
    growth: float  # factor of this fraction from round to round, until batches are full
    rounds: int  # maximal number of rounds of exact PC-FedAvg
    baseline_rounds: int  # of the other algorithms
    targets: tuple[float, ...]  # relative gaps to reach
    local_steps: int = 20

    @property
    def title(self) -> str:
        """The title of figures."""
        if self.batch == 1.0:
            return f"{self.problem}, all data"
        growing = "growing from " if self.growth > 1.0 else ""
        return f"{self.problem}, batches {growing}{self.batch:.0%}"

    @property
    def slug(self) -> str:
        """The start of file names."""
        kind = "full" if self.batch == 1.0 else "growing" if self.growth > 1.0 else "batches"
        return f"exact-{self.problem.replace(' ', '-').lower()}-{kind}"

    @property
    def data(self) -> str | None:
        """The data set that it needs."""
        return {"digits": "digits", "MNIST": "mnist"}.get(self.problem)

    def run_info(self, problem: Problem) -> RunInfo:
        """Return the public information on the runs."""
        sizes = [resolve_batch_size(self.batch, a.loss.size, agent=a.name) for a in problem.agents]
        return RunInfo(
            rounds=self.baseline_rounds,
            max_local_steps=self.local_steps,
            batches=None if self.batch == 1.0 else tuple(sizes),
            noisy=self.batches(self.rounds) < 1.0,
        )

    def batches(self, index: int) -> float:
        """Return the fraction of the data in a gradient of this round."""
        return min(1.0, self.batch * self.growth**index)


def _cases(problem: str, rounds: int, noisy: int, baselines: int) -> Iterator[Case]:
    """Yield a problem with full batches, with batches of 10 %, and with growing batches."""
    yield Case(problem, 1.0, 1.0, rounds, baselines, (1e-1, 1e-2, 1e-3, 1e-6))
    yield Case(problem, 0.1, 1.0, noisy, min(noisy, baselines), (1e-1, 1e-2))
    yield Case(problem, 0.1, 1.02, noisy, min(noisy, baselines), (1e-1, 1e-2, 1e-3))


CASES = (
    *_cases("least squares", 2000, 1000, 2000),
    *_cases("digits", 1500, 500, 500),
    *_cases("MNIST", 2500, 500, 300),
)
QUICK = tuple(_cases("least squares", 300, 100, 100))


@dataclass(frozen=True)
class GapRecord:
    """The certificate of a run after some rounds."""

    round: int
    bytes: int  # up and down, all agents together
    gap: float  # certified, relative to the objective
    objective: float  # of the feasible models
    infeasibility: float  # largest distance of a model from its set, before it was made feasible


@dataclass(frozen=True)
class GapHistory(SavedJson):
    """The certificates of one run."""

    case: Case
    name: str  # all pairs of the grid of PC-FedAvg have the same
    algorithm: str  # with its parameters
    records: tuple[GapRecord, ...] = ()
    status: str = "finished"  # or ``reached`` the smallest target, ``stalled``, ``diverged``

    file_kind = "run of the exact experiment"
    format = 1
    advice = "delete it, then rerun the command."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        case = Case(**{**contents["case"], "targets": tuple(contents["case"]["targets"])})
        records = tuple(GapRecord(**record) for record in contents["records"])
        return cls(case, contents["name"], contents["algorithm"], records, contents["status"])

    def reach(self, target: float) -> GapRecord | None:
        """Return the first record with a gap of at most ``target``; None if there is none."""
        return next((each for each in self.records if each.gap <= target), None)

    def at(self, sent: int) -> GapRecord | None:
        """Return the last record with at most ``sent`` bytes; None if there is none."""
        return next((each for each in reversed(self.records) if each.bytes <= sent), None)

    @property
    def smallest_gap(self) -> float:
        """The smallest gap of all records."""
        return min((each.gap for each in self.records), default=math.inf)


@dataclass(frozen=True)
class ExactResults:
    """All runs of the experiment."""

    runs: tuple[GapHistory, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases, in the order of the runs."""
        return tuple(dict.fromkeys(each.case for each in self.runs))

    def of(self, case: Case, name: str) -> list[GapHistory]:
        """Return the runs of an algorithm in a case."""
        return [each for each in self.runs if (each.case, each.name) == (case, name)]

    def names(self, case: Case) -> list[str]:
        """Return the names of the algorithms in a case."""
        return list(dict.fromkeys(each.name for each in self.runs if each.case == case))

    def first(self, case: Case, name: str, target: float) -> GapRecord | None:
        """Return the record of the run that reached the target in the fewest rounds."""
        found = [each.reach(target) for each in self.of(case, name)]
        return min((each for each in found if each), key=lambda each: each.round, default=None)

    def best(self, case: Case, name: str) -> GapHistory:
        """Return the run of the algorithm with the smallest gap."""
        return min(self.of(case, name), key=lambda each: each.smallest_gap)


def run_exact(
    out: Path,
    *,
    cases: Sequence[Case] = CASES,
    data_dir: Path | None = None,
    workers: int = 2,
    on_progress: Callable[[GapHistory], None] = lambda run: None,
) -> ExactResults:
    """Run all algorithms in all cases, in parallel processes; finished runs are loaded."""
    jobs = [(case, k) for case in cases for k in range(len(ENTRIES))]
    longest_first = sorted(jobs, key=lambda job: job[0].problem != "MNIST")
    arguments = [(out, *job, data_dir) for job in longest_first]
    found = run_in_processes(_load_or_run, arguments, workers, on_progress)
    done = dict(zip(longest_first, found, strict=True))
    return ExactResults(tuple(done[job] for job in jobs))


def least_squares() -> Problem:
    """Return five agents with different, ill-conditioned data and active budgets."""
    rng = np.random.default_rng(0)
    agents = []
    for radius in (0.5, 1.0, 2.0, 4.0, 8.0):
        X = rng.normal(size=(60, 30)) * np.logspace(0, -1, 30)
        y = X @ (2 * rng.normal(size=30)) + 0.1 * rng.normal(size=60)
        agents.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling=0.1))
    return Problem(agents)


def case_problem(case: Case, data_dir: Path | None) -> Problem:
    """Return the problem of a case."""
    if case.problem == "least squares":
        return least_squares()
    preset = load_preset("binding")
    preset = preset if case.problem == "MNIST" else preset.quick()
    return build_problem(preset.settings[0], 0, data_dir)


def _grid_pair(penalty: float, step: float, problem: Problem) -> PCFedAvg:
    """Return PC-FedAvg with a pair of the grid."""
    rho = penalty * problem.L_f / problem.m
    auto = PCFedAvg("auto", rho).resolved(problem, RunInfo(rounds=1, max_local_steps=1))
    return PCFedAvg(step * auto.round_info(0, m=problem.m, max_local_steps=1).step, rho)


ENTRIES: tuple[tuple[str, Callable[[Problem], Algorithm]], ...] = (
    (OURS, lambda problem: PCFedAvg("auto", "auto", exact=True)),
    *((PAPER, partial(_grid_pair, *pair)) for pair in product(PENALTIES, STEPS)),
    ("FedAvg", lambda problem: FedAvg("auto", "auto")),
    ("FedProx", lambda problem: FedProx("auto", "auto", prox=0.1)),
    ("SCAFFOLD", lambda problem: Scaffold("auto", "auto")),
)
"""Names, and functions from a problem to the algorithm with its parameters."""


def _load_or_run(out: Path, case: Case, index: int, data_dir: Path | None) -> GapHistory:
    """Load a run from its file, or run it and save the file."""
    problem = case_problem(case, data_dir)
    name, make = ENTRIES[index]
    algorithm = make(problem).resolved(problem, case.run_info(problem))
    start = GapHistory(case, name, repr(algorithm))
    path = out / "runs" / f"{case.slug}-{index}.json"
    if path.exists():
        saved = GapHistory.load(path)
        if (saved.case, saved.algorithm) == (start.case, start.algorithm):
            return saved
    with threadpool_limits(1):
        finished = _run(problem, algorithm, start)
    finished.save(path)
    return finished


def certified_rounds(rounds: int) -> list[int]:
    """Return the rounds after which a run is certified: 1, 2, 3, …, later growing by a fifth."""
    found = [1]
    while found[-1] < rounds:
        found.append(min(rounds, max(found[-1] + 1, round(1.2 * found[-1]))))
    return found


def _run(problem: Problem, algorithm: Algorithm, start: GapHistory) -> GapHistory:
    """Run until the smallest target is reached, the gap stalls, or the last round is done."""
    case, status = start.case, "finished"
    result: Result | None = None
    certificate: Certificate | None = None
    records: list[GapRecord] = []
    for at in certified_rounds(case.rounds if start.name == OURS else case.baseline_rounds):
        result = run(
            problem,
            algorithm,
            rounds=at - (result.state.round if result else 0),
            local_steps=case.local_steps,
            batch=case.batches,
            x0=result,
            eval_every=at,
        )
        diverged = result.status == "diverged"
        certificate = None if diverged else _certify_or_none(problem, result, certificate)
        if certificate is None:
            status = "diverged"
            break
        records.append(_record(result, certificate))
        gap = records[-1].gap
        if gap <= min(case.targets):
            status = "reached"
            break
        if start.name != OURS and at >= 200:
            third = [each.gap for each in records if each.round <= at / 3]
            if gap > 0.8 * third[-1]:
                status = "stalled"
                break
    return replace(start, records=tuple(records), status=status)


def _certify_or_none(
    problem: Problem, result: Result, earlier: Certificate | None
) -> Certificate | None:
    """Return the certificate; None if the models are too large to project."""
    try:
        return certify(problem, result, witness=None if earlier is None else earlier.witness)
    except (ProjectionError, ValueError):
        return None


def _record(result: Result, certificate: Certificate) -> GapRecord:
    """Return the record of a certified round."""
    last = result.history[-1]
    return GapRecord(
        round=last.round,
        bytes=last.bytes_up + last.bytes_down,
        gap=math.inf if certificate.gap is None else certificate.gap / abs(certificate.objective),
        objective=certificate.objective,
        infeasibility=float(certificate.infeasibility.max()),
    )
