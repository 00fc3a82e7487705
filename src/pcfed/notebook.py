"""Tables for notebooks: what ``_repr_html_`` returns, with everything escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

MOST_ROWS = 20
"""Rows that are shown; the rest is counted."""
LONGEST = 60
"""Characters of a cell at most."""


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in HTML.

    Parameters
    ----------
    title : str
        What stands above it.
    columns : sequence of str
        The names of the columns; those without a single value are left out.
    rows : sequence of sequences
        One value a column: texts, numbers, or None and NaN for nothing.

    Examples
    --------
    >>> html_table("1 < 2", ["agent", "loss"], [["north", 0.25]])
    '<table><caption ...>1 &lt; 2</caption><thead><tr><th>agent</th><th>loss</th></tr></thead>...'
    """
    cells = [[_text(value) for value in row] for row in rows[:MOST_ROWS]]
    used = [i for i in range(len(columns)) if any(row[i] for row in cells)]
    head = "".join(f"<th>{escape(columns[i])}</th>" for i in used)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(row[i])}</td>" for i in used) + "</tr>" for row in cells
    )
    more = len(rows) - len(cells)
    if more > 0:
        body += f'<tr><td colspan="{len(used)}">and {more} more</td></tr>'
    style = "text-align: left; caption-side: top; padding: 0.3em 0"
    return (
        f'<table><caption style="{style}">{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _text(value: object) -> str:
    """Return what a cell shows."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
