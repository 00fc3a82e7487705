"""Means over all local steps are within the bounds of the theorem."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pcfed import Agent, PCFedAvg, Problem, run
from pcfed.guarantees import bounds, constants, noise_bound, noise_estimate, optimum, rounds_for
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sampling import BatchSampler
from pcfed.sets import Box, Halfspace, L1Ball, L2Ball, LinfBall, NonNegative, Simplex, WholeSpace
from tests.federations import classifiers, regressions
from tests.guarantees.iterates import iterates, means

SETS = [
    lambda rng: L1Ball(rng.uniform(0.2, 2)),
    lambda rng: L2Ball(rng.uniform(0.1, 1)),
    lambda rng: LinfBall(rng.uniform(0.1, 0.5)),
    lambda rng: Box(rng.uniform(-1, 0), rng.uniform(0, 0.5)),
    lambda rng: Simplex(rng.uniform(0.5, 2)),
    lambda rng: Halfspace(rng.normal(size=4), rng.normal()),
    lambda rng: NonNegative(),
    lambda rng: WholeSpace(),
]
# m, H, R, penalty, where to start
RUNS = [
    (2, 1, 40, 1.0, "zero"),
    (2, 50, 4, 10.0, "far"),
    (2, 3, 100, 100.0, "far"),
    (2, 2, 60, 0.1, "optimum"),
    (3, 10, 10, 3.0, "optimum"),
    (3, 1, 50, 5.0, "optimum"),
    (3, 50, 3, 1.0, "optimum"),
    (4, 20, 6, 10.0, "zero"),
    (4, 5, 20, 0.5, "far"),
    (5, 1, 80, 30.0, "optimum"),
    (5, 7, 12, 2.0, "far"),
    (6, 2, 40, 6.0, "zero"),
    (8, 1, 40, 1000.0, "optimum"),
    (8, 16, 5, 1.0, "optimum"),
    (10, 1, 60, 8.0, "far"),
    (10, 10, 6, 3.0, "optimum"),
    (12, 4, 12, 50.0, "zero"),
    (16, 2, 20, 4.0, "optimum"),
    (20, 1, 40, 1.0, "optimum"),
    (20, 8, 5, 2.0, "far"),
    (30, 3, 8, 5.0, "optimum"),
    (40, 1, 15, 6.0, "far"),
    (50, 2, 8, 7.0, "optimum"),
    (50, 50, 1, 2.0, "optimum"),
]


def random_problem(m: int, seed: int) -> Problem:
    """Losses that disagree, couplings from none to strong, sets that bind and sets that do not."""
    rng = np.random.default_rng(seed)
    agents = []
    for i in range(m):
        X = rng.normal(size=(6, 4)) * rng.uniform(0.3, 2)
        target = rng.normal(size=4) * 3
        if seed % 2:
            loss = LeastSquares(X, X @ target)
        else:
            loss = LogisticRegression(X, (X @ target > 0).astype(int))
        coupling = float(rng.choice([0.0, 0.1, 1.0, 5.0]))
        agents.append(Agent(loss, SETS[(seed + i) % len(SETS)](rng), coupling))
    return Problem(agents)


@pytest.mark.parametrize("seed", range(len(RUNS)), ids=[f"m{m}-H{H}" for m, H, *_ in RUNS])
def test_full_batches_stay_within_all_three_bounds(seed):
    m, H, R, penalty, start = RUNS[seed]
    problem = random_problem(m, seed)
    best = optimum(problem, tolerance=1e-9)
    penalised = optimum(problem, penalty=penalty, tolerance=1e-9)
    assert best.status == penalised.status == "converged"
    x0 = {"zero": np.zeros(4), "far": np.full(4, 3.0), "optimum": penalised.models}[start]
    known = constants(
        problem,
        penalty=penalty,
        local_steps=H,
        x0=x0,
        constrained=best,
        penalised=penalised,
    )
    promised = bounds(known, rounds=R)
    seen = means(
        problem,
        best.objective,
        step=promised.step,
        penalty=penalty,
        rounds=R,
        local_steps=H,
        x0=x0,
    )
    total = seen.squares.sum()
    assert seen.suboptimality <= promised.upper.value + 1e-7
    above = best.objective - penalised.objective + seen.suboptimality + penalty / (2 * m) * total
    assert above <= promised.upper.value + 1e-7  # Proposition 4.7, of which the rest follows
    assert total <= promised.infeasibility.value + 1e-7
    assert seen.suboptimality >= promised.lower.value - 1e-7


@pytest.mark.parametrize("sampling", ["without_replacement", "with_replacement", "blocks"])
def test_means_over_seeds_stay_within_the_bounds_with_noise(sampling):
    problem = classifiers(3)
    penalty, R, H, batch = 2.0, 6, 3, 5
    best, penalised = optimum(problem), optimum(problem, penalty=penalty)
    known = constants(
        problem,
        penalty=penalty,
        local_steps=H,
        batch=batch,
        sampling=sampling,
        x0=penalised.models,
        constrained=best,
        penalised=penalised,
    )
    promised = bounds(known, rounds=R)
    options = {"step": promised.step, "penalty": penalty, "rounds": R, "local_steps": H}
    options |= {"batch": batch, "sampling": sampling, "x0": penalised.models}
    seen = [means(problem, best.objective, seed=seed, **options) for seed in range(40)]
    gap = np.mean([each.suboptimality for each in seen])
    squares = np.mean([each.squares.sum() for each in seen])
    assert promised.lower.value <= gap <= promised.upper.value
    assert squares <= promised.infeasibility.value


def test_the_iterates_are_those_of_a_run():
    problem = regressions([L1Ball(1.0), L2Ball(0.5), Box(-0.2, 0.3)])
    options = {"rounds": 4, "local_steps": 3, "batch": 5, "seed": 3}
    *_, last = iterates(problem, step=0.02, penalty=3.0, **options)
    result = run(problem, PCFedAvg(step=0.02, penalty=3.0), **options)
    np.testing.assert_allclose(last, result.models, rtol=0, atol=1e-13)
    cut = {**options, "output": "random"}
    chosen = run(problem, PCFedAvg(step=0.02, penalty=3.0), **cut).models
    everything = list(iterates(problem, step=0.02, penalty=3.0, **options))[:-1]
    assert min(np.abs(each - chosen).max() for each in everything) < 1e-13


def test_a_run_can_violate_the_printed_bound_where_the_corrected_one_holds():
    """One agent of 20 bears all of the gradient: its distance is m‖∇f‖/ρ, beyond √(5m)‖∇f‖/ρ."""
    m, penalty = 20, 1000.0
    loss = LeastSquares(np.eye(1), np.array([1.0]))
    sets = [Halfspace(np.array([1.0]), -1.0), *(WholeSpace() for _ in range(m - 1))]
    problem = Problem([Agent(loss, each, coupling=1.0) for each in sets])
    best = optimum(problem, tolerance=1e-12)
    penalised = optimum(problem, penalty=penalty, tolerance=1e-12)
    known = constants(
        problem, penalty=penalty, x0=penalised.models, constrained=best, penalised=penalised
    )
    ours, printed = bounds(known, rounds=50), bounds(known, rounds=50, as_printed=True)
    seen = means(
        problem,
        best.objective,
        step=ours.step,
        penalty=penalty,
        rounds=50,
        x0=penalised.models,
    )
    assert seen.squares.max() > 1.5 * printed.infeasibility.value
    assert seen.squares.sum() < ours.infeasibility.value
    assert "as printed" in printed.infeasibility.reference


def test_rounds_for_is_the_smallest_sufficient_number():
    problem = regressions([L1Ball(0.5), L2Ball(0.5)])
    best, penalised = optimum(problem), optimum(problem, penalty=1.0)
    known = constants(problem, penalty=1.0, local_steps=5, constrained=best, penalised=penalised)
    needed = rounds_for(0.1, known)
    for part, sign in (("upper", 1), ("infeasibility", 1), ("lower", -1)):
        R = getattr(needed, part)
        for rounds, met in ((R, True), (R - 1, False)):
            at = constants(problem, penalty=np.sqrt(rounds), local_steps=5)
            at = type(at)(
                **{**vars(at), "Q": known.Q, "M": known.M, "gradient_norm": known.gradient_norm}
            )
            value = sign * getattr(bounds(at, rounds=rounds), part).value
            assert (value <= 0.1) == met


def test_constants_are_the_gradients_of_all_blocks():
    """By finite differences of what every agent sees: all m blocks, coupling and penalty."""
    problem = regressions([L1Ball(0.5), L2Ball(0.3), Box(-0.1, 0.2)], n=4)
    rho, step = 3.0, 1e-6
    best, penalised = optimum(problem), optimum(problem, penalty=rho)
    start = np.random.default_rng(0).normal(size=(3, 4))
    known = constants(
        problem, penalty=rho, x0=start, constrained=best, penalised=penalised, batch=1.0
    )

    def seen_by(i: int, x: np.ndarray, rho: float) -> float:
        agent, mean = problem.agents[i], x.mean(axis=0)
        pull = agent.coupling / 2 * np.sum((x[i] - mean) ** 2)
        return agent.loss.value(mean) + pull + rho / 2 * agent.feasible_set.distance(x[i]) ** 2

    def mean_square(x: np.ndarray, rho: float) -> float:
        total = 0.0
        for i, *index in np.ndindex(3, 3, 4):
            change = np.zeros((3, 4))
            change[tuple(index)] = step
            slope = (seen_by(i, x + change, rho) - seen_by(i, x - change, rho)) / (2 * step)
            total += slope**2
        return total / 3

    assert np.isclose(known.M, mean_square(penalised.models, rho), rtol=1e-6)
    assert np.isclose(known.M_printed, mean_square(best.models, 0.0), rtol=1e-6)
    assert np.isclose(known.Q, np.linalg.norm(start - penalised.models) ** 2)
    slope = np.linalg.norm(problem.gradient(best.models))
    assert slope <= known.gradient_norm <= slope + np.sqrt(2 * problem.L_G(0.0) * 1e-8)


def test_bounds_have_claims_assumptions_and_references():
    problem = regressions([L1Ball(0.5), L2Ball(0.5)])
    known = constants(
        problem,
        penalty=1.0,
        constrained=optimum(problem),
        penalised=optimum(problem, penalty=1.0),
    )
    promised = bounds(known, rounds=10)
    assert float(promised.upper) == promised.upper.value > 0 >= promised.lower.value
    assert len(promised.upper.assumptions) >= 4
    assert "Proposition 4.8 (ii)" in promised.infeasibility.reference
    assert "Σ E[d²] ≤" in str(promised)
    assert "largest step that the theorem admits" in str(known)
    assert "unknown" in str(constants(problem, penalty=1.0))
    assert known.largest_step == problem.largest_step(1.0, 1)
    assert problem.L_G(1.0) == known.L_G


# -- noise ----------------------------------------------------------------------------------------

LOSSES = {
    "softmax": lambda X, y, **k: SoftmaxRegression(X, y % 3, classes=3, **k),
    "logistic": lambda X, y, **k: LogisticRegression(X, y % 2, **k),
}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_noise_bounds_hold_for_every_batch_and_point(kind, intercept):
    rng = np.random.default_rng(5)
    N, b = 7, 3
    X, y = rng.normal(size=(N, 4)), rng.integers(6, size=N)
    loss = LOSSES[kind](X, y, intercept=intercept, l2=0.5)
    problem = Problem([Agent(loss, WholeSpace(), 0.0)])
    draws = {
        "without_replacement": [(list(rows), 1.0) for rows in itertools.combinations(range(N), b)],
        "with_replacement": [(list(rows), 1.0) for rows in itertools.product(range(N), repeat=b)],
        "blocks": [([0, 1, 2], 3.0), ([3, 4, 5], 3.0), ([6], 1.0)],
    }
    for sampling, batches in draws.items():
        bound = noise_bound(problem, batch=b, sampling=sampling)
        weights = np.array([weight for _, weight in batches])
        for scale in (0.0, 1.0, 100.0):
            x = scale * rng.normal(size=loss.n)
            errors = [loss.gradient(x, np.array(rows)) - loss.gradient(x) for rows, _ in batches]
            variance = np.average([e @ e for e in errors], weights=weights)
            assert variance <= bound * (1 + 1e-12)
            estimate = noise_estimate(problem, [x], batch=b, sampling=sampling)
            if sampling == "blocks":
                assert variance <= estimate * (1 + 1e-9)
            else:
                assert estimate == pytest.approx(variance, rel=1e-9)


def test_softmax_noise_is_the_formula_of_the_largest_agent():
    problem = classifiers(3)
    N, b = 50, 5
    squares = [np.mean(np.sum(a.loss._features.matrix**2, axis=1)) for a in problem.agents]
    expected = (N - b) / (b * (N - 1)) * 2 * max(squares)
    assert noise_bound(problem, batch=0.1) == pytest.approx(expected, rel=1e-12)


def test_full_batches_have_no_noise_and_least_squares_no_bound():
    problem = regressions([L1Ball(1.0), L1Ball(2.0)])
    assert noise_bound(problem, batch=1.0) == 0
    assert noise_bound(problem, batch=1.0, sampling="blocks") == 0
    assert noise_bound(problem, batch=0.5) == np.inf
    assert noise_bound(problem, batch=1.0, sampling="with_replacement") == np.inf
    estimated = constants(problem, penalty=1.0, batch=0.5, noise_at=[np.ones(9)])
    assert 0 < estimated.nu2 < np.inf
    assert estimated.nu2_estimated
    assert "an estimate" in str(estimated)
    assert BatchSampler(10, 10).is_full_batch
