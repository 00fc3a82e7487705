"""One table of a TOML file, read key by key: every value is checked, every error names its key."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pcfed.algorithms import Schedule
from pcfed.config.constraints import parse_constraint
from pcfed.data.readers import decoded, read_bytes
from pcfed.errors import did_you_mean, display_path, error_context, join_names, one_line, short_repr
from pcfed.sets import ConvexSet

LARGEST = 2**63 - 1
"""The largest whole number of TOML."""

MOST_BYTES = 2**26
"""Bytes of a TOML file at most."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or say in a sentence in which line it is none."""
    where = display_path(path)
    text = decoded(where, read_bytes(where, path, MOST_BYTES))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = short_repr(str(error), 150).strip("'\"")
        raise ValueError(
            one_line(f"{where}: the file must be TOML, got {reason}; correct it there.")
        ) from None


class Section:
    """A table of a configuration, such as ``[training]``.

    Parameters
    ----------
    where : str
        What messages call the file.
    name : str
        The table's name, such as ``"training"``; empty for the whole file.
    table : object
        What the file has there.
    keys : collection of str
        The keys that are valid in it.

    Raises
    ------
    ValueError
        If it is no table or has other keys.

    Examples
    --------
    >>> section = Section("train.toml", "training", {"rounds": 50}, ("rounds", "seed"))
    >>> section.count("rounds", 200), section.count("seed", 0, minimum=0)
    (50, 0)
    >>> Section("train.toml", "training", {"round": 50}, ("rounds", "seed"))
    Traceback (most recent call last):
    ...
    ValueError: train.toml: training has no key 'round'; did you mean 'rounds'? Valid keys are
    rounds, seed.
    """

    def __init__(self, where: str, name: str, table: object, keys: Collection[str]) -> None:
        self.where, self.name = where, name
        path = f"{where}: {name}" if name else f"{where}: the file"
        if not isinstance(table, Mapping):
            raise ValueError(
                f"{path} must be a table, got {short_repr(table)}; write it as [{name}] and keys."
            )
        for key in table:
            if key not in keys:
                raise ValueError(
                    f"{path} has no key {short_repr(key, 40)}; {did_you_mean(key, keys)}"
                    f"Valid keys are {', '.join(keys)}."
                )
        self.table: Mapping[str, Any] = table

    def __contains__(self, key: str) -> bool:
        return key in self.table

    def path(self, key: str) -> str:
        """Return what messages call a key."""
        return f"{self.where}: {self.name}.{key}" if self.name else f"{self.where}: {key}"

    def flag(self, key: str, default: bool) -> bool:
        """Return a key that is true or false."""
        value = self.table.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(
                f"{self.path(key)} must be true or false, got {short_repr(value)}; give one of the two."
            )
        return value

    def count(self, key: str, default: int, *, minimum: int = 1) -> int:
        """Return a key that is a whole number."""
        value = self.table.get(key, default)
        if not (_whole(value) and minimum <= value <= LARGEST):
            raise ValueError(
                f"{self.path(key)} must be a whole number ≥ {minimum}, got {short_repr(value)}; "
                f"give one such as {max(default, 1)}."
            )
        return int(value)

    def number(self, key: str, default: float, *, zero: bool = False) -> float:
        """Return a key that is a finite number > 0, or ≥ 0."""
        value = self.table.get(key, default)
        rule = "≥ 0" if zero else "> 0"
        number = self._finite(key, value, f"a number {rule}", default)
        if not (number >= 0 if zero else number > 0):
            raise ValueError(
                f"{self.path(key)} must be {rule}, got {short_repr(value)}; "
                f"give a number such as {default or 0.1}."
            )
        return number + 0.0  # so that −0 is 0

    def optional_number(self, key: str) -> float | None:
        """Return a key that is a finite number > 0, or None without it."""
        return self.number(key, 1.0) if key in self.table else None

    def share(self, key: str, default: float) -> float:
        """Return a key that is a number in [0, 1)."""
        value = self.table.get(key, default)
        number = self._finite(key, value, "a number in [0, 1)", default)
        if not 0 <= number < 1:
            raise ValueError(
                f"{self.path(key)} must be in [0, 1), got {short_repr(value)}; "
                f"give a share such as {default}."
            )
        return number + 0.0

    def part(self, key: str, default: float | int) -> float | int:
        """Return a key that is a share as a float in (0, 1], or a number as an int ≥ 1."""
        value = self.table.get(key, default)
        share = isinstance(value, float) and 0 < value <= 1
        if not share and not (_whole(value) and 1 <= value <= LARGEST):
            raise ValueError(
                f"{self.path(key)} must be a share in (0, 1], with its point, or a whole number "
                f"≥ 1, got {short_repr(value)}; give 1.0 for all, 0.1 for a tenth or 32 for 32."
            )
        return float(value) if share else int(value)

    def schedule(
        self, key: str, default: Schedule, *, zero: bool, words: Collection[str]
    ) -> Schedule:
        """Return a key that is a number > 0, or ≥ 0, or one of some words."""
        value: Any = self.table.get(key, default)
        word = isinstance(value, str)
        if not word and key in self.table:
            return self.number(key, 0.1, zero=zero)
        if word and value not in words:
            raise ValueError(
                f"{self.path(key)} must be a number or one of {join_names(words)}, got {short_repr(value)}; "
                f"{did_you_mean(value, words)}Give one of these."
            )
        schedule: Schedule = value
        return schedule

    def text(self, key: str) -> str | None:
        """Return a key that is a text which is not empty, or None without it."""
        value = self.table.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise ValueError(
                f"{self.path(key)} must be a text, got {short_repr(value)}; put it in quotes."
            )
        return value

    def choice(self, key: str, options: Collection[str], default: str | None = None) -> str:
        """Return a key that is one of some words; without a default it must be there."""
        value = self.table.get(key, default)
        if value is None:
            raise ValueError(f"{self.path(key)} is missing; give one of {', '.join(options)}.")
        if not isinstance(value, str) or value not in options:
            raise ValueError(
                f"{self.path(key)} must be one of {', '.join(options)}, got {short_repr(value)}; "
                f"{did_you_mean(value, options)}Choose one of them."
            )
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a key that is a list of different texts, or None without it."""
        value = self.table.get(key)
        if value is None:
            return None
        if not (isinstance(value, list) and value and all(isinstance(k, str) for k in value)):
            raise ValueError(
                f"{self.path(key)} must be a list of names, got {short_repr(value)}; "
                'give one such as ["a", "b"].'
            )
        name, times = Counter(value).most_common(1)[0]
        if times > 1:
            raise ValueError(
                f"{self.path(key)} must be different names, got {short_repr(name)} {times} times; "
                "give it once."
            )
        return tuple(value)

    def constraint(self, key: str) -> ConvexSet | None:
        """Return a key that describes a set, or None without it."""
        if key not in self.table:
            return None
        with error_context(self.path(key)):
            return parse_constraint(self.table[key])

    def _finite(self, key: str, value: object, kind: str, default: float) -> float:
        """Return a value as a finite float."""
        number = math.nan
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with suppress(OverflowError):
                number = float(value)
        if not math.isfinite(number):
            raise ValueError(
                f"{self.path(key)} must be {kind}, got {short_repr(value)}; "
                f"give one such as {default or 0.1}."
            )
        return number


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
