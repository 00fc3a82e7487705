"""Opening and parsing files that anybody may have written, within limits that are checked first.

Every reader of pcfed opens files here. A named pipe does not block, and a file that would need much
more memory than it has bytes is refused before that memory is allocated.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from typing import IO, Any, cast

MAX_JSON_VALUES = 10_000_000
"""Values in a JSON text at most: an empty list has 2 bytes in a file and 64 in memory."""

MAX_TOML_KEYS = 500_000
"""Keys and tables in a TOML text at most."""

MAX_TOML_DEPTH = 64
"""Parts of a dotted key, and levels of lists and tables, at most.

A dotted key takes time and memory that grow with the square of the number of its parts.
"""


class NotAFileError(OSError):
    """There is a directory, a named pipe or a device where a file is expected."""


def open_file(path: str | os.PathLike[str], mode: str = "rb") -> IO[bytes]:
    """Open a regular file without waiting for the other end of a named pipe.

    Parameters
    ----------
    path : path
        The file.
    mode : str
        A binary mode of ``open``.

    Raises
    ------
    NotAFileError
        If there is something else; nothing is read or written then.
    OSError
        If the file can't be opened.
    """
    return cast(IO[bytes], open(path, mode, opener=_open_at_once))


def _open_at_once(path: str, flags: int) -> int:
    """Open a file as ``os.open`` does, but neither wait for a pipe nor open anything special."""
    try:
        # Opening some devices has effects, so look first; look again, because it may be replaced.
        _check_kind(os.stat(path).st_mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _check_kind(os.fstat(handle).st_mode)
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_kind(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    raise NotAFileError(0, f"it is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file")


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the bytes of a file.

    Parameters
    ----------
    path : path
        The file.
    max_bytes : int
        Larger files are refused; no more than this is read.

    Raises
    ------
    OSError
        If it cannot be read, or is not a file.
    ValueError
        If it is larger; the text is a clause that says so.
    """
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        # The size may be wrong: files of /proc have none, and another process may be writing.
        content = stream.read(max_bytes + 1) if size <= max_bytes else b""
    if max(size, len(content)) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return content


def describe_error(error: OSError) -> str:
    """Return why a file can't be read, as a clause."""
    reason = error.strerror or type(error).__name__
    return reason if isinstance(error, NotAFileError) else f"it cannot be read ({reason})"


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text, whatever the text is.

    Raises
    ------
    ValueError
        If it is not JSON, or has more than ``MAX_JSON_VALUES`` values.
    """
    text = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    if _count_json(text) > MAX_JSON_VALUES:
        # Texts in quotes, such as those of sets, may contain commas and brackets, too.
        outside = re.sub(rb'"(?:[^"\\]|\\.)*+"', b'""', text, flags=re.DOTALL)
        if _count_json(outside) > MAX_JSON_VALUES:
            raise ValueError(f"it has more than {MAX_JSON_VALUES:,} values")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None


def _count_json(text: bytes) -> int:
    """Return at least the number of values in a JSON text."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text, whatever the text is.

    Raises
    ------
    ValueError
        If it is not TOML; if it has more than ``MAX_TOML_KEYS`` keys, or a key or value that is
        deeper than ``MAX_TOML_DEPTH``, which is found before the text is parsed.
    """
    _check_toml(text)
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    # Dotted keys within inline tables add up.
    level: list[Any] = [table]
    for _ in range(MAX_TOML_DEPTH + 1):
        level = [inner for outer in level for inner in _containers(outer)]
    if level:
        raise ValueError(_too_deep())
    return table


def _too_deep() -> str:
    return f"keys and lists that are more than {MAX_TOML_DEPTH} deep"


def _containers(outer: Any) -> Iterator[Any]:
    """Yield the tables and lists in a table or list."""
    for inner in outer.values() if isinstance(outer, dict) else outer:
        if isinstance(inner, (dict, list)):
            yield inner


_TOML_TOKEN = re.compile(
    # Entries of a list, or lines, with at most one point each are skipped together.
    r"(?P<skip>(?:[\w \t+:-]*+\.?[\w \t+:-]*+[,\r\n])++|[^\[\]{}=.,\n\"'#]++|#[^\n]*+"
    r'|"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+')"
    r"|(?P<sign>[\[\]{}=.,\n\"'])",
    re.DOTALL,
)


def _check_toml(text: str) -> None:
    """Refuse a TOML text with too many or too deep keys, without parsing it."""
    keys, level, points = 0, 0, 0
    for token in _TOML_TOKEN.finditer(text):
        sign = token["sign"]
        if sign is None:
            continue
        if sign in "\"'":  # a string without an end, at which the parser stops, too
            return
        points = points + 1 if sign == "." else 0
        keys += sign in "=["  # a list counts as a key, like the header of a table
        level += (sign in "[{") - (sign in "]}")
        if max(points, level) > MAX_TOML_DEPTH:
            raise ValueError(_too_deep())
        if keys > MAX_TOML_KEYS:
            raise ValueError(f"more than {MAX_TOML_KEYS:,} keys, tables and lists")
