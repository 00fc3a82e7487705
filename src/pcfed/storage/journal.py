"""The history of a run in a file that grows by a line a record, so that memory does not."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from pcfed.simulation.result import Record
from pcfed.storage.atomic import FileError


class Extent(NamedTuple):
    """How many bytes of a journal there are, and their SHA-256."""

    length: int
    checksum: str


class Journal:
    """A file of records, one JSON object a line; use it as a context manager.

    Parameters
    ----------
    path : Path
        The file.
    known : Extent, optional
        What a checkpoint knows of it; what lies behind is of rounds that were lost, and is cut
        off. None for a file that must not be there yet.

    Raises
    ------
    ValueError
        If it is not the file that the checkpoint knows, or is there though it must not.
    FileError
        If it cannot be written.
    """

    def __init__(self, path: Path, known: Extent | None) -> None:
        self.path = path
        self._sum = hashlib.sha256()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if path.exists() else "w+b")
            size = self._file.seek(0, 2)
            self._file.seek(0)
            length = 0 if known is None else known.length
            self._read(min(length, size))
        except OSError as error:
            raise FileError(path, error) from None
        if known is None and size:
            self._file.close()
            raise ValueError(
                f"run: journal {path} is there already, and would be overwritten; give another "
                "path, or delete it."
            )
        if known is not None and self.extent != known:
            self._file.close()
            raise ValueError(
                f"run: journal {path} must begin with the {length} bytes that the checkpoint knows "
                f"of, and does not; give the journal of the same run."
            )
        self._file.truncate()

    def _read(self, length: int) -> None:
        """Take so many bytes into the checksum."""
        while length and (piece := self._file.read(min(length, 2**20))):
            self._sum.update(piece)
            length -= len(piece)

    @property
    def extent(self) -> Extent:
        """What a checkpoint should know of the records so far."""
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

    def append(self, record: Record) -> None:
        """Add a record."""
        self.add({item.name: _plain(getattr(record, item.name)) for item in fields(Record)})

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a line of names and values, which JSON must be able to hold."""
        line = json.dumps(row).encode() + b"\n"
        self._sum.update(line)
        try:
            self._file.write(line)
        except OSError as error:
            raise FileError(self.path, error) from None

    def flush(self) -> Extent:
        """Bring everything to the disk, and return how much that is."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError(self.path, error) from None
        return self.extent


def read_journal(path: str | os.PathLike[str]) -> tuple[Record, ...]:
    """Return the records that ``run(..., journal=path)`` wrote; a line cut short is left out.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    ValueError
        If it cannot be read or holds something else.
    """
    records = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    records.append(_record(json.loads(line)))
                except (ValueError, TypeError, RecursionError):
                    raise ValueError(
                        f"read_journal: {os.fspath(path)} must have one record a line, got another "
                        f"thing in line {number}; give a file that run(..., journal=…) wrote."
                    ) from None
    except OSError as error:
        raise ValueError(
            f"read_journal: {os.fspath(path)} must be a file that can be read, got "
            f"{error.strerror!r}; check the path."
        ) from None
    return tuple(records)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _record(row: Any) -> Record:
    """Return the record of a line, or raise a TypeError or ValueError if it is none."""
    kinds = {item.name: _KINDS[item.type] for item in fields(Record)}
    if {name: type(value) for name, value in row.items()} != kinds:
        raise TypeError
    values: dict[str, Any] = {k: np.array(v) if kinds[k] is list else v for k, v in row.items()}
    record = Record(**values)
    for array in (record.infeasibility, record.distance, record.test_loss, record.test_accuracy):
        if array.dtype != np.float64 or array.shape != record.distance.shape[:1]:
            raise TypeError
    return record


_KINDS: dict[Any, type] = {"int": int, "float": float, "Float64Array": list}
"""How JSON writes the fields of a record."""
