"""PCFedSplit: the oracle, reductions, rounds to the optimum, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from pcfed import Agent, Gap, PCFedSplit, Problem, certify, run
from pcfed.algorithms import pcfedsplit
from pcfed.guarantees import optimum
from pcfed.losses import LeastSquares, LogisticRegression, Loss, SoftmaxRegression
from pcfed.sets import (
    Box,
    ConvexSet,
    GroupL1Ball,
    Halfspace,
    Intersection,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    Simplex,
    WholeSpace,
)
from tests.algorithms.douglas_rachford import douglas_rachford
from tests.federations import CLOSED_FORM, N, classifiers, regressions

MANY = 3000
"""Local steps that solve a local problem to the end."""


# -- the oracle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["l1", "box", "l2", "halfspace", "whole space", "simplex"])
@pytest.mark.parametrize(("alpha", "kappa"), [(1.0, 1.8), (4.0, 1.0)])
def test_equals_douglas_rachford_if_local_problems_are_solved(name, alpha, kappa, monkeypatch):
    monkeypatch.setattr(pcfedsplit, "MAX_RATIO", alpha)
    monkeypatch.setattr(pcfedsplit, "COUPLING_FACTOR", 1e3)  # so that α is its largest value
    monkeypatch.setattr(pcfedsplit, "MAX_PROX_CHANGES", 0)
    rng = np.random.default_rng(1)
    problem = regressions([CLOSED_FORM[name](rng) for _ in range(3)])
    result = run(problem, PCFedSplit(relaxation=kappa), rounds=6, local_steps=MANY)
    (tau,), (found,) = result.state.server["prox"], result.state.server["ratio"]
    assert found == alpha
    everybody, numbers = [range(3)] * 6, {"tau": tau, "alpha": alpha, "kappa": kappa}
    models, center = douglas_rachford(problem, everybody, **numbers, idle=1)
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.server["z"], center, rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.1 or name == "whole space"


@pytest.mark.parametrize("prox", [0.05, 2.0])
def test_absent_agents_are_randomised_blocks_of_the_oracle(prox):
    problem = regressions([L1Ball(0.5), Box(-0.5, 0.2), L2Ball(1.0), Simplex(3.0)])
    present = [[0, 1], [1], [0, 1, 2], [2], [0, 2], [0, 1, 2, 3], [3], [1, 3]]  # two join later
    absent = [[i for i in range(4) if i not in each] for each in present]
    options = {"rounds": len(present), "local_steps": MANY, "participation": absent}
    result = run(problem, PCFedSplit(prox=prox), **options)
    models, center = douglas_rachford(problem, present, tau=prox, alpha=1.0, kappa=1.8)
    np.testing.assert_allclose(result.models, models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.state.server["z"], center, rtol=0, atol=1e-10)


def test_multipliers_satisfy_the_optimality_conditions():
    problem = regressions([L1Ball(0.5), Box(-0.5, 0.2), L2Ball(3.0)])
    result = run(problem, PCFedSplit(), rounds=400, local_steps=20, eval_every=400)
    server, private = result.state.server, result.state.private
    z, y_mean = server["z"], server["y_mean"]
    y = private["U"] - server["Y"]
    np.testing.assert_allclose(y.mean(axis=0), y_mean, atol=1e-9)
    np.testing.assert_allclose(result.average, z, atol=1e-9)
    for agent, x_i, y_i in zip(problem.agents, result.models, y, strict=True):
        coupling = agent.coupling * (x_i - z)
        np.testing.assert_allclose(y_i, coupling - agent.loss.gradient(z), atol=1e-7)
        # ȳ − ∇_x φ_i is in the normal cone of the set at x_i: x_i is its own projection from there.
        moved = agent.constraint.project(x_i + 0.1 * (y_mean - coupling))
        np.testing.assert_allclose(moved, x_i, atol=1e-8)
    assert np.abs(y_mean).max() > 1, "constraints must bind, or multipliers are zero"


# -- reductions -----------------------------------------------------------------------------------


def test_without_constraints_all_models_are_the_minimiser_of_the_average_loss():
    problem = regressions([WholeSpace()] * 4)
    result = run(problem, PCFedSplit(), rounds=60, local_steps=10)
    X = np.concatenate([a.loss._features.matrix / np.sqrt(a.loss.size) for a in problem.agents])
    y = np.concatenate([a.loss._targets / np.sqrt(a.loss.size) for a in problem.agents])
    best = np.linalg.lstsq(X, y)[0]
    np.testing.assert_allclose(result.models, np.tile(best, (4, 1)), atol=1e-6)


def test_one_agent_minimises_its_loss_in_its_set():
    problem = regressions([L1Ball(2.0)])
    result = run(problem, PCFedSplit(), rounds=60, local_steps=10)
    x = np.zeros(N)
    agent = problem.agents[0]
    for _ in range(20_000):
        x = agent.constraint.project(x - agent.loss.gradient(x) / agent.loss.smoothness())
    np.testing.assert_allclose(result.models[0], x, atol=1e-6)


# -- rounds to the optimum ------------------------------------------------------------------------

TARGET = 1e-6
"""The relative gap of the feasible models to the true optimum."""


def mixed_sets(rng: np.random.Generator, m: int, n: int, size: float = 1.0) -> list[ConvexSet]:
    """Return sets of five kinds, in turn."""
    kinds = (
        lambda: L1Ball(size * rng.uniform(0.2, 2)),
        lambda: LinfBall(size * rng.uniform(0.05, 0.4)),
        lambda: L2Ball(size * rng.uniform(0.2, 2)),
        lambda: Halfspace(rng.normal(size=n), size * rng.uniform(0.1, 1)),
        lambda: WholeSpace(),
    )
    return [kinds[i % 5]() for i in range(m)]


def squares(rng, condition: float = 1.0) -> LeastSquares:
    X = rng.normal(size=(20, N)) * np.logspace(0, -np.log10(condition) / 2, N)
    return LeastSquares(X, X @ (1 + 2 * rng.normal(size=N)) + 0.1 * rng.normal(size=20))


def labelled(rng, features: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(30, features))
    scores = X @ rng.normal(size=(features, classes)) + rng.normal(size=(30, classes))
    return X, np.argmax(scores, axis=1)


@dataclass(frozen=True)
class Family:
    """A kind of random problems: mixed sets of some size, losses, couplings."""

    loss: Callable[[np.random.Generator], Loss] = squares
    coupling: Callable[[np.random.Generator], float] = lambda rng: 0.1
    size: float = 1.0

    def problem(self, m: int, seed: int = 0) -> Problem:
        rng = np.random.default_rng(seed)
        sets = mixed_sets(rng, m, N, self.size)
        return Problem([Agent(self.loss(rng), each, self.coupling(rng)) for each in sets])


FAMILIES = {
    "least squares": Family(),
    "ill-conditioned": Family(lambda rng: squares(rng, 1000.0)),
    "loose sets": Family(size=10.0),
    "strong coupling": Family(coupling=lambda rng: 1.0),
    "unequal couplings": Family(coupling=lambda rng: 10 ** rng.uniform(-2, 1)),
    "weak coupling": Family(coupling=lambda rng: 1e-3),
    "logistic": Family(lambda rng: LogisticRegression(*labelled(rng, N, 2), l2=0.01)),
    "softmax": Family(lambda rng: SoftmaxRegression(*labelled(rng, 3, 3), classes=3, l2=0.01)),
}


class Course:
    """The relative gaps of a run to the optimum, and its largest infeasibility."""

    def __init__(self, problem: Problem, best: float) -> None:
        self.problem, self.best = problem, best
        self.gaps: list[float] = []
        self.infeasibility = 0.0

    def __call__(self, evaluation) -> bool:
        objective = self.problem.objective(evaluation.models)
        self.gaps.append((objective - self.best) / abs(self.best))
        outside = self.problem.infeasibility(evaluation.models).max()
        self.infeasibility = max(self.infeasibility, outside)
        return self.gaps[-1] <= TARGET


def rounds_to_target(problem: Problem, best: float, **options) -> tuple[int, Course]:
    """Return the number of rounds until the gap is small, and the course of the run."""
    course = Course(problem, best)
    result = run(problem, PCFedSplit(), local_steps=10, stop=course, **options)
    return (result.state.round if result.status == "stopped" else 10**9), course


@pytest.mark.parametrize("m", [5, 50])
@pytest.mark.parametrize("name", FAMILIES)
def test_rounds_to_the_optimum(name, m):
    problem = FAMILIES[name].problem(m)
    best = optimum(problem).objective
    rounds, course = rounds_to_target(problem, best, rounds=60)
    assert rounds <= 60
    assert course.infeasibility <= 1e-12
    assert course.gaps[0] > 1e-3, "a problem that is solved at the start shows nothing"
    slow = 600 if name == "weak coupling" else 250
    rounds, course = rounds_to_target(problem, best, rounds=slow, participation=0.3)
    assert rounds <= slow
    assert course.infeasibility <= 1e-12


def test_rounds_do_not_grow_with_the_number_of_agents():
    rounds = []
    for m in (10, 300):
        problem = FAMILIES["least squares"].problem(m)
        # Ten times as many rounds as needed: `optimum` would take longer than all other tests here.
        best = run(problem, PCFedSplit(), rounds=250, local_steps=10, eval_every=250)
        rounds.append(rounds_to_target(problem, best.history[-1].objective, rounds=60)[0])
    assert rounds[1] <= 1.5 * rounds[0]


def test_agents_that_never_come_do_not_count():
    problem = FAMILIES["least squares"].problem(10)
    never = [1, 4, 6, 9]
    six = Problem([agent for i, agent in enumerate(problem.agents) if i not in never])
    absent = run(problem, PCFedSplit(), rounds=80, local_steps=10, participation=lambda r: never)
    models = np.delete(absent.models, never, axis=0)
    best = optimum(six)
    assert six.objective(models) <= (1 + TARGET) * best.objective
    np.testing.assert_allclose(absent.state.server["z"], best.models.mean(axis=0), atol=1e-3)
    assert problem.infeasibility(absent.models).max() <= 1e-12


def test_agents_may_join_at_any_time():
    problem = FAMILIES["least squares"].problem(20)
    best = optimum(problem).objective

    def late(index: int) -> list[int]:
        return [i for i in range(12, 20) if index < 40 + i]

    rounds, _ = rounds_to_target(problem, best, rounds=120, participation=late)
    assert rounds <= 100


@pytest.mark.parametrize("factor", [0.01, 100.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_wrong_first_prox_costs_few_rounds(name, factor, monkeypatch):
    problem = FAMILIES[name].problem(20)
    best = optimum(problem).objective
    usual, _ = rounds_to_target(problem, best, rounds=60)
    monkeypatch.setattr(pcfedsplit, "FIRST_PROX", factor * pcfedsplit.FIRST_PROX)
    rounds, _ = rounds_to_target(problem, best, rounds=120)
    assert rounds <= usual + 50


class Misled(LeastSquares):
    """Least squares that expects a wrong curvature."""

    factor: float

    def typical_smoothness(self, batch=None):
        return self.factor * super().typical_smoothness(batch)


@pytest.mark.parametrize(("factor", "limit"), [(0.01, 80), (0.5, 40), (2.0, 40), (100.0, 900)])
def test_a_wrong_curvature_costs_rounds_but_does_not_diverge(factor, limit, monkeypatch):
    monkeypatch.setattr(Misled, "factor", factor, raising=False)
    sound = FAMILIES["least squares"].problem(10)
    agents = []
    for agent in sound.agents:
        X, y = agent.loss._features.matrix, agent.loss._targets
        agents.append(Agent(Misled(X, y), agent.constraint, agent.coupling))
    best = optimum(sound).objective
    rounds, course = rounds_to_target(Problem(agents), best, rounds=limit)
    assert rounds <= limit
    assert max(course.gaps) == course.gaps[0], "it must never be worse than at the start"


# -- what must never happen -----------------------------------------------------------------------


def random_set(rng: np.random.Generator, n: int) -> ConvexSet:
    size = 10 ** rng.uniform(-2, 2)
    kinds = (
        lambda: L1Ball(size),
        lambda: L2Ball(size),
        lambda: LinfBall(size),
        lambda: Box(-size * rng.uniform(0, 1, n), size * rng.uniform(0, 1, n)),
        lambda: Simplex(size),
        lambda: NonNegative(),
        lambda: Halfspace(rng.normal(size=n), rng.normal()),
        lambda: GroupL1Ball([list(range(n // 2)), list(range(n // 2, n))], size),
        lambda: Intersection(L2Ball(size), Halfspace(rng.normal(size=n), size * rng.uniform(0, 1))),
        lambda: WholeSpace(),
    )
    return kinds[rng.integers(len(kinds))]()


def random_run(seed: int) -> tuple[Problem, dict]:
    """Return a random problem and the options of a run, many of them unreasonable."""
    rng = np.random.default_rng(seed)
    m, n = round(10 ** rng.uniform(0, 2)), int(rng.integers(2, 13))
    shift, scale = (1000.0 if rng.random() < 0.2 else 0.0), 10 ** rng.uniform(-2, 2)
    kind, dtype = rng.integers(3), (np.float32 if rng.random() < 0.3 else np.float64)
    sigma = 0.0 if rng.random() < 0.1 else 10 ** rng.uniform(-4, 1)
    agents = []
    for _ in range(m):
        X = (scale * rng.normal(size=(rng.integers(3, 30), n)) + shift).astype(dtype)
        if kind == 0:
            loss = LeastSquares(X, 10 ** rng.uniform(-2, 3) * rng.normal(size=len(X)))
        elif kind == 1:
            loss = LogisticRegression(X, rng.integers(2, size=len(X)))
        else:
            loss = SoftmaxRegression(X, rng.integers(3, size=len(X)), classes=3)
        agents.append(Agent(loss, random_set(rng, loss.n), sigma))
    options = {
        "rounds": 25,
        "local_steps": round(10 ** rng.uniform(0, 1.7)),
        "batch": 1.0 if rng.random() < 0.6 else 0.3,
        "participation": 1.0 if rng.random() < 0.5 else 0.5,
        "seed": seed,
    }
    return Problem(agents), options


def find_fault(seed: int) -> str | None:
    """Return what is wrong with the end of a random run, or None."""
    problem, options = random_run(seed)
    result = run(problem, PCFedSplit(), **options)
    if result.status != "finished" or not result.state.finite:
        return result.message
    if problem.infeasibility(result.models).max() > 1e-9 * (1 + np.abs(result.models).max()):
        return "a model is not feasible"
    if options["batch"] != 1.0:
        return None
    # Objectives are not monotone: very ill-conditioned problems take a few hundred rounds.
    start = problem.objective(certify(problem, np.zeros(problem.n), tightening=0).models)
    if problem.objective(result.models) > start:
        result = run(problem, PCFedSplit(), x0=result, **{**options, "rounds": 400})
    end = problem.objective(result.models)
    return None if end <= start + 1e-6 * abs(start) else f"it ends at {end}, above {start}"


@pytest.mark.parametrize("start", range(0, 50, 10))
def test_nothing_diverges(start):
    faults = {seed: find_fault(seed) for seed in range(start, start + 10)}
    assert not any(faults.values()), faults


# -- batches, dtypes, options ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_float32_steps_reach_the_optimum_nearly_and_models_are_feasible(dtype):
    problem = classifiers(4, dtype=dtype)
    result = run(problem, PCFedSplit(), rounds=150, local_steps=10)
    assert result.models.dtype == result.state.private["W"].dtype == np.float64
    assert certify(problem, result).relative_gap < 1e-4
    assert problem.infeasibility(result.models).max() <= 1e-12


def test_small_batches_come_near_and_growing_ones_arrive():
    problem = classifiers(4)
    best = optimum(problem).objective
    options = {"rounds": 120, "local_steps": 5, "eval_every": 120}
    small = run(problem, PCFedSplit(), batch=0.2, **options).history[-1].objective
    grown = run(problem, PCFedSplit(), batch=lambda r: 0.2 * 1.05**r, **options)
    assert small <= 1.02 * best
    assert grown.history[-1].objective <= (1 + 1e-4) * best


def test_unequal_local_steps_reach_the_optimum():
    problem = FAMILIES["least squares"].problem(4)
    best = optimum(problem).objective
    course = Course(problem, best)
    run(problem, PCFedSplit(), rounds=60, local_steps=[1, 3, 10, 20], stop=course)
    assert course.gaps[-1] <= TARGET


def test_stops_at_a_certified_gap():
    problem = regressions([L1Ball(4.0), L1Ball(6.0), L1Ball(9.0)])
    result = run(problem, PCFedSplit(), rounds=100, local_steps=10, stop=Gap(1e-6, relative=True))
    assert result.status == "stopped"
    certificate = certify(problem, result)
    assert certificate.relative_gap <= 1e-6
    np.testing.assert_array_equal(certificate.models, result.models)  # they are feasible already


def test_a_fixed_prox_needs_no_round_to_begin():
    problem = regressions([L1Ball(4.0), L1Ball(6.0)])
    auto = run(problem, PCFedSplit(), rounds=1, local_steps=3)
    fixed = run(problem, PCFedSplit(prox=0.5), rounds=1, local_steps=3)
    np.testing.assert_array_equal(auto.models, 0.0)
    assert np.abs(fixed.models).max() > 0.1
    assert run(problem, PCFedSplit(prox=0.5), rounds=20).state.server["prox"] == [0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prox": 0.0}, "PCFedSplit: prox must be > 0, got 0.0"),
        ({"prox": "fast"}, "PCFedSplit: prox must be a finite number, got 'fast'"),
        ({"relaxation": 2.0}, r"PCFedSplit: relaxation must be in \(0, 2\), got 2.0"),
        ({"relaxation": float("nan")}, "PCFedSplit: relaxation must be a finite number"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        PCFedSplit(**options)
