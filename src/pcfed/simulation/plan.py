"""Who takes part in a round, with how many local steps, and on which batches.

A plan turns the arguments of a run into what happens in each round, the same for every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from pcfed.algorithms import LocalContext, RunInfo
from pcfed.algorithms.local_context import loss_points
from pcfed.arrays import Workspace
from pcfed.losses.stack import MAX_BLOCK_FEATURES, Stack
from pcfed.problem import Agent, Problem
from pcfed.sampling import BatchSampler, Purpose, Sampling, random_stream, resolve_batch_size
from pcfed.sets import WarmStart
from pcfed.validation import count

LocalSteps = int | Sequence[int] | Callable[[int], int | Sequence[int]]
"""A number, one number per agent, or a function of the round's index that returns either."""

Participation = float | int | Sequence[Collection[int]] | Callable[[int], Collection[int]]
"""A fraction (float), a number (int), or who is absent: per round, or a function of its index."""

Batch = float | int | Callable[[int], float | int]
"""A fraction (float), a size (int), or a function of the round's index that returns either."""


MAX_GROUP_ENTRIES = 2**19
"""Parameters of a group at most, so that the vectors of its local steps stay in the cache."""

MAX_GROUP_AGENTS = 64
"""Agents of a group at most: larger ones save no more time, and are harder to spread on threads."""


class Plan:
    """The rounds of one run: participation, local steps and batches.

    Parameters
    ----------
    problem : Problem
        The agents.
    local_steps : int, sequence or callable
        A number, one per agent, or a function of the round's index that returns either.
    batch : float, int or callable
        A fraction of the local data as a float in (0, 1], a size as an int, or a function of the
        round's index that returns either and may grow beyond all data.
    sampling : {"without_replacement", "with_replacement", "blocks"}
        How batches are drawn; ``"blocks"`` shuffles a copy of the data once.
    participation : float, int, sequence or callable
        The share or the number of agents in every round, or who is absent in each.
    seed : int
        The seed of all random streams.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        local_steps: LocalSteps,
        batch: Batch,
        sampling: Sampling,
        participation: Participation,
        seed: int,
    ) -> None:
        self.seed = count("run: seed", seed, minimum=0)
        self.m = problem.m
        self._local_steps = local_steps
        self._participation = participation
        self._batch, self._sampling = batch, sampling
        self._sizes = [agent.loss.size for agent in problem.agents]
        self._names = problem.names
        self._constant_batches = (
            None if callable(batch) else [self._batches_of_size(i, batch) for i in range(self.m)]
        )
        self._agents = [
            self._shuffled(agent, i) if sampling == "blocks" else agent
            for i, agent in enumerate(problem.agents)
        ]
        self._warm_starts = [WarmStart() for _ in problem.agents]
        self.steps(0)
        self.present(0)
        self._max_group = min(MAX_GROUP_AGENTS, max(1, MAX_GROUP_ENTRIES // problem.n))
        self._features = problem.shape[-1] if problem.shape else 1
        small = [self._small(self._batches(i, 0)) for i in range(self.m)]
        together = self._max_group > 1 and sum(small) > 1
        self.stack = Stack.build([agent.loss for agent in self._agents]) if together else None

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments by which checkpoints recognise a run."""
        return {
            "local_steps": self._local_steps,
            "batch": self._batch,
            "sampling": self._sampling,
            "participation": self._participation,
            "seed": self.seed,
        }

    def steps(self, index: int) -> list[int]:
        """Return the number of local steps of every agent in the round with this index."""
        given = self._local_steps(index) if callable(self._local_steps) else self._local_steps
        if isinstance(given, (int, np.integer)):
            return [count("run: local_steps", given)] * self.m
        if not isinstance(given, (Sequence, np.ndarray)) or len(given) != self.m:
            raise ValueError(
                f"run: local_steps must be a number or one number per agent, got {given!r} for "
                f"{self.m} agents; give 20, or a list of {self.m} numbers."
            )
        return [count(f"run: local_steps[{i}]", steps) for i, steps in enumerate(given)]

    def max_local_steps(self, rounds: range) -> int:
        """Return the largest number of local steps in these rounds."""
        if not callable(self._local_steps):
            return max(self.steps(0))
        return max(max(self.steps(index)) for index in rounds)

    def run_info(self, rounds: range) -> RunInfo:
        """Return what an algorithm may know of these rounds before they begin."""
        first = [self._batches(i, rounds[0]) for i in range(self.m)]
        last = [self._batches(i, rounds[-1]) for i in range(self.m)]
        full = all(batches.is_full_batch for batches in first)
        return RunInfo(
            rounds=len(rounds),
            max_local_steps=self.max_local_steps(rounds),
            batches=None if full else tuple(batches.batch_size for batches in first),
            noisy=not all(batches.is_full_batch for batches in last),
        )

    def multiplications(self, index: int) -> int:
        """Return about how many multiplications the gradients of a round take."""
        steps = self.steps(index)
        rows = sum(steps[i] * self._batches(i, index).batch_size for i in self.present(index))
        return rows * self._agents[0].loss.n

    def present(self, index: int) -> list[int]:
        """Return the positions of the participants of the round with this index, in order."""
        share = self._participation
        if isinstance(share, (bool, str)):
            raise ValueError(
                f"run: participation must be a fraction, a number or lists of absent agents, got "
                f"{share!r}; give 0.5 for half of the agents, or 2 for two of them."
            )
        if isinstance(share, (float, np.floating)):
            if not 0 < share <= 1:
                raise ValueError(
                    f"run: participation must be a fraction in (0, 1] or a number of agents, got "
                    f"{share!r}; give 0.5 for half of them."
                )
            return self._draw_participants(max(1, round(float(share) * self.m)), index)
        if isinstance(share, (int, np.integer)):
            number = count("run: participation", share)
            if number > self.m:
                raise ValueError(
                    f"run: participation must be at most the number of agents, got {number} of "
                    f"{self.m}; give a smaller number, or 1.0 for all."
                )
            return self._draw_participants(number, index)
        absent = self._absent(index)
        return [i for i in range(self.m) if i not in absent]

    def groups(
        self, index: int, present: Sequence[int], steps: Sequence[int], *, min_groups: int = 1
    ) -> list[list[int]]:
        """Return which agents are computed together: those with small batches and as many steps.

        Groups are ordered by steps, dtype, points of the losses and batch size, then by position.
        Agents with large batches, whose time goes into matrix products, are computed alone.

        Parameters
        ----------
        index : int
            Index of the round.
        present : sequence of int
            Positions of the participants.
        steps : sequence of int
            Every agent's number of local steps.
        min_groups : int
            Split agents that could be one group into at least this many, for as many threads.
        """
        batches = {i: self._batches(i, index) for i in present}
        kinds = [(agent.loss.dtype.itemsize, loss_points(agent)) for agent in self._agents]
        order = sorted(present, key=lambda i: (steps[i], kinds[i], batches[i].batch_size))
        groups: list[list[int]] = []
        alike = groupby(order, lambda i: (steps[i], kinds[i], -1 if self._small(batches[i]) else i))
        for _, members in alike:
            group = list(members)
            number = max(-(-len(group) // self._max_group), min(min_groups, len(group)))
            groups += (part.tolist() for part in np.array_split(group, number))
        return groups

    def context(
        self, group: Sequence[int], index: int, steps: int, workspace: Workspace | None = None
    ) -> LocalContext:
        """Return what the agents of a group compute the round with this index with."""
        return LocalContext(
            [self._agents[i] for i in group],
            group,
            steps,
            [self._batches(i, index) for i in group],
            seed=self.seed,
            index=index,
            warm_starts=[self._warm_starts[i] for i in group],
            stack=self.stack,
            workspace=workspace,
        )

    def _small(self, batches: BatchSampler) -> bool:
        """Return whether two batches fit into one block of the stack."""
        return 2 * batches.batch_size * self._features <= MAX_BLOCK_FEATURES

    def _batches(self, i: int, index: int) -> BatchSampler:
        """Return how agent ``i`` draws batches in the round with this index."""
        if self._constant_batches is not None:
            return self._constant_batches[i]
        given = self._batch(index) if callable(self._batch) else self._batch
        whole = isinstance(given, (int, np.integer))
        return self._batches_of_size(i, min(given, self._sizes[i]) if whole else min(given, 1.0))

    def _batches_of_size(self, i: int, batch: float | int) -> BatchSampler:
        """Return how agent ``i`` draws batches of a given size."""
        size = resolve_batch_size(batch, self._sizes[i], agent=self._names[i])
        return BatchSampler(self._sizes[i], size, self._sampling)

    def _absent(self, index: int) -> set[int]:
        """Return who is absent in a round by the schedule; after the end of a list, nobody is."""
        given = self._participation
        if callable(given):
            absent: object = given(index)
        elif isinstance(given, Sequence):
            absent = given[index] if index < len(given) else ()
        else:
            absent = given
        if not isinstance(absent, Collection) or not all(
            isinstance(i, (int, np.integer)) and not isinstance(i, bool) and 0 <= i < self.m
            for i in absent
        ):
            raise ValueError(
                f"run: participation must say which of the agents 0..{self.m - 1} are absent in "
                f"each round, got {absent!r} in round {index}; give a list such as [0, 2]."
            )
        return {int(i) for i in absent}

    def _draw_participants(self, number: int, index: int) -> list[int]:
        """Return the positions of ``number`` agents, drawn at random."""
        if number == self.m:
            return list(range(self.m))
        rng = random_stream(self.seed, Purpose.PARTICIPATION, round_index=index)
        return sorted(rng.choice(self.m, number, replace=False).tolist())

    def _shuffled(self, agent: Agent, i: int) -> Agent:
        """Return the agent with its rows in a random order, so that blocks are slices."""
        order = random_stream(self.seed, Purpose.BLOCKS, i).permutation(agent.loss.size)
        return replace(agent, loss=agent.loss.permute_samples(order))
