r"""PC-FedAvg, in the compact form: O(n) at the agent, O(n) at the server.

In the paper's Algorithm 1 every agent holds m blocks, one per agent, and adds the *same* vector to
all blocks that are not its own. So block j of agent i is $C + w_j + v_i$ and its own block is
$C + w_i + v_i + u_i$, with

==========  =================================  ============================
``C``       shared model                       server
``w_mean``  mean offset $\bar w$               server
``w``       offset $w_i$, never sent           agent
``v``       what every block gets              sent, summed
``u``       what only the own block gets       sent, summed
==========  =================================  ============================

The agent's model is $x_i = C + w_i$, the population average $\bar x = C + \bar w$.
When constraints bind, C and w_i grow in opposite directions without bound, and only their sum
converges: they are float64 whatever the dtype of the data, and local steps use the bounded sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pcfed.algorithms.base import (
    STEP_FACTOR,
    PenaltyAlgorithm,
    RoundInfo,
    RunInfo,
    Sums,
    Update,
    Vectors,
    refuse_lazy,
    typical_smoothness,
)
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.pcfedavg_steps import Blocks, local_steps
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import decaying, largest_value
from pcfed.algorithms.sums import add_quotient
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Center, Problem

MAX_STABLE_PRODUCT = 2.5
"""The largest γρH, step times penalty times local steps, of which long trainings stay stable."""


@register
@dataclass(frozen=True)
class PCFedAvg(PenaltyAlgorithm):
    r"""Personalized constrained federated averaging.

    Every agent keeps its own model near its own set; the agents meet in the average. In the
    paper's problem all losses are taken at the average, and models stay identical until a
    constraint binds: personalisation comes from the constraints, unless ``Agent.personalization``
    is positive.

    Parameters
    ----------
    step : float, callable, "auto" or "theory"
        The local step $\gamma$; ``"auto"`` is 0.6 over the typical curvature of the local losses,
        and decays if gradients are computed on batches; ``"theory"`` is the largest that the
        theorem admits.
    penalty : float, callable, "auto" or "theory"
        The penalty $\rho$ on squared infeasibility; both keywords are $\sqrt R$.

    References
    ----------
    Algorithm 1 with the update (CR) of "On Performance Guarantees for Federated Learning with
    Personalized Constraints" (Ebrahimi, Burbano, Yousefian).

    Examples
    --------
    >>> PCFedAvg(step=0.03, penalty=10.0)
    PCFedAvg(step=0.03, penalty=10.0)
    """

    keywords: ClassVar[tuple[str, ...]] = ("auto", "theory")
    sends: ClassVar[tuple[str, ...]] = ("v", "u")

    def for_center(self, center: Center) -> Self:
        """Return the algorithm; its form for a free centre does not exist."""
        if center == "free":
            raise ValueError(
                "PCFedAvg: the center of the problem must be 'average', got 'free'; use PCFedSplit."
            )
        return self

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        r"""Return the algorithm with ``"auto"`` and ``"theory"`` replaced by numbers.

        Locally the own block meets the curvature $\theta L + L/m + \sigma + \rho$, of which
        $\gamma$ times must stay below 2: ``"auto"`` takes
        $\gamma (\theta L + L/m + \sigma/2 + \rho) = 0.6$, with the largest $\theta$.
        """
        rounds = run_info.rounds
        penalty = math.sqrt(rounds) if isinstance(self.penalty, str) else self.penalty
        largest = largest_value("PCFedAvg: penalty", penalty, rounds)
        if isinstance(self.step, str):
            refuse_lazy(problem, self.step)
        if self.step == "theory":
            if not problem.losses_at_average:
                raise ValueError(
                    "PCFedAvg: step can be 'theory' only if all losses are taken at the average, "
                    "got agents with a positive personalization; give 'auto' or a number."
                )
            if problem.is_private:
                raise ValueError(
                    "PCFedAvg: step can be 'theory' only if no agent has a privacy budget, got "
                    "agents that have one; give 'auto' or a number."
                )
            step = problem.largest_step(largest, run_info.max_local_steps)
            return replace(self, step=step, penalty=penalty)
        if self.step != "auto":
            return replace(self, penalty=penalty)
        theta = max(agent.personalization for agent in problem.agents)
        usual = (theta + 1 / problem.m) * typical_smoothness(problem, run_info) + problem.sigma / 2
        step = STEP_FACTOR / (usual + largest)
        return replace(self, step=decaying(step) if run_info.noisy else step, penalty=penalty)

    def stability_warning(self, max_local_steps: int) -> str | None:
        r"""Return a warning if $\gamma\rho H$ of a fixed step and penalty is too large."""
        if isinstance(self.step, str) or isinstance(self.penalty, str):
            return None
        info = self.round_info(0, m=1, max_local_steps=max_local_steps)
        product = info.step * info.penalty * max_local_steps
        if product <= MAX_STABLE_PRODUCT:
            return None
        return (
            f"PCFedAvg: step × penalty × local steps is {product:.3g}; above {MAX_STABLE_PRODUCT:g}"
            " models may leave their sets further and further in long trainings: give a smaller "
            "step or penalty, or use PCFedSplit."
        )

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Split the models into the shared one and the agents' offsets from it."""
        C = models.mean(axis=0)
        w = models - C
        return {"C": C, "w_mean": w.mean(axis=0)}, {"w": w}

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps on the own block x and the average z of the agent's m blocks."""
        mean = self.average(received).astype(context.dtype)
        blocks = Blocks(received["C"], private["w"], mean)
        v, u = local_steps(context, blocks, round_info)
        return Update(sent={"v": v, "u": u}, pending={"u": u})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean updates; an absent agent took zero steps, so means divide by m."""
        m = round_info.m
        v, u = sums.vectors["v"] / m, sums.vectors["u"] / m
        return {"C": server["C"] + v, "w_mean": server["w_mean"] + u / m}

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Add the own part of the update to the agent's offset."""
        add_quotient(private["w"], pending["u"], round_info.m)
        return private

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        r"""Return the offsets, whose mean is the server's $\bar w$."""
        return {"w_mean": private["w"]}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return $x_i = C + w_i$."""
        return server["C"] + private["w"]

    def average(self, server: Vectors) -> Array:
        r"""Return $\bar x = C + \bar w$."""
        return server["C"] + server["w_mean"]
