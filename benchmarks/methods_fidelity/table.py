"""Rows of the tables, and where they are in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable


class Row:
    """A line of a table.

    Parameters
    ----------
    method, quantity : str
        The first two cells, by which the line is found in a file.
    *others : str
        The other cells: numbers of a paper or of its authors' code, ours, and sources.
    """

    def __init__(self, method: str, quantity: str, *others: str) -> None:
        self.key = (method, quantity)
        cells = (method, quantity, *others)
        self.line = " ".join(["|", *(f"{cell} |" if cell else "|" for cell in cells)])


def with_rows(text: str, rows: Iterable[Row]) -> str:
    """Return a text whose table rows of the same methods and quantities are replaced."""
    lines = {row.key: row.line for row in rows}
    found = []
    for line in text.splitlines():
        _, method, quantity, *_ = [*map(str.strip, line.split("|")), "", ""]
        found.append(lines.get((method, quantity), line))
    return "\n".join(found) + "\n"


def progress(text: str) -> None:
    """Show what is being done, on one line."""
    print(f"  {text:<90}", end="\r", file=sys.stderr, flush=True)
