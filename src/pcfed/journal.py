"""The history of a run in a file that grows by a line a record, so that memory does not."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pcfed.files import FileError
from pcfed.result import Record


class Journal:
    """A file of records, one JSON object a line; use it as a context manager.

    Parameters
    ----------
    path : Path
        The file.
    length : int
        Bytes of it that hold; what lies behind is of rounds that were lost, and is cut off.

    Raises
    ------
    ValueError
        If the file is shorter than that, or is there though nothing of it holds.
    FileError
        If it cannot be written.
    """

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        try:
            size = path.stat().st_size if path.exists() else 0
        except OSError as error:
            raise FileError(path, error) from None
        if size < length:
            raise ValueError(
                f"run: journal {path} must have the {length} bytes that the checkpoint knows of, "
                f"got {size}; give the journal of the same run."
            )
        if size and not length:
            raise ValueError(
                f"run: journal {path} is there already, and would be overwritten; give another "
                "path, or delete it."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._file.truncate(length)
        except OSError as error:
            raise FileError(path, error) from None

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
        row = {item.name: _plain(getattr(record, item.name)) for item in fields(Record)}
        try:
            self._file.write(json.dumps(row).encode() + b"\n")
        except OSError as error:
            raise FileError(self.path, error) from None

    def flush(self) -> int:
        """Bring everything to the disk and return how many bytes there are."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as error:
            raise FileError(self.path, error) from None


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
