"""Tables of data: named columns of numbers or text, from a CSV, NPZ or Parquet file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.data.readers import READERS, Column, Contents, read_bytes
from pcfed.errors import did_you_mean, display_path, join_names, one_line, short_repr

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none"})
"""What an entry that is not there is written as, in lower case."""


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of the same length.

    A column is text if a single entry is no number. What is wrong with a column is said only when
    it is asked for, so a file may have columns that nobody uses.

    Attributes
    ----------
    where : str
        What messages call the file.
    columns : mapping from str to array
        Numbers as float64, everything else as strings; read-only, in the order of the file.
    lines : array of int or None
        The line of the file in which each row ends, where it has lines.
    """

    where: str
    columns: Mapping[str, Column]
    lines: NDArray[np.int64] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the file."""
        return tuple(self.columns)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def take(self, rows: NDArray[np.integer[Any]]) -> Table:
        """Return the table of some rows."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        lines = None if self.lines is None else self.lines[rows]
        return replace(self, columns=_locked(columns), lines=lines)

    def column(self, name: str) -> Column:
        """Return a column, in which no entry is missing, as numbers or text.

        Raises
        ------
        ValueError
            If there is no such column, or an entry is missing; the sentence names the line.
        """
        if name not in self.columns:
            raise ValueError(
                f"{self.where}: there must be a column {short_repr(name)}, got {join_names(self.names)}; "
                f"{did_you_mean(name, self.names)}Check the names in the file's header."
            )
        column = self.columns[name]
        if column.dtype.kind == "f":
            missing = np.isnan(column)
        else:
            missing = np.array([each.casefold() in MISSING for each in column.tolist()], bool)
        if missing.any():
            raise ValueError(
                f"{self.where}: the column {short_repr(name)} must have a value in every row, got none "
                f"in {self.place(missing)}; fill it in, or leave out the row or the column."
            )
        return column

    def numbers(self, name: str) -> Float64Array:
        """Return a column of finite numbers.

        Raises
        ------
        ValueError
            If there is no such column, or it holds anything else; the sentence names the line.
        """
        column = self.column(name)
        if column.dtype.kind != "f":
            wrong = np.array([not _is_number(each) for each in column.tolist()], bool)
            if not wrong.any():  # numbers that were kept as text
                wrong[:1] = True
            raise ValueError(
                f"{self.where}: the column {short_repr(name)} must be numbers, got "
                f"{short_repr(column[np.argmax(wrong)])} in {self.place(wrong)}; encode categories "
                "as numbers, or leave the column out by listing the others in features."
            )
        finite = np.isfinite(column)
        if not finite.all():
            raise ValueError(
                f"{self.where}: the column {short_repr(name)} must be finite, got "
                f"{column[np.argmin(finite)]} in {self.place(~finite)}; replace it, or leave out "
                "the row."
            )
        return column

    def place(self, marks: NDArray[np.bool_]) -> str:
        """Return where the first mark is: the line of the file, or the row counted from 1."""
        row = int(np.argmax(marks))
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def read_table(path: str | Path, *, text: Collection[str] = ()) -> Table:
    r"""Read the table in a file.

    Parameters
    ----------
    path : str or Path
        A file that ends in ``.csv`` (UTF-8, commas, a header), ``.npz`` (one flat array a column;
        a matrix X stands for the columns x0, x1 and so on) or ``.parquet`` (needs pyarrow).
    text : collection of str
        Columns to keep as text whatever they hold, so that ``007`` stays ``007``.

    Raises
    ------
    ValueError
        If the file cannot be read or is no table, whatever its bytes; one sentence.

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
        return _table(where, reader(where, read_bytes(where, file), text))
    except MemoryError:
        raise ValueError(
            f"{where}: the table must fit into memory, got one that does not; split the file."
        ) from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def _table(where: str, contents: Contents) -> Table:
    """Return columns as a table, if their names can tell them apart and there are rows."""
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
        raise ValueError(f"{where}: the table must have rows, got only its columns; add data.")
    columns = dict(zip(names, contents.columns, strict=True))
    return Table(where, _locked(columns), contents.lines)


def _locked(columns: dict[str, Column]) -> Mapping[str, Column]:
    for column in columns.values():
        column.setflags(write=False)
    return MappingProxyType(columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
