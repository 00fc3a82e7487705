"""The registry of algorithms: files, the command line and messages find them here by name.

An algorithm's parameters are the fields of its dataclass, so everything else follows from the
class: which keys a file may have, what a message must carry, which defaults there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, TypeVar

from pcfed.algorithms.base import Algorithm
from pcfed.errors import did_you_mean, join_names, short_repr

A = TypeVar("A", bound=type[Algorithm])

_ALGORITHMS: dict[str, type[Algorithm]] = {}


class Parameter(NamedTuple):
    """A parameter of an algorithm: a field of its dataclass.

    Attributes
    ----------
    name : str
        The keyword of the constructor, which is also the key in files and messages.
    type : str
        Its annotation: ``"Schedule"``, ``"float"`` or ``"bool"``.
    default : object
        Its default; ``dataclasses.MISSING`` where it must be given.
    """

    name: str
    type: str
    default: Any


def register(algorithm: A) -> A:
    """Make an algorithm known by the name of its class; a class decorator.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from pcfed import FedAvg
    >>> @register
    ... @dataclass(frozen=True)
    ... class FedAvgTwice(FedAvg):
    ...     pass
    >>> find_algorithm("FedAvgTwice")(step=0.1)
    FedAvgTwice(step=0.1, penalty=0.0)
    """
    _ALGORITHMS[algorithm.__name__] = algorithm
    return algorithm


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all algorithms, in the order in which they were registered."""
    return tuple(_ALGORITHMS)


def find_algorithm(name: object) -> type[Algorithm]:
    """Return the algorithm of this name.

    Raises
    ------
    ValueError
        If there is none: a sentence that lists the names there are.
    """
    if not isinstance(name, str) or name not in _ALGORITHMS:
        raise ValueError(
            f"name must be one of {join_names(_ALGORITHMS, 20)}, got {short_repr(name)}; "
            f"{did_you_mean(name, _ALGORITHMS)}"
            "Import the module that registers an algorithm of your own first."
        )
    return _ALGORITHMS[name]


def parameters(algorithm: type[Algorithm]) -> tuple[Parameter, ...]:
    """Return the parameters of an algorithm, in the order of its constructor.

    Examples
    --------
    >>> from pcfed import FedProx
    >>> [parameter.name for parameter in parameters(FedProx)]
    ['step', 'penalty', 'prox']
    """
    return tuple(
        Parameter(field.name, str(field.type), field.default)
        for field in fields(algorithm)
        if field.init
    )


def is_required(parameter: Parameter) -> bool:
    """Return whether a parameter has no default."""
    return parameter.default is MISSING


def to_mapping(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm as a name and parameters; `from_mapping` is the inverse.

    Examples
    --------
    >>> from pcfed import FedAvg
    >>> to_mapping(FedAvg(step=0.1))
    {'name': 'FedAvg', 'step': 0.1, 'penalty': 0.0}
    """
    values = {each.name: getattr(algorithm, each.name) for each in parameters(type(algorithm))}
    return {"name": type(algorithm).__name__, **values}


def from_mapping(mapping: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm that a name and parameters describe.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it has no such parameters or values.
    """
    options = dict(mapping)
    algorithm = find_algorithm(options.pop("name", None))
    known = {each.name: each for each in parameters(algorithm)}
    for name in options.keys() - known.keys():
        raise ValueError(
            f"{algorithm.__name__}: there is no parameter {short_repr(name)}; "
            f"{did_you_mean(name, known)}Its parameters are {join_names(known)}."
        )
    for name, each in known.items():
        if is_required(each) and name not in options:
            raise ValueError(f"{algorithm.__name__}: {name} must be given; it has no default.")
    return algorithm(**options)
