"""Sets from configuration files.

A specification is a set, a string that reads as the call that makes one (``"l1(85)"``), or what
TOML and JSON have: ``{"l1": 85}``, ``{"box": [0, 1]}``, ``{"l1": {"radius": 85, "center": [0,
1]}}``, ``{"intersection": [{"l1": 1}, "nonnegative"]}``. Nothing is ever evaluated as code.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from pcfed.errors import one_line
from pcfed.sets.affine import Affine, Halfspace, Hyperplane
from pcfed.sets.balls import GroupL1Ball, L1Ball, L2Ball, LinfBall
from pcfed.sets.base import ConvexSet
from pcfed.sets.boxes import Box, NonNegative, WholeSpace
from pcfed.sets.combine import Blocks, Scaled, Translated
from pcfed.sets.cones import PSDCone, SecondOrderCone
from pcfed.sets.ellipsoid import Ellipsoid
from pcfed.sets.intersection import Intersection
from pcfed.sets.nuclear import NuclearBall
from pcfed.sets.polyhedra import Polyhedron
from pcfed.sets.simplex import Simplex

KINDS: dict[str, type[ConvexSet]] = {
    "l1": L1Ball,
    "l2": L2Ball,
    "linf": LinfBall,
    "ellipsoid": Ellipsoid,
    "group_l1": GroupL1Ball,
    "nuclear": NuclearBall,
    "box": Box,
    "nonnegative": NonNegative,
    "simplex": Simplex,
    "halfspace": Halfspace,
    "hyperplane": Hyperplane,
    "affine": Affine,
    "polyhedron": Polyhedron,
    "second_order_cone": SecondOrderCone,
    "psd": PSDCone,
    "intersection": Intersection,
    "blocks": Blocks,
    "translated": Translated,
    "scaled": Scaled,
    "whole_space": WholeSpace,
}

MOST_LEVELS = 50
"""How deep lists and tables, or the brackets of a text, may be nested."""

LONGEST = 400
"""Characters of a message at most."""


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
        If it describes no set; the sentence lists what is valid and is one line, whatever the
        specification is.

    Examples
    --------
    >>> from pcfed.sets import parse_set
    >>> parse_set({"l1": 85})
    L1Ball(radius=85.0)
    >>> parse_set("intersection(l2(1), nonnegative)")
    Intersection(L2Ball(radius=1.0), NonNegative())
    """
    try:
        _check_levels(spec)
        return _parsed(spec)
    except ValueError as error:
        raise ValueError(one_line(str(error), LONGEST)) from None


def _parsed(spec: object) -> ConvexSet:
    """Do as ``parse_set``, with messages of any length."""
    if isinstance(spec, ConvexSet):
        return spec
    if isinstance(spec, str):
        return _from_text(spec)
    if isinstance(spec, Mapping):
        if len(spec) != 1:
            keys = sorted(map(str, spec))
            raise ValueError(
                f"parse_set: a mapping must have one key, the name of a set, got {keys}; "
                'to combine sets give {"intersection": [...]}.'
            )
        ((name, value),) = spec.items()
        return _from_value(_kind(str(name)), value)
    raise ValueError(
        f"parse_set: a set must be a string or a mapping with one key, got {spec!r}; "
        f'give for example {{"l1": 85}}; valid names are {", ".join(KINDS)}.'
    )


def _check_levels(spec: object) -> None:
    """Refuse lists and tables that are nested too deeply to read, show or project onto."""
    inside = _nesting([spec])
    for _ in range(MOST_LEVELS):
        tables = (each.values() if isinstance(each, Mapping) else each for each in inside)
        inside = _nesting(value for table in tables for value in table)
    if inside:
        raise ValueError(
            f"parse_set: lists and tables must be nested at most {MOST_LEVELS} deep, got more; "
            "combine the sets in one intersection."
        )


def _nesting(values: Iterable[Any]) -> list[Any]:
    """Return the lists and tables among some values, each once."""
    found = {id(each): each for each in values if isinstance(each, (Mapping, list, tuple))}
    return list(found.values())


def _from_value(kind: type[ConvexSet], value: Any) -> ConvexSet:
    """Make a set from the argument in a mapping."""
    if kind is Blocks:
        return Blocks([_block(*item) for item in _block_items(value)])
    if isinstance(value, Mapping):
        return _make(kind, [], {str(k): _argument(str(k), v) for k, v in value.items()})
    if value is None or value is True:
        return _make(kind, [], {})
    arguments = value if isinstance(value, (list, tuple)) else [value]
    if kind is Intersection:
        return _make(kind, [_parsed(v) for v in arguments], {})
    names = list(inspect.signature(kind).parameters)
    return _make(kind, [_argument(k, v) for k, v in zip_longest(names, arguments)], {})


def zip_longest(names: list[str], values: list[Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Pair values with parameter names; values beyond the last name get an empty one."""
    return [(names[k] if k < len(names) else "", value) for k, value in enumerate(values)]


def _argument(name: str, value: Any) -> Any:
    return _parsed(value) if name == "set" else value


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
            f"{value!r}; "
            'give for example {"0:10": {"l1": 1}}.'
        ) from None


def _block(start: Any, stop: Any, spec: Any) -> tuple[tuple[int, int | None], ConvexSet]:
    try:
        ends = (int(start or 0), None if stop in (None, "", "None") else int(stop))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"parse_set: the ends of a block must be whole numbers, got {start!r} and {stop!r}; "
            'give for example "0:10".'
        ) from None
    return ends, _parsed(spec)


def _from_text(text: str) -> ConvexSet:
    """Read a name or a call."""
    if "(" not in text:
        return _make(_kind(text), [], {})
    depths = accumulate((c in "([{") - (c in ")]}") for c in text)
    if max(depths) > MOST_LEVELS:
        raise ValueError(
            f"parse_set: brackets must be nested at most {MOST_LEVELS} deep, got {text!r}; "
            "combine the sets in one intersection."
        )
    try:
        value = _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(
            f"parse_set: a set must read as a call, got {text!r}; give for example 'l1(85)'."
        ) from None
    if not isinstance(value, ConvexSet):
        raise ValueError(f"parse_set: {text!r} is no set; valid names are {', '.join(KINDS)}.")
    return value


def _read(node: ast.expr) -> Any:
    """Return the value of an expression of numbers, lists, arrays and sets."""
    match node:
        case ast.Constant(value=value) if not isinstance(value, complex):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand)
        case ast.List(elts=elements):
            return [_read(e) for e in elements]
        case ast.Tuple(elts=elements):
            return tuple(_read(e) for e in elements)
        case ast.Dict(keys=keys, values=values):
            return {_read(k): _read(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id=name):
            return _make(_kind(name), [], {})
        case ast.Call(func=ast.Name(id="array"), args=[argument], keywords=[]):
            return np.array(_read(argument))
        case ast.Call(
            func=ast.Name(id="float"), args=[ast.Constant(value=str(value))], keywords=[]
        ):
            return float(value)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = {k.arg: _read(k.value) for k in keywords if k.arg is not None}
            return _make(_kind(name), [_read(a) for a in args], named)
    raise ValueError(
        f"parse_set: {ast.unparse(node)!r} is not allowed in a set; use numbers, lists and sets "
        "only."
    )


def _kind(name: str) -> type[ConvexSet]:
    """Return the class of a name, whatever its case, spaces and underscores."""
    names = {_plain(k): kind for k, kind in KINDS.items()}
    names |= {_plain(kind.__name__): kind for kind in KINDS.values()}
    if _plain(name) in names:
        return names[_plain(name)]
    near = difflib.get_close_matches(_plain(name)[:40], names, n=1)
    guess = ""
    if near:
        guess = next(f"did you mean {k!r}? " for k, kind in KINDS.items() if kind is names[near[0]])
    raise ValueError(
        f"parse_set: {name!r} is not a set; {guess}Valid names are {', '.join(KINDS)}."
    )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _make(kind: type[ConvexSet], args: list[Any], named: dict[str, Any]) -> ConvexSet:
    """Call the constructor, and list its arguments if they do not fit."""
    signature = inspect.signature(kind)
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise ValueError(
            f"parse_set: {kind.__name__} was given the wrong arguments ({error}); "
            f"it takes {kind.__name__}{_shown(signature)}."
        ) from None
    return kind(*bound.args, **bound.kwargs)


def _shown(signature: inspect.Signature) -> str:
    """Return a signature without its types."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))
