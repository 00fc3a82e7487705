"""Single values that replace those of a configuration file: ``--set training.rounds=30``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pcfed.errors import one_line, short_repr
from pcfed.storage.reading import parse_toml


@dataclass(frozen=True)
class Override:
    """A value for one key of a file.

    Attributes
    ----------
    keys : tuple of str
        The names of tables, and of the key in the innermost one.
    value : object
        The value, as TOML has it.
    text : str
        ``KEY=VALUE``, as it was given.
    """

    keys: tuple[str, ...]
    value: Any
    text: str

    @classmethod
    def parse(cls, text: str) -> Override:
        """Return the override that ``KEY=VALUE`` describes.

        The key is dotted, as in TOML. The value is one of TOML; everything else is a string.

        Raises
        ------
        ValueError
            If there is no valid key before an equals sign.

        Examples
        --------
        >>> Override.parse("training.rounds=30").value
        30
        >>> Override.parse("algorithm.name=FedAvg").value
        'FedAvg'
        >>> Override.parse("agents.north.constraint={l1 = 5}").keys
        ('agents', 'north', 'constraint')
        """
        # A name in quotes may contain an equals sign, so the first one need not be the right one.
        places = (i for i, character in enumerate(text) if character == "=")
        for place in places:
            if keys := _parse_keys(text[:place]):
                return cls(keys, _parse_value(text[place + 1 :].strip()), text)
        raise ValueError(
            one_line(
                f"--set must be KEY=VALUE with a key of the file, got {short_repr(text)}; give for "
                "example --set training.rounds=30."
            )
        )

    @property
    def option(self) -> str:
        """The override as an option of the command line, for messages."""
        return one_line(f"--set {self.text}", 80)


def parse_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """Return the overrides that several texts describe."""
    return tuple(map(Override.parse, texts))


def apply_overrides(table: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """Return the tables of a file with some values replaced; the last one of a key counts.

    Raises
    ------
    ValueError
        If a key is in something that is not a table.
    """
    changed = copy.deepcopy(dict(table))
    for override in overrides:
        inner = changed
        for i, name in enumerate(override.keys[:-1]):
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                place = ".".join(override.keys[: i + 1])
                raise ValueError(
                    one_line(
                        f"{override.option}: {place} must be a table of the file, got "
                        f"{short_repr(inner)}; give a value for {place} itself."
                    )
                )
        inner[override.keys[-1]] = override.value
    return changed


def _parse_keys(text: str) -> tuple[str, ...]:
    """Return the parts of a dotted key; none if it is not valid."""
    try:
        table: Any = parse_toml(f"{text} = 0")
    except ValueError:
        return ()
    keys = []
    while isinstance(table, dict):
        if len(table) != 1:  # the text has several lines
            return ()
        ((name, table),) = table.items()
        keys.append(name)
    return tuple(keys)


def _parse_value(text: str) -> Any:
    """Return a value of TOML, or else the text itself."""
    try:
        table = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return table["value"] if len(table) == 1 else text
