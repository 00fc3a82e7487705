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

``exact=True`` adds two corrections, both kept by the agent: a multiplier $\lambda_i$ for its own
constraint (augmented Lagrangian), and SCAFFOLD's control variates. Those have m blocks, too, and an
agent again adds the same vector to all blocks that are not its own:

===========  ==================================  ==========================================
``cv``       control variate of every block      agent; its mean ``cv_mean`` at the server
``cu``       of the own block only               agent; its mean ``cu_mean`` at the server
``lambda``   multiplier of the own constraint    agent
``drift``    running total of $\gamma\bar H/m$   server; ``seen`` is the agent's last one
``beta``     $H_i / H$ of its last round         agent; 0 before its first
===========  ==================================  ==========================================

In every local step of any agent, block j moves by $-\gamma\,cu_j/m$. An agent that was absent
catches up by means of ``drift``.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

import numpy as np

from pcfed.algorithms.base import (
    STEP_FACTOR,
    Algorithm,
    RoundInfo,
    RunInfo,
    Sums,
    Update,
    Vectors,
    typical_smoothness,
)
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.pcfedavg_steps import Blocks, Corrections, local_steps
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import decaying, largest_value, value_at
from pcfed.algorithms.sums import add_quotient
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Problem


@register
@dataclass(frozen=True)
class PCFedAvg(Algorithm):
    r"""Personalized constrained federated averaging.

    Every agent keeps its own model near its own set; the agents meet in the average, at which all
    losses are evaluated. Models stay identical until a constraint binds: personalisation comes
    from the constraints.

    Parameters
    ----------
    step : float, callable, "auto" or "theory"
        The local step $\gamma$; ``"auto"`` is 0.6 over the typical curvature of the local losses,
        and decays if gradients are computed on batches; ``"theory"`` is the largest that the
        theorem admits.
    penalty : float, callable, "auto" or "theory"
        The penalty $\rho$ on squared infeasibility; ``"theory"`` is $\sqrt R$, and so is
        ``"auto"`` unless exact, for which it is $1.25/(\gamma H)$.
    exact : bool
        Whether to correct for the penalty and for the drift of local steps, so that models
        converge to the constrained optimum with constant step and penalty. The paper has no theorem
        for it: its guarantee is the certificate.

    References
    ----------
    Algorithm 1 with the update (CR) of "On Performance Guarantees for Federated Learning with
    Personalized Constraints" (Ebrahimi, Burbano, Yousefian).

    Examples
    --------
    >>> PCFedAvg(step=0.03, penalty=10.0)
    PCFedAvg(step=0.03, penalty=10.0, exact=False)
    """

    _: KW_ONLY
    exact: bool = False

    keywords: ClassVar[tuple[str, ...]] = ("auto", "theory")
    sends: ClassVar[tuple[str, ...]] = ("v", "u")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.exact, bool):
            raise ValueError(f"PCFedAvg: exact must be True or False, got {self.exact!r}.")
        if self.exact and self.penalty == 0:
            raise ValueError(
                "PCFedAvg: penalty must be > 0 with exact=True, got 0; give one such as 1.0."
            )

    @property
    def state_kind(self) -> str:
        """The kind of state; the exact variant keeps more."""
        return "PCFedAvg, exact" if self.exact else "PCFedAvg"

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        r"""Return the algorithm with ``"auto"`` and ``"theory"`` replaced by numbers.

        Locally the own block meets the curvature $L/m + \sigma + \rho$, of which $\gamma$ times
        must stay below 2: ``"auto"`` takes $\gamma (L/m + \sigma/2) = 0.6$. With
        $\gamma \rho H = 1.25$ the penalty of the exact variant moves a model by a good part of its
        excess in a round; twice as much makes multipliers swing. For one or two local steps
        $\gamma \rho = 0.4$.
        """
        name, penalty = "PCFedAvg: penalty", self.penalty
        rounds, max_local_steps = run_info.rounds, run_info.max_local_steps
        if penalty == "theory" or (penalty == "auto" and not self.exact):
            penalty = math.sqrt(rounds)
        if self.step == "theory":
            if penalty == "auto":
                raise ValueError(
                    'PCFedAvg: penalty must be a number or "theory" where step is "theory", got '
                    '"auto"; use the same keyword for both.'
                )
            step = problem.largest_step(largest_value(name, penalty, rounds), max_local_steps)
            return replace(self, step=step, penalty=penalty)
        share = min(1.25 / max_local_steps, 0.4)  # γρ
        if self.step != "auto":
            if penalty == "auto":
                step = value_at("PCFedAvg: step", self.step, 0, zero=False)
                penalty = share / step
            return replace(self, penalty=penalty)
        usual = typical_smoothness(problem, run_info) / problem.m + problem.sigma / 2
        if penalty == "auto":
            step = STEP_FACTOR / usual
            penalty = share / step
        else:
            step = STEP_FACTOR / (usual + largest_value(name, penalty, rounds))
        return replace(self, step=decaying(step) if run_info.noisy else step, penalty=penalty)

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Split the models into the shared one and the agents' offsets from it."""
        C = models.mean(axis=0)
        w = models - C
        server, private = {"C": C, "w_mean": w.mean(axis=0)}, {"w": w}
        if self.exact:
            server |= {name: np.zeros_like(C) for name in ("cv_mean", "cu_mean")}
            server |= {"drift": np.zeros(1)}
            private |= {name: np.zeros_like(w) for name in ("lambda", "cv", "cu")}
            private |= {name: np.zeros((len(w), 1)) for name in ("seen", "beta")}
        return server, private

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps on the own block x and the average z of the agent's m blocks."""
        multiplier = fix = None
        if self.exact:
            multiplier = _multiplier(context, private, round_info, self.model(received, private))
            fix = _corrections(context, received, private, round_info, multiplier)
        mean = self.average(received).astype(context.dtype)
        blocks = Blocks(received["C"], self._offset(received, private), mean)
        v, u = local_steps(context, blocks, round_info, fix)
        if multiplier is None:
            return Update(sent={"v": v, "u": u}, pending={"u": u})
        steps = np.full((len(u), 1), float(context.steps))
        kept = {"v": v, "u": u, "lambda": multiplier, "steps": steps}
        return Update(sent={"v": v, "u": u}, pending=kept)

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean updates; an absent agent took zero steps, so means divide by m."""
        m = round_info.m
        v, u = sums.vectors["v"] / m, sums.vectors["u"] / m
        new: dict[str, Array] = {"C": server["C"] + v, "w_mean": server["w_mean"] + u / m}
        if self.exact:
            drift, scale = (
                round_info.step * sums.steps / m**2,
                round_info.step * round_info.max_local_steps,
            )
            share = sums.steps / (m * round_info.max_local_steps)
            new["w_mean"] -= drift * server["cu_mean"]
            new["cv_mean"] = (1 - share) * server["cv_mean"] - v / scale
            new["cu_mean"] = server["cu_mean"] - u / scale
            new["drift"] = server["drift"] + drift
        return new

    def commit(
        self,
        private: Vectors,
        pending: Vectors,
        received: Vectors,
        round_info: RoundInfo,
        steps: int,
    ) -> Vectors:
        """Add the own part of the update to the agent's offset and its corrections."""
        m = round_info.m
        u, w = pending["u"], self._offset(received, private)
        add_quotient(w, u, m)
        new: dict[str, Array] = {"w": w}
        if self.exact:
            drift, scale = (
                round_info.step * steps / m**2,
                round_info.step * round_info.max_local_steps,
            )
            beta = pending["steps"] / round_info.max_local_steps
            new["w"] -= drift * private["cu"]
            new["cv"] = private["cv"] - beta * received["cv_mean"] - pending["v"] / scale
            new["cu"] = private["cu"] - np.divide(u, scale, dtype=np.float64)
            new["lambda"] = pending["lambda"]
            new["seen"] = received["drift"] + drift
            new["beta"] = beta
        return new

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        r"""Return the offsets, whose mean is the server's $\bar w$, and the corrections."""
        audited = {"w_mean": self._offset(server, private)}
        if self.exact:
            audited |= {"cv_mean": private["cv"], "cu_mean": private["cu"]}
        return audited

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return $x_i = C + w_i$."""
        return server["C"] + self._offset(server, private)

    def _offset(self, server: Vectors, private: Vectors) -> Array:
        """Return w_i, including what was added to the agent's block while it was absent."""
        if not self.exact:
            return private["w"]
        return private["w"] - (server["drift"] - private["seen"]) * private["cu"]

    def average(self, server: Vectors) -> Array:
        r"""Return $\bar x = C + \bar w$."""
        return server["C"] + server["w_mean"]


def _multiplier(
    context: LocalContext, private: Vectors, round_info: RoundInfo, model: Array
) -> Array:
    """Return every agent's multiplier, moved by its last round; λ is 0 before its first."""
    rho, multiplier, beta = round_info.penalty, private["lambda"], private["beta"]
    if not beta.any():
        return multiplier
    # In place, in memory of the workspace: fresh pages for temporaries take longer than the sums.
    y = np.divide(multiplier, rho, out=context.empty(np.float64))
    y += model
    p = context.project(y, out=context.empty(np.float64))
    np.subtract(y, p, out=p)
    context.release(y)
    p *= rho
    p -= multiplier
    p *= beta
    p += multiplier
    return p


def _corrections(
    context: LocalContext,
    received: Vectors,
    private: Vectors,
    round_info: RoundInfo,
    multiplier: Array,
) -> Corrections:
    """Return what the exact variant adds to the local steps."""
    shift = round_info.step / round_info.m
    return Corrections(
        every=context.rows(received["cv_mean"] - private["cv"]),
        own=context.rows(private["cu"]),
        offset=context.rows(multiplier / round_info.penalty),
        own_shift=context.rows(shift * private["cu"]),
        mean_shift=(shift * received["cu_mean"]).astype(context.dtype),
    )
