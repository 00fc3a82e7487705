"""Readers of data files: CSV, NPZ and Parquet.

Files are not trusted: sizes are checked before memory is allocated, nothing in a file is executed
or unpickled, and whatever its bytes are, the only error is a `ValueError`.
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
from pcfed.storage.reading import NotAFileError, describe_error, read_file

Column = NDArray[Any]
"""Numbers as float64, everything else as strings of any length (``numpy.dtypes.StringDType``)."""

MAX_BYTES = 2**32
"""Bytes of a file, and of the arrays in it, at most."""

MAX_COLUMNS = 2**20
"""Columns of a table at most: in memory, each is an array."""

MAX_EXPANSION = 256
"""How many bytes a table may have in memory for one byte of its NPZ file.

The archives of ``numpy.savez`` are not compressed. Those of ``numpy.savez_compressed`` may be, up
to a thousand times, and numbers of one byte need eight in memory.
"""

MIN_TABLE_BYTES = 2**28
"""Tables of this size are read, whatever the size of their file."""

TEXT_BYTES = 64
"""Bytes in memory of an entry of text, beside its characters."""

CHUNK_ROWS = 4096
"""Rows of a CSV file that are parsed at a time."""

CHUNK_ENTRIES = 2**20
"""Entries of a CSV file that are parsed at a time, if a row has fewer."""


class Contents(NamedTuple):
    """The content of a file: named columns and, for text files, the line in which each row ends."""

    names: list[str]
    columns: list[Column]
    lines: NDArray[np.int64] | None


def decode_text(where: str, content: bytes) -> str:
    """Return the text of a UTF-8 file without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{where}: the file must be UTF-8 text, got the byte 0x{content[error.start]:02x} in "
            f"line {line}; save it as UTF-8."
        ) from None


def read_bytes(where: str, path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file."""
    try:
        return read_file(path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{where}: there must be a file, got none here; check the path.") from None
    except NotAFileError as error:
        raise ValueError(
            f"{where}: there must be a file, but {describe_error(error)}; check the path."
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"{where}: the file must be readable, got {reason!r}; check its permissions."
        ) from None
    except ValueError:
        raise ValueError(
            f"{where}: the file must have at most {max_bytes} bytes, got more; split it."
        ) from None


# -- CSV --------------------------------------------------------------------------------------


def read_csv(where: str, content: bytes, text: Collection[str], decimal: str = ".") -> Contents:
    """Return the columns of a CSV file with a header.

    Columns are separated by commas or, if the header has none, by semicolons or tabs. Rows are
    parsed and converted to numbers in chunks, so that never more than one chunk is in memory as
    Python strings; columns that contain text are read in a second pass.
    """
    source = decode_text(where, content)
    rows = _rows(where, source)
    header, _ = next(rows, ([[]], []))
    names = [name.strip() for name in header[0]]
    _check_num_columns(where, len(names))
    numeric = {j for j in range(len(names)) if names[j] not in text}  # until text is found in it
    parts: dict[int, list[Column]] = {j: [] for j in numeric}
    lines: list[int] = []
    for chunk, ends in rows:
        _check_lengths(where, chunk, ends, len(names))
        lines += ends
        entries = list(zip(*chunk, strict=True))
        for j in sorted(numeric):
            numbers = to_numbers(entries[j], decimal)
            if numbers is None:
                numeric.remove(j)
                del parts[j]
            else:
                parts[j].append(numbers)
    columns = {j: np.concatenate(parts[j]) if lines else np.empty(0) for j in numeric}
    columns |= _read_text(where, source, [j for j in range(len(names)) if j not in numeric])
    return Contents(names, [columns[j] for j in range(len(names))], np.array(lines, np.int64))


def _rows(where: str, source: str) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield the header, then chunks of rows, each with the lines in which its rows end."""
    stream = io.StringIO(source, newline="")
    separator = _separator(source)
    reader = csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)
    numbered = ((row, reader.line_num) for row in reader if row)
    size = 1
    try:
        while pairs := list(islice(numbered, size)):
            yield [row for row, _ in pairs], [line for _, line in pairs]
            width = max(len(pairs[0][0]), 1)
            size = max(1, min(CHUNK_ROWS, CHUNK_ENTRIES // width))
    except csv.Error as error:
        raise ValueError(
            f"{where}: the file must be CSV, got {error} in line {reader.line_num}; "
            'check the commas and quotes there, a quote within quotes is "".'
        ) from None


def _separator(source: str) -> str:
    """Return what separates the columns of a header."""
    header = source.partition("\n")[0]
    return next((each for each in ",;\t" if each in header), ",")


def _check_num_columns(where: str, num_columns: int) -> None:
    if num_columns > MAX_COLUMNS:
        raise ValueError(
            f"{where}: a table must have at most {MAX_COLUMNS:,} columns, got {num_columns:,}; "
            "check the separators, or leave columns out."
        )


def _check_lengths(where: str, chunk: list[list[str]], ends: list[int], width: int) -> None:
    """Refuse a row that is shorter or longer than the header."""
    if set(map(len, chunk)) == {width}:
        return
    row, line = next(pair for pair in zip(chunk, ends, strict=True) if len(pair[0]) != width)
    raise ValueError(
        f"{where}: every row must have {width} entries like the header, got {len(row)} in "
        f"line {line}; fix that line."
    )


def to_numbers(column: tuple[str, ...], decimal: str = ".") -> Column | None:
    """Return strings as numbers, or None if one of them is not a number."""
    if decimal != ".":
        column = tuple(entry.replace(decimal, ".") for entry in column)
    try:
        numbers = np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        return None
    # Python reads 1_000 as a number; in a data file it is more likely an identifier.
    return None if "_" in "".join(column) else numbers


def _read_text(where: str, source: str, positions: list[int]) -> dict[int, Column]:
    """Return the columns at some positions as text."""
    found: dict[int, list[Column]] = {j: [] for j in positions}
    if positions:
        rows = _rows(where, source)
        next(rows)
        for chunk, _ in rows:
            for j in positions:
                found[j].append(text_array([row[j].strip() for row in chunk]))
    return {j: np.concatenate(parts) if parts else text_array([]) for j, parts in found.items()}


def text_array(values: list[str]) -> Column:
    """Return strings as an array."""
    return np.array(values, dtype=np.dtypes.StringDType())


# -- NPZ --------------------------------------------------------------------------------------


def read_npz(where: str, content: bytes, text: Collection[str]) -> Contents:
    """Return the columns of a NumPy archive; a matrix X stands for the columns x0, x1 and so on."""
    names: list[str] = []
    columns: list[Column] = []
    num_bytes = 0
    for name, array in _arrays(where, content):
        num_bytes += _bytes_in_memory(array)
        _check_size(where, num_bytes, len(content))
        if name == "X" and array.ndim == 2:
            _check_num_columns(where, array.shape[1])
            if array.dtype.kind not in "fiub":
                raise ValueError(
                    f"{where}: the matrix X must be numbers, got {short_repr(str(array.dtype))}; "
                    "save text as one flat array per column."
                )
            matrix = _to_column(where, name, array, as_text=False)
            names += (f"x{j}" for j in range(matrix.shape[1]))
            columns.extend(matrix.T)
        elif array.ndim == 1:
            names.append(name)
            columns.append(_to_column(where, name, array, as_text=name in text))
        else:
            raise ValueError(
                f"{where}: arrays must be columns, or a matrix named X, got {short_repr(name)} of "
                f"shape {array.shape}; save one flat array per column."
            )
    for name, column in zip(names, columns, strict=True):
        if len(column) != len(columns[0]):
            raise ValueError(
                f"{where}: columns must have the same length, got {len(columns[0])} in "
                f"{short_repr(names[0])} and {len(column)} in {short_repr(name)}; "
                "save as many entries in each."
            )
    return Contents(names, columns, None)


def _max_table_bytes(file_bytes: int) -> int:
    return max(MIN_TABLE_BYTES, MAX_EXPANSION * file_bytes)


def _bytes_in_memory(array: Column) -> int:
    """Return about how many bytes an array needs as a column."""
    if array.dtype.kind in "fiub":
        return 8 * array.size
    return array.nbytes + TEXT_BYTES * array.size


def _check_size(where: str, num_bytes: int, file_bytes: int) -> None:
    if num_bytes > _max_table_bytes(file_bytes):
        raise ValueError(
            f"{where}: a table of {file_bytes:,} bytes must need at most "
            f"{_max_table_bytes(file_bytes):,} bytes in memory, got {num_bytes:,}; save it with "
            "numpy.savez, which does not compress."
        )


def _arrays(where: str, content: bytes) -> Iterator[tuple[str, Column]]:
    """Yield the name and the array of each member of an archive."""
    try:
        max_bytes = min(MAX_BYTES, _max_table_bytes(len(content)))
        yield from read_members(io.BytesIO(content), max_bytes)
    except ValueError as error:
        raise ValueError(
            f"{where}: the file must be a NumPy archive of numbers and text, got "
            f"{short_repr(str(error), 100)}; write it again with numpy.savez."
        ) from None


def _to_column(where: str, name: str, array: Column, *, as_text: bool) -> Column:
    """Return an array as numbers or, if it is not numeric or to be kept as text, as text."""
    kind = array.dtype.kind
    if kind in "fiub" and not as_text:
        return array.astype(np.float64)
    if kind in "fiub":
        return text_array([number_text(each) for each in array.tolist()])
    try:
        if kind == "S":
            return text_array([each.decode().strip() for each in array.tolist()])
        if kind == "U":
            return text_array([each.strip() for each in array.tolist()])
        reason = short_repr(str(array.dtype))
    # Bytes that are not UTF-8, or code points that are not characters: NumPy raises SystemError.
    except (ValueError, SystemError):
        reason = "text that cannot be decoded"
    raise ValueError(
        f"{where}: arrays must be numbers or text, got {short_repr(name)} of {reason}; "
        "save it in another form."
    )


def number_text(value: float) -> str:
    """Return a number as text; integers without a decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# -- Parquet ----------------------------------------------------------------------------------


def read_parquet(where: str, content: bytes, text: Collection[str]) -> Contents:
    """Return the columns of a Parquet file; this needs pyarrow."""
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
    except Exception as error:  # pyarrow raises many types of errors for damaged files
        raise ValueError(
            f"{where}: the file must be Parquet, got {short_repr(str(error), 100)}; write it again."
        ) from None
    for j, (name, array) in enumerate(zip(names, columns, strict=True)):
        if array.dtype.kind != "O":
            columns[j] = _to_column(where, name, array, as_text=name in text)
            continue
        values = array.tolist()
        if not all(each is None or isinstance(each, (str, bool)) for each in values):
            raise ValueError(
                f"{where}: columns must be numbers or text, got another type in "
                f"{short_repr(name)}; leave it out of the file."
            )
        columns[j] = text_array(["" if each is None else str(each).strip() for each in values])
    return Contents(names, columns, None)


READERS: dict[str, Callable[[str, bytes, Collection[str]], Contents]] = {
    ".csv": read_csv,
    ".npz": read_npz,
    ".parquet": read_parquet,
}
"""The reader of each file name extension.

It takes the name of the file in messages, its bytes, and the columns to keep as text even if they
contain only numbers.
"""
