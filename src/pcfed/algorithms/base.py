"""The hooks of a federated algorithm.

An algorithm defines four things; the simulator and the federation do the rest:

1. what is broadcast: the vectors of the server's state;
2. what an agent computes from them, its data and its private state (``local``, ``commit``);
3. what it sends, of which the server only ever sees the **sum** over agents;
4. what the server does with the sums (``aggregate``).

State is a mapping from names to vectors: the server's, float64 of shape (n,), and one private
mapping per agent, which never leaves the agent. An agent's private state changes only in
``commit``, once the server has accepted its update, so a lost message cannot make the two disagree.

``local`` and ``commit`` take a group of agents, one row each, because that is faster than one agent
after the other. No row depends on another, and a group may be a single agent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.schedules import (
    Schedule,
    check_schedule,
    decaying,
    largest_value,
    value_at,
)
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Center, Problem

Vectors = Mapping[str, Array]
"""Vectors by name."""


@dataclass(frozen=True)
class RoundInfo:
    """The public information on a round.

    Attributes
    ----------
    index : int
        Number of rounds before this one.
    m : int
        Number of agents in the roster, present or absent.
    max_local_steps : int
        The largest number of local steps that an agent takes in it.
    step, penalty : float
        The step γ and the penalty ρ of this round; 0 for algorithms that have none.
    """

    index: int
    m: int
    max_local_steps: int
    step: float = 0.0
    penalty: float = 0.0


@dataclass(frozen=True)
class RunInfo:
    """The public information on a run.

    Attributes
    ----------
    rounds : int
        Number of rounds R.
    max_local_steps : int
        The largest number of local steps of a round.
    batches : tuple of int or None
        Every agent's number of samples in a gradient of the first round; None for all.
    noisy : bool
        Whether gradients have noise until the end of the run: they are computed on batches, not on
        all data, or agents have privacy budgets.
    """

    rounds: int
    max_local_steps: int
    batches: tuple[int, ...] | None = None
    noisy: bool = False


@dataclass(frozen=True)
class Update:
    """What the agents of a group computed in a round, one row each.

    Attributes
    ----------
    sent : Vectors
        The vectors for the server, where they are only ever summed: ``Algorithm.sent_vectors``,
        and ``STATISTICS`` if the algorithm has any.
    pending : Vectors
        What the agent needs to commit its update once it is accepted; never sent. Under the name
        of a sent vector it has that vector, so that the two stay equal where updates are rounded.
    """

    sent: Vectors
    pending: Vectors


@dataclass(frozen=True)
class Sums:
    """What the server receives in a round.

    Attributes
    ----------
    vectors : Vectors
        The sums of the vectors that were sent.
    num_aggregated : int
        Number of agents whose updates are in the sums.
    """

    vectors: Vectors
    num_aggregated: int

    def mean(self, name: str) -> Array:
        """Return the mean of a vector over the agents whose updates are in the sums."""
        return self.vectors[name] / self.num_aggregated


STATISTICS = "statistics"
"""The name of the vector of scalars that an agent sends beside its update."""


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated algorithm; its parameters are the fields of its dataclass."""

    sends: ClassVar[tuple[str, ...]] = ("delta",)
    """The names of the vectors of n numbers that agents send; see `sent_vectors`."""

    statistics: ClassVar[tuple[str, ...]] = ()
    """The names of scalars that agents send in one vector, ``STATISTICS``; only summed, too."""

    advice: ClassVar[str] = "look for very large numbers in the data"
    """What to try if a run diverges."""

    @property
    def feasible(self) -> bool:
        """Whether agents' own models are in their sets in every round; False by default.

        Private states then start from projected models; a row must depend on its own model only.
        """
        return False

    def stability_warning(self, max_local_steps: int) -> str | None:
        """Return a warning about parameters with which long runs may diverge; None by default."""
        return None

    @property
    def state_kind(self) -> str:
        """The kind of state: only an algorithm with the same kind can continue from it."""
        return type(self).__name__

    def for_center(self, center: Center) -> Self:
        """Return the algorithm for problems with this centre; raise if it has no form for it.

        The default is for algorithms with one shared model, for which both are the same.
        """
        return self

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        """Return the algorithm with numbers for the parameters that depend on the problem.

        Parameters
        ----------
        problem : Problem
            The agents.
        run_info : RunInfo
            The run that follows.
        """
        return self

    def round_info(self, index: int, *, m: int, max_local_steps: int) -> RoundInfo:
        """Return the public information on the round with this index."""
        return RoundInfo(index, m, max_local_steps)

    def sent_vectors(self, server: Vectors, m: int) -> tuple[str, ...]:
        """Return the names of the vectors of n numbers that agents send in answer to a state.

        Parameters
        ----------
        server : Vectors
            The server's state.
        m : int
            Number of agents in the roster.
        """
        return self.sends

    def num_gradients(self, local_steps: int) -> int:
        """Return how many gradients an agent takes in a round at most, by default one per step.

        Agents with a privacy budget account for so many; the gradients at several points that are
        computed in one call count once.
        """
        return local_steps

    @abstractmethod
    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Return the server's state and the private state of all agents, stacked, one row each.

        Where all agents start from one vector, it is called with a single row, for all of them.

        Parameters
        ----------
        models : Array
            The models to start from, one row per agent.
        """

    @abstractmethod
    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Return the updates of a group of agents; changes no state.

        Parameters
        ----------
        context : LocalContext
            The agents' own data and sets.
        received : Vectors
            The server's state, as it was broadcast.
        private : Vectors
            The agents' private state, one row each.
        round_info : RoundInfo
            The public information on the round.
        """

    @abstractmethod
    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Return the server's new state; ``sums.num_aggregated`` is at least 1."""

    @abstractmethod
    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Return the agents' new private state, once their updates are accepted.

        Parameters
        ----------
        private, pending : Vectors
            Their state before the round and ``Update.pending``, one row each; ``private`` may be
            overwritten.
        received : Vectors
            What the server broadcast in the round.
        round_info : RoundInfo
            The public information on the round.
        """

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        """Return private vectors whose mean is in the server's state, by the server's names.

        Parameters
        ----------
        server : Vectors
            The server's state.
        private : Vectors
            The private state of agents that have committed all their accepted updates.
        """
        return {}

    @abstractmethod
    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the agent's own model, or all models of stacked private states."""

    @abstractmethod
    def average(self, server: Vectors) -> Array | None:
        """Return the population average, or None where the server does not know it."""

    def shared_model(self, server: Vectors) -> Array | None:
        """Return the model that the server would give to a new agent; None if it has none."""
        return self.average(server)


STEP_FACTOR = 0.6
"""Automatic steps, times the typical curvature. From 2 on, steps diverge, and with many local steps
the agents drift apart long before."""


@dataclass(frozen=True)
class StepAlgorithm(Algorithm):
    r"""An algorithm of local gradient steps.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma > 0$, a number or a function of the round's index; ``"auto"`` is
        0.6 over the typical curvature of the local losses and of the terms added to them.
    """

    step: Schedule

    keywords: ClassVar[tuple[str, ...]] = ("auto",)
    """Values of ``step`` and ``penalty`` that are not numbers."""

    advice: ClassVar[str] = "try a smaller step"

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}: step"
        check_schedule(where, self.step, zero=False, keywords=self.keywords)

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        """Return the algorithm with numbers for ``"auto"``."""
        if self.step != "auto":
            return self
        refuse_lazy(problem, self.step)
        curvature = typical_smoothness(problem, run_info) + self._added_curvature(run_info.rounds)
        step = STEP_FACTOR / curvature
        return replace(self, step=decaying(step) if run_info.noisy else step)

    def _added_curvature(self, rounds: int) -> float:
        """Return the largest curvature of the terms that are added to the losses in a run."""
        return 0.0

    def round_info(self, index: int, *, m: int, max_local_steps: int) -> RoundInfo:
        """Return the public information on a round, with its step."""
        step = value_at(f"{type(self).__name__}: step", self.step, index, zero=False)
        return RoundInfo(index, m, max_local_steps, step)


@dataclass(frozen=True)
class PenaltyAlgorithm(StepAlgorithm):
    r"""An algorithm of local gradient steps on losses with a penalty for leaving the agent's set.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma > 0$, as in `StepAlgorithm`.
    penalty : float, callable or "auto"
        The penalty $\rho \ge 0$ on the distance from the agent's set; ``"auto"`` is $\sqrt R$.
    """

    penalty: Schedule

    zero_penalty: ClassVar[bool] = True
    """Whether the penalty may be 0 in a round."""

    advice: ClassVar[str] = "try a smaller step or a smaller penalty"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"{type(self).__name__}: penalty"
        check_schedule(where, self.penalty, zero=self.zero_penalty, keywords=self.keywords)

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        """Return the algorithm with numbers for ``"auto"``."""
        if self.penalty == "auto":
            numeric = replace(self, penalty=math.sqrt(run_info.rounds))
            return numeric.resolved(problem, run_info)
        return super().resolved(problem, run_info)

    def _added_curvature(self, rounds: int) -> float:
        return largest_value(f"{type(self).__name__}: penalty", self.penalty, rounds)

    def round_info(self, index: int, *, m: int, max_local_steps: int) -> RoundInfo:
        """Return the public information on a round, with its step and penalty."""
        info = super().round_info(index, m=m, max_local_steps=max_local_steps)
        where = f"{type(self).__name__}: penalty"
        penalty = value_at(where, self.penalty, index, zero=self.zero_penalty)
        return replace(info, penalty=penalty)


def refuse_lazy(problem: Problem, step: str) -> None:
    """Raise a ValueError if a step depends on all agents, and they are made on demand."""
    if problem.is_lazy:
        raise ValueError(
            f"run: step must be a number for Problem.lazy, got {step!r}, for which this process "
            "would make all agents; give one such as 0.1, or take PCFedSplit, which needs none."
        )


def typical_smoothness(problem: Problem, run_info: RunInfo) -> float:
    """Return the typical smoothness of the losses; raise if it gives no step."""
    typical = problem.typical_smoothness(run_info.batches)
    if not 0 < typical < math.inf:
        raise ValueError(
            f"run: step must be a number for losses without a known smoothness, got 'auto' and "
            f"{typical}; give one such as 0.1."
        )
    return typical
