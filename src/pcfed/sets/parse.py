"""Sets from configuration files.

A specification is a set, a string that reads as the call that constructs one (``"l1(85)"``), or a
mapping from TOML or JSON: ``{"l1": 85}``, ``{"box": [0, 1]}``, ``{"l1": {"radius": 85, "center":
[0, 1]}}``, ``{"intersection": [{"l1": 1}, "nonnegative"]}``. Nothing is ever evaluated as code.

Files may name every set of ``pcfed.sets.__all__`` that has a ``spec_name``, by this name or by the
name of its class. The arguments are those of its constructor.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from pcfed.errors import closest_name, one_line
from pcfed.sets.base import ConvexSet
from pcfed.sets.combine import Blocks
from pcfed.sets.intersection import Intersection

MAX_LEVELS = 50
"""How deep lists and mappings, or the brackets of a string, may be nested."""

MAX_SIGNS = 1_000_000
"""Commas, brackets and the like in a string at most: each needs about 1000 bytes while it is read.

Lists of TOML and JSON have no such limit.
"""

MAX_LENGTH = 400
"""Characters of an error message at most."""


@cache
def sets_by_name() -> dict[str, type[ConvexSet]]:
    """Return the sets that files may name, by their names in files."""
    from pcfed import sets  # not above: the package imports this module

    public = (getattr(sets, name) for name in sets.__all__)
    kinds = (each for each in public if isinstance(each, type) and issubclass(each, ConvexSet))
    named = {kind.spec_name: kind for kind in kinds if kind.spec_name is not None}
    return dict(sorted(named.items()))


def parse_set(spec: object) -> ConvexSet:
    """Return the set that a specification describes.

    Parameters
    ----------
    spec : ConvexSet, str or mapping
        A set, a string such as ``"l1(85)"``, ``"L1Ball(radius=85.0)"`` or ``"whole space"``, or a
        mapping from one name to its argument: a number, a list of arguments, or a mapping of named
        ones.

    Raises
    ------
    ValueError
        If it does not describe a set. The message lists what is valid; it is always one line.

    Examples
    --------
    >>> from pcfed.sets import parse_set
    >>> parse_set({"l1": 85})
    L1Ball(radius=85.0)
    >>> parse_set("intersection(l2(1), nonnegative)")
    Intersection(L2Ball(radius=1.0), NonNegative())
    """
    try:
        _check_depth(spec)
        return _parse(spec)
    except ValueError as error:
        raise ValueError(one_line(str(error), MAX_LENGTH)) from None


def _parse(spec: object) -> ConvexSet:
    """Return the set of a specification; error messages may have any length."""
    if isinstance(spec, ConvexSet):
        return spec
    if isinstance(spec, str):
        return _parse_text(spec)
    if isinstance(spec, Mapping):
        if len(spec) != 1:
            keys = sorted(map(str, spec))
            raise ValueError(
                f"parse_set: a mapping must have one key, the name of a set, got {keys}; "
                'to combine sets give {"intersection": [...]}.'
            )
        ((name, value),) = spec.items()
        return _parse_arguments(_find_set(str(name)), value)
    raise ValueError(
        f"parse_set: a set must be a string or a mapping with one key, got {spec!r}; "
        f'give for example {{"l1": 85}}; valid names are {", ".join(sets_by_name())}.'
    )


def _check_depth(spec: object) -> None:
    """Raise a ValueError if lists and mappings are nested too deeply for recursive functions."""
    level = _containers([spec])
    for _ in range(MAX_LEVELS):
        contents = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = _containers(value for values in contents for value in values)
    if level:
        raise ValueError(
            f"parse_set: lists and tables must be nested at most {MAX_LEVELS} deep, got more; "
            "combine the sets in one intersection."
        )


def _containers(values: Iterable[Any]) -> list[Any]:
    """Return the lists and mappings among some values, each object once."""
    found = {id(each): each for each in values if isinstance(each, (Mapping, list, tuple))}
    return list(found.values())


def _parse_arguments(kind: type[ConvexSet], value: Any) -> ConvexSet:
    """Construct a set from the argument in a mapping."""
    if kind is Blocks:
        return Blocks([_parse_block(*item) for item in _block_items(value)])
    if isinstance(value, Mapping):
        return _construct(kind, [], {str(k): _parse_member(str(k), v) for k, v in value.items()})
    if value is None or value is True:
        return _construct(kind, [], {})
    arguments = value if isinstance(value, (list, tuple)) else [value]
    if kind is Intersection:
        return _construct(kind, [_parse(each) for each in arguments], {})
    names = list(inspect.signature(kind).parameters)
    # Too many arguments get empty names, so that the constructor can report them.
    names += [""] * (len(arguments) - len(names))
    pairs = zip(names, arguments, strict=False)
    return _construct(kind, [_parse_member(*pair) for pair in pairs], {})


def _parse_member(name: str, value: Any) -> Any:
    """Return the value of a parameter; the parameter ``set`` is itself a specification."""
    return _parse(value) if name == "set" else value


def _block_items(value: Any) -> list[tuple[Any, Any, Any]]:
    """Return (start, stop, spec) from ``{"0:10": spec}`` or ``[[0, 10, spec]]``."""
    try:
        if isinstance(value, Mapping):
            ends = [k.split(":") if isinstance(k, str) else k for k in value]
            return [(a, b, spec) for (a, b), spec in zip(ends, value.values(), strict=True)]
        return [(a, b, spec) for a, b, spec in value]
    except (TypeError, ValueError):
        raise ValueError(
            "parse_set: blocks must be a mapping of slices or a list of [start, stop, set], got "
            f'{value!r}; give for example {{"0:10": {{"l1": 1}}}}.'
        ) from None


def _parse_block(start: Any, stop: Any, spec: Any) -> tuple[tuple[int, int | None], ConvexSet]:
    """Return the slice and the set of one block."""
    try:
        ends = (int(start or 0), None if stop in (None, "", "None") else int(stop))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"parse_set: the ends of a block must be whole numbers, got {start!r} and {stop!r}; "
            'give for example "0:10".'
        ) from None
    return ends, _parse(spec)


def _parse_text(text: str) -> ConvexSet:
    """Return the set of a name or a call."""
    if "(" not in text:
        return _construct(_find_set(text), [], {})
    num_signs = len(re.sub(r"[\w\s.-]++", "", text))
    if num_signs > MAX_SIGNS:
        raise ValueError(
            f"parse_set: a string must have at most {MAX_SIGNS:,} commas and brackets, got "
            f'{num_signs:,}; give a table with lists instead, such as {{"box": [[0, 1], [2, 3]]}}.'
        )
    depths = accumulate((c in "([{") - (c in ")]}") for c in text)
    if max(depths) > MAX_LEVELS:
        raise ValueError(
            f"parse_set: brackets must be nested at most {MAX_LEVELS} deep, got {text!r}; "
            "combine the sets in one intersection."
        )
    try:
        value = _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError, SystemError):
        raise ValueError(
            f"parse_set: a set must read as a call, got {text!r}; give for example 'l1(85)'."
        ) from None
    if not isinstance(value, ConvexSet):
        raise ValueError(
            f"parse_set: {text!r} is not a set; valid names are {', '.join(sets_by_name())}."
        )
    return value


def _evaluate(node: ast.expr) -> Any:
    """Return the value of an expression of numbers, lists, arrays and sets."""
    match node:
        case ast.Constant(value=value) if not isinstance(value, complex):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.List(elts=elements):
            return [_evaluate(e) for e in elements]
        case ast.Tuple(elts=elements):
            return tuple(_evaluate(e) for e in elements)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_evaluate(k): _evaluate(v) for k, v in pairs if k is not None}
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id=name):
            return _construct(_find_set(name), [], {})
        case ast.Call(ast.Name("array"), [argument], []):
            return np.array(_evaluate(argument))
        case ast.Call(ast.Name("float"), [ast.Constant(str(value))], []):
            return float(value)
        case ast.Call(ast.Name(name), args, keywords):
            named = {k.arg: _evaluate(k.value) for k in keywords if k.arg is not None}
            return _construct(_find_set(name), [_evaluate(a) for a in args], named)
    raise ValueError(
        f"parse_set: {ast.unparse(node)!r} is not allowed in a set; use numbers, lists and sets "
        "only."
    )


def _find_set(name: str) -> type[ConvexSet]:
    """Return the class with this name, whatever its case, spaces and underscores."""
    sets = sets_by_name()
    names = sets | {kind.__name__: kind for kind in sets.values()}
    for known, kind in names.items():
        if _normalize(name) == _normalize(known):
            return kind
    found = closest_name(name, names)
    # The suggestion is one of the names that are listed, not the name of its class.
    advice = f"did you mean {names[found].spec_name!r}? Valid" if found else "valid"
    raise ValueError(f"parse_set: {name!r} is not a set; {advice} names are {', '.join(sets)}.")


def _normalize(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _construct(kind: type[ConvexSet], args: list[Any], named: dict[str, Any]) -> ConvexSet:
    """Call the constructor; list its parameters if the arguments do not fit."""
    signature = inspect.signature(kind)
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        untyped = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        raise ValueError(
            f"parse_set: {kind.__name__} was given the wrong arguments ({error}); "
            f"it takes {kind.__name__}{inspect.Signature(untyped)}."
        ) from None
    return kind(*bound.args, **bound.kwargs)
