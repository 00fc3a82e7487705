"""Rows of the tables, and where they are in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

HEADER = "| method | quantity | reference | ours | source |\n|---|---|---|---|---|"


class Row(NamedTuple):
    """A number of a paper or of its authors' code, and ours."""

    method: str
    quantity: str
    reference: str
    ours: str
    source: str

    @property
    def line(self) -> str:
        """The row in Markdown."""
        return " ".join(["|", *(f"{cell} |" if cell else "|" for cell in self)])


def with_rows(text: str, rows: Iterable[Row]) -> str:
    """Return a text whose table rows of the same methods and quantities are replaced."""
    lines = {(row.method, row.quantity): row.line for row in rows}
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        key = (cells[1], cells[2]) if len(cells) == len(Row._fields) + 2 else ("", "")
        found.append(lines.get(key, line))
    return "\n".join(found) + "\n"


def progress(text: str) -> None:
    """Show what is being done, on one line."""
    print(f"  {text:<90}", end="\r", file=sys.stderr, flush=True)
