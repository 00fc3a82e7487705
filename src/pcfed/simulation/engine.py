"""One round of any algorithm, and the metrics of a state, in this process.

A round is atomic. Agents compute updates from the state before it, in groups
(`pcfed.simulation.plan`). The updates that are finite are summed one after the other, in an order
that depends neither on the number of workers nor on the groups. Then the server aggregates, and the
agents whose updates were accepted commit theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import STATISTICS, Algorithm, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.grid import Grid, Integers, OutsideGrid, add_integers, encode_all
from pcfed.algorithms.sums import add_rows
from pcfed.arrays import Float64Array, Workspace
from pcfed.problem import Agent, Problem
from pcfed.sets import ProjectionError, SetRows
from pcfed.simulation.plan import MAX_GROUP_ENTRIES, Plan
from pcfed.simulation.result import Metrics, Record, Refusal, State

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What one round changed and cost.

    Attributes
    ----------
    state : State
        The state after the round, or before it if the round was aborted.
    aborted : bool
        Whether more updates were refused than allowed.
    refusals : tuple of Refusal
        Updates that were not accepted.
    bytes_up, bytes_down : int
        Sent and received by all agents together.
    round_info : RoundInfo
        The step and the penalty of the round.
    """

    state: State
    aborted: bool
    refusals: tuple[Refusal, ...]
    bytes_up: int
    bytes_down: int
    round_info: RoundInfo


@dataclass
class _Aggregation:
    """The sums of a round while the groups' updates arrive."""

    grid: Grid | None
    sums: dict[str, Float64Array] = field(default_factory=dict)
    integers: dict[str, Integers] = field(default_factory=dict)
    """The sums on a grid."""
    accepted: list[tuple[list[int], Vectors]] = field(default_factory=list)
    """Groups, and what their agents need to commit."""
    refusals: list[Refusal] = field(default_factory=list)
    bytes_up: int = 0

    def add(self, group: list[int], update: Update, workspace: Workspace) -> None:
        """Add the update of a group to the sums."""
        self.accepted.append((group, update.pending))
        if self.grid is not None:
            encoded = encode_all(self.grid, update.sent)
            self.bytes_up += sum(rows.nbytes for rows in encoded.values())
            add_integers(self.integers, encoded)
            return
        for name, rows in update.sent.items():
            self.bytes_up += rows.nbytes
            if name not in self.sums:
                self.sums[name] = np.zeros(rows.shape[1])
            add_rows(self.sums[name], rows)
            if name not in update.pending:
                workspace.release(rows)

    def total(self) -> Sums:
        """Return what the server receives."""
        if self.grid is not None:
            self.sums = {name: self.grid.decode(name, row) for name, row in self.integers.items()}
        return Sums(self.sums, sum(len(group) for group, _ in self.accepted))


class Engine:
    """Runs rounds, with groups of agents on several threads; use it as a context manager.

    Parameters
    ----------
    problem : Problem
        The agents.
    algorithm : Algorithm
        The algorithm, resolved for the problem.
    plan : Plan
        Who takes part in which round, and on which batches.
    workers : int
        Number of threads.
    norm_limit : float, optional
        The largest Euclidean norm of a vector that an agent sends.
    grid : Grid, optional
        The grid on which updates are rounded and summed.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        plan: Plan,
        workers: int,
        norm_limit: float | None = None,
        grid: Grid | None = None,
    ) -> None:
        self.problem = problem
        self.algorithm = algorithm
        self.plan = plan
        self._workers = workers
        self._norm_limit = np.inf if norm_limit is None else norm_limit
        self.grid = grid
        self._threads = ThreadPoolExecutor(workers) if workers > 1 else None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def _map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Apply a function to items on the threads; results come in the order of the items."""
        return self._threads.map(function, items) if self._threads else map(function, items)

    def run_round(
        self,
        state: State,
        index: int,
        workspace: Workspace,
        *,
        max_refusals: int = 0,
        max_steps: int | None = None,
    ) -> RoundOutcome:
        """Run the round with this index; the private arrays of ``state`` change in place.

        Parameters
        ----------
        state : State
            The state before the round, owned by the caller.
        index : int
            Index of the round.
        workspace : Workspace
            Memory that rounds share.
        max_refusals : int
            If more updates are refused, the round is aborted and changes nothing.
        max_steps : int, optional
            Limits the local steps of every agent.
        """
        present, steps = self.plan.present(index), self.plan.steps(index)
        if max_steps is not None:
            steps = [min(max_steps, each) for each in steps]
        max_local_steps = max((steps[i] for i in present), default=0)
        info = self.algorithm.round_info(index, m=self.problem.m, max_local_steps=max_local_steps)
        bytes_down = len(present) * sum(vector.nbytes for vector in state.server.values())
        done = _Aggregation(self.grid)

        def local(group: list[int]) -> _GroupUpdates:
            return self._local(state, group, steps[group[0]], info, workspace)

        groups = self.plan.groups(index, present, steps, min_groups=self._workers)
        for updates, refused in self._map(local, groups):
            done.refusals.extend(refused)
            if len(done.refusals) > max_refusals:
                return RoundOutcome(
                    state, True, tuple(done.refusals), done.bytes_up, bytes_down, info
                )
            for group, update in updates:
                done.add(group, update, workspace)
        server = self._aggregate_and_commit(state, done, info)
        for _, pending in done.accepted:
            workspace.release(*pending.values())
        after = State(state.algorithm, index + 1, server, state.private)
        return RoundOutcome(after, False, tuple(done.refusals), done.bytes_up, bytes_down, info)

    def _aggregate_and_commit(self, state: State, done: _Aggregation, info: RoundInfo) -> Vectors:
        """Return the server's new state; agents commit what was accepted."""
        if not done.accepted:
            return state.server
        server = self.algorithm.aggregate(state.server, done.total(), info)

        def commit(accepted: tuple[list[int], Vectors]) -> None:
            group, pending = accepted
            rows = _rows(group)
            private = state.private_of(rows)
            new = self.algorithm.commit(private, pending, state.server, info)
            for name, vectors in new.items():
                if vectors is not private[name] or not isinstance(rows, slice):
                    state.private[name][rows] = vectors

        for _ in self._map(commit, done.accepted):
            pass
        return server

    def _local(
        self,
        state: State,
        group: list[int],
        steps: int,
        info: RoundInfo,
        workspace: Workspace,
    ) -> _GroupUpdates:
        """Return the updates of a group, with their agents, and the refusals of the others."""
        context = self.plan.context(group, info.index, steps, workspace)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                private = state.private_of(_rows(group))
                update = self.algorithm.local(context, state.server, private, info)
        except ProjectionError as error:
            if len(group) == 1:
                reason = f"its projection failed: {error}"
                return [], [Refusal(info.index, group[0], reason)]
            # One agent must not spoil the group: compute them one by one.
            parts = [self._local(state, [i], steps, info, workspace) for i in group]
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

    def models(self, state: State) -> Float64Array:
        """Return all models, one row per agent, in a new array."""
        shape = (self.problem.m, self.problem.n)
        models = self.algorithm.model(state.server, state.private).astype(np.float64, copy=False)
        if self.algorithm.feasible:
            # Local steps in float32 end in the set only up to their precision.
            sets = SetRows([agent.feasible_set for agent in self.problem.agents])
            rows = np.ascontiguousarray(np.broadcast_to(models, shape))
            return sets.project(rows).astype(np.float64, copy=False)
        is_state = any(models is each for each in (*state.server.values(), *state.private.values()))
        if is_state or models.shape != shape:
            return np.broadcast_to(models, shape).copy()
        return models

    def average(self, state: State) -> Float64Array:
        """Return the population average."""
        average = self.algorithm.average(state.server)
        return self.models(state).mean(axis=0) if average is None else average.astype(np.float64)

    def center(self, state: State) -> Float64Array:
        """Return the centre to which the models are coupled: their average, unless it is free."""
        shared = self.algorithm.shared_model(state.server)
        if self.problem.center == "average" or shared is None:
            return self.average(state)
        return shared.astype(np.float64)

    def refuse_infinite(self, state: State, record: Record) -> list[Refusal]:
        """Return the agents whose loss is not finite, where the objective of a record is not."""
        center = self.center(state)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = [agent.loss.value(center) for agent in self.problem.agents]
            infinite = ~np.isfinite(losses + record.distance**2)
        infinite |= not infinite.any()  # each of them is finite, but not their sum
        reason = "its loss is not finite"
        return [Refusal(state.round - 1, int(i), reason) for i in np.flatnonzero(infinite)]

    def evaluate(self, state: State) -> Metrics:
        """Return the metrics of a state: objective, loss, and distances and scores per agent."""
        models = self.models(state) if self.algorithm.average(state.server) is None else None
        if models is not None and self.problem.center == "average":
            center = models.mean(axis=0)
        else:
            center = self.center(state)
        m, stack = self.problem.m, self.plan.stack
        width = 1 if stack is None else max(1, MAX_GROUP_ENTRIES // 2 // self.problem.n)  # float64
        spans = [slice(first, min(first + width, m)) for first in range(0, m, width)]
        parts = self._map(lambda span: self._evaluate(state, models, span, center), spans)
        columns = np.concatenate(list(parts), axis=1)
        infeasibility, distance, test_loss, test_accuracy, own_losses = columns[:5]
        losses = columns[5] if stack is None else stack.values(center)
        coupling, theta = self._coupling_and_personalization
        with np.errstate(over="ignore", invalid="ignore"):  # the status of the run reports it
            taken = losses + theta * (own_losses - losses) if theta.any() else losses
            objective = float(np.mean(taken + coupling / 2 * distance**2))
        return Metrics(
            objective=objective,
            loss=float(np.mean(losses)),
            infeasibility=infeasibility,
            distance=distance,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
        )

    @cached_property
    def _coupling_and_personalization(self) -> tuple[Float64Array, Float64Array]:
        """Every agent's σ and θ."""
        pairs = [(agent.coupling, agent.personalization) for agent in self.problem.agents]
        coupling, theta = np.array(pairs).T
        return coupling, theta

    def _evaluate(
        self, state: State, models: Float64Array | None, span: slice, center: Float64Array
    ) -> Float64Array:
        """Return the metrics of some agents, one row per metric; all models, if they are known."""
        agents = self.problem.agents[span]
        if models is not None:
            x = models[span]
        else:
            own = self.algorithm.model(state.server, state.private_of(span))
            # A broadcast array is not in C order, and the kernels would leave it to NumPy.
            x = np.broadcast_to(own, (len(agents), self.problem.n)).astype(np.float64, order="C")
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
            if self.plan.stack is None:
                columns.append([agent.loss.value(center) for agent in agents])
        return np.array(columns)


_GroupUpdates = tuple[list[tuple[list[int], Update]], list[Refusal]]
"""Updates with the positions of their agents, and refusals."""


def _test_metrics(agent: Agent, x: Float64Array) -> tuple[float, float]:
    """Return the loss and the accuracy of a model on the agent's test data, NaN without."""
    return (agent.test.value(x), agent.test.accuracy(x)) if agent.test else (np.nan, np.nan)


def _rows(group: list[int]) -> slice | list[int]:
    """Return an index of the group's rows: a slice, which makes views, where they are adjacent."""
    span = range(group[0], group[-1] + 1)
    return slice(span.start, span.stop) if group == list(span) else group


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
