r"""How much privacy the gradients of a training spend, and how much noise a budget needs.

Two data sets are neighbours if one record is replaced by another, so that the number of records is
public. A gradient is the mean of b vectors of norm at most C, plus noise of standard deviation
$z \cdot 2C/b$ in every entry: 2C/b is how far the mean moves if one record is replaced, and z is
the *noise multiplier*. A batch that is drawn without replacement for every gradient amplifies the
privacy; full batches and blocks do not.

References
----------
Mironov, "Rényi differential privacy" (2017). Wang, Balle, Kasiviswanathan, "Subsampled Rényi
differential privacy and analytical moments accountant" (2019), theorem 27, for batches without
replacement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pcfed.extras import require
from pcfed.privacy.budget import Privacy
from pcfed.validation import count

MAX_NOISE_MULTIPLIER = 1000.0
"""A training that needs more noise than this is refused."""

DIGITS = 1000
"""Noise multipliers are rounded up to multiples of one over this."""

TOLERANCE = 2e-3
"""So much of a budget may be left, relative to it."""

ORDERS = (1.25, 1.5, 1.75, *range(2, 13), 14, 16, 20, 24, 32, 48)
HIGH_ORDERS = (64, 96, 128, 192, 256)
VERY_HIGH_ORDERS = (*HIGH_ORDERS, 512, 1024, 4096, 2**14, 2**16)
"""The orders of the Rényi divergences. Any of them gives a valid bound, and the smallest bound
counts. For batches that are sampled, the high ones take long: they are used only where the bound of
the highest of the others is the smallest, and the very high ones without sampling only."""


MAX_RELATIVE_NOISE = 0.2
"""There is a warning if the noise of private gradients is a larger share of their length."""


class BudgetError(ValueError):
    """A training that a privacy budget does not allow.

    ``max_gradients`` is the number of gradients that it allows.
    """

    def __init__(self, text: str, max_gradients: int) -> None:
        super().__init__(text)
        self.max_gradients = max_gradients


@dataclass(frozen=True)
class Mechanism:
    """What is public about the gradients of an agent.

    Attributes
    ----------
    num_samples : int
        Number of records, N.
    batch_size : int
        Number of records in a gradient, b.
    is_sampled : bool
        Whether every gradient has a batch of its own, drawn without replacement.
    """

    num_samples: int
    batch_size: int
    is_sampled: bool

    @classmethod
    def of(cls, num_samples: int, batch_size: int, sampling: str) -> Mechanism:
        """Return the mechanism for a kind of sampling; raise if it is not supported."""
        if sampling == "with_replacement":
            raise ValueError(
                "privacy: sampling must be 'without_replacement' or 'blocks' for agents with a "
                "privacy budget, got 'with_replacement', in which a record may be in a batch many "
                "times; choose one of the two."
            )
        sampled = sampling == "without_replacement" and batch_size < num_samples
        return cls(num_samples, batch_size, sampled)


@dataclass(frozen=True)
class Spending:
    """Gradients that have been released, or may be.

    Attributes
    ----------
    mechanism : Mechanism
        How they were computed.
    noise_multiplier : float
        The standard deviation of their noise, as a multiple of their sensitivity.
    gradients : int
        How many there are.
    """

    mechanism: Mechanism
    noise_multiplier: float
    gradients: int


def relative_noise(noise_multiplier: float, batch_size: int, gradients: int, n: int) -> float:
    """Return the length of the noise of all gradients together, for n parameters.

    It is relative to how long the sum of these gradients can be.
    """
    if not gradients:
        return 0.0
    return noise_multiplier * 2 / batch_size * math.sqrt(n / gradients)


def noise_warning(name: str, relative_noise: float) -> str | None:
    """Return a sentence if the noise is a large share of what an agent learns."""
    if not relative_noise > MAX_RELATIVE_NOISE:
        return None
    return (
        f"{name}: the noise of its privacy budget is at least {100 * relative_noise:.0f} % of what "
        "it learns from its rows, so its model may be little more than noise; raise "
        "privacy.epsilon, or train with more rows."
    )


def delta_warning(name: str, privacy: Privacy, num_samples: int) -> str | None:
    """Return a sentence if delta is so large that whole records may be published."""
    if privacy.delta < 1 / num_samples:
        return None
    return (
        f"{name}: privacy.delta is {privacy.delta:g}, and must be far below one over its "
        f"{num_samples:,} rows to protect each of them: to publish a row drawn at random would be "
        f"within a delta of {1 / num_samples:.2g}; give one such as {0.01 / num_samples:.0e}."
    )


def epsilon_of(spent: Sequence[Spending], delta: float) -> float:
    r"""Return the $\varepsilon$ of gradients together, for a $\delta$.

    Examples
    --------
    >>> full = Mechanism(num_samples=100, batch_size=100, is_sampled=False)
    >>> round(epsilon_of([Spending(full, 10.0, 4)], 1e-5), 2)
    0.8
    """
    chosen = tuple(each for each in spent if each.gradients)
    if not chosen:
        return 0.0
    # The bound for large batches that are sampled may be above that of the same noise without.
    plain = tuple(
        replace(each, mechanism=replace(each.mechanism, is_sampled=False)) for each in chosen
    )
    return min(_smallest_epsilon(each, delta) for each in {chosen, plain})


def _smallest_epsilon(spent: tuple[Spending, ...], delta: float) -> float:
    """Return the smallest bound of all orders."""
    epsilon, order = _epsilon(spent, delta, ORDERS)
    if order < ORDERS[-1]:
        return epsilon
    is_sampled = any(each.mechanism.is_sampled for each in spent)
    return min(epsilon, _epsilon(spent, delta, HIGH_ORDERS if is_sampled else VERY_HIGH_ORDERS)[0])


@lru_cache(maxsize=4096)
def _epsilon(
    spent: tuple[Spending, ...], delta: float, orders: tuple[float, ...]
) -> tuple[float, float]:
    """Return the smallest bound of some orders, and the order that it is from."""
    require("pcfed.privacy", "privacy", "dp_accounting")
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE)
    for each in spent:
        event: dp.DpEvent = dp.GaussianDpEvent(each.noise_multiplier)
        if (how := each.mechanism).is_sampled:
            event = dp.SampledWithoutReplacementDpEvent(how.num_samples, how.batch_size, event)
        accountant.compose(event, each.gradients)
    epsilon, order = accountant.get_epsilon_and_optimal_order(delta)
    return float(epsilon), float(order)


def noise_multiplier_for(
    privacy: Privacy, mechanism: Mechanism, gradients: int, spent: Sequence[Spending] = ()
) -> float:
    """Return the noise multiplier with which so many gradients stay within the budget.

    Parameters
    ----------
    privacy : Privacy
        The budget.
    mechanism : Mechanism
        How the gradients are computed.
    gradients : int
        How many there are, at least 1.
    spent : sequence of Spending
        What was spent before.

    Raises
    ------
    BudgetError
        If it would be above ``MAX_NOISE_MULTIPLIER``.

    Examples
    --------
    >>> mechanism = Mechanism(num_samples=1000, batch_size=100, is_sampled=True)
    >>> z = noise_multiplier_for(Privacy(2.0, 1e-5), mechanism, 400)
    >>> epsilon_of([Spending(mechanism, z, 400)], 1e-5) <= 2
    True
    """
    return _noise_multiplier(privacy, mechanism, count("privacy: gradients", gradients), *spent)


@lru_cache(maxsize=1024)
def _noise_multiplier(
    privacy: Privacy, mechanism: Mechanism, gradients: int, *spent: Spending
) -> float:
    def excess(z: float) -> float:
        """Return the logarithm of what is spent over the budget, not positive if it is kept."""
        total = epsilon_of([*spent, Spending(mechanism, z, gradients)], privacy.delta)
        if not total:  # a large delta alone is enough
            return -100.0
        return math.log(total / privacy.epsilon) if total < math.inf else 100.0

    low, high = 0.0, MAX_NOISE_MULTIPLIER
    if excess(high) > 0:
        allowed = max_gradients(privacy, mechanism, high, spent)
        raise BudgetError(
            f"a budget of epsilon {privacy.epsilon:g} and delta {privacy.delta:g} allows "
            f"{allowed:,} gradients, got {gradients:,}",
            allowed,
        )
    # The logarithm of epsilon is nearly linear in that of z, so that few steps are enough.
    guess = 1.0
    while high > (1 + TOLERANCE) * low:
        found = excess(guess)
        low, high = (guess, high) if found > 0 else (low, guess)
        if -TOLERANCE < found <= 0:
            break
        guess *= math.exp(max(-5.0, min(5.0, found + TOLERANCE / 2)))
        if not low < guess < high:
            guess = math.sqrt(low * high) if low else high / 10
    # Rounded up, so that other machines find the same.
    return math.ceil(high * DIGITS) / DIGITS


def max_gradients(
    privacy: Privacy,
    mechanism: Mechanism,
    noise_multiplier: float,
    spent: Sequence[Spending] = (),
) -> int:
    """Return the largest number of gradients with this noise that stays within the budget."""

    def within(gradients: int) -> bool:
        total = [*spent, Spending(mechanism, noise_multiplier, gradients)]
        return epsilon_of(total, privacy.delta) <= privacy.epsilon

    if not within(0) or not within(1):
        return 0
    low, high = 1, 2
    while within(high) and high < 2**40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low
