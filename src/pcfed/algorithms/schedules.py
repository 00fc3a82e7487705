"""Numbers that may change from round to round: steps and penalties."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from pcfed.validation import positive, real

Schedule = float | Callable[[int], float] | Literal["auto", "theory"]
"""A number, a function of the round's index (from 0), or a keyword: ``"auto"`` for a choice that
suits the problem, ``"theory"`` for what the theorem requires (PC-FedAvg)."""


@dataclass(frozen=True)
class Power:
    r"""The schedule $\text{scale} \cdot (r + \text{offset})^{\text{exponent}}$ of round r.

    ``Power(offset=10_000, exponent=0.25)`` is the penalty of the paper's experiments.

    Parameters
    ----------
    offset : float
        What is added to the round's index, which begins at 0; greater than 0.
    exponent : float
        Positive to grow, negative to decay.
    scale : float
        A positive factor.

    Examples
    --------
    >>> Power(offset=10_000, exponent=0.25)(0)
    10.0
    >>> Power(exponent=-0.5, scale=0.3)(3)
    0.15
    """

    offset: float = 1.0
    exponent: float = 0.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("Power: offset", self.offset)
        real("Power: exponent", self.exponent)
        positive("Power: scale", self.scale)

    def __call__(self, index: int) -> float:
        """Return the value in the round with this index."""
        return float(self.scale * (index + self.offset) ** self.exponent)


def decaying(first: float) -> Power:
    r"""Return the schedule $\text{first} \cdot (1 + r/20)^{-1/2}$: the noise of batches fades.

    Parameters
    ----------
    first : float
        The value in the first round.
    """
    return Power(offset=CONSTANT_ROUNDS, exponent=-0.5, scale=first * CONSTANT_ROUNDS**0.5)


CONSTANT_ROUNDS = 20.0
"""Rounds during which a decaying step is nearly constant."""


def check_schedule(where: str, schedule: object, *, zero: bool, keywords: Collection[str]) -> None:
    """Raise unless ``schedule`` is a number in range, a function, or a keyword that is allowed.

    Parameters
    ----------
    where : str
        The field for the message, for example ``"FedAvg: step"``.
    schedule : object
        What the user gave.
    zero : bool
        Whether 0 is allowed.
    keywords : collection of str
        The values that are not numbers.
    """
    if callable(schedule) or (isinstance(schedule, str) and schedule in keywords):
        return
    if not isinstance(schedule, (int, float)):
        options = " or ".join(["a number, a function of the round", *(f'"{w}"' for w in keywords)])
        raise ValueError(f"{where} must be {options}, got {schedule!r}; give one such as 0.1.")
    positive(where, schedule, zero=zero)


def value_at(where: str, schedule: Schedule, index: int, *, zero: bool) -> float:
    """Return the number that ``schedule`` has in the round with this index, checked."""
    if isinstance(schedule, str):
        raise ValueError(f"{where} must first be resolved for a problem, got {schedule!r}.")
    value = schedule(index) if callable(schedule) else schedule
    return positive(f"{where} in round {index}", value, zero=zero)


def largest_value(where: str, schedule: Schedule, rounds: int) -> float:
    """Return the largest number that ``schedule`` has in a run."""
    indices = range(rounds if callable(schedule) else 1)
    return max(value_at(where, schedule, index, zero=True) for index in indices)
