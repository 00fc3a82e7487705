"""Which models a run returns: the last, their mean over the rounds, or the theory's iterate K*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.sampling import Purpose, random_stream
from pcfed.simulation.engine import Engine
from pcfed.simulation.runner import Hook, Runner
from pcfed.tree_sums import tree_mean

Output = Literal["last", "average", "random"]


class OutputIterate(Hook):
    """Keeps the models that a run returns.

    Parameters
    ----------
    output : {"last", "average", "random"}
        Which models; the random iterate K* is uniform over all local steps.
    engine : Engine
        Runs the rounds.
    rounds : range
        The indices of all rounds.
    """

    def __init__(self, output: Output, engine: Engine, rounds: range) -> None:
        self.output = output
        self._engine = engine
        self._kept: Float64Array | None = None
        self._kept_center: Float64Array | None = None
        self._averaged_rounds = 0
        if output == "random":
            plan = engine.plan
            lengths = [plan.max_local_steps(range(index, index + 1)) for index in rounds]
            k = int(random_stream(engine.plan.seed, Purpose.OUTPUT).integers(sum(lengths)))
            ends = np.cumsum(lengths)
            at = int(np.searchsorted(ends, k, side="right"))
            self._index, self._steps = rounds[at], k - int(ends[at] - lengths[at])

    def before_round(self, runner: Runner, index: int) -> None:
        """Keep the iterate K* if it is in this round: run the round on a copy, but stop there."""
        if self.output == "random" and index == self._index:
            self._kept, self._kept_center = self._engine.iterate(index, self._steps)

    def after_round(self, runner: Runner, index: int) -> None:
        """Include the models of a round in the mean."""
        if self.output == "average":
            self._averaged_rounds += 1
            self._engine.average_models(self._averaged_rounds)
            center = self._engine.center()
            mean = center if self._kept_center is None else self._kept_center
            self._kept_center = mean + (center - mean) / self._averaged_rounds

    def models(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return the models, their average and the centre; the last ones if none were kept."""
        engine, kept = self._engine, self._kept_models()
        if kept is None or self._kept_center is None:
            models = engine.models()
            return models, engine.average(models), engine.center(models)
        average = tree_mean(kept)
        return kept, average, self._kept_center if self._has_free_center else average

    def _kept_models(self) -> Float64Array | None:
        """Return the iterate K*, or the means over rounds, which the ranges of agents have."""
        return self._engine.averaged_models() if self._averaged_rounds else self._kept

    @property
    def _has_free_center(self) -> bool:
        return self._engine.problem.center == "free"

    def state_dict(self) -> dict[str, Array]:
        """Return what a resumed run needs."""
        kept = self._kept_models()
        if kept is None or self._kept_center is None:
            return {}
        state = {"taken": kept, "rounds": np.array(float(self._averaged_rounds))}
        return {**state, "center": self._kept_center} if self._has_free_center else state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            problem = self._engine.problem
            kept = problem.as_models("run: the checkpoint's models", state["taken"])
            center = state.get("center", tree_mean(kept))
            self._kept_center = problem.as_models("run: the checkpoint's center", center)[0]
            self._averaged_rounds = int(state["rounds"])
            if self._averaged_rounds:
                self._engine.load_averaged_models(kept)
            else:
                self._kept = kept
