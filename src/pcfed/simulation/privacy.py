"""The privacy budgets of the agents of a run: their noise, and what they spend."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.privacy import (
    BudgetError,
    Mechanism,
    NoisePlan,
    PrivateGradients,
    Spending,
    epsilon_of,
    noise_multiplier_for,
    noise_warning,
    relative_noise,
)
from pcfed.problem import Problem
from pcfed.sampling import BatchSampler


class Spent(NamedTuple):
    r"""What the planned rounds of a run spend of an agent's budget, at most.

    Attributes
    ----------
    epsilon, delta : float
        The guarantee of all gradients together; epsilon is at most that of the budget.
    gradients : int
        Number of gradients.
    noise_multiplier : float
        The standard deviation of their noise, as a multiple of how far a record can move one.
    batch_size : int
        Number of records in a gradient.
    """

    epsilon: float
    delta: float
    gradients: int
    noise_multiplier: float
    batch_size: int

    def relative_noise(self, n: int) -> float:
        """Return the length of the noise of all gradients together, for n parameters.

        It is relative to how long the sum of these gradients can be.
        """
        return relative_noise(self.noise_multiplier, self.batch_size, self.gradients, n)

    def noise_warning(self, name: str, n: int) -> str | None:
        """Return a sentence if the noise is a large share of what an agent learns."""
        return noise_warning(name, self.relative_noise(n))


@dataclass(frozen=True, eq=False)
class RunPrivacy:
    """The noise of the private agents of a run.

    Attributes
    ----------
    plans : mapping of int to NoisePlan
        How much noise the gradients of an agent have, by its position.
    counts : array of shape (rounds, agents)
        The largest number of gradients of every agent, for every round.
    """

    plans: Mapping[int, NoisePlan]
    counts: NDArray[np.int64]

    def gradients(self, position: int, seed: int, index: int, digest: str) -> PrivateGradients:
        """Return the gradients of an agent in a round; the secret is the seed of the run.

        ``digest`` is the hash of its loss: with other records, the noise is another one.
        """
        plan = self.plans[position]
        key = plan.key(str(seed).encode(), "run", position, index, digest)
        return PrivateGradients(plan, key, int(self.counts[index, position]))

    @property
    def digest(self) -> str:
        """A hash of the numbers of gradients of every agent in every round.

        In a run that resumes with others, of the same sum, some rounds would be counted twice and
        others not at all.
        """
        found = hashlib.sha256()
        for row in self.counts:
            found.update(row.tobytes())
        return found.hexdigest()

    @property
    def summary(self) -> str:
        """What the noise depends on, in words: agents with the same numbers are named together."""
        agents: dict[str, list[int]] = {}
        for i, plan in self.plans.items():
            number, how, budget = self.total(i), plan.mechanism, plan.privacy
            agents.setdefault(
                f"{number:,} gradients of {how.batch_size} of {how.num_samples} rows with noise "
                f"{plan.noise_multiplier:g}, clip {budget.clip:g}, feature_norm "
                f"{budget.feature_norm}",
                [],
            ).append(i)
        return "; ".join(f"{text} for {positions}" for text, positions in agents.items())

    def total(self, position: int) -> int:
        """Return the largest number of gradients of an agent in all rounds."""
        return int(self.counts[:, position].sum())

    def spent(self, position: int) -> Spent | None:
        """Return what all rounds spend of the budget of an agent; None if it has none."""
        plan = self.plans.get(position)
        if plan is None:
            return None
        number = self.total(position)
        total = Spending(plan.mechanism, plan.noise_multiplier, number)
        delta, size = plan.privacy.delta, plan.mechanism.batch_size
        return Spent(epsilon_of([total], delta), delta, number, plan.noise_multiplier, size)


def plan_privacy(
    problem: Problem, samplers: Sequence[BatchSampler], counts: NDArray[np.int64]
) -> RunPrivacy:
    """Return the noise with which a run stays within all budgets.

    Parameters
    ----------
    problem : Problem
        The agents.
    samplers : sequence of BatchSampler
        How each of them draws batches.
    counts : array of shape (rounds, agents)
        The largest numbers of gradients, for the rounds from the first on.

    Raises
    ------
    BudgetError
        If a budget is too small, with the number of rounds that it allows.
    """
    plans = {}
    for i, (agent, each) in enumerate(zip(problem.agents, samplers, strict=True)):
        if agent.privacy is None:
            continue
        mechanism = Mechanism.of(each.num_samples, each.batch_size, each.sampling)
        needed = int(counts[:, i].sum())
        try:
            z = noise_multiplier_for(agent.privacy, mechanism, max(1, needed))
        except BudgetError as error:
            allowed = int((np.cumsum(counts[:, i]) <= error.max_gradients).sum())
            fewer = "train fewer rounds or local steps, or " if allowed else ""
            rows = "" if allowed else ", or train with more rows"
            raise BudgetError(
                f"run: rounds must be at most {allowed:,} for the budget of {problem.names[i]}, "
                f"got {len(counts):,}: {error}; {fewer}raise epsilon{rows}.",
                error.max_gradients,
            ) from None
        plans[i] = NoisePlan(agent.privacy, mechanism, z)
    return RunPrivacy(plans, counts)
