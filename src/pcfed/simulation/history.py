"""Records as rows of a journal, for histories that are not kept in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from pcfed.simulation.result import Record
from pcfed.storage.journal import read_rows
from pcfed.validation import is_path

_JSON_TYPES: dict[Any, type] = {"int": int, "float": float, "Float64Array": list}
"""How JSON represents the fields of a record."""


def record_to_row(record: Record) -> dict[str, Any]:
    """Return a record as JSON holds it."""
    return {item.name: _plain(getattr(record, item.name)) for item in fields(Record)}


def row_to_record(row: Mapping[str, Any]) -> Record:
    """Return the record in a row; raises TypeError if it is something else."""
    kinds = {item.name: _JSON_TYPES[item.type] for item in fields(Record)}
    if {name: type(value) for name, value in row.items()} != kinds:
        raise TypeError
    values: dict[str, Any] = {k: np.array(v) if kinds[k] is list else v for k, v in row.items()}
    record = Record(**values)
    for array in (record.infeasibility, record.distance, record.test_loss, record.test_accuracy):
        if array.dtype != np.float64 or array.shape != record.distance.shape[:1]:
            raise TypeError
    return record


def read_journal(path: str | os.PathLike[str]) -> tuple[Record, ...]:
    """Return the records that ``run(..., journal=path)`` wrote; an incomplete last line is ignored.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    ValueError
        If it cannot be read or holds something else.
    """
    is_path("read_journal: path", path)
    return tuple(read_rows(path, row_to_record, "read_journal"))


def _plain(value: Any) -> Any:
    """Return an array as a list and a number as it is."""
    return value.tolist() if isinstance(value, np.ndarray) else value
