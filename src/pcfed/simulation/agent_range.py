"""A range of agents: their data, sets and private state, and their part in rounds and sums.

The simulator in one process has one range; on a cluster every actor has one. The driver, which owns
the server's state, calls the methods and receives sums. Every call says which round was aggregated
last: a range then commits the updates of that round, or forgets them if it was aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import STATISTICS, Algorithm, Update, Vectors
from pcfed.algorithms.grid import Grid, OutsideGrid, encode_all
from pcfed.arrays import Float64Array, Workspace, large_empty
from pcfed.losses.stack import Stack
from pcfed.problem import Agent
from pcfed.sets import ProjectionError, SetRows
from pcfed.simulation.aggregation import Aggregation, RangeSums, RoundCall
from pcfed.simulation.plan import MAX_GROUP_ENTRIES, LocalPlan, windows_of
from pcfed.simulation.private_state import IN_MEMORY, Memory, PrivateState
from pcfed.simulation.result import Refusal
from pcfed.tree_sums import PartialSums, TreeSums

S = TypeVar("S")
T = TypeVar("T")

MAX_CHUNK = 64
"""Agents whose losses are evaluated together, at most."""

AVERAGED = "averaged models"
"""The name of the means over rounds in a snapshot."""

MAX_PART = 2**23
"""Numbers of models that are computed or sent together, at most."""

MAX_MADE_AGENTS = 1024
"""Agents that are made on demand, of which so many are in memory at most in every thread."""

MAX_KEPT_MODELS = 2**24
"""Numbers of models that are kept between two calls of one evaluation."""


class AgentRange:
    """The agents of a range, with groups of agents on several threads.

    Parameters
    ----------
    plan : LocalPlan
        The agents, their batches and their groups.
    algorithm : Algorithm
        The algorithm, resolved for the problem.
    m : int
        Number of agents of the problem, in all ranges.
    workers : int
        Number of threads.
    norm_limit : float, optional
        The largest Euclidean norm of a vector that an agent sends.
    grid : Grid, optional
        The grid on which updates are rounded and summed.
    memory : Memory
        How private state is kept.
    """

    def __init__(
        self,
        plan: LocalPlan,
        algorithm: Algorithm,
        m: int,
        *,
        workers: int = 1,
        norm_limit: float | None = None,
        grid: Grid | None = None,
        memory: Memory = IN_MEMORY,
    ) -> None:
        self.plan, self.algorithm, self.grid = plan, algorithm, grid
        self.first, self.stop = plan.first, plan.stop
        self.n = plan.n
        self._workers = workers
        self._norm_limit = np.inf if norm_limit is None else norm_limit
        self._chunk, part = chunk_size(m), max(1, MAX_PART // self.n)
        self._max_span = min(MAX_MADE_AGENTS, part) if plan.is_lazy else part
        # The range of all agents need not cut its sums into nodes.
        is_whole = plan.stop - plan.first == m
        self._sums_range = (0, None) if is_whole else (plan.first, plan.stop)
        self._threads = ThreadPoolExecutor(workers) if workers > 1 else None
        self._workspace = Workspace()
        self._memory = memory
        self._private = PrivateState({}, 0)
        self._backup: PrivateState | None = None
        self._pending: Aggregation | None = None
        self._models: tuple[int, Float64Array] | None = None
        self._averaged: Float64Array | None = None

    def close(self) -> None:
        """End the threads."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def _map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Apply a function to items on the threads; results come in the order of the items."""
        if self._threads:
            return self._threads.map(function, items)
        # `map` would take a StopIteration of an agent for the end of the items.
        return (function(item) for item in items)

    # -- private state ------------------------------------------------------------------------

    def start(self, accepted: int, x0: Float64Array) -> None:
        """Start all agents from one vector; those that are made on demand, when they take part."""
        self.finish_round(accepted)
        rows = self.algorithm.start(x0[None])[1]

        def start(some: slice | Sequence[int]) -> Vectors:
            if not self.algorithm.feasible:
                return rows
            if isinstance(some, slice):
                some = range(some.start, some.stop)
            sets = SetRows([self.plan.feasible_set(self.first + i) for i in some])
            models = np.repeat(np.asarray(x0, np.float64)[None], len(some), axis=0)
            return self.algorithm.start(sets.project(models).astype(np.float64, copy=False))[1]

        size = self.stop - self.first
        if self.plan.is_lazy:
            self._private = PrivateState(rows, size, self._memory, start)
        else:
            self._private = PrivateState(rows, size, self._memory)
            if rows:
                everyone = slice(0, size)
                self._private.write(everyone, start(everyone))

    def load(self, accepted: int, private: Vectors) -> None:
        """Continue from private state, one row per agent, which may change in place."""
        self.finish_round(accepted)
        self._private, self._models = PrivateState.of(private, self._memory), None

    def private(self, accepted: int, rows: slice) -> Vectors:
        """Return the private state of some rows of the range, without a copy if possible."""
        self.finish_round(accepted)
        return self._private.all_rows(rows)

    def snapshot(self, accepted: int) -> dict[str, NDArray[Any]]:
        """Return what `load_snapshot` needs: the private state of agents that have started."""
        self.finish_round(accepted)
        averaged = {} if self._averaged is None else {AVERAGED: self._averaged}
        return {**self._private.started(), **averaged}

    def load_snapshot(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what `snapshot` returned, in a range that has started."""
        vectors = dict(snapshot)
        averaged = vectors.pop(AVERAGED, None)
        self._averaged = None if averaged is None else averaged.copy()  # it may be read-only
        self._private.load_started(vectors)

    def back_up(self, accepted: int) -> None:
        """Copy the private state, for `restore`."""
        self.finish_round(accepted)
        self._backup = self._private.copy()

    def restore(self, accepted: int) -> None:
        """Return to the state of the last `back_up`."""
        self.finish_round(accepted)
        if self._backup is not None:
            self._private, self._backup, self._models = self._backup, None, None

    def free(self, accepted: int) -> None:
        """Free the memory that rounds share."""
        self.finish_round(accepted)
        self._models = None
        self._workspace.clear()

    # -- rounds -------------------------------------------------------------------------------

    def run_round(self, accepted: int, call: RoundCall) -> RangeSums:
        """Compute the updates of a round, and keep what is needed to commit them."""
        self.finish_round(accepted)
        self._workspace.start_round()
        self._models = None
        sums = TreeSums(*self._sums_range)
        self._pending = done = Aggregation(call, self.grid, self._workspace, sums)
        steps = dict(zip(call.positions, call.steps, strict=True))

        def local(group: list[int]) -> _GroupUpdates:
            return self._local(call, group, steps[group[0]])

        windows = windows_of(call.positions)
        # Agents that are made on demand are forgotten after their window; the others are grouped at
        # once, so that no thread waits for a window to end.
        for some in [[window] for window in windows] if self.plan.is_lazy else [windows]:
            grouped = [
                self.plan.groups(call.info.index, window, steps, min_groups=self._workers)
                for window in some
            ]
            results = self._map(local, [group for groups in grouped for group in groups])
            for groups in grouped:
                in_order = _increases(groups)
                for updates, refused in islice(results, len(groups)):
                    done.refusals.extend(refused)
                    for group, update in updates:
                        done.add(group, update, in_order=in_order)
                done.end_window()
            self.plan.forget_agents()
        return done.result()

    def finish_round(self, accepted: int) -> None:
        """Commit the updates of the last round if it was aggregated; otherwise forget them.

        ``accepted = -1`` forgets them in any case: the range was too late, and is not in the sums.
        """
        done, self._pending = self._pending, None
        if done is None:
            return
        call = done.call

        def commit(group_and_pending: tuple[list[int], Vectors]) -> None:
            group, pending = group_and_pending
            rows = self._rows(group)
            private = self._private.rows(rows)
            new = self.algorithm.commit(private, pending, call.server, call.info)
            self._private.write(rows, new, private)

        if call.info.index == accepted:
            for _ in self._map(commit, done.accepted):
                pass
            self._models = None
        for _, pending in done.accepted:
            self._workspace.release(*pending.values())
        self._private.end_round()

    def _local(self, call: RoundCall, group: list[int], steps: int) -> _GroupUpdates:
        """Return the updates of a group, with their agents, and the refusals of the others."""
        info = call.info
        context = self.plan.context(group, info.index, steps, self._workspace)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                private = self._private.rows(self._rows(group))
                update = self.algorithm.local(context, call.server, private, info)
        except ProjectionError as error:
            if len(group) == 1:
                reason = f"its projection failed: {error}"
                return [], [Refusal(info.index, group[0], reason)]
            # One agent must not spoil the group: compute them one by one.
            parts = [self._local(call, [i], steps) for i in group]
            updates = [each for updates, _ in parts for each in updates]
            return updates, [each for _, refused in parts for each in refused]
        reasons = self._reasons_to_refuse(update, len(group))
        refused = [Refusal(info.index, group[i], reasons[i]) for i in sorted(reasons)]
        if reasons:
            fine = [i for i in range(len(group)) if i not in reasons]
            sent = {name: rows[fine] for name, rows in update.sent.items()}
            pending = {name: rows[fine] for name, rows in update.pending.items()}
            group, update = [group[i] for i in fine], Update(sent, pending)
        if self.grid is not None and group:
            update = self.grid.rounded(update)
        return [(group, update)] if group else [], refused

    def _reasons_to_refuse(self, update: Update, agents: int) -> dict[int, str]:
        """Return why updates of a group can't be accepted, by their rows."""
        finite = _finite_rows(update, agents)
        reasons = dict.fromkeys(np.flatnonzero(~finite).tolist(), "it is not finite")
        if self._norm_limit < np.inf:
            norms = _largest_norms(update, agents)
            for i in np.flatnonzero(finite & ~(norms <= self._norm_limit)).tolist():
                reasons[i] = f"its norm {norms[i]:.3g} is above the limit {self._norm_limit:g}"
        if self.grid is not None:
            for i in sorted(set(range(agents)) - set(reasons)):
                try:
                    encode_all(self.grid, {name: rows[i] for name, rows in update.sent.items()})
                except OutsideGrid as error:
                    reasons[i] = str(error)
        return reasons

    def _rows(self, group: list[int]) -> slice | list[int]:
        """Return an index of the group's rows: a slice, which makes views, if they are adjacent."""
        first, span = self.first, range(group[0], group[-1] + 1)
        if group == list(span):
            return slice(span.start - first, span.stop - first)
        return [i - first for i in group]

    # -- models and metrics -------------------------------------------------------------------

    def models(self, accepted: int, rows: slice, server: Vectors) -> Vectors:
        """Return the models of some rows of the range, in a new array, as ``models``."""
        self.finish_round(accepted)
        start, stop, _ = rows.indices(self.stop - self.first)
        if start == stop:  # a smaller range than others, of which more parts are read
            return {"models": np.empty((0, self.n))}
        return {"models": self._models_of(server, slice(self.first + start, self.first + stop))}

    def _models_of(
        self,
        server: Vectors,
        span: slice,
        agents: Sequence[Agent] | None = None,
        *,
        project: bool = True,
    ) -> Float64Array:
        """Return the models of some positions, whose agents may be given, in a new array."""
        if agents is None and span.stop - span.start > self._max_span:
            found = large_empty((span.stop - span.start, self.n))
            for part in chunks(span, self._max_span):
                to = slice(part.start - span.start, part.stop - span.start)
                found[to] = self._models_of(server, part, project=project)
            return found
        private = self._private.peek(slice(span.start - self.first, span.stop - self.first))
        own = self.algorithm.model(server, private).astype(np.float64, copy=False)
        shape = (span.stop - span.start, self.n)
        if self.algorithm.feasible and project:
            # Local steps in float32 end in the set only up to their precision.
            agents = self.plan.agents(span) if agents is None else agents
            sets = SetRows([agent.feasible_set for agent in agents])
            rows = np.ascontiguousarray(np.broadcast_to(own, shape))
            return sets.project(rows).astype(np.float64, copy=False)
        is_state = any(
            np.may_share_memory(own, each) for each in (*server.values(), *private.values())
        )
        if is_state or own.shape != shape or not own.flags.c_contiguous:
            return np.array(np.broadcast_to(own, shape), order="C")
        return own

    def average_models(self, accepted: int, server: Vectors, number: int) -> None:
        """Include the models in their mean over rounds, of which they are the last of a number."""
        self.finish_round(accepted)
        mean = self._averaged
        if mean is None:
            self._averaged = self._models_of(server, slice(self.first, self.stop))
            return
        for span in self._spans(self._max_span):
            rows = slice(span.start - self.first, span.stop - self.first)
            mean[rows] += (self._models_of(server, span) - mean[rows]) / number

    def averaged_models(self, accepted: int, rows: slice) -> Vectors:
        """Return the means over rounds of the models of some rows of the range, as ``models``."""
        if self._averaged is None:
            raise RuntimeError("AgentRange.averaged_models: average_models must be called first.")
        return {"models": self._averaged[rows]}

    def load_averaged_models(self, accepted: int, models: Float64Array) -> None:
        """Continue from means over rounds."""
        self._averaged = models.copy()

    def model_sums(self, accepted: int, server: Vectors) -> PartialSums:
        """Return the sums of the models, which are kept for `metrics` if they are not too large."""
        self.finish_round(accepted)
        sums = TreeSums(*self._sums_range)
        if (self.stop - self.first) * self.n <= MAX_KEPT_MODELS:
            models = self._models_of(server, slice(self.first, self.stop))
            self._models = accepted, models
            sums.add(np.arange(self.first, self.stop), {"models": models})
        else:
            for span in self._spans(max(1, MAX_GROUP_ENTRIES // self.n)):
                models = self._models_of(server, span)
                sums.add(np.arange(span.start, span.stop), {"models": models})
        return sums.partial_sums()

    def sums_of(self, accepted: int, server: Vectors, function: Summand) -> PartialSums:
        """Return the sums of the rows that a function of an agent and its model computes."""
        self.finish_round(accepted)
        sums = TreeSums(*self._sums_range)

        def rows_of(span: slice) -> Float64Array:
            agents = self.plan.agents(span)
            models = self._models_of(server, span, agents)
            return np.stack([function(*pair) for pair in zip(agents, models, strict=True)])

        spans = self._spans(min(self._max_span, max(1, MAX_GROUP_ENTRIES // self.n)))
        for span, rows in zip(spans, self._map(rows_of, spans), strict=True):
            sums.add(np.arange(span.start, span.stop), {"row": rows})
        return sums.partial_sums()

    def metrics(
        self,
        accepted: int,
        server: Vectors,
        center: Float64Array,
        *,
        project: bool,
        stacked: bool,
    ) -> Float64Array:
        """Return the metrics of all agents, one row per metric.

        These are the distance from the set and from the centre, loss and accuracy on test data, the
        loss at the own model, the loss at the centre, coupling and personalization.

        Parameters
        ----------
        accepted : int
            The last round that was aggregated.
        server : Vectors
            The server's state.
        center : array of shape (n,)
            The centre.
        project : bool
            Whether the models of algorithms that keep them feasible are projected once more.
        stacked : bool
            Whether the losses at the centre are evaluated together.
        """
        self.finish_round(accepted)
        kept = self._models[1] if self._models and self._models[0] == accepted else None
        width = max(1, MAX_GROUP_ENTRIES // 2 // self.n) if stacked or self.plan.is_lazy else 1
        width = min(width, self._max_span)
        if stacked:
            width = -(-width // self._chunk) * self._chunk
            if self.plan.stack is None and not self.plan.is_lazy:
                self.plan.stack = Stack.build(
                    [self.plan.agent(i).loss for i in range(self.first, self.stop)]
                )

        def evaluate(span: slice) -> Float64Array:
            agents = self.plan.agents(span)
            if kept is None:
                x = self._models_of(server, span, agents, project=project)
            else:
                x = kept[span.start - self.first : span.stop - self.first]
            return self._metrics(span, agents, x, center, stacked=stacked)

        return np.concatenate(list(self._map(evaluate, self._spans(width))), axis=1)

    def _metrics(
        self,
        span: slice,
        agents: Sequence[Agent],
        x: Float64Array,
        center: Float64Array,
        *,
        stacked: bool,
    ) -> Float64Array:
        """Return the metrics of some agents, one row per metric."""
        with np.errstate(over="ignore", invalid="ignore"):
            sets = SetRows([agent.feasible_set for agent in agents])
            columns: list[Any] = [sets.distances(x), np.linalg.norm(x - center, axis=1)]
            columns += zip(*map(_test_metrics, agents, x), strict=True)
            columns.append(
                [
                    a.loss.value(x_i) if a.personalization else 0.0
                    for a, x_i in zip(agents, x, strict=True)
                ]
            )
            stack = self.plan.stack if stacked else None
            columns.append(self._losses(stack, span, agents, center))
            columns.append([agent.coupling for agent in agents])
            columns.append([agent.personalization for agent in agents])
        return np.array(columns)

    def _losses(
        self, stack: Stack | None, span: slice, agents: Sequence[Agent], center: Float64Array
    ) -> Float64Array | list[float]:
        """Return the losses of some agents at the centre."""
        if stack is None:
            return [agent.loss.value(center) for agent in agents]
        spans = chunks(span, self._chunk)
        first = self.first
        return np.concatenate(
            [stack.values(center, slice(each.start - first, each.stop - first)) for each in spans]
        )

    def losses(self, accepted: int, center: Float64Array) -> list[float]:
        """Return every agent's loss at the centre."""
        self.finish_round(accepted)
        with np.errstate(over="ignore", invalid="ignore"):
            return [
                agent.loss.value(center)
                for span in self._spans(self._max_span)
                for agent in self.plan.agents(span)
            ]

    def _spans(self, width: int) -> list[slice]:
        return chunks(slice(self.first, self.stop), width)


Summand = Callable[[Agent, Float64Array], Float64Array]
"""A function that returns a row of numbers, given an agent and its model."""

_GroupUpdates = tuple[list[tuple[list[int], Update]], list[Refusal]]
"""Updates with the positions of their agents, and refusals."""


def chunk_size(m: int) -> int:
    """Return the number of agents whose losses are evaluated together, of m.

    Ranges begin at multiples of it, so that the bits of these losses do not depend on the ranges.

    Examples
    --------
    >>> chunk_size(4), chunk_size(100), chunk_size(10**6)
    (1, 4, 64)
    """
    return min(MAX_CHUNK, 1 << max(0, (m // 16).bit_length() - 1))


def range_edges(m: int, ranges: int) -> list[int]:
    """Return the first position of every range, and m: about as many ranges as asked for.

    Examples
    --------
    >>> range_edges(1000, 3)
    [0, 320, 672, 1000]
    """
    width = chunk_size(m)
    number = -(-m // width)  # chunks
    ranges = min(ranges, number)
    return [*(number * k // ranges * width for k in range(ranges)), m]


def chunks(span: slice, width: int) -> list[slice]:
    """Return a span of positions, cut at multiples of a width.

    Examples
    --------
    >>> chunks(slice(3, 9), 4)
    [slice(3, 4, None), slice(4, 8, None), slice(8, 9, None)]
    """
    first = span.start // width * width
    edges = [span.start, *range(first + width, span.stop, width), span.stop]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _test_metrics(agent: Agent, x: Float64Array) -> tuple[float, float]:
    """Return the loss and the accuracy of a model on the agent's test data, NaN without."""
    return (agent.test.value(x), agent.test.accuracy(x)) if agent.test else (np.nan, np.nan)


def _increases(groups: list[list[int]]) -> bool:
    """Return whether the positions of groups increase."""
    return all(a < b for a, b in pairwise(chain.from_iterable(groups)))


def _finite_rows(update: Update, agents: int) -> NDArray[np.bool_]:
    """Return for each agent whether all of its update is finite."""
    finite = np.ones(agents, np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = {id(rows): rows for rows in (*update.sent.values(), *update.pending.values())}
        for rows in arrays.values():
            if not np.isfinite(np.vdot(rows, rows)):  # rare, so only then look at every entry
                finite &= np.isfinite(rows).all(axis=1)
    return finite


def _largest_norms(update: Update, agents: int) -> Float64Array:
    """Return for each agent the largest norm of a vector that it sends."""
    norms = np.zeros(agents)
    with np.errstate(over="ignore", invalid="ignore"):
        for name, rows in update.sent.items():
            if name != STATISTICS:
                wide = rows.astype(np.float64)
                np.maximum(norms, np.linalg.norm(wide, axis=1), out=norms)
    return norms
