"""An agent whose numbers fail does not poison the others: it is refused, reported, and limited."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import Agent, FedAvg, Gap, PCFedAvg, PCFedSplit, PFedHN, Problem, RefusalPolicy, run
from pcfed.losses import LeastSquares
from pcfed.sets import CustomSet, L1Ball
from tests.federations import ALGORITHMS, regressions
from tests.simulation.test_run import every_algorithm, same

BALLS = [L1Ball(1.0), L1Ball(2.0), L1Ball(3.0)]


class Failing(LeastSquares):
    """A loss that turns into something else after so many gradients."""

    def __init__(self, *data, after: int, becomes: float, value_too: bool) -> None:
        self.becomes, self.value_too = becomes, value_too
        self.calls = iter(range(after))
        self.failed = []
        super().__init__(*data)

    def gradient(self, x, rows=None, *, out=None):
        g = super().gradient(x, rows, out=out)
        if next(self.calls, None) is None:
            self.failed.append(True)
            g[0] = self.becomes
        return g

    def value(self, x):
        fails = self.failed and self.value_too
        return self.becomes if fails else super().value(x)


def with_a_failing_agent(after, becomes, value_too=True) -> Problem:
    sound = regressions(BALLS)
    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(6, sound.n)), rng.normal(size=6)
    loss = Failing(X, y, after=after, becomes=becomes, value_too=value_too)
    return Problem([*sound.agents, Agent(loss, L1Ball(1.0), 0.1)])


@pytest.mark.parametrize("workers", [1, 2])
def test_an_iteration_that_ends_in_an_agent_does_not_end_the_round(workers):
    class Empty(LeastSquares):
        def gradient(self, x, rows=None, *, out=None):
            return next(iter([]))

    problem = Problem([Agent(Empty(np.eye(2), np.ones(2)), L1Ball(1.0)) for _ in range(3)])
    with pytest.raises(RuntimeError, match="StopIteration"):
        run(problem, FedAvg(0.1), rounds=2, workers=workers)


def gradients_in_three_rounds(algorithm) -> int:
    """Return how many gradients an agent computes, which methods differ in."""
    problem = with_a_failing_agent(999, np.nan)
    run(problem, algorithm, rounds=3, local_steps=2)
    return 999 - len(list(problem.agents[-1].loss.calls))


@every_algorithm
@pytest.mark.parametrize("becomes", [np.nan, np.inf])
def test_the_others_go_on_as_if_the_agent_had_left(algorithm, becomes):
    options = {"rounds": 8, "local_steps": 2}
    result = run(
        with_a_failing_agent(gradients_in_three_rounds(algorithm), becomes, value_too=False),
        algorithm,
        refusals=RefusalPolicy(50),
        **options,
    )
    assert result.status == "finished"
    assert [(r.round, r.agent) for r in result.refusals] == [(r, 3) for r in range(3, 8)]
    gone = run(
        with_a_failing_agent(999, becomes),
        algorithm,
        participation=lambda index: [3] if index >= 3 else [],
        **options,
    )
    same_models = np.testing.assert_array_equal
    same_models(result.models, gone.models)
    assert result.history[-1].objective == gone.history[-1].objective


def test_a_loss_without_a_value_is_reported_and_does_not_end_the_run():
    problem = with_a_failing_agent(6, np.nan)
    options = {"rounds": 8, "local_steps": 2, "stop": Gap(1e-12)}
    result = run(problem, ALGORITHMS["FedAvg"], refusals=RefusalPolicy(50), **options)
    assert result.status == "finished"
    assert np.isfinite(result.models).all()
    assert {(r.agent, r.reason) for r in result.refusals} == {
        (3, "it is not finite"),
        (3, "its loss is not finite"),
    }


@pytest.mark.parametrize("allowed", [0, 3])
def test_after_so_many_refusals_the_run_ends(allowed):
    problem = with_a_failing_agent(6, np.nan, value_too=False)
    result = run(
        problem, FedAvg(step=0.1), rounds=20, local_steps=2, refusals=RefusalPolicy(allowed)
    )
    assert result.status == "diverged"
    assert len(result.refusals) == allowed + 1
    assert f"Diverged in round {3 + allowed}: the update of agent 3 was refused" in result.message
    assert result.state.round == 3 + allowed


def test_a_projection_that_fails_is_refused():
    def project(x):
        if x.any():
            raise RuntimeError("no such point")
        return x

    sets = [*BALLS[:2], CustomSet(project)]
    result = run(
        regressions(sets), PCFedAvg(step=0.1, penalty=1.0), rounds=3, refusals=RefusalPolicy(9)
    )
    assert {r.agent for r in result.refusals} == {2}
    assert "its projection failed: " in result.refusals[0].reason
    assert "project raised RuntimeError: no such point" in result.refusals[0].reason
    assert np.isfinite(result.models).all()


@every_algorithm
def test_updates_beyond_the_norm_limit_are_refused(algorithm):
    problem = regressions(BALLS)
    options = {"rounds": 4, "local_steps": 2, "seed": 3}
    free = run(problem, algorithm, **options)
    same(run(problem, algorithm, refusals=RefusalPolicy(norm_limit=1e9), **options), free)
    tight = run(problem, algorithm, refusals=RefusalPolicy(99, norm_limit=1e-9), **options)
    if ALGORITHMS["Local"] == algorithm:  # nothing is sent
        same(tight, free)
        return
    rounds = 3 if isinstance(algorithm, PCFedSplit) else 4  # it moves nothing in its first round
    assert len(tight.refusals) == 3 * rounds
    assert tight.refusals[0].reason.startswith("its norm ")
    assert tight.refusals[0].reason.endswith(" is above the limit 1e-09")
    if not isinstance(algorithm, PFedHN):  # its first models are random
        np.testing.assert_array_equal(tight.models, 0.0)


def test_a_norm_limit_must_be_positive():
    with pytest.raises(ValueError, match="RefusalPolicy: norm_limit must be > 0, got -1"):
        run(regressions(BALLS), FedAvg(step=0.1), rounds=1, refusals=RefusalPolicy(norm_limit=-1.0))
