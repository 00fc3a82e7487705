"""Indices that select the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

RowIndex = slice | NDArray[np.intp]
"""Rows of a matrix: a slice or an array of row numbers, which may repeat or be negative."""

ALL_ROWS = slice(None)


def num_rows(index: RowIndex, size: int) -> int:
    """Return how many of ``size`` rows an index selects."""
    return len(range(*index.indices(size))) if isinstance(index, slice) else len(index)


def split_index(index: RowIndex, size: int, max_rows: int) -> Iterator[RowIndex]:
    """Yield consecutive parts of an index of ``size`` rows, each of at most ``max_rows`` rows.

    Examples
    --------
    >>> list(split_index(slice(2, 9), 10, 3))
    [slice(2, 5, 1), slice(5, 8, 1), slice(8, 9, 1)]
    """
    count = num_rows(index, size)
    if count <= max_rows:
        yield index
    elif isinstance(index, slice):
        rows = range(*index.indices(size))
        for start in range(0, count, max_rows):
            part = rows[start : start + max_rows]
            # A backward range to row 0 stops at -1, which means the last row in a slice.
            yield slice(part.start, None if part.stop < 0 else part.stop, part.step)
    else:
        for start in range(0, count, max_rows):
            yield index[start : start + max_rows]
