"""Exact PC-FedAvg converges to the constrained optimum, and its means are the means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed import Gap, PCFedAvg, certify, run
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


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("participation", [1.0, 0.5], ids=["all", "half absent"])
def test_certified_gap_vanishes_where_the_papers_method_stalls(name, participation):
    problem = regressions([SETS[name](i) for i in range(4)])
    options = {"local_steps": 4, "participation": participation, "eval_every": 500}
    stalls = run(problem, PCFedAvg(0.05, 2.0), rounds=500, **options)
    exact = run(problem, PCFedAvg(0.05, 2.0, exact=True), rounds=8000, stop=Gap(1e-10), **options)
    assert exact.status == "stopped"
    assert certify(problem, exact).gap <= 1e-10
    assert certify(problem, stalls).gap > 1e-4
    assert exact.history[-1].infeasibility.max() < 1e-4


@pytest.mark.parametrize("m", [2, 30])
def test_few_and_many_agents(m):
    problem = regressions([L1Ball(0.5 + 0.1 * i) for i in range(m)])
    algorithm = PCFedAvg(0.03 if m == 2 else 0.2, 2.0, exact=True)
    result = run(problem, algorithm, rounds=6000, local_steps=3, eval_every=250, stop=Gap(1e-9))
    assert result.status == "stopped"


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
