"""Threads: how many a run uses by itself, with one BLAS thread each, and always the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pcfed import Agent, PCFedSplit, Problem, run
from pcfed.losses import LeastSquares, Loss
from pcfed.sets import L1Ball
from pcfed.simulation import threads
from pcfed.simulation.plan import Plan
from pcfed.simulation.threads import num_workers


class OwnLoss(LeastSquares):
    """A loss of a user's own."""


def problem_of(samples: int, loss: type[Loss] = LeastSquares, m: int = 3) -> Problem:
    rng = np.random.default_rng(0)
    return Problem(
        [
            Agent(loss(rng.normal(size=(samples, 40)), rng.normal(size=samples)), L1Ball(1.0), 0.1)
            for _ in range(m)
        ]
    )


def chosen(workers, problem):
    plan = Plan(
        problem,
        local_steps=5,
        batch=1.0,
        sampling="without_replacement",
        participation=1.0,
        seed=0,
    )
    return num_workers(workers, problem, plan)


def test_large_problems_use_all_cores_and_not_more_than_agents(monkeypatch):
    large = problem_of(20_000)
    for cores, expected in ((1, 1), (2, 2), (64, 3)):
        monkeypatch.setattr(threads, "_num_cores", lambda cores=cores: cores)
        assert chosen("auto", large) == expected
    assert chosen(5, large) == 5


def test_small_problems_and_own_losses_use_one(monkeypatch):
    monkeypatch.setattr(threads, "_num_cores", lambda: 64)
    assert chosen("auto", problem_of(10)) == 1
    assert chosen("auto", problem_of(20_000, OwnLoss)) == 1


@pytest.mark.parametrize("workers", [0, 1.5, "all"])
def test_other_values_are_refused(workers):
    with pytest.raises(ValueError, match="run: workers must be"):
        run(problem_of(5), PCFedSplit(), rounds=1, workers=workers)


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_one_blas_thread_while_it_runs():
    seen: list[list[int]] = []
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        run(
            problem_of(5),
            PCFedSplit(),
            rounds=1,
            callbacks=[lambda _: seen.append(blas_threads())],
        )
        assert blas_threads() == before
    assert 2 in before
    assert seen == [[1] * len(before)]


def test_bits_do_not_depend_on_workers_and_blas_threads():
    problem, results = problem_of(3_000), []
    for workers, blas in (("auto", 2), (1, 1), (1, 2), (2, 2), (3, 1)):
        with threadpool_limits(blas, user_api="blas"):
            result = run(problem, PCFedSplit(), rounds=4, local_steps=4, workers=workers)
        results.append(result.models.tobytes())
    assert len(set(results)) == 1
