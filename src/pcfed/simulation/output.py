"""Which models a run returns: the last, their mean over the rounds, or the theory's iterate K*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sampling import Purpose, stream
from pcfed.simulation.engine import Engine
from pcfed.simulation.result import State

Output = Literal["last", "average", "random"]


class OutputIterate:
    """Watches the rounds of a run and keeps the models that it will return.

    Parameters
    ----------
    output : {"last", "average", "random"}
        Which: K* is uniform over all local steps.
    engine : Engine
        What plays the rounds.
    span : range
        The indices of all rounds.
    """

    def __init__(self, output: Output, engine: Engine, span: range) -> None:
        self.output = output
        self.engine = engine
        self.taken: Float64Array | None = None
        self.rounds = 0
        if output == "random":
            lengths = [max(engine.plan.steps(index)) for index in span]
            k = int(stream(engine.plan.seed, Purpose.OUTPUT).integers(sum(lengths)))
            ends = np.cumsum(lengths)
            at = int(np.searchsorted(ends, k, side="right"))
            self.index, self.steps = span[at], k - int(ends[at] - lengths[at])

    def before(self, state: State, index: int) -> None:
        """Take the iterate K* if it lies in this round: the same round, cut short, ends there."""
        if self.output == "random" and index == self.index:
            at = state.copy()
            if self.steps:
                allowed = self.engine.problem.m  # refusals are counted in the whole round
                at = self.engine.run_round(at, index, allowed=allowed, limit=self.steps).state
            self.taken = self.engine.models(at)

    def after(self, state: State) -> None:
        """Count a round in the mean."""
        if self.output == "average":
            self.rounds += 1
            models = self.engine.models(state)
            mean = models if self.taken is None else self.taken
            self.taken = mean + (models - mean) / self.rounds

    def models(self, state: State) -> tuple[Float64Array, Float64Array]:
        """Return the chosen models and their average; the last ones where none were taken."""
        if self.taken is None:
            return self.engine.models(state), self.engine.average(state)
        return self.taken, self.taken.mean(axis=0)

    def state_dict(self) -> dict[str, Array]:
        """Return what a checkpoint must store."""
        if self.taken is None:
            return {}
        return {"taken": self.taken, "rounds": np.array(float(self.rounds))}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            problem = self.engine.problem
            self.taken = problem.as_models("run: the checkpoint's models", state["taken"])
            self.rounds = int(state["rounds"])
