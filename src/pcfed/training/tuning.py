r"""Cross-validation: find personalization, coupling and centre with the agents' training rows.

Every agent splits its training rows into folds. For each candidate and each fold the agents train
together on their other rows, and every agent scores its own, feasible model on the fold. Letters:
$s_{if}$ the score of agent $i$ on fold $f$, $\bar s_i$ its mean over the $k_i$ folds in which the
agent has rows, $d_{if}$ the difference of two candidates' scores. The score of a candidate is the
mean of $\bar s_i$ over agents.

Agents send only vectors that are summed, so a federation can compute the same:

====================  ==============  ==========================================================
step                  receives        sends, for all candidates
====================  ==============  ==========================================================
``send_scores``       nothing         1, $\bar s_i$, the mean loss, $\mathrm{var}_f(s_{if})/k_i$
``send_differences``  the best        $\mathrm{var}_f(d_{if})/k_i$
====================  ==============  ==========================================================

Standard errors are those of these agents on other rows: agents differ, but they are not a sample.
The error of a difference is much smaller than that of the two scores, because both candidates are
scored on the same rows. Candidates whose difference from the best is at most one standard error
count as equally good; among them the default is chosen, or else the strongest coupling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, PCFedSplit
from pcfed.arrays import Array, Float64Array
from pcfed.losses import LeastSquares, Loss
from pcfed.problem import Agent, Center, Problem
from pcfed.sampling import Purpose, random_stream
from pcfed.sets import Blocks, ConvexSet, Intersection, Scaled, Simplex, Translated
from pcfed.sets.balls import Ball
from pcfed.simulation import Evaluation, RefusalPolicy, run
from pcfed.validation import count

PERSONALIZATIONS = (0.0, 0.5, 1.0)
COUPLINGS = (0.01, 0.1, 1.0, 10.0)
CENTERS: tuple[Center, ...] = ("average", "free")
"""The grid, if nothing else is asked for."""

AUTO_COUPLINGS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""The candidates of ``coupling = "auto"``, where personalization and centre are given."""

MAX_ROUNDS = 50
"""Rounds of PCFedSplit for one candidate and fold, at most."""

SETTLED, CHECK_EVERY = 0.01, 3
"""A training with PCFedSplit ends when all models together change by at most 1 % in three rounds:
scores hardly change after that, and a dozen rounds are enough for most candidates."""

BUDGET_FACTORS = (0.5, 2.0)
"""Factors on all budgets, with which the price of the limits is measured."""

ScaledSets = Mapping[float, Sequence[ConvexSet]]
"""All agents' sets, by the factor on their budgets."""


@dataclass(frozen=True, order=True)
class Candidate:
    r"""A setting to try: $\theta$, $\sigma$ and the centre of `pcfed.Problem`."""

    personalization: float
    coupling: float
    center: Center


DEFAULT = Candidate(0.5, 0.1, "free")
"""The default of train.toml, which is preferred among candidates that are equally good."""


def grid(
    personalizations: Sequence[float] = PERSONALIZATIONS,
    couplings: Sequence[float] = COUPLINGS,
    centers: Sequence[Center] = CENTERS,
) -> tuple[Candidate, ...]:
    r"""Return all combinations that make sense, each once.

    - With $\theta = 1$ a free centre is the average of the models, weighted with the couplings, so
      that only one centre is tried, if possible the free one.
    - With $\theta = 0$ and a free centre the own models are only projections of the shared one, so
      that the average is tried, if possible.
    - Without a coupling and with $\theta = 0$ nothing would determine the own models.

    Examples
    --------
    >>> len(grid())
    16
    >>> grid([0, 1], [0], ["average", "free"])
    (Candidate(personalization=1, coupling=0, center='free'),)
    """
    preferred: dict[float, Center] = {0.0: "average", 1.0: "free"}
    found = []
    for theta, sigma, center in product(personalizations, couplings, centers):
        only = preferred.get(theta, center)
        if (theta or sigma) and (center == only or only not in centers):
            found.append(Candidate(theta, sigma, center))
    return tuple(dict.fromkeys(found))


# -- what agents send -----------------------------------------------------------------------------


def send_scores(scores: Float64Array, losses: Float64Array) -> Float64Array:
    """Return an agent's vector for the first sum: 1, scores, losses, squared errors of the scores.

    Parameters
    ----------
    scores, losses : array of shape (candidates, folds)
        Of the agent's own models, for the folds in which it has rows. An agent without folds sends
        zeros.
    """
    if scores.shape[1] == 0:
        return np.zeros(1 + 3 * len(scores))
    return np.concatenate(
        [[1.0], scores.mean(axis=1), losses.mean(axis=1), _squared_errors(scores)]
    )


def send_differences(scores: Float64Array, best: int) -> Float64Array:
    """Return an agent's vector for the second sum: squared errors of differences from the best."""
    if scores.shape[1] == 0:
        return np.zeros(len(scores))
    return _squared_errors(scores - scores[best])


def _squared_errors(scores: Float64Array) -> Float64Array:
    """Return the squared standard error of the mean over folds, for each candidate."""
    with np.errstate(invalid="ignore"):
        return np.asarray(scores.var(axis=1, ddof=1) / scores.shape[1])


@dataclass(frozen=True)
class CandidateScore:
    """A candidate with its score, a mean over agents, and its mean loss.

    ``error`` is the standard error of the score, and ``difference`` how much lower than the best
    score it is, with its own standard error. Where a training diverged, all are NaN.
    """

    candidate: Candidate
    score: float
    error: float
    loss: float
    difference: float
    difference_error: float

    @property
    def is_equally_good(self) -> bool:
        """Whether the score is within one standard error of the best."""
        return self.difference <= self.difference_error


@dataclass(frozen=True, eq=False)
class FoldScores:
    """Scores and losses of one candidate, (agents, folds); NaN where there are no rows."""

    scores: Float64Array
    losses: Float64Array


def _sum_scores(
    results: Sequence[FoldScores], folds: Sequence[NDArray[np.intp]], best: int | None = None
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, int]:
    """Return scores, their errors, losses and errors of differences, all from two sums.

    Differences are from the result with the index ``best``, by default the one with the best
    score; the index is returned, too. ``folds`` are the folds in which each agent has rows.
    """
    own = [
        (
            np.stack([each.scores[i, rows] for each in results]),
            np.stack([each.losses[i, rows] for each in results]),
        )
        for i, rows in enumerate(folds)
    ]
    first = np.sum([send_scores(*each) for each in own], axis=0)
    m, (scores, losses, squares) = first[0], first[1:].reshape(3, -1)
    if m == 0:
        raise ValueError(
            "tune: some agent must have 2 rows for training, of one class if targets are classes, "
            "got none; add data."
        )
    if np.isnan(scores).all():
        raise ValueError(
            "tune: some candidate must train to finite models, got none; look for very large "
            "numbers in the data."
        )
    best = int(np.nanargmax(scores)) if best is None else best
    second = np.sum([send_differences(each, best) for each, _ in own], axis=0)
    return scores / m, np.sqrt(squares) / m, losses / m, np.sqrt(second) / m, best


def rank(
    results: Mapping[Candidate, FoldScores], folds: Sequence[NDArray[np.intp]]
) -> tuple[CandidateScore, ...]:
    """Return the candidates with their scores, the best first.

    ``folds`` are the folds in which each agent has rows. Agents contribute only to two sums.
    """
    scores, errors, losses, difference_errors, best = _sum_scores([*results.values()], folds)
    columns = (scores, errors, losses, scores[best] - scores, difference_errors)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    ranking = [CandidateScore(each, *row) for each, row in zip(results, numbers, strict=True)]
    return tuple(
        sorted(ranking, key=lambda each: math.inf if math.isnan(each.score) else each.difference)
    )


def choose(ranking: Iterable[CandidateScore], default: Candidate = DEFAULT) -> CandidateScore:
    """Return the default if it is as good as the best, or else the strongest coupling that is."""
    good = [each for each in ranking if each.is_equally_good]
    for each in good:
        if each.candidate == default:
            return each
    return max(good, key=lambda each: (each.candidate.coupling, -each.difference))


# -- folds and scores -----------------------------------------------------------------------------


def draw_folds(
    num_folds: int, rows: int, classes: NDArray[np.intp] | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return the fold of each row of an agent, −1 for rows that are always trained on.

    The rows of every class are spread over the folds, so that no class is missing in the training
    rows of any fold; the only row of a class is always trained on. An agent with fewer rows than
    folds has no rows in the last ones.

    Examples
    --------
    >>> draw_folds(2, 5, np.array([0, 0, 1, 1, 2]), np.random.default_rng(0))
    array([ 0,  1,  0,  1, -1])
    """
    order, fold = rng.permutation(rows), np.full(rows, -1, np.intp)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
        order = order[np.bincount(classes)[classes[order]] > 1]
    if len(order) > 1:
        fold[order] = np.arange(len(order)) % num_folds
    return fold


def score(fold: Loss, whole: Loss, x: Array) -> float:
    """Return the score of a model on the rows of a fold, larger is better.

    It is the accuracy for labels and R² for least squares, where the variance is that of all rows
    of the agent, because that of a few is uncertain. Other losses are their own scores, negated.
    """
    if isinstance(fold, LeastSquares) and isinstance(whole, LeastSquares):
        return 1 - fold.mean_squared_error(x) / (whole.target_variance or 1.0)
    accuracy = fold.accuracy(x)
    return -fold.value(x) if math.isnan(accuracy) else accuracy


def score_name(loss: Loss) -> str:
    """Return what `score` is."""
    if isinstance(loss, LeastSquares):
        return "R²"
    return "-loss" if loss.sample_classes is None else "accuracy"


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Trainings of one problem with other settings, on a part of its rows.

    Parameters
    ----------
    problem : Problem
        The agents; their held-out rows are not used.
    algorithm : Algorithm
        With own models, such as `PCFedSplit`.
    num_folds : int
        Folds of every agent, at least 2.
    rounds, local_steps, batch, seed
        As in `pcfed.run`; all agents take part in every round.
    start : array of shape (n,), optional
        Where to start; zeros by default.
    factors : sequence of float or None, optional
        Every agent's factor on the coupling of a candidate; None for agents that keep their own
        coupling. By default 1.
    keeps_personalization : sequence of bool, optional
        Which agents keep their own personalization; by default none.
    """

    problem: Problem
    algorithm: Algorithm = field(default_factory=PCFedSplit)
    num_folds: int = 4
    rounds: int = MAX_ROUNDS
    local_steps: int = 10
    batch: float | int = 1.0
    seed: int = 0
    start: Array | None = None
    factors: Sequence[float | None] | None = None
    keeps_personalization: Sequence[bool] | None = None

    def __post_init__(self) -> None:
        count("tune: num_folds", self.num_folds, minimum=2)

    @cached_property
    def folds(self) -> list[NDArray[np.intp]]:
        """The fold of every row, for each agent."""
        return [
            draw_folds(
                self.num_folds,
                agent.loss.size,
                agent.loss.sample_classes,
                random_stream(self.seed, Purpose.FOLDS, i),
            )
            for i, agent in enumerate(self.problem.agents)
        ]

    @property
    def folds_with_rows(self) -> list[NDArray[np.intp]]:
        """The folds in which each agent has rows."""
        return [np.unique(each[each >= 0]) for each in self.folds]

    @cached_property
    def _parts(self) -> list[list[tuple[Loss, Loss | None]]]:
        """The losses on the rows for training and on those of the fold, for each fold and agent."""
        pairs = list(zip(self.problem.agents, self.folds, strict=True))
        return [
            [_split(agent.loss, fold == f) for agent, fold in pairs] for f in range(self.num_folds)
        ]

    def evaluate(
        self,
        candidate: Candidate,
        constraints: Sequence[ConvexSet] | None = None,
        on_fold: Callable[[], object] = lambda: None,
    ) -> FoldScores:
        """Train with one candidate, once per fold, and score every agent's own model.

        ``constraints`` may replace the agents' sets; ``on_fold`` is called after each fold.
        """
        m = self.problem.m
        scores, losses = (np.full((m, self.num_folds), math.nan) for _ in range(2))
        for f, parts in enumerate(self._parts):
            agents = list(self._agents(candidate, [train for train, _ in parts], constraints))
            batch = self.batch
            if isinstance(batch, int):
                batch = min(batch, *(agent.loss.size for agent in agents))
            result = run(
                Problem(agents, candidate.center),
                self.algorithm,
                rounds=self.rounds,
                local_steps=self.local_steps,
                batch=batch,
                x0=self.start,
                seed=self.seed,
                **self._stop_rule,
                refusals=RefusalPolicy(max_refusals=self.rounds * m),
            )
            on_fold()
            if result.status == "diverged" or not np.isfinite(result.models).all():
                continue
            for i, (agent, (_, fold)) in enumerate(zip(agents, parts, strict=True)):
                if fold is not None:
                    x = agent.feasible_set.project(result.models[i])
                    scores[i, f] = score(fold, self.problem.agents[i].loss, x)
                    losses[i, f] = fold.value(x)
        return FoldScores(scores, losses)

    @property
    def _stop_rule(self) -> dict[str, Any]:
        """The arguments of `pcfed.run` that end it early."""
        if not isinstance(self.algorithm, PCFedSplit):  # its steps may be short at any time
            return {"eval_every": self.rounds}
        return {"eval_every": CHECK_EVERY, "stop": _Settled()}

    def couplings(self, coupling: float) -> list[float]:
        """Return the coupling of every agent for that of a candidate."""
        factors = self.factors or [1.0] * self.problem.m
        pairs = zip(self.problem.agents, factors, strict=True)
        return [agent.coupling if f is None else f * coupling for agent, f in pairs]

    def _agents(
        self, candidate: Candidate, losses: Sequence[Loss], sets: Sequence[ConvexSet] | None
    ) -> Iterator[Agent]:
        """Yield the agents with the setting of a candidate and their rows for training."""
        couplings, keeps = self.couplings(candidate.coupling), self.keeps_personalization
        for i, agent in enumerate(self.problem.agents):
            theta = agent.personalization if keeps and keeps[i] else candidate.personalization
            yield replace(
                agent,
                loss=losses[i],
                test=None,
                coupling=couplings[i],
                personalization=theta,
                constraint=agent.constraint if sets is None else sets[i],
            )


class _Settled:
    """A stop rule: whether the models have changed little since the last evaluation."""

    def __init__(self) -> None:
        self._last: Float64Array | None = None

    def __call__(self, evaluation: Evaluation) -> bool:
        models, last = np.array(evaluation.models), self._last
        self._last = models
        if last is None:
            return False
        return bool(np.linalg.norm(models - last) <= SETTLED * np.linalg.norm(models))


def _split(loss: Loss, in_fold: NDArray[np.bool_]) -> tuple[Loss, Loss | None]:
    """Return the loss on the other rows and on those of the fold; None if it has none."""
    if not in_fold.any():
        return loss, None
    return loss.take_samples(np.flatnonzero(~in_fold)), loss.take_samples(np.flatnonzero(in_fold))


# -- the search -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """The result of a search: the candidates, the best first, and the one that was chosen.

    ``score_name`` is "accuracy", "R²" or "-loss".
    """

    ranking: tuple[CandidateScore, ...]
    chosen: CandidateScore
    score_name: str


def tune(
    validation: CrossValidation,
    candidates: Iterable[Candidate] | None = None,
    *,
    default: Candidate = DEFAULT,
    known: dict[Candidate, FoldScores] | None = None,
    on_fold: Callable[[], object] = lambda: None,
    on_candidate: Callable[[], object] = lambda: None,
) -> Tuning:
    """Find the setting with the best score in cross-validation.

    Parameters
    ----------
    validation : CrossValidation
        The problem, and how it is trained.
    candidates : iterable of Candidate, optional
        The settings to try; `grid` by default.
    default : Candidate
        Preferred if it is among the candidates and as good as the best.
    known : dict, optional
        Results of an earlier search, which are not computed again; new ones are added.
    on_fold, on_candidate : callable
        Called after each fold, and after each candidate that was not known.

    Examples
    --------
    Two agents with opposite tasks, for whom own models are better than a shared one:

    >>> import numpy as np
    >>> from pcfed import Agent, Problem
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> losses = [LeastSquares(X, sign * X[:, 0]) for sign in (1, -1)]
    >>> validation = CrossValidation(Problem([Agent(loss, L1Ball(2), 0.1) for loss in losses]))
    >>> found = tune(validation, grid([0, 1], [0.01, 1], ["average"]))
    >>> found.chosen.candidate, round(found.chosen.score, 2)
    (Candidate(personalization=1, coupling=0.01, center='average'), 1.0)
    """
    if validation.problem.is_private:
        raise ValueError(
            "tune: agents must have no privacy budget, got some that have one: cross-validation "
            "reads their records many times; tune on public data, or give numbers."
        )
    known = {} if known is None else known
    wanted = list(grid() if candidates is None else candidates)
    for candidate in wanted:
        if candidate not in known:
            known[candidate] = validation.evaluate(candidate, on_fold=on_fold)
            on_candidate()
    ranking = rank({each: known[each] for each in wanted}, validation.folds_with_rows)
    return Tuning(ranking, choose(ranking, default), score_name(validation.problem.agents[0].loss))


# -- the price of the limits ----------------------------------------------------------------------


def scale_budget(convex: ConvexSet, factor: float) -> ConvexSet | None:
    """Return a set with its radius or total multiplied by a factor; None if it has none.

    Examples
    --------
    >>> from pcfed.sets import Box, L1Ball
    >>> scale_budget(L1Ball(3.0), 2)
    L1Ball(radius=6.0)
    >>> scale_budget(Box(0, 1), 2)
    """
    if isinstance(convex, Ball):
        given: Any = convex  # each kind of ball is a dataclass, their base is not
        scaled: ConvexSet = replace(given, radius=factor * convex.radius)
        return scaled
    if isinstance(convex, Simplex):
        return replace(convex, total=factor * convex.total)
    if isinstance(convex, (Translated, Scaled)):
        inner = scale_budget(convex.set, factor)
        return None if inner is None else replace(convex, set=inner)
    if isinstance(convex, Intersection):
        members = _scale_members(convex.sets, factor)
        return Intersection(*members) if members else None
    if isinstance(convex, Blocks):
        slices, sets = zip(*convex.blocks, strict=True)
        members = _scale_members(sets, factor)
        return Blocks(list(zip(slices, members, strict=True))) if members else None
    return None


def _scale_members(sets: Sequence[ConvexSet], factor: float) -> list[ConvexSet]:
    """Return sets with scaled budgets, others as they are; an empty list if none has one."""
    scaled = [scale_budget(each, factor) for each in sets]
    if all(each is None for each in scaled):
        return []
    return [old if new is None else new for new, old in zip(scaled, sets, strict=True)]


@dataclass(frozen=True)
class BudgetChange:
    """How the score changes if all budgets are multiplied by a factor, with its standard error."""

    factor: float
    change: float
    error: float


def compare_budgets(
    base: FoldScores, scaled: Mapping[float, FoldScores], folds: Sequence[NDArray[np.intp]]
) -> list[BudgetChange]:
    """Return the changes of the score by other budgets, from sums over agents."""
    scores, _, _, errors, _ = _sum_scores([base, *scaled.values()], folds, best=0)
    changes = zip(scaled, (scores - scores[0])[1:].tolist(), errors[1:].tolist(), strict=True)
    return [BudgetChange(*each) for each in changes]
