"""One round of any method, and the figures of a state, in this process.

A round is atomic. Agents compute updates from the state before it, in teams (`pcfed.simulation.plan`); the
finite ones are summed one after the other, in an order that depends neither on the number of
workers nor on the teams; then the server aggregates, and those who were counted commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.sums import add_rows
from pcfed.arrays import Float64Array
from pcfed.problem import Agent, Problem
from pcfed.sets import ProjectionError, SetRows
from pcfed.simulation.plan import ENTRIES, Plan
from pcfed.simulation.result import Figures, Record, Refusal, State

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round came to.

    Attributes
    ----------
    state : State
        The state after the round, or before it if the round was given up.
    aborted : bool
        Whether more updates were refused than allowed.
    refusals : tuple of Refusal
        Updates that were not counted.
    bytes_up, bytes_down : int
        What the agents sent and received, all together.
    round_info : RoundInfo
        The step and the penalty of the round.
    """

    state: State
    aborted: bool
    refusals: tuple[Refusal, ...]
    bytes_up: int
    bytes_down: int
    round_info: RoundInfo


class Engine:
    """Runs agents side by side on threads; use it as a context manager.

    Parameters
    ----------
    problem : Problem
        The agents.
    algorithm : Algorithm
        The method, resolved for the problem.
    plan : Plan
        Who takes part in which round, and on which batches.
    workers : int
        Number of threads.
    norm_limit : float, optional
        The largest Euclidean norm of a vector that an agent sends.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        plan: Plan,
        workers: int,
        norm_limit: float | None = None,
    ) -> None:
        self.problem = problem
        self.algorithm = algorithm
        self.plan = plan
        self._workers = workers
        self._limit = np.inf if norm_limit is None else norm_limit
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _map(self, function: Callable[[S], T], teams: Iterable[S]) -> Iterator[T]:
        """Apply ``function`` to teams, side by side; results come in the order of ``teams``."""
        return self._pool.map(function, teams) if self._pool else map(function, teams)

    def run_round(
        self, state: State, index: int, *, allowed: int = 0, limit: int | None = None
    ) -> Outcome:
        """Play the round with this index; the private arrays of ``state`` change in place.

        Parameters
        ----------
        state : State
            The state before the round, owned by the caller.
        index : int
            Index of the round.
        allowed : int
            How many updates may be refused before the round is given up, with nothing changed.
        limit : int, optional
            Cuts the local steps of every agent short.
        """
        self.plan.pool.start_round()
        present = self.plan.present(index)
        steps = self.plan.steps(index)
        if limit is not None:
            steps = [min(limit, number) for number in steps]
        max_local_steps = max((steps[i] for i in present), default=0)
        round_info = self.algorithm.round_info(
            index, m=self.problem.m, max_local_steps=max_local_steps
        )

        sums: dict[str, Float64Array] = {}
        counted: list[tuple[list[int], Vectors]] = []
        refusals: list[Refusal] = []
        bytes_up = 0
        bytes_down = len(present) * sum(vector.nbytes for vector in state.server.values())

        def outcome(after: State, *, aborted: bool = False) -> Outcome:
            return Outcome(after, aborted, tuple(refusals), bytes_up, bytes_down, round_info)

        teams = self.plan.teams(index, present, steps, parts=self._workers)
        updates = self._map(
            lambda team: self._updates(state, team, steps[team[0]], round_info), teams
        )
        for done, refused in updates:
            refusals.extend(refused)
            if len(refusals) > allowed:
                return outcome(state, aborted=True)
            for team, update in done:
                counted.append((team, update.pending))
                for name, rows in update.sent.items():
                    bytes_up += rows.nbytes
                    if name not in sums:
                        sums[name] = np.zeros(rows.shape[1])
                    add_rows(sums[name], rows)
                    if name not in update.pending:
                        self.plan.pool.release(rows)

        server = state.server
        number = sum(len(team) for team, _ in counted)
        done_steps = sum(steps[i] for team, _ in counted for i in team)
        if counted:
            server = self.algorithm.aggregate(server, Sums(sums, number, done_steps), round_info)

        def commit(counted: tuple[list[int], Vectors]) -> None:
            team, pending = counted
            at = _rows(team)
            private = state.private_of(at)
            new = self.algorithm.commit(private, pending, state.server, round_info, done_steps)
            for name, vectors in new.items():
                if vectors is not private[name] or not isinstance(at, slice):
                    state.private[name][at] = vectors

        for _ in self._map(commit, counted):
            pass
        for _, pending in counted:
            self.plan.pool.release(*pending.values())
        return outcome(State(state.algorithm, index + 1, server, state.private))

    def _updates(
        self, state: State, team: list[int], steps: int, round_info: RoundInfo
    ) -> tuple[list[tuple[list[int], Update]], list[Refusal]]:
        """Return the updates of a team, with whose they are, and why others can't be counted."""
        work = self.plan.work(team, round_info.index, steps)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                private = state.private_of(_rows(team))
                update = self.algorithm.local(work, state.server, private, round_info)
        except ProjectionError as error:
            if len(team) == 1:
                why = f"its projection failed: {error}"
                return [], [Refusal(round_info.index, team[0], why)]
            parts = [self._updates(state, [i], steps, round_info) for i in team]
            return [u for done, _ in parts for u in done], [r for _, no in parts for r in no]
        fine = _finite_rows(update, len(team))
        reasons = dict.fromkeys(np.flatnonzero(~fine).tolist(), "it is not finite")
        if self._limit < np.inf:
            longest = _longest(update, len(team))
            for i in np.flatnonzero(fine & ~(longest <= self._limit)).tolist():
                reasons[i] = f"its norm {longest[i]:.3g} is above the limit {self._limit:g}"
                fine[i] = False
        if not reasons:
            return [(team, update)], []
        refused = [Refusal(round_info.index, team[i], reasons[i]) for i in sorted(reasons)]
        sent = {name: rows[fine] for name, rows in update.sent.items()}
        pending = {name: rows[fine] for name, rows in update.pending.items()}
        kept = [team[i] for i in np.flatnonzero(fine)]
        return [(kept, Update(sent, pending))] if kept else [], refused

    def models(self, state: State) -> Float64Array:
        """Return all models, one row an agent, in an array of their own."""
        shape = (self.problem.m, self.problem.n)
        models = self.algorithm.model(state.server, state.private).astype(np.float64, copy=False)
        kept = any(models is each for each in (*state.server.values(), *state.private.values()))
        return np.broadcast_to(models, shape).copy() if kept or models.shape != shape else models

    def average(self, state: State) -> Float64Array:
        """Return the population average."""
        average = self.algorithm.average(state.server)
        return self.models(state).mean(axis=0) if average is None else average.astype(np.float64)

    def without_value(self, state: State, record: Record) -> list[Refusal]:
        """Return whose loss is not finite, where the objective of a record is not."""
        if np.isfinite(record.objective):
            return []
        average = self.average(state)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = [agent.loss.value(average) for agent in self.problem.agents]
            lost = ~np.isfinite(losses + record.distance**2)
        lost |= not lost.any()  # each of them is finite, but not their sum
        why = "its loss is not finite"
        return [Refusal(state.round - 1, int(i), why) for i in np.flatnonzero(lost)]

    def figures(self, state: State) -> Figures:
        """Evaluate a state: objective, loss, and per agent distances and held-out figures."""
        average = self.average(state)
        m, stack = self.problem.m, self.plan.stack
        width = 1 if stack is None else max(1, ENTRIES // 2 // self.problem.n)  # float64
        spans = [slice(first, min(first + width, m)) for first in range(0, m, width)]

        def of_span(span: slice) -> Float64Array:
            agents = self.problem.agents[span]
            shape = (len(agents), self.problem.n)
            models = self.algorithm.model(state.server, state.private_of(span))
            x = np.broadcast_to(models, shape).astype(np.float64, order="C")
            with np.errstate(over="ignore", invalid="ignore"):
                sets = SetRows([agent.feasible_set for agent in agents])
                columns: list[Any] = [sets.distances(x), np.linalg.norm(x - average, axis=1)]
                columns += zip(*map(_held_out, agents, x), strict=True)
                if stack is None:
                    columns.append([agent.loss.value(average) for agent in agents])
            return np.array(columns)

        columns = np.concatenate(list(self._map(of_span, spans)), axis=1)
        infeasibility, distance, test_loss, test_accuracy = columns[:4]
        losses = columns[4] if stack is None else stack.values(average)
        coupling = np.array([agent.coupling for agent in self.problem.agents])
        return Figures(
            objective=float(np.mean(losses + coupling / 2 * distance**2)),
            loss=float(np.mean(losses)),
            infeasibility=infeasibility,
            distance=distance,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
        )


def _held_out(agent: Agent, x: Float64Array) -> tuple[float, float]:
    """Return the loss and the accuracy of a model on the agent's held-out data, NaN without."""
    return (agent.test.value(x), agent.test.accuracy(x)) if agent.test else (np.nan, np.nan)


def _rows(team: list[int]) -> slice | list[int]:
    """Return an index of the team's rows: a slice where they lie together, in their order."""
    span = range(team[0], team[-1] + 1)
    return slice(span.start, span.stop) if team == list(span) else team


def _finite_rows(update: Update, agents: int) -> NDArray[np.bool_]:
    """Say for each agent whether all of its update is finite."""
    fine = np.ones(agents, np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = {id(rows): rows for rows in (*update.sent.values(), *update.pending.values())}
        for rows in arrays.values():
            if not np.isfinite(rows.sum()):  # seldom: look more closely
                fine &= np.isfinite(rows).all(axis=1)
    return fine


def _longest(update: Update, agents: int) -> Float64Array:
    """Return for each agent the norm of the longest vector that it sends."""
    longest = np.zeros(agents)
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in update.sent.values():
            np.maximum(
                longest,
                np.linalg.norm(rows.astype(np.float64), axis=1),
                out=longest,
            )
    return longest
