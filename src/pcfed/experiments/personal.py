r"""Models that are good for their owners: accuracy of agents' own models, inside their own sets.

The problem is $\min \frac1m \sum_i \theta f_i(x_i) + (1 - \theta) f_i(c) + \frac{\sigma}{2}
\|x_i - c\|^2$ with $x_i \in X_i$, where the centre c is the average of the models or free. It is
compared with one shared model, with agents that train alone, and with Ditto inside the own set: a
shared model c first, then $\min f_i(x) + \frac{\lambda}{2} \|x - c\|^2$, $x \in X_i$.

Every method is fitted to a part of the training samples with all values of σ or λ, the value with
the best accuracy on the rest, the validation samples, is taken, and the method is fitted again with
it, to all training samples. Only these last models are scored on test samples, once: each agent's
model on samples of the agent's own distribution. The score of a seed is the mean over agents; we
report the mean over seeds with a 95 % interval (Student's t), for differences of methods paired
over seeds.

With θ = 1 and equal σ the best free centre is the average, so both centres are one problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import rankdata, t
from threadpoolctl import threadpool_limits

from pcfed.algorithms import PCFedSplit
from pcfed.arrays import Float64Array
from pcfed.experiments.jobs import process_pool, run_in_pool
from pcfed.experiments.personal_cells import (
    CELLS,
    AgentRows,
    Cell,
    Samples,
    limits,
    load_samples,
    split_rows,
)
from pcfed.guarantees.accelerated_gradient import accelerated_steps
from pcfed.losses import Loss, SoftmaxRegression
from pcfed.problem import Agent, Center, Problem
from pcfed.sets import ConvexSet, SetRows
from pcfed.simulation import run
from pcfed.storage.saved import Metadata, SavedJson

PERSONAL = "personal"
"""The name of this experiment."""

SEEDS, QUICK_SEEDS = 5, 2
"""The least number of seeds, and that of a quick run."""

LOCAL_STEPS = 10

SHARED = "shared model, no limits"
PROJECTED = "shared model, projected"
ALONE = "alone"
PAPER = "the paper's problem"
HALF_AVERAGE = "θ = ½, average"
OWN = "θ = 1, either centre"
ZERO_FREE = "θ = 0, free"
OURS = "θ = ½, free"
DITTO = "Ditto"

JOINT: Mapping[str, tuple[float, Center]] = {
    PAPER: (0.0, "average"),
    HALF_AVERAGE: (0.5, "average"),
    OWN: (1.0, "average"),
    ZERO_FREE: (0.0, "free"),
    OURS: (0.5, "free"),
}
"""θ and the centre of the methods that solve the joint problem."""

METHODS = (SHARED, PROJECTED, ALONE, *JOINT, DITTO)
INSIDE = METHODS[1:]
"""The methods whose models are inside the sets."""

EARLIER: Mapping[str, float] = {
    SHARED: 0.89,
    PROJECTED: 0.39,
    ALONE: 0.71,
    PAPER: 0.64,
    OWN: 0.74,
    DITTO: 0.75,
    OURS: 0.75,
}
"""Accuracies of a first measurement in the first cell, with one draw of the data."""

EARLIER_CENTER = 0.84
"""The accuracy of the centre of `OURS` in it."""

STOPS = (25, 50, 100, 200)
"""Iterations after which the shared model may stop: without limits or a penalty it would overfit,
so that the best number is chosen on validation samples."""

ITERATIONS, TOLERANCE = 300, 1e-4
"""Of accelerated gradients at one agent: the largest number, and the length of a step relative to
the model at which they end."""


@dataclass(frozen=True)
class Score:
    """The accuracies of a method in a cell, with one seed."""

    method: str
    accuracies: tuple[float, ...]  # of every agent's own model on its own test samples
    infeasibility: float  # largest distance of a model from its set
    coupling: float | None = None  # the chosen σ or λ; None if there is none
    center: float | None = None  # mean accuracy of the shared model; None if there is none

    @property
    def accuracy(self) -> float:
        """The mean over agents."""
        return math.fsum(self.accuracies) / len(self.accuracies)


@dataclass(frozen=True)
class CellScores(SavedJson):
    """The scores of all methods in a cell, with one seed."""

    cell: Cell
    seed: int
    scores: tuple[Score, ...]

    file_kind = "result of the experiment on personal models"
    format = 1
    advice = "delete it, then rerun the command."

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        scores = tuple(
            Score(**{**each, "accuracies": tuple(each["accuracies"])})
            for each in contents["scores"]
        )
        return cls(Cell.from_json(contents["cell"]), int(contents["seed"]), scores)

    def of(self, method: str) -> Score:
        """Return the score of a method."""
        return next(each for each in self.scores if each.method == method)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the interval of Student's t distribution; infinite for a single value."""
        mean = round(float(np.mean(values)), 12) + 0.0  # rounding errors are not differences
        width = half_width(values)
        return cls(mean, mean - width, mean + width)

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    def signed(self) -> str:
        """Return it as text with signs, for differences."""
        return f"{self.mean:+.3f} (95 %: {self.low:+.3f} to {self.high:+.3f})"


def half_width(values: Sequence[float], *, single: bool = False) -> float:
    """Return half the length of the 95 % interval of the mean, or of a single further value."""
    n = len(values)
    if n < 2:
        return math.inf
    factor = math.sqrt(1 + 1 / n) if single else math.sqrt(1 / n)
    return float(t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) * factor


@dataclass(frozen=True)
class PersonalResults:
    """All scores of the experiment."""

    runs: tuple[CellScores, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, in the order of the runs."""
        return tuple(dict.fromkeys(each.cell for each in self.runs))

    def of(self, cell: Cell, method: str) -> list[Score]:
        """Return the scores of a method in a cell, one per seed."""
        return [each.of(method) for each in self.runs if each.cell == cell]

    def accuracy(self, cell: Cell, method: str) -> Interval:
        """Return the accuracy of the agents' own models."""
        return Interval.of([each.accuracy for each in self.of(cell, method)])

    def center(self, cell: Cell, method: str) -> Interval | None:
        """Return the accuracy of the shared model; None if the method has none."""
        found = [each.center for each in self.of(cell, method) if each.center is not None]
        return Interval.of(found) if found else None

    def difference(self, cell: Cell, method: str, other: str) -> Interval:
        """Return the accuracy of a method minus that of another one, paired over seeds."""
        pairs = zip(self.of(cell, method), self.of(cell, other), strict=True)
        return Interval.of([a.accuracy - b.accuracy for a, b in pairs])

    def overall_difference(self, method: str, other: str) -> Interval:
        """Return the difference of two methods over all cells, which count as draws."""
        return Interval.of([self.difference(cell, method, other).mean for cell in self.cells])

    def mean_ranks(self) -> dict[str, float]:
        """Return the mean rank over cells of the methods inside the sets; 1 is best."""
        means = np.array([[self.accuracy(cell, m).mean for m in INSIDE] for cell in self.cells])
        ranks = np.mean([rankdata(-row) for row in means], axis=0)
        found = dict(zip(INSIDE, ranks.tolist(), strict=True))
        return dict(sorted(found.items(), key=lambda item: item[1]))


# -- solutions ----------------------------------------------------------------------------------


def solve_joint(
    losses: Sequence[Loss],
    sets: Sequence[ConvexSet],
    coupling: float,
    *,
    theta: float,
    center: Center,
    rounds: int,
) -> tuple[Float64Array, Float64Array]:
    """Return the models and the centre of the joint problem, by PCFedSplit."""
    agents = [
        Agent(loss, each, coupling, personalization=theta)
        for loss, each in zip(losses, sets, strict=True)
    ]
    result = run(
        Problem(agents, center=center),
        PCFedSplit(),
        rounds=rounds,
        local_steps=LOCAL_STEPS,
        workers=1,  # runs are in parallel
        eval_every=rounds,
    )
    if result.status != "finished":
        raise ArithmeticError(f"personal: PCFedSplit must finish, got: {result.message}")
    return result.models.astype(np.float64), result.center.astype(np.float64)


def solve_local(
    loss: Loss,
    feasible: ConvexSet,
    center: Float64Array,
    weight: float,
    *,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
) -> Float64Array:
    r"""Minimise $f(x) + \frac{\lambda}{2} \|x - c\|^2$ over a set; λ is the weight.

    This is an agent's problem in Ditto and, with the weight 0, that of an agent alone.
    """
    step = 1 / (loss.smoothness() + weight)

    def gradient_step(y: Float64Array) -> Float64Array:
        gradient = loss.gradient(y) + weight * (y - center)
        return feasible.project(y - step * gradient).astype(np.float64, copy=False)

    x = start = feasible.project(center).astype(np.float64, copy=False)
    for x, back in islice(accelerated_steps(gradient_step, start), iterations):
        if np.linalg.norm(back) <= tolerance * step * max(1.0, float(np.linalg.norm(x))):
            break
    return x


def solve_shared(losses: Sequence[Loss], stops: Sequence[int]) -> list[Float64Array]:
    """Minimise the mean loss over all agents without limits; return some of the iterates."""
    step = 1 / float(np.mean([loss.smoothness() for loss in losses]))

    def gradient_step(y: Float64Array) -> Float64Array:
        mean = np.mean([loss.gradient(y) for loss in losses], axis=0, dtype=np.float64)
        return np.asarray(y - step * mean)

    steps = accelerated_steps(gradient_step, np.zeros(losses[0].n))
    iterates = {k: x for k, (x, _) in enumerate(islice(steps, max(stops)), start=1) if k in stops}
    return [iterates[stop] for stop in stops]


# -- one cell and seed --------------------------------------------------------------------------


class _Trial:
    """The data of a cell with one seed, and the methods on them."""

    def __init__(self, cell: Cell, samples: Samples, rows: Sequence[AgentRows]) -> None:
        self.cell = cell
        self.fit = [samples.loss(each.fit) for each in rows]
        self.train = [samples.loss(each.train) for each in rows]
        self.validation = [samples.loss(each.validation) for each in rows]
        self.test = [samples.loss(each.test) for each in rows]
        self.sets = limits(cell, samples)
        self.shared_fit, self.shared = self._shared_models()

    def _shared_models(self) -> tuple[Float64Array, Float64Array]:
        """Return the shared models of the samples for fitting and of all training samples."""
        models = solve_shared(self.fit, STOPS)
        scores = [_mean_accuracy(self.validation, [x] * len(self.sets)) for x in models]
        best = int(np.argmax(scores))
        return models[best], solve_shared(self.train, STOPS[best : best + 1])[0]

    def scores(self) -> tuple[Score, ...]:
        """Return the scores of all methods."""
        m = len(self.sets)
        shared = self._mean(self.shared)
        zero = np.zeros_like(self.shared)
        return (
            self._score(SHARED, [self.shared] * m, center=shared),
            self._score(PROJECTED, self._projected()),
            self._score(ALONE, self._local(self.train, zero, 0.0)),
            *map(self._joint, JOINT),
            self._ditto(shared),
        )

    def _projected(self) -> list[Float64Array]:
        """Return the shared model, projected onto the set of every agent."""
        return [each.project(self.shared).astype(np.float64, copy=False) for each in self.sets]

    def _joint(self, method: str) -> Score:
        """Return the score of the joint problem with the best σ."""
        theta, kind = JOINT[method]

        def solve(
            losses: Sequence[Loss], coupling: float, rounds: int
        ) -> tuple[Float64Array, Float64Array]:
            return solve_joint(losses, self.sets, coupling, theta=theta, center=kind, rounds=rounds)

        coupling = self._best(lambda sigma: solve(self.fit, sigma, self.cell.search_rounds)[0])
        models, center = solve(self.train, coupling, self.cell.rounds)
        return self._score(method, models, coupling, self._mean(center))

    def _ditto(self, shared: float) -> Score:
        """Return the score of Ditto with the best λ."""
        coupling = self._best(lambda weight: self._local(self.fit, self.shared_fit, weight))
        models = self._local(self.train, self.shared, coupling)
        return self._score(DITTO, models, coupling, shared)

    def _local(
        self, losses: Sequence[Loss], center: Float64Array, weight: float
    ) -> list[Float64Array]:
        return [
            solve_local(loss, each, center, weight)
            for loss, each in zip(losses, self.sets, strict=True)
        ]

    def _best(self, solve: Callable[[float], Sequence[Float64Array] | Float64Array]) -> float:
        """Return the coupling whose models are best on the validation samples.

        Of equally good ones it is the one in the middle, because few samples give many ties.
        """
        scores = np.array(
            [_mean_accuracy(self.validation, solve(each)) for each in self.cell.couplings]
        )
        ties = np.flatnonzero(scores >= scores.max() - 1e-12)
        return self.cell.couplings[int(ties[(len(ties) - 1) // 2])]

    def _mean(self, x: Float64Array) -> float:
        return _mean_accuracy(self.test, [x] * len(self.test))

    def _score(
        self,
        method: str,
        models: Sequence[Float64Array] | Float64Array,
        coupling: float | None = None,
        center: float | None = None,
    ) -> Score:
        accuracies = [loss.accuracy(x) for loss, x in zip(self.test, models, strict=True)]
        distances = SetRows(self.sets).distances(np.stack(list(models)))
        return Score(method, tuple(accuracies), float(distances.max()), coupling, center)


def _mean_accuracy(
    losses: Sequence[SoftmaxRegression], models: Sequence[Float64Array] | Float64Array
) -> float:
    return float(np.mean([loss.accuracy(x) for loss, x in zip(losses, models, strict=True)]))


# -- runs ---------------------------------------------------------------------------------------


def num_rounds(cell: Cell) -> int:
    """Return the number of rounds of PCFedSplit in a cell with one seed."""
    return len(JOINT) * (len(cell.couplings) * cell.search_rounds + cell.rounds)


def run_personal(
    out: Path,
    *,
    cells: Sequence[Cell] = CELLS,
    seeds: int = SEEDS,
    data_dir: Path | None = None,
    workers: int = 2,
    on_progress: Callable[[CellScores], None] = lambda scores: None,
) -> PersonalResults:
    """Score all methods in all cells, in parallel processes; finished scores are loaded."""
    jobs = [(out, cell, seed, data_dir) for cell in cells for seed in range(seeds)]
    with process_pool(workers) as pool:
        return PersonalResults(tuple(run_in_pool(pool, _load_or_run, jobs, on_progress)))


def _load_or_run(out: Path, cell: Cell, seed: int, data_dir: Path | None) -> CellScores:
    """Load the scores of a cell with one seed from their file, or compute and save them."""
    path = out / "runs" / f"{cell.slug}-seed{seed}.json"
    if path.exists():
        saved = CellScores.load(path)
        if saved.cell == cell:
            return saved
    samples = load_samples(cell.data, cell.pooling, data_dir)
    with threadpool_limits(1):
        scores = _Trial(cell, samples, split_rows(cell, samples, seed)).scores()
    finished = CellScores(cell, seed, scores)
    finished.save(path)
    return finished
