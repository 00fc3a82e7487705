r"""The bounds of the theorem, evaluated for a run.

$K^*$ is uniform over all $K = RH$ local steps, $\bar x_k$ is the average over agents of their m
blocks at local step k, and $d_i$ is the distance of its i-th block from $X_i$. With full batches,
expectations are plain means over the K steps. With

$$ E = \frac{3Q}{K\gamma} + \frac{45}{2} L_G \gamma^2 (H-1)^2 \Big(M_\rho + \frac{\nu^2}{m}\Big)
       + \frac{9 \gamma \nu^2}{m}, \qquad
   a = \frac{m}{\rho} \Big( \|\nabla f(x^*)\| + \sqrt{\|\nabla f(x^*)\|^2 + 2\rho E/m} \Big) $$

the three parts of the theorem are

1. $E[f(\bar x_{K^*}) - f^*] \le E$,
2. $\sum_i E[d_i^2] \le a^2$, which also bounds every single term,
3. $E[f(\bar x_{K^*}) - f^*] \ge -\|\nabla f(x^*)\| \, a$.

They differ from the printed ones in the constant M (which the proof of Lemma 4.5 needs at
$x^*_\rho$), in the factor ½ of the penalty and in a factor m; ``as_printed=True`` evaluates the
printed ones for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pcfed.guarantees.constants import Constants
from pcfed.validation import count, positive

PAPER = '"On Performance Guarantees for Federated Learning with Personalized Constraints"'
ASSUMPTIONS = (
    "Every loss is convex and L_f-smooth, every set nonempty, closed and convex.",
    "Stochastic gradients are unbiased, drawn afresh in each step, with variance at most ν².",
    "All of the m ≥ 2 agents take part in every round, with the same number H of local steps.",
    "Step and penalty are constant, and the step is at most min{1/(6 L_G), 1/(5 L_G (H−1))}.",
)
ROUNDING = 1e-9
"""A step may exceed the largest one by this relative error, as users write it in decimals."""
MAX_ROUNDS = 10**18
"""Limit of the search for a sufficient number of rounds."""


@dataclass(frozen=True)
class Bound:
    """One bound of the theorem.

    Attributes
    ----------
    value : float
        The bound.
    claim : str
        The inequality, with the word "value" in place of the number.
    assumptions : tuple of str
        The assumptions under which it holds.
    reference : str
        The proposition that proves it.
    """

    value: float
    claim: str
    assumptions: tuple[str, ...]
    reference: str

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return self.claim.replace("value", f"{self.value:.6g}")


@dataclass(frozen=True)
class Bounds:
    r"""The three parts of the theorem for one run.

    Attributes
    ----------
    upper : Bound
        Upper bound on the mean suboptimality.
    infeasibility : Bound
        Upper bound on the sum over agents of the mean squared distances from their sets.
    lower : Bound
        Lower bound on the mean suboptimality; not positive.
    rounds : int
        $R$.
    step : float
        $\gamma$.
    constants : Constants
        The other constants.
    """

    upper: Bound
    infeasibility: Bound
    lower: Bound
    rounds: int
    step: float
    constants: Constants

    def __str__(self) -> str:
        head = f"After {self.rounds} rounds with step {self.step:.6g}, K* uniform over all steps:"
        return "\n".join((head, f"  {self.upper}", f"  {self.infeasibility}", f"  {self.lower}"))


@dataclass(frozen=True)
class Rounds:
    r"""The number of rounds for which each part of the theorem guarantees an accuracy $\epsilon$.

    Attributes
    ----------
    upper, infeasibility, lower : int
        Smallest R for which $E[f - f^*] \le \epsilon$, $\sum_i E[d_i^2] \le \epsilon$ and
        $E[f - f^*] \ge -\epsilon$ are guaranteed.
    epsilon : float
        The accuracy.
    """

    upper: int
    infeasibility: int
    lower: int
    epsilon: float


def bounds(
    constants: Constants,
    *,
    rounds: int,
    step: float | None = None,
    participation: float = 1.0,
    as_printed: bool = False,
) -> Bounds:
    r"""Return the bounds of the theorem for a run of PC-FedAvg with these constants.

    Parameters
    ----------
    constants : Constants
        With Q, M and gradient_norm, for example from ``constants(..., constrained=…,
        penalised=…)``. They also hold the penalty and the local steps.
    rounds : int
        $R$.
    step : float, optional
        $\gamma$; the largest that the theorem admits by default.
    participation : float
        As in `pcfed.run`; the theorem covers only 1.0, all agents in every round.
    as_printed : bool
        Whether to evaluate the formulas as the paper prints them. A run can violate parts (ii) and
        (iii) of these.

    Raises
    ------
    ValueError
        If the theorem does not cover the run, or a constant is unknown.

    References
    ----------
    Propositions 4.7 and 4.8 of the paper, with the corrections in the docstring of this module.

    Examples
    --------
    >>> from pcfed.guarantees import Constants
    >>> known = Constants(m=4, L_f=1.0, sigma=0.1, penalty=10.0, Q=1.0, M=0.5, gradient_norm=0.2)
    >>> print(bounds(known, rounds=10_000))
    After 10000 rounds with step 0.0161421, K* uniform over all steps:
      E[f − f*] ≤ 0.018585
      Σ E[d²] ≤ 0.0510017
      E[f − f*] ≥ -0.0451671
    """
    R = count("bounds: rounds", rounds)
    c = _checked_constants(constants, as_printed)
    if isinstance(participation, bool) or participation != 1.0:
        raise ValueError(
            f"bounds: participation must be 1.0, got {participation!r}; the theorem covers only "
            "runs in which every agent takes part in every round."
        )
    gamma = _checked_step(step, c)
    upper, infeasibility, lower = (_printed if as_printed else _corrected)(c, R, gamma)
    doubt = ("ν² is an estimate at some points, not a bound for all x.",) if c.nu2_estimated else ()
    assumptions = (*ASSUMPTIONS, *doubt, *c.notes)

    def bound(value: float, claim: str, part: str) -> Bound:
        version = "as printed" if as_printed else "corrected"
        return Bound(value, claim, assumptions, f"Proposition 4.8 ({part}) of {PAPER}, {version}")

    distances = "max E[d²] ≤ value" if as_printed else "Σ E[d²] ≤ value"
    return Bounds(
        upper=bound(upper, "E[f − f*] ≤ value", "i"),
        infeasibility=bound(infeasibility, distances, "ii"),
        lower=bound(lower, "E[f − f*] ≥ value", "iii"),
        rounds=R,
        step=gamma,
        constants=c,
    )


def rounds_for(epsilon: float, constants: Constants) -> Rounds:
    r"""Return the number of rounds for which the theorem guarantees an accuracy.

    The penalty is $\rho = \sqrt R$ and the step is the largest that the theorem then admits. All
    three bounds fall as R grows, so bisection finds the smallest sufficient R.

    Parameters
    ----------
    epsilon : float
        The accuracy of each part; of squared distances in part (ii).
    constants : Constants
        Its penalty is not used. Q and M are assumed to be the same for every $\rho = \sqrt R$,
        although they depend on it a little; check the answer with the constants for that penalty.

    References
    ----------
    Theorem 3.4 of the paper, with steps that satisfy its condition on them.

    Examples
    --------
    >>> from pcfed.guarantees import Constants
    >>> known = Constants(m=4, L_f=1.0, sigma=0.1, penalty=1.0, Q=1.0, M=0.5, gradient_norm=0.2)
    >>> rounds_for(0.01, known)
    Rounds(upper=3241170, infeasibility=16492, lower=65887, epsilon=0.01)
    """
    epsilon = positive("rounds_for: epsilon", epsilon)
    c = _checked_constants(constants, as_printed=False)
    upper, infeasibility, lower = (_smallest_rounds(c, epsilon, part) for part in range(3))
    return Rounds(upper, infeasibility, lower, epsilon)


def _corrected(c: Constants, R: int, gamma: float) -> tuple[float, float, float]:
    """Return the right-hand sides of the three parts, (i) to (iii)."""
    H, m, rho = c.local_steps, c.m, c.penalty
    Q, M, norm = c.Q or 0.0, c.M or 0.0, c.gradient_norm or 0.0
    drift = 45 / 2 * c.L_G * gamma**2 * (H - 1) ** 2 * (M + c.nu2 / m)
    E = 3 * Q / (R * H * gamma) + drift + 9 * gamma * c.nu2 / m
    a = m / rho * (norm + math.sqrt(norm**2 + 2 * rho * E / m))
    return E, a**2, -norm * a


def _printed(c: Constants, R: int, gamma: float) -> tuple[float, float, float]:
    """Return the right-hand sides as Proposition 4.8 prints them."""
    H, m, rho, nu2 = c.local_steps, c.m, c.penalty, c.nu2
    Q, M, norm = c.Q or 0.0, c.M_printed or 0.0, c.gradient_norm or 0.0
    K = R * H
    L = c.L_f + c.sigma * (m - 1)
    drift = gamma**2 * (H - 1) ** 2 * (M + nu2 / m)
    upper = (
        45 / 2 * rho * drift + 9 * gamma * nu2 / m + 3 * Q / (K * gamma) + 45 * L / (2 * m) * drift
    )
    squares = (
        5 * m * norm**2 / rho**2
        + 60 * m * Q / (K * gamma * rho)
        + 450 * L * drift / rho
        + 450 * m * drift
        + 180 * gamma * nu2 / rho
    )
    root = (
        m * norm / rho
        + 6 * math.sqrt(gamma * nu2 / rho)
        + 2 * math.sqrt(3 * m * Q / (K * gamma * rho))
        + 2 * math.sqrt(45 * L * drift / (2 * rho))
        + 2 * math.sqrt(45 * m * drift / 2)
    )
    return upper, squares, -norm * root


def _checked_step(step: float | None, c: Constants) -> float:
    """Return the step if the theorem admits it, by default the largest such step."""
    if callable(step):
        raise ValueError(
            f"bounds: step must be one number for all rounds, got {step!r}; "
            "the theorem covers no schedules."
        )
    gamma = c.largest_step if step is None else positive("bounds: step", step)
    if gamma > c.largest_step * (1 + ROUNDING):
        raise ValueError(
            f"bounds: step must be at most {c.largest_step:.9g} for these constants, got {step!r}; "
            "give a smaller one, or none for the largest."
        )
    return gamma


def _checked_constants(c: Constants, as_printed: bool) -> Constants:
    """Return the constants if the theorem covers them and all that it needs are known."""
    if not isinstance(c, Constants):
        raise ValueError(
            f"bounds: constants must be a Constants, got {type(c).__name__}; "
            "make it with constants(problem, penalty=10.0)."
        )
    if c.m < 2:
        raise ValueError(
            f"bounds: m must be at least 2, got {c.m}; the theorem is for two agents or more."
        )
    names = ("Q", "M_printed" if as_printed else "M", "gradient_norm")
    unknown = [name for name in names if getattr(c, name) is None]
    if unknown:
        raise ValueError(
            f"bounds: constants must have {' and '.join(unknown)}, got None; "
            "give the optima to constants(..., constrained=…, penalised=…)."
        )
    if math.isinf(c.nu2):
        raise ValueError(
            "bounds: nu2 must be finite, got inf: these losses and batches have no bound on the "
            "noise; use full batches, or an estimate through noise_at."
        )
    return c


def _smallest_rounds(c: Constants, epsilon: float, part: int) -> int:
    """Return the smallest R for which a part of the theorem guarantees the accuracy."""

    def sufficient(R: int) -> bool:
        at = replace(c, penalty=math.sqrt(R))
        return abs(_corrected(at, R, at.largest_step)[part]) <= epsilon

    high = 1
    while not sufficient(high):
        high *= 2
        if high > MAX_ROUNDS:
            raise ValueError(
                f"rounds_for: epsilon must be reachable within {MAX_ROUNDS} rounds; "
                "give a larger one."
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sufficient(middle) else (middle, high)
    return high
