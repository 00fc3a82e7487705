r"""ProxAL: a shared model inside all sets, by a proximal augmented Lagrangian method.

$$ \min_x \sum_i f_i(x) \quad \text{s.t. } x \in X_i \text{ for all } i $$

The outer iteration k minimises approximately, from the last model $a$ (the *anchor*),

$$ \sum_i P_i(x) + \frac{c}{2} \|x - a\|^2, \qquad
   P_i(x) = f_i(x) + \frac\beta2 \operatorname{dist}(x + \mu_i/\beta, X_i)^2
   + \frac{c}{2} \|x - a\|^2, \qquad c = \frac{1}{(m + 1)\beta}, $$

and then sets $\mu_i \leftarrow s - \beta \, \Pi_{X_i}[s/\beta]$ with $s = \mu_i + \beta x$. The
inner iteration is an ADMM for copies $u_i = x$, of which every round is one step.

The paper has inequalities $g_i(x) \le 0$ and the term $\|[\mu_i + \beta g_i(x)]_+\|^2 / (2\beta)$.
Both are the augmented Lagrangian in which slack variables have been eliminated: there $g_i(x) = -t$
with $t \ge 0$, here $x = t$ with $t \in X_i$. The optima are the same, projections are all that it
needs of a set, and for a halfspace with a normal of length one so are the iterates, with $\mu_i$
times the normal in place of $\mu_i$.

=============  ============================================================  =================
``x``          the shared model                                              server
``anchor``     $a$                                                           server
``mean``       $\frac1m \sum_i (u_i + \lambda_i / \rho)$, 0 for agents that  server
               have not joined
``outer``      k                                                             server and agent
``inner``      rounds since k has changed                                    server
``joined``     number of agents that have taken part                         server
``u``          $u_i$, the agent's copy of the model                          agent, never sent
``dual``       $\lambda_i$, the multiplier of $u_i = x$                      agent, never sent
``mu``         $\mu_i$, the multiplier of $x \in X_i$                        agent, never sent
``total``      the sum of its updates                                        agent, never sent
``delta``      the change of $u_i + \lambda_i / \rho$                        sent, summed
=============  ============================================================  =================
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from pcfed.algorithms.base import STATISTICS, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.constrained import SharedModelAlgorithm
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import Schedule
from pcfed.arrays import Array, Float64Array
from pcfed.validation import count, positive

NEVER = -1.0
"""The outer iteration of an agent that has not taken part."""


@register
@dataclass(frozen=True)
class ProxAL(SharedModelAlgorithm):
    r"""Proximal augmented Lagrangian method with an inexact ADMM, for one model in all sets.

    A round is one step of the ADMM. The first round of an outer iteration only collects the
    gradients with which the ADMM starts; it ends when the gradient of its objective is at most
    ``tolerance`` / (k + 1)², and after ``inner_rounds`` rounds at the latest.

    Parameters
    ----------
    step : float or callable
        The step $\gamma$ of the local gradient steps, which solve the agents' parts of the ADMM.
    penalty : float or callable
        The penalty $\beta$ of the augmented Lagrangian; greater than 0 in every round.
    constrained : bool
        Whether an agent's own model is the shared model projected onto its own set, or else the
        shared model, which is in all sets only in the limit.
    prox : float
        The penalty $\rho > 0$ of the ADMM; the curvature of the losses is a good value.
    inner_rounds : int
        The largest number of steps of an ADMM.
    tolerance : float
        The accuracy of the first ADMM; 0 for ``inner_rounds`` steps always.

    References
    ----------
    He, Peng, Sun, "Federated learning with convex global and local constraints" (2024), Algorithms
    1 and 2.

    Examples
    --------
    >>> ProxAL(step=0.01, penalty=10.0, prox=1.0).inner_rounds
    20
    """

    penalty: Schedule = 10.0
    _: KW_ONLY
    prox: float
    inner_rounds: int = 20
    tolerance: float = 0.1

    statistics: ClassVar[tuple[str, ...]] = ("residual", "new")
    zero_penalty: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("ProxAL: prox", self.prox)
        count("ProxAL: inner_rounds", self.inner_rounds)
        positive("ProxAL: tolerance", self.tolerance, zero=True)

    def _added_curvature(self, rounds: int) -> float:
        return super()._added_curvature(rounds) + self.prox

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models; no agent has taken part yet."""
        x = models.mean(axis=0)
        server = {"x": x, "anchor": x.copy(), "mean": np.zeros_like(x)}
        server |= {name: np.zeros(1) for name in ("outer", "inner", "joined")}
        private = {name: np.zeros_like(models) for name in ("u", "dual", "mu", "total")}
        return server, {**private, "outer": np.full((len(models), 1), NEVER)}

    def num_gradients(self, local_steps: int) -> int:
        """Return one per local step, and that with which an outer iteration begins."""
        return 1 + local_steps

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Start an outer iteration where the server has, then solve the agent's part of a step."""
        problem = _Lagrangian(context, received["anchor"], private["mu"], round_info)
        u, dual = self._started(problem, received, private)
        residual = np.zeros((len(context.agents), 1))
        if received["inner"][0] > 0:
            x, rho = received["x"].astype(context.dtype), self.prox
            y, g, d = context.rows(x), context.empty(), context.rows(dual)
            for k in range(context.steps):
                problem.gradient(y, k, out=g)
                g += d
                if k == 0:
                    residual = np.abs(g - rho * (x - u)).max(axis=1, keepdims=True)
                g += rho * (y - x)
                y -= round_info.step * g
            u = y.astype(np.float64)
            dual = dual + rho * (u - received["x"])
            context.release(y, g, d)
        delta = (u + dual / self.prox - private["total"]).astype(context.dtype)
        new = private["outer"] == NEVER
        return Update(
            sent={"delta": delta, STATISTICS: np.concatenate([residual, new], axis=1)},
            pending={"delta": delta, "u": u, "dual": dual, "mu": problem.mu},
        )

    def _started(
        self, problem: _Lagrangian, received: Vectors, private: Vectors
    ) -> tuple[Array, Array]:
        """Return the agents' copies and duals; those that start an outer iteration get new ones.

        An agent that was absent when it began starts when it is back. Private agents draw a
        gradient in every round, so that their noise does not depend on who is computed with them.
        """
        starts = private["outer"] != received["outer"]
        if not starts.any() and not problem.context.is_private:
            return private["u"], private["dual"]
        problem.update_multipliers(starts & (private["outer"] != NEVER))
        context, anchor = problem.context, received["anchor"]
        g = problem.gradient(context.rows(anchor), 0, out=context.empty())
        return np.where(starts, anchor, private["u"]), np.where(starts, -g, private["dual"])

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Minimise over the shared model, or begin the next outer iteration at it."""
        residual, new = sums.vectors[STATISTICS]
        joined, outer, inner = server["joined"] + new, server["outer"], server["inner"]
        mean = server["mean"] + sums.vectors["delta"] / round_info.m
        counts = {"mean": mean, "joined": joined}
        residual *= joined[0] / sums.num_aggregated  # of the others, nothing is known
        is_accurate = residual <= self.tolerance / (outer[0] + 1) ** 2
        if inner[0] > 0 and (is_accurate or inner[0] >= self.inner_rounds):
            x = server["x"]
            return {"x": x, "anchor": x, "outer": outer + 1, "inner": np.zeros(1), **counts}
        c = 1 / ((round_info.m + 1) * round_info.penalty)
        x = self.prox * round_info.m * mean + c * server["anchor"]
        x /= self.prox * joined + c
        return {"x": x, "anchor": server["anchor"], "outer": outer, "inner": inner + 1, **counts}

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Keep the agent's copy of the model and its multipliers."""
        return {
            **{name: pending[name] for name in ("u", "dual", "mu")},
            "total": private["total"] + pending["delta"],
            "outer": np.broadcast_to(received["outer"], private["outer"].shape),
        }

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        """Return the sums of the agents' updates, whose mean is the server's."""
        return {"mean": private["total"]}


class _Lagrangian:
    """The agents' parts $P_i$ of the augmented Lagrangian in an outer iteration."""

    def __init__(
        self, context: LocalContext, anchor: Array, mu: Array, round_info: RoundInfo
    ) -> None:
        self.context, self.mu, self.anchor = context, mu, anchor
        self.beta = round_info.penalty
        self._pull = 1 / ((round_info.m + 1) * self.beta)
        self._shift = context.rows(mu / self.beta)
        self._start = anchor.astype(context.dtype)
        self._point, self._excess = context.empty(), context.empty()

    def gradient(self, y: Array, step: int, out: Array) -> Array:
        r"""Write $\nabla P_i(y)$, on the agents' batches of a step, to ``out``; return it."""
        self.context.gradient(y, step, out=out)
        np.add(y, self._shift, out=self._point)
        self.context.project(self._point, out=self._excess)
        np.subtract(self._point, self._excess, out=self._excess)
        self._excess *= self.beta
        out += self._excess
        out += self._pull * (y - self._start)
        return out

    def update_multipliers(self, rows: Array) -> None:
        r"""Set $\mu_i = s - \beta \Pi[s/\beta]$, $s = \mu_i + \beta a$, for some agents."""
        point = self.mu / self.beta + self.anchor
        p = self.context.project(point, out=np.empty_like(point))
        self.mu = np.where(rows, self.beta * (point - p), self.mu)
        self._shift[...] = self.mu / self.beta
