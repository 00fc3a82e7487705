r"""PC-FedAvg, in the compact form: O(n) at the agent, O(n) at the server.

In the paper's Algorithm 1 every agent holds m blocks, one per agent, and adds the *same* vector to
all blocks that are not its own. So block j of agent i is $C + w_j + v_i$ and its own block is
$C + w_i + v_i + u_i$, with

==========  =================================  ============================
``C``       shared model                       server
``w_mean``  mean offset $\bar w$         server
``w``       offset $w_i$, never sent     agent
``v``       what every block gets              sent, summed
``u``       what only the own block gets       sent, summed
==========  =================================  ============================

The agent's model is $x_i = C + w_i$, the population average $\bar x = C + \bar w$.
When constraints bind, C and w_i run apart for ever and only their sum converges: they are float64
whatever the dtype of the data, and local steps run on the bounded sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from pcfed.algorithms.base import Algorithm, Round, Sums, Update, Vectors
from pcfed.algorithms.schedules import value_at
from pcfed.algorithms.work import Work
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Problem


@dataclass(frozen=True)
class PCFedAvg(Algorithm):
    r"""Personalized constrained federated averaging.

    Every agent keeps its own model near its own set; the agents meet in the average, at which all
    losses are evaluated. Models stay identical until a constraint binds: personalisation comes
    from the constraints.

    Parameters
    ----------
    step : float, callable or "theory"
        The local step $\gamma$; ``"theory"`` is the largest that the theorem admits.
    penalty : float, callable or "theory"
        The penalty $\rho$ on squared infeasibility; ``"theory"`` is $\sqrt R$.

    References
    ----------
    Algorithm 1 with the update (CR) of "On Performance Guarantees for Federated Learning with
    Personalized Constraints" (Ebrahimi, Burbano, Yousefian).

    Examples
    --------
    >>> PCFedAvg(step=0.03, penalty=10.0)
    PCFedAvg(step=0.03, penalty=10.0)
    """

    has_theory: ClassVar[bool] = True

    def resolved(self, problem: Problem, *, rounds: int, longest: int) -> Self:
        """Return the method with ``"theory"`` replaced by numbers for this problem and run."""
        penalty = math.sqrt(rounds) if self.penalty == "theory" else self.penalty
        if self.step != "theory":
            return replace(self, penalty=penalty)
        largest = max(
            value_at("PCFedAvg: penalty", penalty, index, zero=True)
            for index in range(rounds if callable(penalty) else 1)
        )
        return replace(self, step=problem.largest_step(largest, longest), penalty=penalty)

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Split the models into the shared one and the agents' offsets from it."""
        C = models.mean(axis=0)
        w = models - C
        return {"C": C, "w_mean": w.mean(axis=0)}, {"w": w}

    def local(self, work: Work, received: Vectors, private: Vectors, facts: Round) -> Update:
        """Take local steps on the own block x and the average z of the agent's m blocks."""
        m, gamma, rho, sigma = facts.m, facts.step, facts.penalty, work.coupling
        x0 = (received["C"] + private["w"]).astype(work.dtype)
        z0 = (received["C"] + received["w_mean"]).astype(work.dtype)
        v, u = np.zeros_like(x0), np.zeros_like(x0)
        x, z, g, p, s = (np.empty_like(x0) for _ in range(5))
        for _ in range(work.steps):
            _sum(x0, v, u, out=x)  # x = C + w + v + u
            np.divide(u, m, out=z)
            _sum(z0, v, z, out=z)  # z = C + w̄ + v + u/m
            work.gradient(z, out=g)  # g = ∇f(z) on a batch
            work.excess(x, out=p)
            p *= rho  # p = ρ (x − Π[x])
            np.subtract(x, z, out=s)
            s *= sigma  # s = σ (x − z)
            g -= s
            g *= gamma / m
            v -= g  # v −= γ (g − s)/m
            p += s
            p *= gamma
            u -= p  # u −= γ (p + s)
        return Update(sent={"v": v, "u": u}, pending={"u": u})

    def aggregate(self, server: Vectors, sums: Sums, facts: Round) -> Vectors:
        """Add the mean updates; who was absent did zero steps, so means divide by m."""
        m = facts.m
        return {
            "C": server["C"] + sums.vectors["v"] / m,
            "w_mean": server["w_mean"] + sums.vectors["u"] / m / m,
        }

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, facts: Round
    ) -> Vectors:
        """Add the agent's own part of the round to its offset."""
        return {"w": private["w"] + pending["u"].astype(np.float64) / facts.m}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return $x_i = C + w_i$."""
        return server["C"] + private["w"]

    def average(self, server: Vectors) -> Array:
        r"""Return $\bar x = C + \bar w$."""
        return server["C"] + server["w_mean"]


def _sum(a: Array, b: Array, c: Array, *, out: Array) -> np.ndarray[Any, Any]:
    """Write a + b + c to ``out``, which may be c."""
    np.add(b, c, out=out)
    return np.add(a, out, out=out)
