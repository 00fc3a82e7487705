"""From the columns of a table to features: missing entries, and categories as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.data.readers import number_text
from pcfed.data.tables import Table
from pcfed.errors import short_repr

MAX_LEVELS = 100
"""A column with more levels is refused: it is more likely a name or an identifier."""

MAX_FEATURE = 1e150
"""Larger features are refused: their squares would overflow."""

MAX_TARGET = 1e100
"""The largest absolute value of a number to predict: squares of targets are summed."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """How columns become features.

    A column of numbers is one feature. A category is one feature per level, 1 where a row has that
    level and 0 elsewhere; a level that was not in the data of the training is 0 everywhere.

    Attributes
    ----------
    columns : tuple of str
        The columns, in order.
    levels : mapping from str to tuple of str
        The levels of every column that is a category.
    means : mapping from str to float
        What takes the place of missing numbers, by column; where it is left out, they are refused.
        Missing categories are 0 in all features, if there are means.
    decimal : str
        The decimal point of numbers in CSV files.

    Examples
    --------
    >>> table = Table("homes.csv", {"area": np.array([120.0, np.nan]),
    ...     "heating": np.array(["gas", "oil"], np.dtypes.StringDType())})
    >>> encoding = Encoding(("area", "heating"), {"heating": ("gas", "oil")}, {"area": 100.0})
    >>> encoding.features
    ('area', 'heating=gas', 'heating=oil')
    >>> encoding.matrix(table)
    array([[120.,   1.,   0.],
           [100.,   0.,   1.]])
    """

    columns: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)
    decimal: str = "."

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(
            name
            for column in self.columns
            for name in (
                [f"{column}={level}" for level in self.levels[column]]
                if column in self.levels
                else [column]
            )
        )

    @property
    def is_plain(self) -> bool:
        """Whether features are just the columns."""
        return not self.levels and not self.means and self.decimal == "."

    def matrix(self, table: Table) -> Float64Array:
        """Return the features of a table, one row per sample."""
        parts = [
            self._one_hot(table, name) if name in self.levels else self._numbers(table, name)
            for name in self.columns
        ]
        X = np.hstack(parts)
        if not (largest := np.abs(X).max(axis=0)).max() <= MAX_FEATURE:
            name = self.features[int(np.argmax(largest))]
            raise ValueError(
                f"{table.where}: the column {short_repr(name)} must stay below {MAX_FEATURE:g}, "
                f"got {largest.max():g}; rescale it."
            )
        return X

    def complete_rows(self, table: Table) -> NDArray[np.bool_]:
        """Return which rows have everything that a prediction needs."""
        complete = np.ones(table.rows, np.bool_)
        for name in self.columns:
            if not self.means:
                complete &= ~table.missing(name)
        return complete

    def _numbers(self, table: Table, name: str) -> Float64Array:
        numbers = table.numbers(name, allow_missing=name in self.means)
        if name in self.means:
            numbers = np.where(np.isnan(numbers), self.means[name], numbers)
        return numbers[:, None]

    def _one_hot(self, table: Table, name: str) -> Float64Array:
        if not self.means:
            table.column(name)  # refuses missing entries
        entries = _entries(table, name)
        one_hot = [[entry == level for level in self.levels[name]] for entry in entries]
        return np.array(one_hot, np.float64)

    def to_json(self) -> dict[str, Any]:
        """Return the encoding as JSON."""
        levels = {name: list(each) for name, each in self.levels.items()}
        return {
            "columns": list(self.columns),
            "levels": levels,
            "means": dict(self.means),
            "decimal": self.decimal,
        }

    @classmethod
    def from_json(cls, value: Any) -> Encoding:
        """Return an encoding from JSON; raises TypeError, KeyError or ValueError if it is none."""
        columns, means = value["columns"], value["means"]
        levels = {name: tuple(each) for name, each in value["levels"].items()}
        texts = [*columns, *means, *levels, *(level for each in levels.values() for level in each)]
        if not all(isinstance(text, str) for text in texts) or value["decimal"] not in (".", ","):
            raise TypeError
        if not np.isfinite([float(mean) for mean in means.values()]).all():
            raise ValueError("its means are not finite")
        return cls(
            tuple(columns), levels, {name: float(means[name]) for name in means}, value["decimal"]
        )


def fit_encoding(
    tables: Sequence[Table],
    rows: Sequence[NDArray[np.intp]],
    columns: Sequence[str],
    *,
    one_hot: bool,
    fill: bool,
    decimal: str = ".",
) -> Encoding:
    """Return the encoding for the data of all agents.

    Parameters
    ----------
    tables : sequence of Table
        The data of the agents.
    rows : sequence of arrays
        The rows from which means are computed, those for training.
    columns : sequence of str
        The columns to use.
    one_hot : bool
        Whether columns of text are categories; the levels are the union over all agents.
    fill : bool
        Whether missing numbers become the mean over all agents, to which each contributes a sum and
        a count.
    decimal : str
        The decimal point of numbers in CSV files.
    """
    text = [name for name in columns if any(table.is_text(name) for table in tables)]
    levels = {name: _levels(tables, name) for name in text if one_hot}
    means = {}
    for name in columns if fill else ():
        if name not in levels:
            sums = [
                _sum_and_count(table, name, own) for table, own in zip(tables, rows, strict=True)
            ]
            total, count = np.sum(sums, axis=0)
            means[name] = float(total / count) if count else 0.0
    return Encoding(tuple(columns), levels, means, decimal)


def _sum_and_count(table: Table, name: str, rows: NDArray[np.intp]) -> tuple[float, int]:
    """Return an agent's sum of the numbers of a column, and how many are not missing."""
    numbers = table.numbers(name, allow_missing=True)[rows]
    known = ~np.isnan(numbers)
    return float(numbers[known].sum()), int(known.sum())


def _levels(tables: Sequence[Table], name: str) -> tuple[str, ...]:
    """Return the levels of a category that occur with any agent."""
    found: set[str] = set()
    for table in tables:
        present = zip(_entries(table, name), ~table.missing(name), strict=True)
        found.update(entry for entry, is_there in present if is_there)
    if len(found) > MAX_LEVELS:
        raise ValueError(
            f"{tables[0].where}: a category must have at most {MAX_LEVELS} levels, got "
            f"{len(found)} in the column {short_repr(name)}; leave it out with data.exclude."
        )
    return tuple(sorted(found))


def _entries(table: Table, name: str) -> list[str]:
    """Return a column as text; another agent may have text where this one has numbers."""
    column = table.columns[name]
    if column.dtype.kind == "f":
        return [number_text(each) for each in column.tolist()]
    return [str(each) for each in column.tolist()]


def numeric_target(table: Table, name: str) -> Float64Array:
    """Return a column of numbers to predict."""
    numbers = table.numbers(name)
    is_small = np.abs(numbers) <= MAX_TARGET
    if not is_small.all():
        raise ValueError(
            f"{table.where}: the column {short_repr(name)} must stay below {MAX_TARGET:g}, got "
            f"{numbers[np.argmin(is_small)]:g} in {table.location(~is_small)}; rescale it."
        )
    return numbers
