"""What every method has in common.

A method says four things, and the engines (the simulator, Flower) do the rest:

1. what is broadcast: the vectors of the server's state;
2. what an agent does with them, its data and its private state (``local``, ``commit``);
3. what it sends, of which the server only ever sees the **sum** over agents;
4. what the server does with the sums (``aggregate``).

State is a bundle of named vectors: the server's, float64 of shape (n,), and one private bundle per
agent, which never leaves it. An agent's private state changes only in ``commit``, once the server
has counted its update, so a lost message can never make the two disagree.

``local`` and ``commit`` take a team of agents, one row each, because that is quicker than one after
the other; no row depends on another, and a team may be a single agent.
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
from pcfed.problem import Problem

Vectors = Mapping[str, Array]
"""A bundle of named vectors."""


@dataclass(frozen=True)
class RoundInfo:
    """What everybody knows of a round before it begins.

    Attributes
    ----------
    index : int
        Number of rounds before this one.
    m : int
        Size of the roster, whoever is present.
    step, penalty : float
        The step γ and the penalty ρ of this round.
    max_local_steps : int
        The largest number of local steps that an agent takes in it.
    """

    index: int
    m: int
    step: float
    penalty: float
    max_local_steps: int


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run before it begins.

    Attributes
    ----------
    rounds : int
        Number of rounds R.
    max_local_steps : int
        The largest number of local steps of a round.
    batches : tuple of int or None
        Every agent's number of samples in a gradient of the first round; None for all.
    noisy : bool
        Whether gradients are of batches, not of all data, to the end.
    """

    rounds: int
    max_local_steps: int
    batches: tuple[int, ...] | None = None
    noisy: bool = False


@dataclass(frozen=True)
class Update:
    """What the agents of a team have done in a round, one row each.

    Attributes
    ----------
    sent : Vectors
        The vectors that go to the server, where they are only ever summed.
    pending : Vectors
        What an agent itself needs to commit the round once it has been counted; stays with it.
    """

    sent: Vectors
    pending: Vectors


@dataclass(frozen=True)
class Sums:
    """What the server learns of a round.

    Attributes
    ----------
    vectors : Vectors
        The sums of the vectors that were sent.
    num_aggregated : int
        Number of agents in the sums.
    steps : int
        Number of local steps in the sums.
    """

    vectors: Vectors
    num_aggregated: int
    steps: int


CAUTION = 0.6
"""Steps as a multiple of 1 over the usual curvature: those of 2 diverge, and with many local steps
the agents drift apart long before."""


@dataclass(frozen=True)
class Algorithm(ABC):
    r"""A federated method.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma > 0$, a number or a function of the round's index; ``"auto"`` is
        0.6 over the curvature that local steps usually meet.
    penalty : float, callable or "auto"
        The penalty $\rho \ge 0$ on the distance from the agent's set; ``"auto"`` is $\sqrt R$.
    """

    step: Schedule
    penalty: Schedule

    keywords: ClassVar[tuple[str, ...]] = ("auto",)
    """What ``step`` and ``penalty`` may be instead of numbers."""

    sends: ClassVar[tuple[str, ...]] = ("delta",)
    """The names of the vectors that agents send."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_schedule(f"{name}: step", self.step, zero=False, keywords=self.keywords)
        check_schedule(f"{name}: penalty", self.penalty, zero=True, keywords=self.keywords)

    @property
    def state_kind(self) -> str:
        """The kind of state: only an algorithm with the same kind can continue from it."""
        return type(self).__name__

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        """Return the method with every parameter that depends on the problem worked out.

        Parameters
        ----------
        problem : Problem
            The agents.
        run_info : RunInfo
            The run that the method is for.
        """
        penalty = math.sqrt(run_info.rounds) if self.penalty == "auto" else self.penalty
        if self.step != "auto":
            return replace(self, penalty=penalty)
        largest = largest_value(f"{type(self).__name__}: penalty", penalty, run_info.rounds)
        step = CAUTION / (typical_smoothness(problem, run_info) + largest)
        return replace(self, step=decaying(step) if run_info.noisy else step, penalty=penalty)

    def round_info(self, index: int, *, m: int, max_local_steps: int) -> RoundInfo:
        """Return the public round_info of the round with this index."""
        name = type(self).__name__
        step = value_at(f"{name}: step", self.step, index, zero=False)
        penalty = value_at(f"{name}: penalty", self.penalty, index, zero=True)
        return RoundInfo(index, m, step, penalty, max_local_steps)

    @abstractmethod
    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Return the server's state and the private state of all agents, stacked, one row each.

        Parameters
        ----------
        models : Array
            The models to begin with, one row an agent.
        """

    @abstractmethod
    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Return what the agents of a team do in a round; changes nothing.

        Parameters
        ----------
        context : LocalContext
            The agents' own data and sets.
        received : Vectors
            The server's state, as it was broadcast.
        private : Vectors
            The agents' private state, one row each.
        round_info : RoundInfo
            The public round_info of the round.
        """

    @abstractmethod
    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Return the server's new state; ``sums.num_aggregated`` is at least 1."""

    @abstractmethod
    def commit(
        self,
        private: Vectors,
        pending: Vectors,
        received: Vectors,
        round_info: RoundInfo,
        steps: int,
    ) -> Vectors:
        """Return the agents' new private state, once their updates have been counted.

        Parameters
        ----------
        private, pending : Vectors
            Their state before the round, and what they kept of it, one row each; ``private`` may
            be written to.
        received : Vectors
            What the server broadcast in the round.
        round_info : RoundInfo
            The public round_info of the round.
        steps : int
            Number of local steps that were counted in it, all agents together.
        """

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        """Return private vectors of which the server holds the mean, by the server's names.

        Parameters
        ----------
        server : Vectors
            The server's state.
        private : Vectors
            The private state of agents who have committed all rounds in which they were counted.
        """
        return {}

    @abstractmethod
    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the agent's own model (or, of stacked private states, all models)."""

    @abstractmethod
    def average(self, server: Vectors) -> Array | None:
        """Return the population average, or None where the server cannot know it."""


def typical_smoothness(problem: Problem, run_info: RunInfo) -> float:
    """Return the usual smoothness of the losses, or say that there is none to take a step from."""
    usual = problem.typical_smoothness(run_info.batches)
    if not 0 < usual < math.inf:
        raise ValueError(
            f'run: step must be a number where losses have no smoothness, got "auto" and {usual}; '
            "give one such as 0.1."
        )
    return usual
