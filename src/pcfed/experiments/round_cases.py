r"""The cases of the rounds experiment: problems, batches, local steps and participation.

Three problems have full batches, batches of 10 %, and growing batches: random least squares, and
softmax regression on digits and on MNIST, all with budgets that bind. A fourth, least squares with
any number of agents, has full batches and varies the number of agents, the number of local steps
and participation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcfed.algorithms import RunInfo
from pcfed.experiments.jobs import build_problem
from pcfed.experiments.presets import load_preset
from pcfed.losses import LeastSquares
from pcfed.problem import Agent, Problem
from pcfed.sampling import resolve_batch_size
from pcfed.sets import L1Ball

FAMILY = "least squares family"
"""The problem with any number of agents."""

FAMILY_TARGETS = (1e-2, 1e-4, 1e-6)
FAMILY_STEPS = 10
BUDGETS = (0.05, 0.15, 0.5, 1.5)
"""The l1 budgets of the family in turn, as multiples of the norm of the shared coefficients."""


@dataclass(frozen=True)
class Case:
    """A problem, how agents take part in a round, and limits on the number of rounds."""

    problem: str  # ``least squares``, ``digits``, ``MNIST`` or `FAMILY`
    rounds: int  # maximal number of rounds of PCFedSplit and of accelerated gradients
    other_rounds: int  # of the other algorithms
    targets: tuple[float, ...]  # relative gaps to reach
    batch: float = 1.0  # fraction of the local data in a gradient, in the first round
    growth: float = 1.0  # factor of this fraction from round to round, until batches are full
    local_steps: int = 20
    agents: int = 0  # number of agents of the family
    participation: float = 1.0  # fraction of the agents in a round
    few_pairs: bool = False  # whether PC-FedAvg runs only with the best pairs of its grid

    @property
    def title(self) -> str:
        """The title of figures."""
        if self.problem == FAMILY:
            present = "" if self.participation == 1.0 else f", {self.participation:.0%} present"
            return f"least squares, m = {self.agents:,}, H = {self.local_steps}{present}"
        if self.batch == 1.0:
            return f"{self.problem}, all data"
        growing = "growing from " if self.growth > 1.0 else ""
        return f"{self.problem}, batches {growing}{self.batch:.0%}"

    @property
    def slug(self) -> str:
        """The start of file names."""
        if self.problem == FAMILY:
            return f"rounds-m{self.agents}-h{self.local_steps}-p{self.participation:g}"
        kind = "full" if self.batch == 1.0 else "growing" if self.growth > 1.0 else "batches"
        return f"rounds-{self.problem.replace(' ', '-').lower()}-{kind}"

    @property
    def data(self) -> str | None:
        """The data set that it needs."""
        return {"digits": "digits", "MNIST": "mnist"}.get(self.problem)

    @property
    def takes_all(self) -> bool:
        """Whether every agent uses all of its data in every round."""
        return self.batch == self.participation == 1.0

    def run_info(self, problem: Problem) -> RunInfo:
        """Return the public information on the runs."""
        sizes = [resolve_batch_size(self.batch, a.loss.size, agent=a.name) for a in problem.agents]
        return RunInfo(
            rounds=self.other_rounds,
            max_local_steps=self.local_steps,
            batches=None if self.batch == 1.0 else tuple(sizes),
            noisy=self.batches(self.rounds) < 1.0,
        )

    def batches(self, index: int) -> float:
        """Return the fraction of the data in a gradient of this round."""
        return min(1.0, self.batch * self.growth**index)


def case_problem(case: Case, data_dir: Path | None) -> Problem:
    """Return the problem of a case."""
    if case.problem == FAMILY:
        return least_squares_family(case.agents)
    if case.problem == "least squares":
        return least_squares()
    preset = load_preset("binding")
    preset = preset if case.problem == "MNIST" else preset.quick()
    return build_problem(preset.settings[0], 0, data_dir)


def least_squares() -> Problem:
    """Return five agents with different, ill-conditioned data and active budgets."""
    rng = np.random.default_rng(0)
    agents = []
    for radius in (0.5, 1.0, 2.0, 4.0, 8.0):
        X = rng.normal(size=(60, 30)) * np.logspace(0, -1, 30)
        y = X @ (2 * rng.normal(size=30)) + 0.1 * rng.normal(size=60)
        agents.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling=0.1))
    return Problem(agents)


def least_squares_family(m: int) -> Problem:
    """Return m agents with similar coefficients, ill-conditioned data and, mostly, active budgets.

    Agents of a small problem are the first ones of a larger problem.
    """
    samples, features = 40, 20
    shared = 2 * np.random.default_rng(0).normal(size=features)
    agents = []
    for i in range(m):
        rng = np.random.default_rng((0, i))
        X = rng.normal(size=(samples, features)) * np.logspace(0, -1, features)
        y = X @ (shared + rng.normal(size=features)) + 0.1 * rng.normal(size=samples)
        radius = BUDGETS[i % len(BUDGETS)] * float(np.abs(shared).sum())
        agents.append(Agent(LeastSquares(X, y), L1Ball(radius), coupling=0.1))
    return Problem(agents)


def _batch_cases(problem: str, rounds: int, noisy: int, others: int) -> Iterator[Case]:
    """Yield a problem with full batches, with batches of 10 %, and with growing batches."""
    yield Case(problem, rounds, others, (1e-1, 1e-2, 1e-3, 1e-6))
    noisy_others = min(noisy, others)
    yield Case(problem, noisy, noisy_others, (1e-1, 1e-2), batch=0.1)
    yield Case(problem, noisy, noisy_others, (1e-1, 1e-2, 1e-3), batch=0.1, growth=1.02)


def _family_case(
    m: int, others: int, H: int = FAMILY_STEPS, present: float = 1.0, *, few_pairs: bool = False
) -> Case:
    """Return a case of the family."""
    return Case(
        *(FAMILY, 1000, others, FAMILY_TARGETS),
        local_steps=H,
        agents=m,
        participation=present,
        few_pairs=few_pairs,
    )


CASES = (
    *_batch_cases("least squares", 2000, 1000, 2000),
    *_batch_cases("digits", 1500, 500, 1500),
    *_batch_cases("MNIST", 1500, 500, 300),
    *(_family_case(m, 4000) for m in (4, 10, 32)),
    *(
        _family_case(m, others, few_pairs=True)
        for m, others in ((100, 8000), (320, 2000), (1000, 600))
    ),
    *(_family_case(32, 4000, H=H) for H in (1, 3, 30)),
    *(_family_case(100, 4000, present=present) for present in (0.3, 0.1)),
)
QUICK_CASES = (
    *_batch_cases("least squares", 300, 100, 100),
    *(_family_case(m, 300, few_pairs=m > 10) for m in (4, 10, 32)),
    *(_family_case(10, 300, H=H) for H in (1, 30)),
    _family_case(32, 300, present=0.3),
)
