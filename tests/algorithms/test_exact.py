"""Exact PC-FedAvg converges to the constrained optimum, and its means are the means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import Gap, PCFedAvg, certify, run
from pcfed.algorithms import RunInfo
from pcfed.sets import Box, L1Ball, L2Ball, LinfBall, Simplex
from tests.federations import N, classifiers, regressions

SETS = {
    "l1": lambda i: L1Ball(0.5 + 0.5 * i),
    "l2": lambda i: L2Ball(0.3 + 0.3 * i),
    "cube": lambda i: LinfBall(0.1 + 0.1 * i),
    "box": lambda i: Box(-0.2, 0.1 * (i + 1)),
    "simplex": lambda i: Simplex(1.0 + i),
    "mixed": lambda i: (L1Ball(1.0), L2Ball(0.5), Box(-0.1, 0.3), Simplex(1.0))[i % 4],
}


PROBLEMS = [(name, m, 1 + (i + m) % 10) for i, name in enumerate(SETS) for m in (2, 5, 10)]
PROBLEMS += [("l1", 20, 5), ("simplex", 20, 8), ("l1", 50, 5)]
"""21 problems: the kind of sets, the number of agents, the local steps of a round."""


@pytest.mark.parametrize("participation", [1.0, 0.5], ids=["all", "half absent"])
@pytest.mark.parametrize(("name", "m", "local_steps"), PROBLEMS)
def test_certified_gap_vanishes_with_step_and_penalty_auto(name, m, local_steps, participation):
    problem = regressions([SETS[name](i % 8) for i in range(m)], seed=m + local_steps)
    result = run(
        problem,
        PCFedAvg("auto", "auto", exact=True),
        rounds=9000,
        local_steps=local_steps,
        participation=participation,
        eval_every=100,
        stop=Gap(1e-10),
    )
    assert result.status == "stopped"
    assert certify(problem, result).gap <= 1e-10


@pytest.mark.parametrize("name", SETS)
def test_the_papers_method_stalls(name):
    problem = regressions([SETS[name](i) for i in range(4)])
    result = run(problem, PCFedAvg(0.05, 2.0), rounds=500, local_steps=4, eval_every=500)
    assert certify(problem, result).gap > 1e-4


def test_batches_that_grow_let_the_gap_go_on_falling():
    problem = classifiers(4)
    algorithm = PCFedAvg("auto", "auto", exact=True)
    options = {"rounds": 300, "local_steps": 5, "eval_every": 300}
    few = run(problem, algorithm, batch=0.2, **options)
    growing = run(problem, algorithm, batch=lambda r: 0.2 * 1.02**r, **options)
    assert certify(problem, growing).gap < 1e-3 < certify(problem, few).gap


def test_a_step_that_decays_has_less_noise_in_the_end():
    problem = classifiers(4)
    options = {"rounds": 400, "local_steps": 5, "eval_every": 400, "batch": 0.2}
    auto = PCFedAvg("auto", "auto", exact=True)
    first = auto.resolved(problem, RunInfo(400, 5, (10,) * 4))
    constant = certify(problem, run(problem, first, **options))
    decaying = certify(problem, run(problem, auto, **options))
    assert decaying.objective < constant.objective


@settings(max_examples=30)
@given(
    absent=st.lists(st.sets(st.integers(0, 3)), min_size=6, max_size=6),
    steps=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    seed=st.integers(0, 100),
)
def test_the_three_audits_hold_after_every_round(absent, steps, seed):
    """w̄ = mean w_i, ĉv = mean cv_i, ĉu = mean cu_i, those included who were away."""
    problem = classifiers(4)
    algorithm = PCFedAvg(0.1, 2.0, exact=True)
    result = None
    for _ in range(6):
        result = run(
            problem,
            algorithm,
            rounds=1,
            local_steps=steps,
            participation=absent,
            batch=0.2,
            seed=seed,
            x0=result,
        )
        server, private = result.state.server, result.state.private
        offsets = result.models - server["C"]
        np.testing.assert_allclose(offsets.mean(axis=0), server["w_mean"], atol=1e-13)
        np.testing.assert_allclose(private["cv"].mean(axis=0), server["cv_mean"], atol=1e-13)
        np.testing.assert_allclose(private["cu"].mean(axis=0), server["cu_mean"], atol=1e-13)


def test_without_corrections_it_is_the_plain_method():
    """In its first round all corrections are zero."""
    problem = regressions([L1Ball(0.5), L1Ball(1.0), L1Ball(2.0)])
    x0 = np.random.default_rng(0).normal(size=(3, N))
    both = [
        run(problem, PCFedAvg(0.05, 2.0, exact=exact), rounds=1, local_steps=4, x0=x0).models
        for exact in (False, True)
    ]
    np.testing.assert_allclose(both[0], both[1], atol=1e-14)
