"""Change single values of a TOML file, and leave its comments and everything else as they are.

Python's ``tomllib`` reads TOML but cannot write it. This module finds where keys and values are in
a text that ``tomllib`` has accepted, so that only the bytes of a value are replaced. Every edit is
checked: the new text must have the new value, and the same values as before everywhere else.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

Keys = tuple[str, ...]
"""The names of tables, and of a key in the innermost one."""

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
SPACE = re.compile(r"[ \t]*")
SPACE_AND_COMMENTS = re.compile(r"(?:\s|#[^\n]*)*")
SCALAR = re.compile(r"[^\s,\]}#]+(?: \d[^\s,\]}#]*)?")  # a date and its time may have one space


def set_value(text: str, keys: Keys, value: Any) -> str:
    r"""Return the text of a TOML file with another value for one key, which is added if necessary.

    Raises
    ------
    ValueError
        If the text is not TOML, or the key cannot be changed without changing anything else.

    Examples
    --------
    >>> print(set_value("[defaults]\ncoupling = 0.1  # the pull", ("defaults", "coupling"), 2.0))
    [defaults]
    coupling = 2.0  # the pull
    """
    before = tomllib.loads(text)
    written = _written(value)
    edited = _edited(text, keys, written)
    expected = copy.deepcopy(before)
    table = expected
    for name in keys[:-1]:
        table = table.setdefault(name, {})
    table[keys[-1]] = value
    try:
        is_right = tomllib.loads(edited) == expected
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(
            f"the key {'.'.join(keys)} must be in a form that can be changed, got another one; set "
            f"it to {written} by hand."
        )
    return edited


def _written(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written_key(k)} = {_written(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _written_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _edited(text: str, keys: Keys, written: str) -> str:
    """Return the text with a value replaced, or with a new key in the place that fits best."""
    *outer, key = keys
    table, newline = tuple(outer), "\r\n" if "\r\n" in text else "\n"
    items = _Scanner(text).items
    line = f"{_written_key(key)} = {written}"

    def splice(start: int, end: int, new: str) -> str:
        return text[:start] + new + text[end:]

    for item in items:
        if item.keys == keys and not item.is_header:
            return splice(item.value, item.end, written)
    for i, item in enumerate(items):
        if item.keys == table and item.is_header:  # behind the last key of the table
            following = (j for j in range(i + 1, len(items)) if items[j].is_header)
            last = items[next(following, len(items)) - 1]
            end = text.find("\n", last.end)
            if end < 0:
                return f"{text}{newline}{line}{newline}"
            return splice(end + 1, end + 1, f"{line}{newline}")
    for item in items:
        if item.keys == table and text.startswith("{", item.value):  # an inline table
            comma = ", " if text[item.value + 1 : item.end - 1].strip() else ""
            return splice(item.value + 1, item.value + 1, f"{line}{comma}")
    for item in items:
        if item.keys[:-1] == table and not item.is_header:  # dotted keys without a header
            start = text.rfind("\n", 0, item.start) + 1
            prefix = text[item.start : item.value].rpartition(".")[0]
            return splice(start, start, f"{prefix}.{line}{newline}")
    names = map(_written_key, table)
    gap = newline if text.endswith("\n") else 2 * newline if text else ""
    return f"{text}{gap}[{'.'.join(names)}]{newline}{line}{newline}"


@dataclass(frozen=True)
class _Item:
    """A key or a header: where it starts, where the value starts, and where all of it ends."""

    keys: Keys
    start: int
    value: int
    end: int
    is_header: bool = False


class _Scanner:
    """Finds the headers and keys of a text that is TOML, also those in inline tables."""

    def __init__(self, text: str) -> None:
        self.items: list[_Item] = []
        self._text, self._at = text, 0
        table: Keys = ()
        self._skip(SPACE_AND_COMMENTS)
        while self._at < len(text):
            if text[self._at] == "[":
                table = self._header()
            else:
                self._entry(table)
            self._skip(SPACE_AND_COMMENTS)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Move behind what a pattern matches, and return it."""
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError("the text must be TOML, got something else.")
        self._at = found.end()
        return found[0]

    def _header(self) -> Keys:
        start, brackets = self._at, "[[" if self._text.startswith("[[", self._at) else "["
        self._at += len(brackets)
        keys = self._keys()
        self._at += len(brackets)
        # Keys of an array of tables belong to one of its elements, which have no name.
        table = keys if brackets == "[" else (*keys, "[]")
        self.items.append(_Item(table, start, start, self._at, is_header=True))
        return table

    def _entry(self, table: Keys) -> None:
        start = self._at
        keys = (*table, *self._keys())
        self._at += 1  # the equals sign
        self._skip(SPACE)
        value, place = self._at, len(self.items)
        self._value(keys)
        self.items.insert(place, _Item(keys, start, value, self._at))

    def _keys(self) -> Keys:
        """Read a key, which may have dots; stop at what follows it."""
        keys = []
        while True:
            self._skip(SPACE)
            quoted = self._text[self._at] in "\"'"
            name = self._skip(STRING if quoted else BARE_KEY)
            keys.append(str(tomllib.loads(f"key = {name}")["key"]) if quoted else name)
            self._skip(SPACE)
            if self._text[self._at] != ".":
                return tuple(keys)
            self._at += 1

    def _value(self, keys: Keys) -> None:
        """Move behind a value; keys in inline tables become items."""
        first = self._text[self._at]
        if first in "\"'":
            self._skip(STRING)
        elif first in "[{":
            self._at += 1
            self._skip(SPACE_AND_COMMENTS)
            while self._text[self._at] not in "]}":
                if first == "{":
                    self._entry(keys)
                else:
                    self._value((*keys, "[]"))
                self._skip(SPACE_AND_COMMENTS)
                if self._text[self._at] == ",":
                    self._at += 1
                    self._skip(SPACE_AND_COMMENTS)
            self._at += 1
        else:
            self._skip(SCALAR)


def get_value(text: str, keys: Keys) -> Any:
    """Return the value of a key in the text of a TOML file; None if it does not have the key."""
    value: Any = tomllib.loads(text)
    for name in keys:
        value = value.get(name) if isinstance(value, dict) else None
    return value
