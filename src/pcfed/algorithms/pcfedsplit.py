r"""PCFedSplit: Douglas–Rachford splitting, with rounds that do not grow with the number of agents.

Every agent has a copy $z_i$ of the centre. The problem splits into what an agent can do alone and a
constraint that only asks for sums:

$$ \min \sum_i \varphi_i(x_i, z_i) \quad \text{s.t. } x_i \in X_i, \;
   z_1 = \dots = z_m = \frac1m \sum_j x_j, \qquad
   \varphi_i(x, z) = \theta_i f_i(x) + (1 - \theta_i) f_i(z) + \frac{\sigma_i}{2} \|x - z\|^2. $$

==========  ==============================================  ===========================
``z``       the shared model                                server
``y_mean``  $\bar y$, the mean of the $y_i$                 server
``P, Y``    running totals of the mean updates              server
``prox``    $\tau$, the length of the proximal steps        server; 0 before it is known
``ratio``   $\alpha$, by which they are longer in x         server
``W, U``    running totals of the agent's own updates       agent, never sent
``x``       its model $x_i \in X_i$                         agent, never sent
``factor``  on the curvature that its loss expects          agent; 0 before its first round
``dx, dz``  its update                                      sent, summed
``offset``  $x_i - z$ when it joins                         sent until all have joined, summed
==========  ==============================================  ===========================

The offset $w_i = W_i - P$, the multiplier $y_i = U_i - Y$ and the point $s_i = z + w_i$ are
derived. An agent that is absent has nothing to catch up on, because P and Y carry what it missed.

If the centre is free, only $z_1 = \dots = z_m$ is asked for. This is the limit
$\alpha \to \infty$, in which the own models are the agents' own business: there is no ``y_mean``,
``P``, ``ratio`` and ``W``, and agents send only ``dz``.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np

from pcfed.algorithms.base import (
    STATISTICS,
    Algorithm,
    RoundInfo,
    RunInfo,
    Sums,
    Update,
    Vectors,
)
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.pcfedsplit_steps import (
    LocalProblems,
    expected_curvatures,
    first_factors,
    longest_step,
    solve,
)
from pcfed.algorithms.registry import register
from pcfed.algorithms.sums import add_scaled
from pcfed.arrays import Array, Float64Array
from pcfed.problem import Center, Problem
from pcfed.validation import positive, real

Prox = float | Literal["auto"]
"""A number, or ``"auto"`` for one that is balanced during the run."""

FIRST_PROX, NOISY_PROX = 5.0, 20.0
"""The first τ, times the mean curvature L + σ/2, for full and for smaller batches."""

PROX_RANGE = (1e-2, 1e2)
"""The smallest and the largest τ, times L + σ/2; outside of it, rounds may diverge or stall."""

COUPLING_FACTOR, MAX_RATIO = 0.15, 8.0
"""α is 0.15 times the root of the ratio of the curvatures in z and in x (with θ = 0: L/σ), at least
1 and at most 8: the weaker the curvature in x, the longer the steps that x needs."""

NONCONVEX_PROX = 2.0
"""The fixed τ, times L, if a loss is not convex: with longer steps, local problems are not convex
either as soon as a loss has a negative curvature of a fraction of L."""

BALANCE, FAR_FROM_BALANCE = 2.0, 10.0
"""Ratios of the dual to the primal part of the updates, or the inverse, from which on τ is doubled
or halved, and made four times as long or short."""

MIN_PRESENT = 0.9
"""τ changes only if at least this share of the agents take part: updates of agents that were absent
for long say little about balance."""

MAX_PROX_CHANGES = 20
"""Endless changes of τ need not converge."""


@register
@dataclass(frozen=True)
class PCFedSplit(Algorithm):
    r"""Personalized constrained federated splitting, the recommended algorithm.

    Every model is in its agent's set in every round, there is no penalty and no step to choose, and
    the number of rounds to a given accuracy hardly depends on the number of agents. Every agent
    takes accelerated projected gradient steps on its own loss, its coupling and a proximal term.
    Their length follows from the curvature of the loss, which the agent measures and corrects
    where the loss says too little.

    For convex losses the models converge to the optimum of the joint problem if local problems are
    solved well enough; ``docs/pcfedsplit.md`` has the theorems. For other losses nothing is
    promised where sets bind.

    Parameters
    ----------
    prox : float or "auto"
        The length $\tau > 0$ of the proximal steps; ``"auto"`` begins at 5 over the mean curvature
        of the losses, for which agents need the first round, and is balanced in later ones.
    relaxation : float
        The factor $\kappa$ in (0, 2) on the updates.

    References
    ----------
    Lions, Mercier, "Splitting algorithms for the sum of two nonlinear operators" (1979). Pathak,
    Wainwright, "FedSplit" (2020) and Tran-Dinh et al., "FedDR" (2021) have it for one shared model.

    Examples
    --------
    >>> PCFedSplit()
    PCFedSplit(prox='auto', relaxation=1.8)
    """

    prox: Prox = "auto"
    relaxation: float = 1.8
    center: Center = field(default="average", init=False, repr=False)
    """The centre of the problem, see `for_center`."""

    statistics: ClassVar[tuple[str, ...]] = (
        "dx_squared",
        "dz_squared",
        "curvature",
        "own_curvature",
        "coupling",
        "nonconvex",
        "noisy",
        "new",
    )

    def __post_init__(self) -> None:
        if self.prox != "auto":
            positive("PCFedSplit: prox", self.prox)
        kappa = real("PCFedSplit: relaxation", self.relaxation)
        if not 0 < kappa < 2:
            raise ValueError(
                f"PCFedSplit: relaxation must be in (0, 2), got {self.relaxation!r}; give one such "
                "as 1.8."
            )

    @property
    def feasible(self) -> bool:
        """True: agents' own models are in their sets in every round."""
        return True

    @property
    def state_kind(self) -> str:
        """The kind of state, which depends on the centre."""
        return "PCFedSplit" if self.center == "average" else "PCFedSplit with a free center"

    def for_center(self, center: Center) -> Self:
        """Return the algorithm for problems with this centre."""
        other = copy.copy(self)
        object.__setattr__(other, "center", center)
        return other

    def resolved(self, problem: Problem, run_info: RunInfo) -> Self:
        """Return the algorithm itself; raise if a private agent has no public curvature."""
        for agent in problem.agents if problem.is_private else ():
            if agent.privacy is not None:
                agent.typical_smoothness(None)
        return self

    def sent_vectors(self, server: Vectors, m: int) -> tuple[str, ...]:
        """Return the names of the updates, and ``offset`` while there are agents to join."""
        if self.center == "free":
            return ("dz",)
        return ("dx", "dz", "offset") if server["joined"][0] < m else ("dx", "dz")

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models, without multipliers; no agent has joined yet."""
        z = models.mean(axis=0)
        totals, own = (("y_mean", "P", "Y"), "WU") if self.center == "average" else ("Y", "U")
        scalars = {
            "prox": 0.0 if self.prox == "auto" else self.prox,
            "curvature": 0.0,
            "joined": 0.0,
            "changes": 0.0,
        }
        if self.center == "average":
            scalars["ratio"] = 1.0
        server = {"z": z, **{name: np.zeros_like(z) for name in totals}}
        server |= {name: np.array([value]) for name, value in scalars.items()}
        private = {name: np.zeros_like(models) for name in own}
        flags = {name: np.zeros((len(models), 1)) for name in ("factor", "joined")}
        return server, {**private, "x": models.copy(), **flags}

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Solve the local problem of `pcfed.algorithms.pcfedsplit_steps` with all local steps."""
        tau = float(received["prox"][0])
        factors = first_factors(context, received["z"], private["factor"])
        expected = expected_curvatures(context, round_info.index)
        if tau == 0:  # the first round, in which agents only report where they start
            x, zero = context.rows(private["x"]), np.zeros(1)
            dx, dz = context.rows(zero), context.rows(zero)
        else:
            problems = self._local_problems(received, private, expected, round_info.index)
            x, dx, dz = solve(context, problems, factors)
        new, theta = private["joined"] == 0, context.personalization
        statistics = np.zeros((len(new), len(self.statistics)))
        if self._balances_after(round_info.index):
            statistics[:, 1] = _squares(dz)
            if self.center == "average":
                statistics[:, 0] = _squares(dx)
        statistics[:, 2:3] = factors * expected
        statistics[:, 3:4] = theta * statistics[:, 2:3]
        statistics[:, 4] = [agent.coupling for agent in context.agents]
        statistics[:, 5] = [not agent.loss.convex for agent in context.agents]
        statistics[:, 6] = context.noisy
        statistics[:, 7:8] = new
        updates = {"dx": dx, "dz": dz}
        names = self.sent_vectors(received, round_info.m)
        if "offset" in names:
            updates["offset"] = context.rows(new * (private["x"] - received["z"]), np.float64)
        sent = {name: updates[name] for name in names}
        kept = {name: updates[name] for name in names if name != "offset"}
        return Update({**sent, STATISTICS: statistics}, {**kept, "x": x, "factor": factors})

    def _local_problems(
        self, received: Vectors, private: Vectors, expected: Float64Array, index: int
    ) -> LocalProblems:
        """Return the local problems of a group of agents."""
        free = self.center == "free"
        totals = _totals(received, private)
        none = np.zeros_like(received["z"])
        return LocalProblems(
            z=received["z"],
            y_mean=none if free else received["y_mean"],
            P=none if free else received["P"],
            Y=received["Y"],
            x=private["x"],
            W=private["x"] if free else totals["W"],  # s does not count if α is infinite
            U=totals["U"],
            prox=float(received["prox"][0]),
            ratio=math.inf if free else float(received["ratio"][0]),
            relaxation=self.relaxation,
            longest=longest_step(index),
            expected=expected,
        )

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Move the shared model and the multipliers by the mean updates of those who joined."""
        totals = dict(zip(self.statistics, sums.vectors[STATISTICS].tolist(), strict=True))
        tau = float(server["prox"][0])
        # An agent may lie about being new; those who are counted have joined, and at most all.
        joined = server["joined"] + totals["new"]
        joined = np.clip(joined, sums.num_aggregated, round_info.m)
        new = {**server, "joined": joined}
        if "offset" in sums.vectors:
            # The centre moves to where the new agents are, so that the points s stay in place.
            offset = sums.vectors["offset"] / joined
            new |= {"z": server["z"] + offset, "P": server["P"] + offset}
        if tau == 0:
            return new | _first_prox(totals, sums.num_aggregated, self.center)
        q = sums.vectors["dz"] / joined
        if self.center == "free":
            new |= {"z": new["z"] + q, "Y": new["Y"] + q / tau}
        else:
            p, alpha = sums.vectors["dx"] / joined, float(server["ratio"][0])
            move = (p + alpha * q) / (1 + alpha)
            new |= {
                "z": new["z"] + move,
                "y_mean": new["y_mean"] - (p - q) / ((1 + alpha) * tau),
                "P": new["P"] + p,
                "Y": new["Y"] + move / tau,
            }
        if self._balances_after(round_info.index):
            new |= _balanced_prox(new, sums, totals)
        return new

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Add the update to the agent's own totals, and keep its new model."""
        totals = _totals(received, private)
        if tau := float(received["prox"][0]):
            add_scaled(totals["U"], pending["dz"], 1 / tau)
            if "W" in totals:
                add_scaled(totals["W"], pending["dx"], 1.0)
        joined = np.ones_like(private["joined"])
        return {**totals, "x": pending["x"], "factor": pending["factor"], "joined": joined}

    def audited(self, server: Vectors, private: Vectors) -> Vectors:
        r"""Return vectors whose means are P, $\bar y$ and, if the centre is free, Y.

        Agents that have not joined have the means of the others.
        """
        new = private["joined"] == 0
        if self.center == "free":
            return {"Y": _joined(private["U"], new, server["Y"])}
        total = server["Y"] + server["y_mean"]
        return {
            "P": _joined(private["W"], new, server["P"]),
            "y_mean": _joined(private["U"], new, total) - server["Y"],
        }

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the agent's own model."""
        return private["x"]

    def average(self, server: Vectors) -> None:
        """Return None: before the end, z is not yet the average of the models."""
        return

    def shared_model(self, server: Vectors) -> Array:
        """Return z, to which the average of the models converges unless the centre is free."""
        return server["z"]

    def _balances_after(self, index: int) -> bool:
        """Return whether τ may change after this round: 4, 6, 8, 11, 15, …, ever more rarely."""
        after = 4
        while after < index + 1:
            after = int(1.3 * after) + 1
        return self.prox == "auto" and after == index + 1


def _balanced_prox(server: Vectors, sums: Sums, totals: dict[str, float]) -> dict[str, Array]:
    r"""Return τ made longer or shorter, if shared models or multipliers lag behind.

    The updates of all agents, as one long vector, have a part that moves the shared model and the
    points $s_i$, and an orthogonal part that moves the multipliers, times τ (in the metric in
    which x counts $1/\alpha$). With short proximal steps the first is the slow one and outweighs
    the second, with long ones the other way round.
    """
    tau, L = (float(server[name][0]) for name in ("prox", "curvature"))
    changes, c = server["changes"], sums.num_aggregated
    # The noise of batches is nearly all in the dual part, so that it would make τ ever shorter.
    uncertain = totals["noisy"] or totals["nonconvex"] or c < MIN_PRESENT * server["joined"][0]
    q = sums.vectors["dz"] / c
    if "ratio" in server:
        p, alpha = sums.vectors["dx"] / c, float(server["ratio"][0])
        move = (p + alpha * q) / (1 + alpha)
        primal = (totals["dx_squared"] - c * float(p @ p)) / alpha
        primal += (1 + 1 / alpha) * c * float(move @ move)
        dual = max(0.0, totals["dx_squared"] / alpha + totals["dz_squared"] - primal)
    else:
        primal = c * float(q @ q)
        dual = max(0.0, totals["dz_squared"] - primal)
    if uncertain or not primal > 0 or changes[0] >= MAX_PROX_CHANGES:
        return {}
    ratio = math.sqrt(dual / primal)
    excess = max(ratio, 1 / ratio) if ratio > 0 else math.inf
    factor = 1.0 if excess < BALANCE else 2.0 if excess < FAR_FROM_BALANCE else 4.0
    tau *= 1 / factor if ratio > 1 else factor
    low, high = PROX_RANGE
    if factor == 1 or (L * tau < low if ratio > 1 else L * tau > high):
        return {}
    return {"prox": np.array([tau]), "changes": changes + 1}


def _first_prox(totals: dict[str, float], agents: int, center: Center) -> dict[str, Array]:
    """Return the first τ and α, powers of two, and the mean curvature on which they are based."""
    L, own, sigma = (totals[name] / agents for name in ("curvature", "own_curvature", "coupling"))
    total = L + sigma / 2
    if center == "free":
        # Of the own part, at most σ is left in z where x follows; where agents are absent, it does
        # not follow. The geometric mean of the two is good for both.
        total = math.sqrt(total) * math.sqrt(L - own + min(own, sigma))
    factor = NOISY_PROX if totals["noisy"] else FIRST_PROX
    factor = NONCONVEX_PROX if totals["nonconvex"] else factor
    tau = _power_of_two(math.log2(factor) - math.log2(total)) if total > 0 else 1.0
    first = {"prox": np.array([tau]), "curvature": np.array([total])}
    if center == "free":
        return first
    alpha = 1.0
    if own < L and own + sigma > 0:
        exponent = math.log2(COUPLING_FACTOR) + (math.log2(L - own) - math.log2(own + sigma)) / 2
        alpha = min(MAX_RATIO, max(1.0, _power_of_two(exponent)))
    return {**first, "ratio": np.array([alpha])}


def _power_of_two(exponent: float) -> float:
    """Return the power of two with the nearest whole exponent, far from overflow."""
    return 2.0 ** round(min(300.0, max(-300.0, exponent)))


def _totals(received: Vectors, private: Vectors) -> dict[str, Array]:
    """Return the agents' own totals W and U; new agents get those with which they join."""
    new = private["joined"] == 0
    if "P" not in received:
        return {"U": _joined(private["U"], new, received["Y"])}
    # A new agent starts at its model, s = x, and with the mean of the multipliers of the others.
    start = received["P"] + (private["x"] - received["z"]) if new.any() else received["P"]
    return {
        "W": _joined(private["W"], new, start),
        "U": _joined(private["U"], new, received["Y"] + received["y_mean"]),
    }


def _joined(rows: Array, new: Array, start: Array) -> Array:
    """Return rows in which those of new agents are replaced by what they start with."""
    return np.where(new, start, rows) if new.any() else rows


def _squares(rows: Array) -> Float64Array:
    """Return the squared norm of every row, in float64."""
    wide = rows.astype(np.float64, copy=False)
    squares: Float64Array = np.einsum("ij,ij->i", wide, wide)
    return squares
