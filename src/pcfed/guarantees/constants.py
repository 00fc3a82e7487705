r"""The constants of the theorem for one problem.

Letters: $m$ agents, $\rho$ the penalty, $H$ local steps in a round, $N$ samples and batches of $b$.

==================  =============================================================================
``L_f``             smoothness of the local losses, the largest over the agents
``sigma``           $\sigma = \max_i \sigma_i$
``L_G``             $L_G = (L_f + \sigma (m - 1))/m + \rho$
``largest_step``    $\min\{1/(6 L_G), 1/(5 L_G (H - 1))\}$
``nu2``             $\nu^2 \ge E\|\nabla \tilde f_i(x, \xi) - \nabla f_i(x)\|^2$ for all i and x
``Q``               $\|x_0 - x^*_\rho\|^2$ over all m blocks
``M``               $M_\rho = \frac1m \sum_i \|\nabla G_{i,\rho}(x^*_\rho)\|^2$
``gradient_norm``   $\|\nabla f(x^*)\|$ over all m blocks
``M_printed``       $\frac1m \sum_i E\|\nabla \tilde F_i(x^*, \xi)\|^2$, as the paper prints it
==================  =============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees.noise import noise_bound, noise_estimate
from pcfed.guarantees.optimum import Optimum
from pcfed.problem import Problem
from pcfed.sampling import Sampling
from pcfed.validation import count, instance, positive


@dataclass(frozen=True)
class Constants:
    r"""The constants in the bounds; see the table of `pcfed.guarantees.constants`.

    Attributes
    ----------
    m, local_steps : int
        Number of agents, and of local steps H in a round.
    L_f, sigma, penalty : float
        Smoothness of the losses, largest coupling, $\rho$.
    nu2 : float
        $\nu^2$; 0 for full batches, infinite if there is no bound.
    nu2_estimated : bool
        Whether ``nu2`` was measured at some points rather than bounded for all.
    Q, M, gradient_norm, M_printed : float or None
        None where the optimum that they depend on was not given.
    notes : tuple of str
        Sentences on what is approximate.
    """

    m: int
    L_f: float
    sigma: float
    penalty: float
    local_steps: int = 1
    nu2: float = 0.0
    nu2_estimated: bool = False
    Q: float | None = None
    M: float | None = None
    gradient_norm: float | None = None
    M_printed: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count("Constants: m", self.m)
        positive("Constants: penalty", self.penalty)
        if not isinstance(self.local_steps, (int, np.integer)):
            raise ValueError(
                "Constants: local_steps must be one number for all agents and rounds, got "
                f"{self.local_steps!r}; the theorem covers nothing else."
            )
        count("Constants: local_steps", self.local_steps)
        for name in ("L_f", "sigma", "Q", "M", "gradient_norm", "M_printed"):
            value = getattr(self, name)
            if value is not None:
                positive(f"Constants: {name}", value, zero=True)
        if not self.nu2 >= 0:
            raise ValueError(
                f"Constants: nu2 must be ≥ 0, got {self.nu2!r}; give a bound of the variance of "
                "the stochastic gradients, or inf if there is none."
            )

    @property
    def L_G(self) -> float:
        """The smoothness of the penalised objective of one agent (Lemma 4.1)."""
        return (self.L_f + self.sigma * (self.m - 1)) / self.m + self.penalty

    @property
    def largest_step(self) -> float:
        """The largest step that the theorem admits."""
        return 1 / (self.L_G * max(6, 5 * (self.local_steps - 1)))

    def __str__(self) -> str:
        rows = [
            ("m", self.m, "agents"),
            ("H", self.local_steps, "local steps of a round"),
            ("ρ", self.penalty, "penalty"),
            ("L_f", self.L_f, "smoothness of the losses"),
            ("σ", self.sigma, "largest coupling"),
            ("L_G", self.L_G, "smoothness of the penalised objective of an agent"),
            ("γ", self.largest_step, "largest step that the theorem admits"),
            ("ν²", self.nu2, "noise, " + ("an estimate" if self.nu2_estimated else "a bound")),
            ("Q", self.Q, "squared distance of the start from the penalised optimum"),
            ("M_ρ", self.M, "mean squared gradient of the agents at the penalised optimum"),
            ("‖∇f‖", self.gradient_norm, "gradient at the constrained optimum"),
            ("M", self.M_printed, "as printed: mean squared gradient at the constrained optimum"),
        ]
        lines = [
            f"{name:<5} {'unknown' if value is None else f'{value:.6g}':>12}  {meaning}"
            for name, value, meaning in rows
        ]
        return "\n".join((*lines, *self.notes))


def constants(
    problem: Problem,
    *,
    penalty: float,
    local_steps: int = 1,
    batch: float | int = 1.0,
    sampling: Sampling = "without_replacement",
    noise_at: Sequence[Array] | None = None,
    x0: Array | None = None,
    constrained: Optimum | None = None,
    penalised: Optimum | None = None,
) -> Constants:
    r"""Return the constants of the theorem for a problem, as far as they are known.

    Parameters
    ----------
    problem : Problem
        The agents.
    penalty : float
        $\rho > 0$.
    local_steps : int
        $H$, the same for all agents and rounds.
    batch, sampling
        As in `pcfed.run`; $\nu^2$ depends on them.
    noise_at : sequence of arrays of shape (n,), optional
        Averages at which $\nu^2$ is estimated, instead of a bound for all x.
    x0 : array, optional
        Start of the run, as in `pcfed.run`: zeros by default.
    constrained : Optimum, optional
        ``optimum(problem)``, for $\|\nabla f(x^*)\|$. The bound accounts for its certified gap:
        $\|\nabla f(x^*)\| \le \|\nabla f(x)\| + \sqrt{2 L_{G_0} \cdot \text{gap}}$.
    penalised : Optimum, optional
        ``optimum(problem, penalty=penalty)``, for Q and $M_\rho$.

    References
    ----------
    Theorem 3.4, Lemma 4.1 and Proposition 4.7 of the paper, with $M_\rho$ at $x^*_\rho$, where the
    proof of Lemma 4.5 needs it.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed import Agent, Problem
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> loss = LeastSquares(np.eye(2), np.array([3.0, 1.0]))
    >>> problem = Problem([Agent(loss, L1Ball(radius), coupling=0.1) for radius in (1, 5)])
    >>> known = constants(problem, penalty=5.0, local_steps=4)
    >>> known.L_G, known.nu2, known.Q
    (5.3, 0.0, None)
    """
    instance("constants: problem", problem, Problem, "call constants(problem, penalty=10.0)")
    rho = positive("constants: penalty", penalty)
    if not problem.losses_at_average:
        raise ValueError(
            "constants: all losses must be taken at the average, as in the paper's theorem, got a "
            "problem with a free center or a positive personalization; use certify instead."
        )
    if noise_at is None:
        nu2 = noise_bound(problem, batch=batch, sampling=sampling)
    else:
        nu2 = noise_estimate(problem, noise_at, batch=batch, sampling=sampling)
    known = Constants(
        m=problem.m,
        L_f=problem.L_f,
        sigma=problem.sigma,
        penalty=rho,
        local_steps=local_steps,
        nu2=nu2,
        nu2_estimated=noise_at is not None,
    )
    if penalised is not None:
        known = _with_penalised_optimum(known, problem, x0, penalised)
    if constrained is not None:
        known = _with_constrained_optimum(known, problem, constrained)
    return known


def _with_penalised_optimum(
    known: Constants, problem: Problem, x0: Array | None, penalised: Optimum
) -> Constants:
    """Add Q and M_ρ."""
    _check_penalty(penalised, known.penalty)
    start = problem.as_models("constants: x0", np.zeros(problem.n) if x0 is None else x0)
    note = f"Q and M_ρ belong to a point where the penalised gradient is {penalised.residual:.1e}."
    return replace(
        known,
        Q=float(np.sum((start - penalised.models) ** 2)),
        M=_mean_square(problem.to_float64(), penalised.models, known.penalty),
        notes=(*known.notes, note),
    )


def _with_constrained_optimum(
    known: Constants, problem: Problem, constrained: Optimum
) -> Constants:
    """Add the norm of ∇f(x*) and the printed M."""
    _check_penalty(constrained, None)
    fine, x = problem.to_float64(), constrained.models
    norm = float(np.linalg.norm(fine.gradient(x)))
    if math.isfinite(constrained.gap):
        # ‖∇f(x) − ∇f(x*)‖² ≤ 2 L (f(x) − f* − ⟨∇f(x*), x − x*⟩) ≤ 2 L gap for feasible x.
        norm += math.sqrt(2 * problem.L_G(0.0) * constrained.gap)
        note = f"‖∇f‖ includes an allowance for a certified gap of {constrained.gap:.1e}."
    else:
        note = "‖∇f‖ belongs to a point whose gap is not certified."
    noise = known.nu2 / known.m if known.nu2 < math.inf else 0.0
    return replace(
        known,
        gradient_norm=norm,
        M_printed=_mean_square(fine, x, 0.0) + noise,
        notes=(*known.notes, note),
    )


def _mean_square(problem: Problem, x: Float64Array, rho: float) -> float:
    """Return the mean over agents of ‖∇G_i(x)‖², a gradient over all m blocks."""
    m, z = problem.m, x.mean(axis=0)
    total = 0.0
    for agent, x_i in zip(problem.agents, x, strict=True):
        s = agent.coupling * (x_i - z)
        p = rho * (x_i - agent.feasible_set.project(x_i)) if rho else 0.0
        shared = (agent.loss.gradient(z) - s) / m
        total += (m - 1) * float(shared @ shared) + float(np.sum((shared + s + p) ** 2))
    return total / m


def _check_penalty(given: Optimum, rho: float | None) -> None:
    """Raise if an optimum was computed with another penalty."""
    if given.penalty != rho:
        raise ValueError(
            "constants: penalised must be the optimum with the penalty of the run and constrained "
            f"the one without, got penalty {given.penalty} where {rho} belongs; "
            f"compute optimum(problem, penalty={rho})."
        )
