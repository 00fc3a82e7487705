"""A file of rows, one JSON object per line, that survives crashes and is cut back on resume."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from pcfed.storage.atomic import FileError
from pcfed.storage.reading import open_file, parse_json

T = TypeVar("T")

MAX_LINE_BYTES = 2**26
"""Bytes of a row at most."""


class Extent(NamedTuple):
    """The length of a journal in bytes, and their SHA-256."""

    length: int
    checksum: str


class Journal:
    """A file of rows, one JSON object per line; use it as a context manager.

    Parameters
    ----------
    path : Path
        The file.
    known : Extent, optional
        The extent that a checkpoint recorded. Later rows belong to rounds that were lost, and are
        cut off. None for a new file, which must not exist yet.

    Raises
    ------
    ValueError
        If the file does not begin with what the checkpoint recorded, or exists already.
    FileError
        If it cannot be written.
    """

    def __init__(self, path: Path, known: Extent | None) -> None:
        self.path = path
        self._sum = hashlib.sha256()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_file(path, "r+b" if path.exists() else "w+b")
            size = self._file.seek(0, 2)
            self._file.seek(0)
            length = 0 if known is None else known.length
            self._read(min(length, size))
        except OSError as error:
            raise FileError(path, error) from None
        if known is None and size:
            self._file.close()
            raise ValueError(
                f"run: journal {path} exists already and would be overwritten; give another "
                "path, or delete it."
            )
        if known is not None and self.extent != known:
            self._file.close()
            raise ValueError(
                f"run: journal {path} must begin with the {length} bytes that the checkpoint "
                "recorded, and does not; give the journal of the same run."
            )
        self._file.truncate()

    def _read(self, length: int) -> None:
        """Add so many bytes to the checksum."""
        while length and (piece := self._file.read(min(length, 2**20))):
            self._sum.update(piece)
            length -= len(piece)

    @property
    def extent(self) -> Extent:
        """What a checkpoint records of the rows so far."""
        return Extent(self._file.tell(), self._sum.hexdigest())

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError as fault:
            if error is None:
                raise FileError(self.path, fault) from None

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row, whose values JSON must be able to hold."""
        line = json.dumps(row).encode() + b"\n"
        self._sum.update(line)
        try:
            self._file.write(line)
        except OSError as error:
            raise FileError(self.path, error) from None

    def flush(self) -> Extent:
        """Write everything to the disk, and return the extent."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError(self.path, error) from None
        return self.extent


def read_rows(path: str | os.PathLike[str], parse: Callable[[Any], T], caller: str) -> Iterator[T]:
    """Yield the rows of a journal; an incomplete last line is ignored.

    Parameters
    ----------
    path : path
        The file.
    parse : callable
        From the JSON value of a line to a row; raises TypeError or ValueError if it is no such row.
    caller : str
        The function that errors name.

    Raises
    ------
    ValueError
        If the file cannot be read, or a line is not a row.
    """
    try:
        with open_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    break
                try:
                    row = parse(parse_json(line))
                except (ValueError, TypeError, AttributeError):
                    raise ValueError(
                        f"{caller}: {os.fspath(path)} must have one record per line, but line "
                        f"{number} is not a record; give a file that run(..., journal=…) wrote."
                    ) from None
                yield row
    except OSError as error:
        raise ValueError(
            f"{caller}: {os.fspath(path)} must be a readable file, got {error.strerror!r}; check "
            "the path."
        ) from None
