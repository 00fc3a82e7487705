"""One round of any method, and the figures of a state, in this process.

A round is atomic. Agents compute updates from the state before it; the finite ones are summed in
the order of the roster, whatever the number of workers; then the server aggregates, and those who
were counted commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pcfed.algorithms import Algorithm, Round, Sums, Update, Vectors
from pcfed.arrays import Float64Array
from pcfed.plan import Plan
from pcfed.problem import Problem
from pcfed.result import Figures, Refusal, State
from pcfed.sets import ProjectionError

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round came to.

    Attributes
    ----------
    state : State
        The state after the round, or before it if the round was given up.
    given_up : bool
        Whether more updates were refused than allowed.
    refusals : tuple of Refusal
        Updates that were not counted.
    bytes_up, bytes_down : int
        What the agents sent and received, all together.
    facts : Round
        The step and the penalty of the round.
    """

    state: State
    given_up: bool
    refusals: tuple[Refusal, ...]
    bytes_up: int
    bytes_down: int
    facts: Round


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
    """

    def __init__(self, problem: Problem, algorithm: Algorithm, plan: Plan, workers: int) -> None:
        self.problem = problem
        self.algorithm = algorithm
        self.plan = plan
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _map(self, function: Callable[[int], T], agents: Iterable[int]) -> Iterator[T]:
        """Apply ``function`` to agents, side by side; results come in the order of ``agents``."""
        return self._pool.map(function, agents) if self._pool else map(function, agents)

    def play(
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
        present = self.plan.present(index)
        steps = self.plan.steps(index)
        if limit is not None:
            steps = [min(limit, number) for number in steps]
        longest = max((steps[i] for i in present), default=0)
        facts = self.algorithm.round(index, m=self.problem.m, longest=longest)

        sums: dict[str, Float64Array] = {}
        counted: dict[int, Vectors] = {}
        refusals: list[Refusal] = []
        bytes_up = 0
        bytes_down = len(present) * sum(vector.nbytes for vector in state.server.values())

        def outcome(after: State, *, given_up: bool = False) -> Outcome:
            return Outcome(after, given_up, tuple(refusals), bytes_up, bytes_down, facts)

        updates = self._map(lambda i: self._update(state, i, steps[i], facts), present)
        for i, update in zip(present, updates, strict=True):
            if isinstance(update, Refusal):
                refusals.append(update)
                if len(refusals) > allowed:
                    return outcome(state, given_up=True)
                continue
            counted[i] = update.pending
            for name, vector in update.sent.items():
                bytes_up += vector.nbytes
                if name in sums:
                    sums[name] += vector
                else:
                    sums[name] = vector.astype(np.float64)

        server = state.server
        done = sum(steps[i] for i in counted)
        if counted:
            server = self.algorithm.aggregate(server, Sums(sums, len(counted), done), facts)
        for i, pending in counted.items():
            new = self.algorithm.commit(state.private_of(i), pending, state.server, facts, done)
            for name, vector in new.items():
                state.private[name][i] = vector
        return outcome(State(state.algorithm, index + 1, server, state.private))

    def _update(self, state: State, i: int, steps: int, facts: Round) -> Update | Refusal:
        """Return the update of agent ``i``, or why it can't be counted."""
        work = self.plan.work(i, facts.index, steps)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                update = self.algorithm.local(work, state.server, state.private_of(i), facts)
        except ProjectionError as error:
            return Refusal(facts.index, i, f"its projection failed: {error}")
        if all(np.isfinite(x).all() for x in (*update.sent.values(), *update.pending.values())):
            return update
        return Refusal(facts.index, i, "it is not finite")

    def models(self, state: State) -> Float64Array:
        """Return all models, one row an agent."""
        models = self.algorithm.model(state.server, state.private)
        return np.array(np.broadcast_to(models, (self.problem.m, self.problem.n)), np.float64)

    def average(self, state: State) -> Float64Array:
        """Return the population average."""
        average = self.algorithm.average(state.server)
        return self.models(state).mean(axis=0) if average is None else average.astype(np.float64)

    def figures(self, state: State) -> Figures:
        """Evaluate a state: objective, loss, and per agent distances and held-out figures."""
        average = self.average(state)

        def of_agent(i: int) -> tuple[float, float, float, float, float]:
            agent = self.problem.agents[i]
            x = self.algorithm.model(state.server, state.private_of(i)).astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                return (
                    agent.loss.value(average),
                    _infeasibility(agent.feasible_set.distance, x),
                    float(np.linalg.norm(x - average)),
                    agent.test.value(x) if agent.test else np.nan,
                    agent.test.accuracy(x) if agent.test else np.nan,
                )

        columns = np.array(list(self._map(of_agent, range(self.problem.m)))).T
        losses, infeasibility, distance, test_loss, test_accuracy = columns
        coupling = np.array([agent.coupling for agent in self.problem.agents])
        return Figures(
            objective=float(np.mean(losses + coupling / 2 * distance**2)),
            loss=float(np.mean(losses)),
            infeasibility=infeasibility,
            distance=distance,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
        )


def _infeasibility(distance: Callable[[Float64Array], float], x: Float64Array) -> float:
    """Return the distance of a model from its set, NaN where a model is too wild to project."""
    try:
        return distance(x)
    except (ProjectionError, ValueError):
        return float("nan")
