"""Tables of data: named columns of numbers or text, from a CSV, NPZ or Parquet file."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.data.readers import READERS, Column, Contents, read_bytes, read_csv, to_numbers
from pcfed.errors import did_you_mean, display_path, join_names, one_line, short_repr

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none"})
"""How files write a missing entry, in lower case."""


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of the same length.

    A column is text if a single entry is not a number. A column is checked only when it is used, so
    a file may have unused columns with missing entries or text.

    Attributes
    ----------
    where : str
        The name of the file in messages.
    columns : mapping from str to array
        Numbers as float64, everything else as strings; read-only, in the order of the file.
    lines : array of int or None
        For CSV files, the line in which each row ends.
    sha256 : str
        The SHA-256 of the bytes from which the table was parsed, 64 hexadecimal digits.
    decimal : str
        The decimal point of numbers in text, a point or a comma.
    """

    where: str
    columns: Mapping[str, Column]
    lines: NDArray[np.int64] | None = None
    sha256: str = ""
    decimal: str = "."

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the file."""
        return tuple(self.columns)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def take(self, rows: NDArray[np.integer[Any]]) -> Table:
        """Return a table with some of the rows."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        lines = None if self.lines is None else self.lines[rows]
        return replace(self, columns=_read_only(columns), lines=lines)

    def with_numbers(self) -> Table:
        """Return a table in which columns of text are numbers if all their entries are."""
        columns = dict(self.columns)
        for name, column in self.columns.items():
            if column.dtype.kind != "f":
                numbers = to_numbers(tuple(column.tolist()), self.decimal)
                columns[name] = column if numbers is None else numbers
        return replace(self, columns=_read_only(columns))

    def column(self, name: str) -> Column:
        """Return a column, numbers or text, or raise an error with the line of a missing entry."""
        missing = self.missing(name)
        if missing.any():
            raise ValueError(
                f"{self.where}: the column {short_repr(name)} must have a value in every row, got "
                f"none in {self.location(missing)}; fill it in, leave out the row or the column, "
                'or set data.missing = "drop" or "mean" in train.toml.'
            )
        return self.columns[name]

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Return which entries of a column are missing."""
        if name not in self.columns:
            raise ValueError(
                f"{self.where}: there must be a column {short_repr(name)}, got "
                f"{join_names(self.names)}; {did_you_mean(name, self.names)}Check the names in the "
                "header of the file."
            )
        column = self.columns[name]
        if column.dtype.kind == "f":
            return np.isnan(column)
        return np.array([each.casefold() in MISSING for each in column.tolist()], bool)

    def is_text(self, name: str) -> bool:
        """Return whether a column has an entry that is neither a number nor missing."""
        return self.columns[name].dtype.kind != "f" and bool(self._not_numbers(name).any())

    def numbers(self, name: str, *, allow_missing: bool = False) -> Float64Array:
        """Return a column of finite numbers, or raise an error with the line of another entry.

        If missing entries are allowed, they are NaN.
        """
        missing = self.missing(name)
        if not allow_missing:
            self.column(name)
        column = self.columns[name]
        if column.dtype.kind != "f":
            wrong = self._not_numbers(name)
            if not (wrong.any() or missing.any()):  # numbers in a column that was kept as text
                wrong[:1] = True
            if wrong.any():
                entry = column[np.argmax(wrong)]
                raise ValueError(
                    f"{self.where}: the column {short_repr(name)} must be numbers, got "
                    f"{short_repr(entry)} in {self.location(wrong)}; {_remedy(entry)}"
                )
            found = np.full(len(column), np.nan)
            entries = tuple(column[~missing].tolist())
            found[~missing] = to_numbers(entries, self.decimal) if entries else ()
            column = found
        finite = np.isfinite(column) | missing
        if not finite.all():
            raise ValueError(
                f"{self.where}: the column {short_repr(name)} must be finite, got "
                f"{column[np.argmin(finite)]} in {self.location(~finite)}; replace it, or leave "
                "out the row."
            )
        return column

    def _not_numbers(self, name: str) -> NDArray[np.bool_]:
        """Return which entries of a text column are neither numbers nor missing."""
        entries = self.columns[name].tolist()
        wrong = [to_numbers((each,), self.decimal) is None for each in entries]
        return np.array(wrong, bool) & ~self.missing(name)

    def location(self, mask: NDArray[np.bool_]) -> str:
        """Return the first row of a mask for messages: its line, or its number from 1 on."""
        row = int(np.argmax(mask))
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+")


def _remedy(entry: str) -> str:
    """Return what to do about an entry that is not a number."""
    if DECIMAL_COMMA.fullmatch(entry):
        return f'write {entry.replace(",", ".")}, or set data.decimal = "," in train.toml.'
    if DATE.fullmatch(entry):
        return (
            "write dates as numbers, such as days since the first one, or year, month and weekday "
            "in columns of their own, or leave the column out with data.exclude in train.toml."
        )
    return (
        'encode categories as numbers, which data.categories = "one-hot" does in train.toml, or '
        "leave the column out with data.exclude there."
    )


def read_table(path: str | Path, *, text: Collection[str] = (), decimal: str = ".") -> Table:
    r"""Read a data file, once: the SHA-256 of the table is that of the bytes that were parsed.

    Parameters
    ----------
    path : str or Path
        A file that ends in ``.csv`` (UTF-8, a header, columns separated by commas, semicolons or
        tabs), ``.npz`` (one flat array a column; a matrix X stands for the columns x0, x1 and so
        on) or ``.parquet`` (needs pyarrow).
    text : collection of str
        Columns to keep as text even if they contain only numbers, so that ``007`` stays ``007``.
    decimal : {".", ","}
        The decimal point of numbers in CSV files.

    Raises
    ------
    ValueError
        If the file cannot be read or is not a table, whatever its bytes are: one sentence.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> home = tempfile.TemporaryDirectory()
    >>> path = Path(home.name) / "homes.csv"
    >>> _ = path.write_text("home,area,load\nnorth,120,3.5\nsouth,80,2\n")
    >>> table = read_table(path)
    >>> table.names
    ('home', 'area', 'load')
    >>> table.numbers("load")
    array([3.5, 2. ])
    >>> home.cleanup()
    """
    file = Path(path)
    where = display_path(file)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{where}: data files must end in {', '.join(READERS)}, got {short_repr(file.suffix)}; "
            "save the table in one of these forms."
        )
    try:
        content = read_bytes(where, file)
        is_csv = reader is read_csv
        contents = (
            read_csv(where, content, text, decimal) if is_csv else reader(where, content, text)
        )
        _check_columns(where, contents)
        columns = _read_only(dict(zip(contents.names, contents.columns, strict=True)))
        return Table(where, columns, contents.lines, hashlib.sha256(content).hexdigest(), decimal)
    except MemoryError:
        raise ValueError(
            f"{where}: the table must fit into memory, got one that does not; split the file."
        ) from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _check_columns(where: str, contents: Contents) -> None:
    """Refuse columns whose names are not unique or that have no rows."""
    names = contents.names
    if not names:
        raise ValueError(
            f"{where}: the file must have columns, got an empty one; give a header and rows."
        )
    if "" in names:
        raise ValueError(
            f"{where}: every column must have a name, got none for column {names.index('') + 1}; "
            "name it in the header."
        )
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"{where}: column names must differ, got {short_repr(name)} {times} times; rename one."
        )
    if not len(contents.columns[0]):
        raise ValueError(f"{where}: the table must have rows, got only a header; add data.")


def _read_only(columns: dict[str, Column]) -> Mapping[str, Column]:
    for column in columns.values():
        column.setflags(write=False)
    return MappingProxyType(columns)
