"""The compact form is the paper's Algorithm 1: same iterates, with absences and unequal steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import PCFedAvg, Power, Problem, run
from pcfed.reference import reference
from tests.federations import CLOSED_FORM, ITERATIVE, N, classifiers, regressions

ROUNDS = 8
UNEQUAL = [1, 3, 5, 2]
ABSENT = [[], [0], [1, 2], [3], [0, 1, 2, 3], [], [2], []]


def problem_with(make, m: int = 4) -> Problem:
    rng = np.random.default_rng(1)
    return regressions([make(rng) for _ in range(m)])


def gap(problem: Problem, algorithm: PCFedAvg, **options) -> float:
    """Largest difference of the two forms over all rounds, relative to the size of the models."""
    blocks = reference(problem, algorithm, rounds=ROUNDS, **options)
    seen = []
    run(problem, algorithm, rounds=ROUNDS, callbacks=[lambda e: seen.append(e.models)], **options)
    assert np.ptp(blocks[-1] - blocks[0]) > 1e-3, "a test in which nothing moves shows nothing"
    return float(np.abs(np.stack(seen) - blocks[1:]).max() / np.abs(blocks).max())


@pytest.mark.parametrize("name", CLOSED_FORM)
@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 4},
        {"local_steps": UNEQUAL, "participation": ABSENT},
        {"local_steps": UNEQUAL, "participation": ABSENT, "batch": 0.3},
    ],
    ids=["all agents", "absences", "absences and batches"],
)
def test_compact_equals_m_blocks(name, options):
    problem = problem_with(CLOSED_FORM[name])

    def step(index: int) -> float:  # steps that change by round
        return 0.1 * (1 + 0.5 * (-1) ** index)

    assert gap(problem, PCFedAvg(step, penalty=3.0), **options) <= 1e-12


@pytest.mark.parametrize("name", ITERATIVE)
def test_compact_equals_m_blocks_with_iterative_projections(name):
    problem = problem_with(ITERATIVE[name])
    options = {"local_steps": UNEQUAL, "participation": ABSENT}
    assert gap(problem, PCFedAvg(step=0.1, penalty=3.0), **options) <= 1e-8


def test_compact_equals_m_blocks_from_unequal_models():
    rng = np.random.default_rng(0)
    problem = problem_with(CLOSED_FORM["l1"])
    algorithm = PCFedAvg(step=Power(exponent=-0.5, scale=0.2), penalty=Power(exponent=0.25))
    assert gap(problem, algorithm, local_steps=3, x0=rng.normal(size=(4, N))) <= 1e-12


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    m=st.integers(2, 5),
    seed=st.integers(0, 1000),
    absent=st.lists(st.sets(st.integers(0, 1)), min_size=ROUNDS, max_size=ROUNDS),
    steps=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    batch=st.sampled_from([1.0, 0.2, 1]),
    sampling=st.sampled_from(["without_replacement", "with_replacement", "blocks"]),
)
def test_compact_equals_m_blocks_under_random_schedules(m, seed, absent, steps, batch, sampling):
    options = {
        "local_steps": steps[:m],
        "participation": absent,
        "batch": batch,
        "sampling": sampling,
        "seed": seed,
    }
    algorithm = PCFedAvg(step=0.01, penalty=2.0)
    problem = problem_with(CLOSED_FORM["l1"], m)
    blocks = reference(problem, algorithm, rounds=ROUNDS, **options)
    result = run(problem, algorithm, rounds=ROUNDS, **options)
    np.testing.assert_allclose(result.models, blocks[-1], rtol=0, atol=1e-12 * np.abs(blocks).max())


@pytest.mark.parametrize("participation", [1.0, 0.5, ABSENT], ids=["all", "half", "schedule"])
def test_mean_offset_is_the_mean_of_the_offsets_after_every_round(participation):
    problem = classifiers(4)
    result = None
    for _ in range(ROUNDS):
        result = run(
            problem,
            PCFedAvg(step=0.3, penalty=3.0),
            rounds=1,
            local_steps=UNEQUAL,
            batch=0.2,
            participation=participation,
            x0=result,
        )
        w = result.state.private["w"]
        assert np.abs(result.state.server["w_mean"] - w.mean(axis=0)).max() <= 1e-15
        np.testing.assert_allclose(result.average, result.models.mean(axis=0), atol=1e-14)
    assert np.abs(w).max() > 1e-3, "budgets must bind, or w stays zero"


def test_printed_rule_differs_from_the_gradient_rule():
    rng = np.random.default_rng(0)
    problem = problem_with(CLOSED_FORM["l1"])
    algorithm = PCFedAvg(step=0.1, penalty=3.0)
    x0 = rng.normal(size=(4, N))
    both = [reference(problem, algorithm, rounds=2, x0=x0, rule=r) for r in ("gradient", "printed")]
    assert np.abs(both[0] - both[1]).max() > 1e-3


def test_one_step_of_the_gradient_rule_is_a_gradient_step_of_the_penalised_objective():
    """With H = 1 and full batches, all blocks together move by −γ ∇G_ρ (finite differences)."""
    rng = np.random.default_rng(0)
    problem = problem_with(CLOSED_FORM["l1"])
    gamma, rho = 0.01, 3.0
    x0 = rng.normal(size=(4, N))

    def penalised(x: np.ndarray) -> float:
        return problem.objective(x) + rho / 2 * np.mean(problem.infeasibility(x) ** 2)

    gradient = np.empty_like(x0)
    for index in np.ndindex(*x0.shape):
        e = np.zeros_like(x0)
        e[index] = 1e-6
        gradient[index] = (penalised(x0 + e) - penalised(x0 - e)) / 2e-6
    moved = run(problem, PCFedAvg(step=gamma, penalty=rho), rounds=1, x0=x0).models
    np.testing.assert_allclose(moved, x0 - gamma * gradient, atol=1e-8)
