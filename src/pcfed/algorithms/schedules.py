"""Numbers that may change from round to round: steps and penalties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pcfed.arrays import positive, real

Schedule = float | Callable[[int], float] | Literal["theory"]
"""A number, a function of the round's index (from 0), or what the theorem asks for (PC-FedAvg)."""


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


def check_schedule(where: str, schedule: object, *, zero: bool, theory: bool = False) -> None:
    """Raise unless ``schedule`` is a number in range, a function, or ``"theory"`` if that exists.

    Parameters
    ----------
    where : str
        The field for the message, for example ``"FedAvg: step"``.
    schedule : object
        What the user gave.
    zero, theory : bool
        Whether 0 and ``"theory"`` are allowed.
    """
    if callable(schedule) or (theory and schedule == "theory"):
        return
    if not isinstance(schedule, (int, float)):
        options = "a number, a function of the round" + (' or "theory"' if theory else "")
        raise ValueError(f"{where} must be {options}, got {schedule!r}; give one such as 0.1.")
    positive(where, schedule, zero=zero)


def value_at(where: str, schedule: Schedule, index: int, *, zero: bool) -> float:
    """Return the number that ``schedule`` has in the round with this index, checked."""
    if isinstance(schedule, str):
        raise ValueError(f"{where} must first be resolved for a problem, got {schedule!r}.")
    value = schedule(index) if callable(schedule) else schedule
    return positive(f"{where} in round {index}", value, zero=zero)
