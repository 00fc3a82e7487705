"""Files of columns: CSV, NPZ and Parquet.

A file is only ever read, never believed: sizes are checked before memory is taken, nothing in it is
executed or unpickled, and whatever its bytes are, the only error is a `ValueError`.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.errors import short_repr
from pcfed.storage.archive import read_members

Column = NDArray[Any]
"""Numbers as float64, everything else as strings of any length (``numpy.dtypes.StringDType``)."""

MOST_BYTES = 2**32
"""Bytes of a file, and of the arrays in it, at most."""

CHUNK = 4096
"""Rows of a CSV file that are split at a time."""


class Contents(NamedTuple):
    """What a file holds: named columns, and in which line a row ends where there are lines."""

    names: list[str]
    columns: list[Column]
    lines: NDArray[np.int64] | None


def decode_text(where: str, content: bytes) -> str:
    """Return the text of a UTF-8 file, without the mark at its beginning, or name the bad line."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{where}: the file must be UTF-8 text, got the byte 0x{content[error.start]:02x} in "
            f"line {line}; save it as UTF-8."
        ) from None


def read_bytes(where: str, path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file, or say why it cannot be read."""
    try:
        if not path.is_file():
            raise ValueError(f"{where}: there must be a file, got none here; check the path.")
        if (size := path.stat().st_size) > most:
            raise ValueError(
                f"{where}: the file must have at most {most} bytes, got {size}; split it."
            )
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"{where}: the file must be readable, got {reason!r}; check the path and its rights."
        ) from None


# -- CSV --------------------------------------------------------------------------------------


def read_csv(where: str, content: bytes, text: Collection[str]) -> Contents:
    """Return the columns of a CSV file with a header.

    Rows are split a chunk at a time and turned into numbers at once, so that no more than a chunk
    is ever held as Python strings; columns that turn out to hold text are read in a second pass.

    Parameters
    ----------
    where : str
        What messages call the file.
    content : bytes
        UTF-8 with commas; a mark at the beginning and blank lines are skipped.
    text : collection of str
        Columns to keep as text whatever they hold.
    """
    source = decode_text(where, content)
    rows = _rows(where, source)
    header, _ = next(rows, ([[]], []))
    names = [name.strip() for name in header[0]]
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise ValueError(
            f"{where}: columns must be separated by commas, got the header {short_repr(names[0])}; "
            "save the file with commas."
        )
    plain = {j for j in range(len(names)) if names[j] not in text}
    parts: dict[int, list[Column]] = {j: [] for j in plain}
    lines: list[int] = []
    for chunk, ends in rows:
        _check_lengths(where, chunk, ends, len(names))
        lines += ends
        every = list(zip(*chunk, strict=True))
        for j in sorted(plain):
            numbers = _numbers(every[j])
            if numbers is None:
                plain.remove(j)
                del parts[j]
            else:
                parts[j].append(numbers)
    columns = {j: np.concatenate(parts[j]) if lines else np.empty(0) for j in plain}
    columns |= _texts(where, source, [j for j in range(len(names)) if j not in plain])
    return Contents(names, [columns[j] for j in range(len(names))], np.array(lines, np.int64))


def _rows(where: str, source: str) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield the header, then chunks of rows, each with the lines in which its rows end."""
    stream = io.StringIO(source, newline="")
    reader = csv.reader(stream, skipinitialspace=True, strict=True)
    every = ((row, reader.line_num) for row in reader if row)
    size = 1
    try:
        while pairs := list(islice(every, size)):
            yield [row for row, _ in pairs], [line for _, line in pairs]
            size = CHUNK
    except csv.Error as error:
        raise ValueError(
            f"{where}: the file must be CSV, got {error} in line {reader.line_num}; "
            'check the commas and quotes there, a quote within quotes is "".'
        ) from None


def _check_lengths(where: str, chunk: list[list[str]], ends: list[int], width: int) -> None:
    """Refuse a row that is shorter or longer than the header."""
    if set(map(len, chunk)) == {width}:
        return
    row, line = next(pair for pair in zip(chunk, ends, strict=True) if len(pair[0]) != width)
    raise ValueError(
        f"{where}: every row must have {width} entries like the header, got {len(row)} in "
        f"line {line}; fix that line."
    )


def _numbers(column: tuple[str, ...]) -> Column | None:
    """Return the numbers that the strings are, or None if one of them is none."""
    try:
        numbers = np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        return None
    # Python reads 1_000 as a number; in a file it is a name.
    return None if "_" in "".join(column) else numbers


def _texts(where: str, source: str, places: list[int]) -> dict[int, Column]:
    """Return some columns as text."""
    found: dict[int, list[Column]] = {j: [] for j in places}
    if places:
        rows = _rows(where, source)
        next(rows)
        for chunk, _ in rows:
            for j in places:
                found[j].append(as_text([row[j].strip() for row in chunk]))
    return {j: np.concatenate(parts) if parts else as_text([]) for j, parts in found.items()}


def as_text(values: list[str]) -> Column:
    """Return strings as an array."""
    return np.array(values, dtype=np.dtypes.StringDType())


# -- NPZ --------------------------------------------------------------------------------------


def read_npz(where: str, content: bytes, text: Collection[str]) -> Contents:
    """Return the columns of a NumPy archive; a matrix X stands for the columns x0, x1 and so on.

    Parameters
    ----------
    where : str
        What messages call the file.
    content : bytes
        What `numpy.savez` or `numpy.savez_compressed` wrote.
    text : collection of str
        Columns to keep as text whatever they hold.
    """
    names: list[str] = []
    columns: list[Column] = []
    for name, array in _arrays(where, content):
        if name == "X" and array.ndim == 2:
            matrix = _column(where, name, array, keep=False)
            names += (f"x{j}" for j in range(matrix.shape[1]))
            columns.extend(matrix.T)
        elif array.ndim == 1:
            names.append(name)
            columns.append(_column(where, name, array, keep=name in text))
        else:
            raise ValueError(
                f"{where}: arrays must be columns, or a matrix named X, got {short_repr(name)} of shape "
                f"{array.shape}; save one flat array a column."
            )
    for name, column in zip(names, columns, strict=True):
        if len(column) != len(columns[0]):
            raise ValueError(
                f"{where}: columns must have the same length, got {len(columns[0])} in "
                f"{short_repr(names[0])} and {len(column)} in {short_repr(name)}; "
                "save as many entries in each."
            )
    return Contents(names, columns, None)


def _arrays(where: str, content: bytes) -> Iterator[tuple[str, Column]]:
    """Yield the arrays of an archive, each with its name."""
    try:
        yield from read_members(io.BytesIO(content), MOST_BYTES)
    except ValueError as error:
        raise ValueError(
            f"{where}: the file must be a NumPy archive of numbers and text, got "
            f"{short_repr(str(error), 100)}; write it again with numpy.savez."
        ) from None


def _column(where: str, name: str, array: Column, *, keep: bool) -> Column:
    """Return an array as numbers or, if it holds none or is to be kept as text, as text."""
    kind = array.dtype.kind
    if kind in "fiub" and not keep:
        return array.astype(np.float64)
    if kind in "fiub":
        return as_text([_number_text(each) for each in array.tolist()])
    try:
        if kind == "S":
            return as_text([each.decode().strip() for each in array.tolist()])
        if kind == "U":
            return as_text([each.strip() for each in array.tolist()])
        reason = short_repr(str(array.dtype))
    except ValueError:  # bytes that are no UTF-8, numbers that are no characters
        reason = "text that cannot be decoded"
    raise ValueError(
        f"{where}: arrays must be numbers or text, got {short_repr(name)} of {reason}; "
        "save it in another form."
    )


def _number_text(value: float) -> str:
    """Return a number as people write it: whole ones without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# -- Parquet ----------------------------------------------------------------------------------


def read_parquet(where: str, content: bytes, text: Collection[str]) -> Contents:
    """Return the columns of a Parquet file; this needs pyarrow.

    Parameters
    ----------
    where : str
        What messages call the file.
    content : bytes
        The file.
    text : collection of str
        Columns to keep as text whatever they hold.
    """
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f"{where}: Parquet files need pyarrow, which is not installed; run pip install "
            "pyarrow, or save the table as CSV."
        ) from None
    try:
        table = parquet.read_table(io.BytesIO(content))
        names = [str(name) for name in table.column_names]
        columns = [np.asarray(column.to_numpy()) for column in table.columns]
    except Exception as error:  # bytes of any kind make it raise errors of any kind
        raise ValueError(
            f"{where}: the file must be Parquet, got {short_repr(str(error), 100)}; write it again."
        ) from None
    pairs = zip(names, columns, strict=True)
    return Contents(names, [_nullable(where, k, v, keep=k in text) for k, v in pairs], None)


def _nullable(where: str, name: str, array: Column, *, keep: bool) -> Column:
    """Return a column of Parquet: objects are text, None is an empty text."""
    if array.dtype.kind == "O":
        values = array.tolist()
        if not all(each is None or isinstance(each, (str, bool)) for each in values):
            raise ValueError(
                f"{where}: columns must be numbers or text, got another kind in {short_repr(name)}; "
                "leave it out of the file."
            )
        return as_text(["" if each is None else str(each).strip() for each in values])
    return _column(where, name, array, keep=keep)


READERS: dict[str, Callable[[str, bytes, Collection[str]], Contents]] = {
    ".csv": read_csv,
    ".npz": read_npz,
    ".parquet": read_parquet,
}
"""How files are read, by the end of their names."""
