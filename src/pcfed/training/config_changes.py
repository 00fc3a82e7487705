"""What differs between the configuration of a run directory and that of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pcfed.config.json_schema import toml_value
from pcfed.config.train_file import NOT_IN_DIGEST
from pcfed.config.validation_errors import dotted

MAX_CHANGES = 3
"""Keys that are named at most."""

MAX_VALUE_LENGTH = 40
"""Longer values are cut."""

MISSING = object()

Keys = tuple[str, ...]
"""The names of tables, and of a key in the innermost one."""


def describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return which keys differ, with both values, as a clause.

    Keys that may change between two runs (`NOT_IN_DIGEST`) are left out.

    Parameters
    ----------
    old, new : mapping
        The tables of `Config.resolved`: those of config.json, and those of the file.

    Examples
    --------
    >>> describe_changes({"training": {"batch": 0.5}}, {"training": {"batch": 0.25}})
    'training.batch was 0.5 and is 0.25'
    """
    before, after = dict(_leaves(old)), dict(_leaves(new))
    changes = {
        keys: (before.get(keys, MISSING), after.get(keys, MISSING))
        for keys in dict.fromkeys([*before, *after])
        if before.get(keys, MISSING) != after.get(keys, MISSING)
    }
    if ("algorithm", "name") in changes:  # the parameters of another algorithm are no news
        changes = {keys: pair for keys, pair in changes.items() if keys[0] != "algorithm"} | {
            ("algorithm", "name"): changes["algorithm", "name"]
        }
    # config.json has the number that was found for "auto", so these need not be changes.
    certain = {keys: pair for keys, pair in changes.items() if not _may_be_auto(keys, pair)}
    sentences = list(_by_value(certain or changes))
    if not sentences:
        return (
            "its keys are the same, but the data, the code of the module, the order of the agents "
            'or a coupling that was "auto" have changed'
        )
    left = len(sentences) - MAX_CHANGES
    text = ", ".join(sentences[:MAX_CHANGES])
    return f"{text}, and {left} more keys have changed" if left > 0 else text


def _leaves(tables: Mapping[str, Any], outer: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield all values with their keys; a constraint is one value."""
    for name, value in tables.items():
        keys = (*outer, name)
        if keys[0] == "training" and name in NOT_IN_DIGEST:
            continue
        if isinstance(value, Mapping) and name != "constraint":
            yield from _leaves(value, keys)
        else:
            yield keys, value


def _may_be_auto(keys: Keys, pair: tuple[Any, Any]) -> bool:
    return keys[-1] == "coupling" and pair[1] == "auto" and isinstance(pair[0], float)


def _by_value(changes: Mapping[Keys, tuple[Any, Any]]) -> Iterator[str]:
    """Yield one clause per change; the same change of several agents is one."""
    groups: dict[Keys, list[Keys]] = {}
    for keys, (old, new) in changes.items():
        place = ("agents", *keys[2:]) if keys[0] == "agents" else keys
        groups.setdefault((*place, _text(old), _text(new)), []).append(keys)
    for (*_, old, new), members in groups.items():
        name = dotted(list(members[0]))
        if len(members) > 1:
            name += f" (and of {len(members) - 1} more agents)"
        if members[0] == ("model", "intercept_bound"):
            name += " (computed from the data if it is not given)"
        yield f"{name} was {old} and is {new}"


def _text(value: Any) -> str:
    """Return a value as TOML has it, cut if it is long."""
    text = "not given" if value is MISSING else toml_value(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 1] + "…"
