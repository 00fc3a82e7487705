"""What files say about shared and own models, and the defaults where they say nothing.

The library's defaults are the paper's problem. Those of files are what serves the agents best in
`pcfed reproduce personal`: half of a loss at the own model, and a free centre.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcfed.algorithms import Algorithm
from pcfed.config.fields import WrongKey
from pcfed.problem import Center

DEFAULT_PERSONALIZATION = 0.5


def default_center(algorithm: Algorithm) -> Center:
    """Return what models are coupled to where a file does not say it."""
    return "free" if _supports_free_center(algorithm) else "average"


def center_errors(algorithm: Algorithm, center: Center | None, key: str) -> Iterator[WrongKey]:
    """Yield what is wrong with the centre for an algorithm."""
    if center == "free" and not _supports_free_center(algorithm):
        name = type(algorithm).__name__
        yield (
            key,
            f'must be "average" with {name}, got "free"; change it, or take the algorithm '
            "PCFedSplit.",
        )


def _supports_free_center(algorithm: Algorithm) -> bool:
    """Return whether an algorithm has a form for a free centre."""
    try:
        algorithm.for_center("free")
    except ValueError:
        return False
    return True
