"""Whatever happens between rounds, the run is the one that nothing ever happened to.

Agents come and go, their local steps change, processes die, checkpoints are damaged: after each of
these, the state has the bits of a run without a pause, and obeys the invariants of the method.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pcfed import PCFedAvg, Problem
from pcfed.reference import reference
from pcfed.sets import Box, L1Ball, L2Ball, WholeSpace
from pcfed.simulation.checkpoint import Checkpoint
from tests.federations import ALGORITHMS, classifiers, regressions
from tests.simulation.checkpointed import run
from tests.simulation.test_checkpoint import Killed, dying_at
from tests.simulation.test_run import same

PROBLEMS = {
    "regressions": regressions([L1Ball(0.5), L2Ball(0.3), Box(-0.1, 0.2), WholeSpace()], n=4),
    "classifiers": classifiers(3),
}


class Rounds:
    """A schedule that grows: in every round the value of the moment it was asked for."""

    def __init__(self, value) -> None:
        self.now, self._past = value, []

    def __call__(self, index):
        self._past += [self.now] * (index + 1 - len(self._past))
        return self._past[index]

    def __repr__(self) -> str:
        return "a schedule that grows"


class Schedules(RuleBasedStateMachine):
    """One run of one method, in many pieces."""

    algorithm = ALGORITHMS["FedAvg"]

    @initialize(
        problem=st.sampled_from(sorted(PROBLEMS)),
        batch=st.sampled_from([1.0, 0.2, 3]),
        sampling=st.sampled_from(["without_replacement", "with_replacement", "blocks"]),
        seed=st.integers(0, 1000),
        every=st.integers(1, 3),
        absent=st.frozensets(st.integers(0, 2)),
    )
    def begin(self, problem, batch, sampling, seed, every, absent):
        self.problem: Problem = PROBLEMS[problem]
        self.absent = Rounds(absent)
        self.steps = Rounds((1, 3, 2, 2)[: self.problem.m])
        self.options = {
            "local_steps": self.steps,
            "participation": self.absent,
            "batch": batch,
            "sampling": sampling,
            "seed": seed,
            "x0": np.random.default_rng(seed).normal(size=(self.problem.m, self.problem.n)),
        }
        self.every, self.rounds = every, 0
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "run.ckpt"
        self.result = None

    def teardown(self):
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def go_on(self, rounds, **options):
        """Run up to a round, from what is on the disk; say so if that is damaged."""
        damaged = self.damaged
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return run(
                    self.problem,
                    self.algorithm,
                    rounds=rounds,
                    checkpoint=self.path,
                    every=self.every,
                    resume=True,
                    **self.options,
                    **options,
                )
            finally:
                said = [str(each.message) for each in caught]
                assert len(said) == damaged, said
                assert all("the one before it is used" in each for each in said)

    @property
    def damaged(self):
        """Whether the newest checkpoint is: a few bits say nothing."""
        try:
            return self.path.exists() and not Checkpoint.load(self.path)
        except ValueError:
            return True

    @rule(number=st.integers(1, 4))
    def play(self, number):
        self.rounds += number
        self.result = self.go_on(self.rounds)

    @rule(number=st.integers(1, 4), data=st.data())
    def die(self, number, data):
        """Die in some round, and lose what was not yet saved."""
        last = self.rounds + data.draw(st.integers(1, number))
        with pytest.raises(Killed):
            self.go_on(self.rounds + number, callbacks=[dying_at(last)])
        self.rounds += number
        self.result = None

    @precondition(lambda self: self.rounds)
    @rule()
    def resume(self):
        self.result = self.go_on(self.rounds)

    @rule(agent=st.integers(0, 3))
    def leave_or_return(self, agent):
        if agent < self.problem.m:
            self.absent.now = self.absent.now ^ {agent}

    @rule(data=st.data())
    def change_steps(self, data):
        some = st.lists(st.integers(1, 4), min_size=self.problem.m, max_size=self.problem.m)
        self.steps.now = tuple(data.draw(some))

    @precondition(lambda self: self.path.with_name("run.ckpt.previous").exists())
    @precondition(lambda self: not self.damaged)
    @rule(share=st.floats(0, 0.99), bit=st.none() | st.integers(0, 7))
    def damage(self, share, bit):
        """Damage the newest checkpoint, so that the rounds since the one before it are lost."""
        content = bytearray(self.path.read_bytes())
        place = int(share * len(content))
        if bit is None:
            content = content[:place]
        else:
            content[place] ^= 1 << bit
        self.path.write_bytes(content)
        self.result = None

    @invariant()
    def the_bits_are_those_of_a_run_without_a_pause(self):
        if self.result is not None:
            whole = run(self.problem, self.algorithm, rounds=self.rounds, **self.options)
            same(self.result, whole)
            assert self.result.state.round == whole.state.round == self.rounds

    @invariant()
    def the_means_are_the_means(self):
        if self.result is None:
            return
        server, private = self.result.state.server, self.result.state.private
        for name, vectors in self.algorithm.audited(server, private).items():
            np.testing.assert_allclose(vectors.mean(axis=0), server[name], atol=1e-13)

    @invariant()
    def the_models_are_those_of_the_paper(self):
        if self.result is not None and isinstance(self.algorithm, PCFedAvg):
            blocks = reference(self.problem, self.algorithm, rounds=self.rounds, **self.options)
            np.testing.assert_allclose(self.result.models, blocks[-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_that_happens_changes_the_run(name):
    machine = type(f"{name} schedules", (Schedules,), {"algorithm": ALGORITHMS[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
