"""Who takes part in a round, with how many local steps, and on which batches.

A plan turns the arguments of a run into what happens in each round, the same for every engine. What
concerns the agents' own data is in a `LocalPlan`, which may be of a range of the agents only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import Algorithm, LocalContext, RunInfo
from pcfed.algorithms.local_context import loss_points
from pcfed.arrays import Workspace
from pcfed.losses import Loss
from pcfed.losses.probe import loss_digest
from pcfed.losses.stack import MAX_BLOCK_FEATURES, Stack
from pcfed.problem import Agent, LazyAgents, Problem
from pcfed.sampling import BatchSampler, Purpose, Sampling, random_stream, resolve_batch_size
from pcfed.sets import ConvexSet, WarmStart
from pcfed.simulation.privacy import RunPrivacy, Spent, plan_privacy
from pcfed.validation import count

LocalSteps = int | Sequence[int] | Callable[[int], int | Sequence[int]]
"""A number, one number per agent, or a function of the round's index that returns either."""

Participation = float | int | Sequence[Collection[int]] | Callable[[int], Collection[int]]
"""A fraction (float), a number (int), or who is absent: per round, or a function of its index."""

Batch = float | int | Callable[[int], float | int]
"""A fraction (float), a size (int), or a function of the round's index that returns either."""

StepsOf = Sequence[int] | Mapping[int, int]
"""Numbers of local steps by position."""

MAX_GROUP_ENTRIES = 2**19
"""Parameters of a group at most, so that the vectors of its local steps stay in the cache."""

MAX_GROUP_AGENTS = 64
"""Agents of a group at most: larger ones save no more time, and are harder to spread on threads."""

WINDOW = 1024
"""Agents among which groups are formed. Sums are taken in the order of positions, so that updates
may have to wait for others, but only for those of their window."""


def windows_of(present: Sequence[int]) -> list[Sequence[int]]:
    """Return the participants of a round, cut into windows of neighbours."""
    number = max(1, -(-len(present) // WINDOW))
    ends = [len(present) * k // number for k in range(number + 1)]
    return [present[start:end] for start, end in pairwise(ends)]


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
        self._problem = problem
        self._local_steps = local_steps
        self._constant_steps: int | list[int] | None = None
        self._participation = participation
        self.batch, self.sampling = batch, sampling
        self.privacy: RunPrivacy | None = None
        """The budgets of private agents, once they are planned."""
        if problem.is_lazy:
            self._sizes: list[int] = []  # to know them, every agent would have to be made
        else:
            self._sizes = [agent.loss.size for agent in problem.agents]
            if not callable(batch):
                self._samplers(0)
        self.steps(0)
        self.present(0)

    @cached_property
    def local(self) -> LocalPlan:
        """The batches and groups of all agents."""
        return self.local_plan(self._problem.agents)

    def local_plan(self, agents: Sequence[Agent], first: int = 0) -> LocalPlan:
        """Return the batches and groups of agents, of which the first has this position."""
        sampling, seed = self.sampling, self.seed
        return LocalPlan(
            agents, first, batch=self.batch, sampling=sampling, seed=seed, privacy=self.privacy
        )

    def plan_privacy(self, algorithm: Algorithm, rounds: range) -> None:
        """Choose the noise of private agents for these rounds; raise if a budget is too small."""
        if not self._problem.is_private:
            return
        if callable(self.batch):
            raise ValueError(
                "run: batch must be a number for agents with a privacy budget, got a function; "
                "give one such as 0.1."
            )

        def counts_in(index: int) -> NDArray[np.int64]:
            row, present = np.zeros(self.m, np.int64), self.present(index)
            row[present] = [algorithm.num_gradients(each) for each in self.steps(index, present)]
            return row

        share = self._participation
        is_constant = isinstance(share, float) and share == 1.0
        if is_constant and not callable(self._local_steps):
            counts = np.broadcast_to(counts_in(0), (len(rounds), self.m))
        else:
            counts = np.array([counts_in(index) for index in rounds])
        self.privacy = plan_privacy(self._problem, self._samplers(0), counts)

    def spent(self, position: int) -> Spent | None:
        """Return what all rounds spend of the budget of an agent; None if it has none."""
        return None if self.privacy is None else self.privacy.spent(position)

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments by which checkpoints recognise a run."""
        arguments: dict[str, object] = {
            "local_steps": self._local_steps,
            "batch": self.batch,
            "sampling": self.sampling,
            "participation": self._participation,
            "seed": self.seed,
        }
        if self.privacy is not None:  # rounds that are added later would exceed the budget
            arguments["privacy"] = self.privacy.summary
            arguments["gradients per round (their hash)"] = self.privacy.digest
        return arguments

    def steps(self, index: int, agents: Sequence[int] | None = None) -> list[int]:
        """Return the numbers of local steps of some agents in a round, of all by default."""
        given = self._steps_of_round(index)
        if isinstance(given, int):
            return [given] * (self.m if agents is None else len(agents))
        return given if agents is None else [given[i] for i in agents]

    def _steps_of_round(self, index: int) -> int | list[int]:
        """Return the number of local steps of all agents, or one per agent."""
        given = self._local_steps
        if callable(given):
            return self._checked_steps(given(index))
        if self._constant_steps is None:
            self._constant_steps = self._checked_steps(given)
        return self._constant_steps

    def _checked_steps(self, given: int | Sequence[int]) -> int | list[int]:
        """Return numbers of local steps, or raise a ValueError."""
        if isinstance(given, (int, np.integer)):
            return count("run: local_steps", given)
        if not isinstance(given, (Sequence, np.ndarray)) or len(given) != self.m:
            raise ValueError(
                f"run: local_steps must be a number or one number per agent, got {given!r} for "
                f"{self.m} agents; give 20, or a list of {self.m} numbers."
            )
        return [count(f"run: local_steps[{i}]", steps) for i, steps in enumerate(given)]

    def max_local_steps(self, rounds: range) -> int:
        """Return the largest number of local steps in these rounds."""
        indices = rounds if callable(self._local_steps) else range(1)
        given = map(self._steps_of_round, indices)
        return max(steps if isinstance(steps, int) else max(steps) for steps in given)

    def run_info(self, rounds: range) -> RunInfo:
        """Return what an algorithm may know of these rounds before they begin."""
        longest = self.max_local_steps(rounds)
        if self._problem.is_lazy:
            full = self.batch == 1.0 and self.sampling != "with_replacement"
            return RunInfo(len(rounds), longest, noisy=not full)
        first, last = self._samplers(rounds[0]), self._samplers(rounds[-1])
        full = all(batches.is_full_batch for batches in first)
        return RunInfo(
            rounds=len(rounds),
            max_local_steps=longest,
            batches=None if full else tuple(batches.batch_size for batches in first),
            noisy=self._problem.is_private or not all(batches.is_full_batch for batches in last),
        )

    def _samplers(self, index: int) -> list[BatchSampler]:
        """Return how every agent draws batches in the round with this index."""
        given = _batch_in(self.batch, index)
        pairs = zip(self._sizes, self._problem.names, strict=True)
        return [_sampler(given, size, self.sampling, agent=name) for size, name in pairs]

    def multiplications(self, index: int) -> int:
        """Return about how many multiplications the gradients of a round take."""
        if self._problem.is_lazy:
            return 0
        present, samplers = self.present(index), self._samplers(index)
        pairs = zip(self.steps(index, present), present, strict=True)
        return sum(steps * samplers[i].batch_size for steps, i in pairs) * self._problem.n

    @cached_property
    def is_stacked(self) -> bool:
        """Whether the losses of all agents can be evaluated together."""
        if self._problem.is_lazy:
            return False
        losses = [agent.loss for agent in self._problem.agents]
        return _are_stacked(losses, self._samplers(0)) and Stack.can_build(losses)

    @property
    def stack(self) -> Stack | None:
        """As in `LocalPlan`, of all agents."""
        return self.local.stack

    def groups(
        self, index: int, present: Sequence[int], steps: Sequence[int], *, min_groups: int = 1
    ) -> list[list[int]]:
        """As in `LocalPlan`, of all agents."""
        return self.local.groups(index, present, steps, min_groups=min_groups)

    def context(self, group: Sequence[int], index: int, steps: int) -> LocalContext:
        """As in `LocalPlan`, of all agents."""
        return self.local.context(group, index, steps)

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


class LocalPlan:
    """The agents of a range in the rounds of a run: their data, batches and groups.

    Positions are those in the whole roster.

    Parameters
    ----------
    agents : sequence of Agent
        The agents of the range. If they are made on demand, they are kept until `forget_agents`.
    first : int
        The position of the first one.
    batch, sampling, seed
        As in `Plan`.
    privacy : RunPrivacy, optional
        The noise of private agents.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        first: int = 0,
        *,
        batch: Batch,
        sampling: Sampling,
        seed: int,
        privacy: RunPrivacy | None = None,
    ) -> None:
        self.first, self.stop = first, first + len(agents)
        self.seed, self._batch, self._sampling = seed, batch, sampling
        self._privacy = privacy
        self.is_lazy = isinstance(agents, LazyAgents)
        self._given = agents
        self._agents_of_round: dict[int, Agent] = {}
        self._warm_starts: dict[int, WarmStart] = {}
        self._constant: dict[int, BatchSampler] = {}
        self._digests: dict[int, str] = {}
        loss = self.agent(first).loss
        self.n, self._max_group = loss.n, _max_group(loss)
        self.forget_agents()
        self.stack = None if self.is_lazy else self._stack(range(first, self.stop))

    def _stack(self, positions: Sequence[int]) -> Stack | None:
        """Return the losses of agents as one object, if that helps and they can be stacked."""
        losses = [self.agent(i).loss for i in positions]
        samplers = [self.sampler(i, 0) for i in positions]
        return Stack.build(losses) if _are_stacked(losses, samplers) else None

    def agent(self, i: int) -> Agent:
        """Return the agent at a position, with its rows in the order in which they are drawn."""
        if i not in self._agents_of_round:
            agent = self._given[i - self.first]
            if self._sampling == "blocks":
                agent = self._shuffled(agent, i)
            self._agents_of_round[i] = agent
        return self._agents_of_round[i]

    def agents(self, span: slice) -> Sequence[Agent]:
        """Return the agents of some positions as they were given; they are not kept."""
        return list(self._given[span.start - self.first : span.stop - self.first])

    def feasible_set(self, i: int) -> ConvexSet:
        """Return the set of the agent at a position, which is not kept if it is made for this."""
        return (self._agents_of_round.get(i) or self._given[i - self.first]).feasible_set

    def forget_agents(self) -> None:
        """Forget agents that are made on demand."""
        if self.is_lazy:
            self._agents_of_round.clear()
            self._warm_starts.clear()
            self._constant.clear()

    def groups(
        self, index: int, present: Sequence[int], steps: StepsOf, *, min_groups: int = 1
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
        steps : sequence or mapping
            The number of local steps by position.
        min_groups : int
            Split agents that could be one group into at least this many, for as many threads.
        """
        batches = {i: self.sampler(i, index) for i in present}
        kinds = {i: _kind(self.agent(i)) for i in present}
        small = {i: _is_small(batches[i], self.agent(i).loss) for i in present}
        order = sorted(present, key=lambda i: (steps[i], kinds[i], batches[i].batch_size))
        groups: list[list[int]] = []
        alike = groupby(order, lambda i: (steps[i], kinds[i], -1 if small[i] else i))
        for _, members in alike:
            group = list(members)
            number = max(-(-len(group) // self._max_group), min(min_groups, len(group)))
            groups += (part.tolist() for part in np.array_split(group, number))
        return groups

    def context(
        self, group: Sequence[int], index: int, steps: int, workspace: Workspace | None = None
    ) -> LocalContext:
        """Return what the agents of a group compute the round with this index with."""
        stack, first = self.stack, self.first
        rows = [i - first for i in group]
        if self.is_lazy and len(group) > 1:
            stack, rows = self._stack(group), list(range(len(group)))
        return LocalContext(
            [self.agent(i) for i in group],
            group,
            steps,
            [self.sampler(i, index) for i in group],
            seed=self.seed,
            index=index,
            warm_starts=[self._warm_starts.setdefault(i, WarmStart()) for i in group],
            stack=stack,
            stack_rows=rows,
            workspace=workspace,
            private=[
                self._privacy.gradients(i, self.seed, index, self._digest(i))
                for i in group
                if self._privacy is not None and i in self._privacy.plans
            ],
        )

    def sampler(self, i: int, index: int) -> BatchSampler:
        """Return how the agent at a position draws batches in the round with this index."""
        found = self._constant.get(i)
        if found is None:
            loss, given = self.agent(i).loss, _batch_in(self._batch, index)
            found = _sampler(given, loss.size, self._sampling, agent=f"agent {i}")
            if not callable(self._batch):
                self._constant[i] = found
        return found

    def _digest(self, i: int) -> str:
        """Return the hash of the loss of a private agent, which is computed once."""
        if i not in self._digests:
            self._digests[i] = loss_digest(self.agent(i).loss)
        return self._digests[i]

    def _shuffled(self, agent: Agent, i: int) -> Agent:
        """Return the agent with its rows in a random order, so that blocks are slices."""
        order = random_stream(self.seed, Purpose.BLOCKS, i).permutation(agent.loss.size)
        return replace(agent, loss=agent.loss.permute_samples(order))


def _max_group(loss: Loss) -> int:
    """Return the largest number of agents in a group."""
    return min(MAX_GROUP_AGENTS, max(1, MAX_GROUP_ENTRIES // loss.n))


def _is_small(batches: BatchSampler, loss: Loss) -> bool:
    """Return whether two batches fit into one block of the stack."""
    features = loss.shape[-1] if loss.shape else 1
    return 2 * batches.batch_size * features <= MAX_BLOCK_FEATURES


def _are_stacked(losses: Sequence[Loss], samplers: Sequence[BatchSampler]) -> bool:
    """Return whether groups of agents are computed together, so that a stack helps."""
    small = sum(map(_is_small, samplers, losses))
    return _max_group(losses[0]) > 1 and small > 1


def _kind(agent: Agent) -> tuple[int, str, bool]:
    """Return what the agents of a group have in common, beside the number of steps."""
    return agent.loss.dtype.itemsize, loss_points(agent), agent.privacy is not None


def _batch_in(batch: Batch, index: int) -> float | int | _AtMost:
    """Return the batch of a round; a function may ask for more than there is."""
    return _AtMost(batch(index)) if callable(batch) else batch


class _AtMost(NamedTuple):
    """A batch that is cut where an agent has less data."""

    batch: float | int


def _sampler(
    batch: float | int | _AtMost, size: int, sampling: Sampling, *, agent: str
) -> BatchSampler:
    """Return how an agent with so many samples draws its batches."""
    if isinstance(batch, _AtMost):
        given = batch.batch
        batch = min(given, size if isinstance(given, (int, np.integer)) else 1.0)
    return BatchSampler(size, resolve_batch_size(batch, size, agent=agent), sampling)
