"""What files say about shared and own models, and the defaults where they say nothing.

The library's defaults are the paper's problem. Those of files are what serves the agents best in
`pcfed reproduce personal`: half of a loss at the own model, and a free centre.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from pcfed.algorithms import (
    Algorithm,
    FedAvg,
    FedMiD,
    Local,
    OwnModelAlgorithm,
    PFedHN,
    ProxAL,
    Scaffold,
)
from pcfed.config.algorithm_field import number_or_keyword
from pcfed.config.fields import NonNegativeNumber, WrongKey, invalid
from pcfed.problem import DEFAULT_COUPLING as DEFAULT_COUPLING
from pcfed.problem import Center

DEFAULT_PERSONALIZATION = 0.5

if TYPE_CHECKING:
    Coupling = float | Literal["auto"]
else:
    Coupling = number_or_keyword(["auto"], zero=True)
"""A coupling, or "auto" for one that is found by cross-validation before the training."""


def _refuse_auto(value: Any) -> Any:
    """Refuse "auto" where an agent has only its own data."""
    if value == "auto":
        raise invalid(
            "must be a number in a federation, got 'auto': it would need the scores of all agents; "
            "give one such as 0.1, or one that pcfed tune found on similar data."
        )
    return value


NumericCoupling = Annotated[NonNegativeNumber, BeforeValidator(_refuse_auto)]
"""The coupling of an agent in a federation."""


def ignores_coupling(algorithm: Algorithm) -> bool:
    """Return whether an algorithm does not couple own models to a shared one by a coupling."""
    others = FedAvg, FedMiD, Local, OwnModelAlgorithm, PFedHN, ProxAL, Scaffold
    return isinstance(algorithm, others)


def auto_errors(algorithm: Algorithm, coupling: object, key: str) -> Iterator[WrongKey]:
    """Yield what is wrong with a coupling that is "auto" for an algorithm."""
    if coupling == "auto" and ignores_coupling(algorithm):
        name = type(algorithm).__name__
        yield (
            key,
            f"must be a number with {name}, which does not use it, got 'auto'; give one, or take "
            "the algorithm PCFedSplit.",
        )


def default_center(algorithm: Algorithm) -> Center:
    """Return what models are coupled to where a file does not say it."""
    return "free" if supports_free_center(algorithm) else "average"


def supports_free_center(algorithm: Algorithm) -> bool:
    """Return whether an algorithm has a form for a free centre."""
    try:
        algorithm.for_center("free")
    except ValueError:
        return False
    return True


def center_errors(algorithm: Algorithm, center: Center | None, key: str) -> Iterator[WrongKey]:
    """Yield what is wrong with the centre for an algorithm."""
    if center == "free" and not supports_free_center(algorithm):
        name = type(algorithm).__name__
        yield (
            key,
            f'must be "average" with {name}, got "free"; change it, or take the algorithm '
            "PCFedSplit.",
        )
