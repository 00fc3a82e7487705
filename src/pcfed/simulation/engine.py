"""One round of any algorithm, and the metrics of a state.

A round is atomic. Agents compute updates from the state before it, in ranges
(`pcfed.simulation.agent_range`). The updates that are finite are summed as a tree over the
positions of agents (`pcfed.tree_sums`), so that the bits depend neither on the number of workers
nor on groups and ranges. Then the server aggregates, and the agents whose updates were accepted
commit theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm, RoundInfo, Sums, Vectors
from pcfed.algorithms.grid import Grid, Integers, add_integers
from pcfed.arrays import Array, Float64Array, large_empty
from pcfed.problem import Problem
from pcfed.simulation.agent_range import MAX_PART, Summand
from pcfed.simulation.aggregation import RangeSums, RoundCall
from pcfed.simulation.plan import Plan
from pcfed.simulation.ranges import Ranges
from pcfed.simulation.result import Metrics, Record, Refusal, State
from pcfed.tree_sums import PartialSums, combined_totals, tree_mean


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What one round cost, and whether it was aborted.

    Attributes
    ----------
    aborted : bool
        Whether more updates were refused than allowed, so that the round changed nothing.
    refusals : tuple of Refusal
        Updates that were not accepted, in the order of the agents; in an aborted round, one more
        than allowed.
    bytes_up, bytes_down : int
        Sent and received by all agents together; an aborted round is finished first, and the bytes
        of refused updates do not count.
    round_info : RoundInfo
        The step and the penalty of the round.
    """

    aborted: bool
    refusals: tuple[Refusal, ...]
    bytes_up: int
    bytes_down: int
    round_info: RoundInfo


class Engine:
    """Runs rounds and evaluates states; use it as a context manager.

    Parameters
    ----------
    problem : Problem
        The agents.
    algorithm : Algorithm
        The algorithm, resolved for the problem.
    plan : Plan
        Who takes part in which round, and on which batches.
    ranges : Ranges
        The agents with their private state.
    grid : Grid, optional
        The grid on which updates are rounded and summed.

    Attributes
    ----------
    round : int
        Number of rounds done.
    server : mapping of str to Array
        The server's vectors.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        plan: Plan,
        ranges: Ranges,
        grid: Grid | None = None,
    ) -> None:
        self.problem, self.algorithm, self.plan, self.grid = problem, algorithm, plan, grid
        self._ranges = ranges
        self.round = 0
        self.server: Vectors = {}
        self._accepted = -1

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._ranges.close()

    def start(self, x0: Float64Array) -> None:
        """Start from one vector for all agents."""
        self.round, self.server = 0, self.algorithm.start(x0[None])[0]
        self._ranges.change("start", self._accepted, [(x0,)] * self._num_ranges)

    def load(self, state: State) -> None:
        """Continue from a state, whose private arrays may change in place."""
        self.round, self.server = state.round, state.server
        spans = [slice(*each) for each in pairwise(self._ranges.edges)]
        parts = [(state.private_of(span),) for span in spans]
        self._ranges.change("load", self._accepted, parts)

    @property
    def state(self) -> State:
        """The state after the last round."""
        private = self._rows("private")
        return State(self.algorithm.state_kind, self.round, self.server, private)

    @property
    def _num_ranges(self) -> int:
        return len(self._ranges.edges) - 1

    def _change(self, method: str) -> None:
        """Call a method of all ranges that changes their state, without arguments."""
        self._ranges.change(method, self._accepted, [()] * self._num_ranges)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Call a method of all ranges that changes no state; return the results in order."""
        return self._ranges.call(method, self._accepted, *arguments, **options)

    def _rows(self, method: str, *arguments: Any) -> dict[str, Array]:
        """Return named rows of all agents; large ones are memory-mapped, and filled in parts."""
        edges = self._ranges.edges
        largest = max(stop - first for first, stop in pairwise(edges))
        width = max(1, MAX_PART // self.problem.n)
        if len(edges) == 2 and self._ranges.is_local:
            return dict(next(self._call(method, slice(None), *arguments)))
        found: dict[str, Array] = {}
        for start in range(0, largest, width):
            parts = self._call(method, slice(start, start + width), *arguments)
            for first, part in zip(edges, parts, strict=False):
                for name, rows in part.items():
                    if name not in found:
                        found[name] = large_empty((edges[-1], *rows.shape[1:]), rows.dtype)
                    found[name][first + start : first + start + len(rows)] = rows
        return found

    def free(self) -> None:
        """Free the memory that rounds share."""
        self._call("free")

    # -- rounds -------------------------------------------------------------------------------

    def run_round(
        self, index: int, *, max_refusals: int = 0, max_steps: int | None = None
    ) -> RoundOutcome:
        """Run the round with this index.

        Parameters
        ----------
        index : int
            Index of the round.
        max_refusals : int
            If more updates are refused, the round is aborted and changes nothing.
        max_steps : int, optional
            Limits the local steps of every agent.
        """
        present = self.plan.present(index)
        steps = self.plan.steps(index, present)
        if max_steps is not None:
            steps = [min(max_steps, each) for each in steps]
        m, max_local_steps = self.problem.m, max(steps, default=0)
        info = self.algorithm.round_info(index, m=m, max_local_steps=max_local_steps)
        ends = np.searchsorted(present, self._ranges.edges).tolist()
        calls = [
            RoundCall(info, self.server, present[start:end], steps[start:end])
            for start, end in pairwise(ends)
        ]
        bytes_down = len(present) * sum(vector.nbytes for vector in self.server.values())
        results = self._ranges.run_round(self._accepted, calls)
        refusals = sorted(chain(*(each.refusals for each in results)), key=lambda r: r.agent)
        aborted = len(refusals) > max_refusals
        if aborted:
            del refusals[max_refusals + 1 :]
        else:
            self._aggregate(results, info)
            self.round, self._accepted = index + 1, index
        bytes_up = sum(each.bytes_up for each in results)
        return RoundOutcome(aborted, tuple(refusals), bytes_up, bytes_down, info)

    def _aggregate(self, results: Sequence[RangeSums], info: RoundInfo) -> None:
        """Update the server's state with the sums of a round."""
        number = sum(each.num_accepted for each in results)
        if not number:
            return
        if self.grid is None:
            sums = combined_totals(each.sums for each in results)
        else:
            integers: dict[str, Integers] = {}
            for each in results:
                add_integers(integers, each.integers)
            sums = {name: self.grid.decode(name, row) for name, row in integers.items()}
        self.server = self.algorithm.aggregate(self.server, Sums(sums, number), info)

    def iterate(self, index: int, steps: int) -> tuple[Float64Array, Float64Array]:
        """Return models and centre inside the next round, after some local steps."""
        before = self.round, self.server, self._accepted
        self._change("back_up")
        if steps:
            m = self.problem.m  # refusals count in the whole round only
            self.run_round(index, max_refusals=m, max_steps=steps)
        found = self.models(), self.center()
        self._change("restore")
        self.round, self.server, self._accepted = before
        return found

    # -- models and metrics -------------------------------------------------------------------

    def models(self) -> Float64Array:
        """Return all models, one row per agent, in a new array; a large one is memory-mapped."""
        return self._rows("models", self.server)["models"].astype(np.float64, copy=False)

    def average_models(self, number: int) -> None:
        """Include the models in their mean over rounds, of which they are the last of a number."""
        arguments = [(self.server, number)] * self._num_ranges
        self._ranges.change("average_models", self._accepted, arguments)

    def averaged_models(self) -> Float64Array:
        """Return the means over rounds of all models."""
        return self._rows("averaged_models")["models"].astype(np.float64, copy=False)

    def load_averaged_models(self, models: Float64Array) -> None:
        """Continue from means over rounds."""
        parts = [(models[slice(*each)],) for each in pairwise(self._ranges.edges)]
        self._ranges.change("load_averaged_models", self._accepted, parts)

    def _mean_model(self) -> Float64Array:
        """Return the mean of all models."""
        parts: Iterator[PartialSums] = self._call("model_sums", self.server)
        return np.asarray(combined_totals(parts)["models"] / self.problem.m)

    def sum_over_agents(self, function: Summand) -> Float64Array:
        """Return the sum over agents of the rows that a function of agent and model computes."""
        parts: Iterator[PartialSums] = self._call("sums_of", self.server, function)
        return combined_totals(parts)["row"]

    def average(self, models: Float64Array | None = None) -> Float64Array:
        """Return the population average; if the models are given, it need not compute them."""
        average = self.algorithm.average(self.server)
        if average is not None:
            return average.astype(np.float64)
        return self._mean_model() if models is None else tree_mean(models)

    def center(self, models: Float64Array | None = None) -> Float64Array:
        """Return the centre to which the models are coupled: their average, unless it is free."""
        shared = self.algorithm.shared_model(self.server)
        if self.problem.center == "average" or shared is None:
            return self.average(models)
        return shared.astype(np.float64)

    def refuse_infinite(self, record: Record) -> list[Refusal]:
        """Return the agents whose loss is not finite, where the objective of a record is not."""
        losses = np.concatenate(list(self._call("losses", self.center())))
        with np.errstate(over="ignore", invalid="ignore"):
            infinite = ~np.isfinite(losses + record.distance**2)
        infinite |= not infinite.any()  # each of them is finite, but not their sum
        reason = "its loss is not finite"
        return [Refusal(self.round - 1, int(i), reason) for i in np.flatnonzero(infinite)]

    def evaluate(self) -> Metrics:
        """Return the metrics of the state: objective, loss, and distances and scores per agent."""
        own = self.algorithm.average(self.server) is None
        center, stacked = self.center(), self.plan.is_stacked
        parts = self._call("metrics", self.server, center, project=own, stacked=stacked)
        columns = np.concatenate(list(parts), axis=1)
        infeasibility, distance, test_loss, test_accuracy, own_losses, losses = columns[:6]
        coupling, theta = columns[6:]
        with np.errstate(over="ignore", invalid="ignore"):  # the status of the run reports it
            taken = losses + theta * (own_losses - losses) if theta.any() else losses
            objective = float(tree_mean(taken + coupling / 2 * distance**2))
        return Metrics(
            objective=objective,
            loss=float(tree_mean(losses)),
            infeasibility=infeasibility,
            distance=distance,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
        )
