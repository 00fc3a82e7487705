r"""Rounds and bytes to a certified gap: PCFedSplit and other algorithms.

PCFedSplit runs once in every case of `pcfed.experiments.round_cases`, with its default arguments.
PC-FedAvg runs with every pair of a grid, and we take the best pair for each accuracy; with very
many agents only with the pairs that were best for fewer. The penalised baselines run once each,
with the step and the penalty ``"auto"``. Accelerated projected gradients need all agents and data.

The gap of a run is the objective of its models, made feasible, minus a lower bound on the optimum,
relative to the objective. The lower bound is that of a certificate of a reference solution, so the
gap is certified, too, and it is the same measure for all algorithms. It is computed after 1, 2, 3,
… rounds, later with distances that grow by a tenth. A run of PC-FedAvg or of a baseline ends as
stalled if its gap has fallen by less than 20 % while its number of rounds was tripled, but not
before the gap is half of the first one or the run has 1,000 rounds.
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

from pcfed.algorithms import Algorithm, FedAvg, FedProx, PCFedAvg, PCFedSplit, RunInfo, Scaffold
from pcfed.arrays import Array
from pcfed.experiments.accelerated import EXCHANGES, AcceleratedGradient, accelerated_gradient
from pcfed.experiments.jobs import process_pool, run_in_pool
from pcfed.experiments.round_cases import CASES, FAMILY, FAMILY_STEPS, Case, case_problem
from pcfed.guarantees import optimum
from pcfed.problem import Problem
from pcfed.sets import ProjectionError, SetRows
from pcfed.simulation import run
from pcfed.simulation.result import Result
from pcfed.storage.saved import Metadata, SavedJson

ROUNDS = "rounds"
"""The name of this experiment."""

OURS = "PCFedSplit"
PAPER = "PC-FedAvg"
ACCELERATED = "accelerated gradient"
ALGORITHMS = (OURS, PAPER, "FedAvg", "FedProx", "SCAFFOLD", ACCELERATED)
"""Their names in figures and tables."""

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
"""The grid for PC-FedAvg: penalties as multiples of L."""
STEPS = (3.0, 1.0, 0.3)
"""The grid for PC-FedAvg: steps as multiples of ``"auto"``; the first is near the largest stable
one."""
FEW_PAIRS = 3
"""Number of pairs where the whole grid would take too long."""

MIN_ROUNDS, SLOW_START = 100, 1000
"""Rounds before a run can be stalled, in general and while its gap is more than half of the first
one."""

REFERENCE_TOLERANCE = 1e-7
"""The largest gap of a reference solution, not relative."""


@dataclass(frozen=True)
class GapRecord:
    """The gap of a run after some rounds."""

    round: int
    bytes: int  # up and down, all agents together
    gap: float  # certified, relative to the objective
    objective: float  # of the feasible models
    infeasibility: float  # largest distance of a model from its set, before it was made feasible


@dataclass(frozen=True)
class Reference(SavedJson):
    """An approximate optimum of a problem."""

    objective: float
    gap: float  # certified

    file_kind = "reference of the rounds experiment"
    format = 1
    advice = "delete it, then rerun the command."

    @property
    def lower_bound(self) -> float:
        """A lower bound on the optimum."""
        return self.objective - self.gap

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        return cls(float(contents["objective"]), float(contents["gap"]))


@dataclass(frozen=True)
class GapHistory(SavedJson):
    """The gaps of one run."""

    case: Case
    name: str  # all pairs of the grid of PC-FedAvg have the same
    algorithm: str  # with its parameters
    lower_bound: float  # on the optimum
    records: tuple[GapRecord, ...] = ()
    status: str = "finished"  # or ``reached`` the smallest target, ``stalled``, ``diverged``

    file_kind = "run of the rounds experiment"
    format = 1
    advice = "delete it, then rerun the command."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        case = Case(**{**contents["case"], "targets": tuple(contents["case"]["targets"])})
        records = tuple(GapRecord(**record) for record in contents["records"])
        return cls(**{**contents, "case": case, "records": records})

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
class RoundsResults:
    """All runs of the experiment."""

    runs: tuple[GapHistory, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases, in the order of the runs."""
        return tuple(dict.fromkeys(each.case for each in self.runs))

    @property
    def cases_by_agents(self) -> list[Case]:
        """The cases of the family that differ in the number of agents only, in its order."""
        found = [c for c in self.cases if c.problem == FAMILY and c.takes_all]
        return sorted((c for c in found if c.local_steps == FAMILY_STEPS), key=lambda c: c.agents)

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

    def text(self, case: Case, name: str, target: float) -> str:
        """Return the number of rounds to a target as text, or why it was not reached."""
        record = self.first(case, name, target)
        if record:
            return f"{record.round:,}"
        ends = {each.status for each in self.of(case, name)}
        if ends <= {"stalled", "diverged"}:
            return " or ".join(sorted(ends, reverse=True))
        return f"not in {max_rounds(case, name):,}"


def max_rounds(case: Case, name: str) -> int:
    """Return the maximal number of rounds of an algorithm in a case."""
    return case.rounds if name in (OURS, ACCELERATED) else case.other_rounds


# -- algorithms ---------------------------------------------------------------------------------


def _grid_pair(penalty: float, step: float, problem: Problem) -> PCFedAvg:
    """Return PC-FedAvg with a pair of the grid."""
    rho = penalty * problem.L_f
    auto = PCFedAvg("auto", rho).resolved(problem, RunInfo(rounds=1, max_local_steps=1))
    return PCFedAvg(step * auto.round_info(0, m=problem.m, max_local_steps=1).step, rho)


ENTRIES: tuple[tuple[str, Callable[[Problem], Algorithm | AcceleratedGradient]], ...] = (
    (OURS, lambda problem: PCFedSplit()),
    *((PAPER, partial(_grid_pair, *pair)) for pair in product(PENALTIES, STEPS)),
    ("FedAvg", lambda problem: FedAvg("auto", "auto")),
    ("FedProx", lambda problem: FedProx("auto", "auto", prox=0.1)),
    ("SCAFFOLD", lambda problem: Scaffold("auto", "auto")),
    (ACCELERATED, partial(accelerated_gradient, typical=True)),
    (ACCELERATED, partial(accelerated_gradient, typical=False)),
)
"""Names, and functions from a problem to the algorithm with its parameters."""

GRID = tuple(k for k, (name, _) in enumerate(ENTRIES) if name == PAPER)
"""The entries of PC-FedAvg."""


def entries(case: Case, pairs: Sequence[int] = GRID) -> list[int]:
    """Return the algorithms of a case as positions in `ENTRIES`, given those of PC-FedAvg."""
    left_out = set(GRID) - set(pairs)
    steps = [k for k, (name, _) in enumerate(ENTRIES) if name == ACCELERATED]
    if case.data is None:  # the curvature of least squares is constant: both steps are the same
        left_out |= set(steps[1:])
    if not case.takes_all:
        left_out |= set(steps)
    return [k for k in range(len(ENTRIES)) if k not in left_out]


def _best_pairs(results: RoundsResults) -> list[int]:
    """Return the best pairs of the grid in the case with the most agents; all if there is none.

    Pairs are compared by the rounds to the first target, then to the next ones, then by gaps.
    """
    cases = results.cases_by_agents
    if not cases:
        return list(GRID)

    def quality(run: GapHistory) -> tuple[float, ...]:
        reached = [run.reach(target) for target in run.case.targets]
        return (*(each.round if each else math.inf for each in reached), run.smallest_gap)

    qualities = dict(zip(GRID, map(quality, results.of(cases[-1], PAPER)), strict=True))
    return sorted(sorted(GRID, key=qualities.__getitem__)[:FEW_PAIRS])


# -- runs ---------------------------------------------------------------------------------------


def total_rounds(cases: Sequence[Case]) -> int:
    """Return the maximal number of rounds of all runs together."""
    return sum(
        max_rounds(case, ENTRIES[k][0])
        for case in cases
        for k in entries(case, GRID[:FEW_PAIRS] if case.few_pairs else GRID)
    )


def run_rounds(
    out: Path,
    *,
    cases: Sequence[Case] = CASES,
    data_dir: Path | None = None,
    workers: int = 2,
    on_progress: Callable[[GapHistory], None] = lambda run: None,
) -> RoundsResults:
    """Run all algorithms in all cases, in parallel processes; finished runs are loaded."""
    problems = {(case.problem, case.agents): case for case in cases}
    with process_pool(workers) as pool:
        solve = [(out, case, data_dir) for case in problems.values()]
        found = run_in_pool(pool, _load_or_solve, solve)
        bounds = {key: each.lower_bound for key, each in zip(problems, found, strict=True)}

        def run_all(jobs: list[tuple[Case, int]]) -> dict[tuple[Case, int], GapHistory]:
            jobs.sort(key=lambda job: (job[0].problem != "MNIST", -job[0].agents))  # longest first
            arguments = [
                (out, case, k, bounds[case.problem, case.agents], data_dir) for case, k in jobs
            ]
            runs = run_in_pool(pool, _load_or_run, arguments, on_progress)
            return dict(zip(jobs, runs, strict=True))

        done = run_all([(case, k) for case in cases if not case.few_pairs for k in entries(case)])
        in_order = sorted(done, key=lambda job: job[1])
        pairs = _best_pairs(RoundsResults(tuple(done[job] for job in in_order)))
        few = [case for case in cases if case.few_pairs]
        done |= run_all([(case, k) for case in few for k in entries(case, pairs)])
    order = {case: i for i, case in enumerate(cases)}
    return RoundsResults(tuple(done[j] for j in sorted(done, key=lambda j: (order[j[0]], j[1]))))


def _load_or_solve(out: Path, case: Case, data_dir: Path | None) -> Reference:
    """Load the reference of a problem from its file, or solve the problem and save the file."""
    name = f"{case.problem.replace(' ', '-').lower()}-{case.agents}"
    path = out / "runs" / f"rounds-reference-{name}.json"
    if path.exists():
        return Reference.load(path)
    with threadpool_limits(1):
        best = optimum(case_problem(case, data_dir), tolerance=REFERENCE_TOLERANCE, iterations=2000)
    reference = Reference(best.objective, best.gap)
    reference.save(path)
    return reference


def _load_or_run(
    out: Path, case: Case, index: int, lower_bound: float, data_dir: Path | None
) -> GapHistory:
    """Load a run from its file, or run it and save the file."""
    problem = case_problem(case, data_dir)
    name, make = ENTRIES[index]
    algorithm = make(problem)
    if isinstance(algorithm, Algorithm):
        algorithm = algorithm.resolved(problem, case.run_info(problem))
    start = GapHistory(case, name, repr(algorithm), lower_bound)
    path = out / "runs" / f"{case.slug}-{index}.json"
    if path.exists():
        saved = GapHistory.load(path)
        if replace(saved, records=(), status=start.status) == start:
            return saved
    with threadpool_limits(1):
        finished = _measure(problem, algorithm, start)
    finished.save(path)
    return finished


def measured_rounds(rounds: int) -> list[int]:
    """Return the rounds after which a gap is computed: 1, 2, 3, …, later growing by a tenth."""
    found = [1]
    while found[-1] < rounds:
        found.append(min(rounds, max(found[-1] + 1, round(1.1 * found[-1]))))
    return found


@dataclass(frozen=True, eq=False)
class _Iterate:
    """The models of a run after some rounds."""

    round: int
    bytes: int
    models: Array


def _federated_iterates(
    problem: Problem, algorithm: Algorithm, case: Case, rounds: int
) -> Iterator[_Iterate]:
    """Yield the models of a federated algorithm in the measured rounds, until it diverges."""
    result: Result | None = None
    for at in measured_rounds(rounds):
        result = run(
            problem,
            algorithm,
            rounds=at - (result.state.round if result else 0),
            local_steps=case.local_steps,
            batch=case.batches,
            participation=case.participation,
            x0=result,
            workers=1,  # runs are in parallel
            eval_every=at,
        )
        if result.status == "diverged":
            return
        last = result.history[-1]
        yield _Iterate(last.round, last.bytes_up + last.bytes_down, result.models)


def _accelerated_iterates(
    problem: Problem, algorithm: AcceleratedGradient, rounds: int
) -> Iterator[_Iterate]:
    """Yield the models of accelerated gradients in the measured iterations."""
    iterations = rounds // EXCHANGES
    measured = set(measured_rounds(iterations))
    sent = algorithm.bytes_per_iteration(problem)
    for k, models in enumerate(algorithm.iterates(problem, iterations), start=1):
        if k in measured:
            yield _Iterate(EXCHANGES * k, k * sent, models)


def _measure(
    problem: Problem, algorithm: Algorithm | AcceleratedGradient, start: GapHistory
) -> GapHistory:
    """Run until the smallest target is reached, the gap stalls, or the last round is done."""
    case, rounds = start.case, max_rounds(start.case, start.name)
    if isinstance(algorithm, AcceleratedGradient):
        iterates = _accelerated_iterates(problem, algorithm, rounds)
    else:
        iterates = _federated_iterates(problem, algorithm, case, rounds)
    sets, problem64 = SetRows([a.feasible_set for a in problem.agents]), problem.to_float64()
    records: list[GapRecord] = []
    for iterate in iterates:
        try:
            record = _record(problem64, sets, iterate, start.lower_bound)
        except (ProjectionError, ValueError):  # the models are too large to project
            break
        records.append(record)
        if record.gap <= min(case.targets):
            return replace(start, records=tuple(records), status="reached")
        if start.name not in (OURS, ACCELERATED) and stalled(records):
            return replace(start, records=tuple(records), status="stalled")
    ended = records and records[-1].round >= rounds - 1  # iterations have two rounds
    return replace(start, records=tuple(records), status="finished" if ended else "diverged")


def _record(problem: Problem, sets: SetRows, iterate: _Iterate, lower_bound: float) -> GapRecord:
    """Return the record of some models; ``problem`` has losses in float64."""
    models = iterate.models.astype(np.float64)
    feasible = sets.project(models)
    objective = problem.objective(feasible)
    return GapRecord(
        round=iterate.round,
        bytes=iterate.bytes,
        gap=max(0.0, objective - lower_bound) / abs(objective),
        objective=objective,
        infeasibility=float(np.linalg.norm(models - feasible, axis=1).max()),
    )


def stalled(records: Sequence[GapRecord]) -> bool:
    """Return whether the gap hardly fell while the number of rounds was tripled."""
    last = records[-1]
    # PC-FedAvg with a large penalty starts slowly, so that gaps near the first one do not count.
    if last.round < (SLOW_START if last.gap > 0.5 * records[0].gap else MIN_ROUNDS):
        return False
    earlier = [each.gap for each in records if each.round <= last.round / 3]
    return last.gap > 0.8 * earlier[-1]
