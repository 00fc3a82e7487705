"""HTML tables for notebooks, which the ``_repr_html_`` of pcfed's objects return.

All text is escaped: names may come from files that anybody wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

MAX_ROWS = 20
"""Rows of a table at most; a last row says how many were left out."""
MAX_CELL_LENGTH = 60
"""Characters of a cell at most."""


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    max_length: int = MAX_CELL_LENGTH,
) -> str:
    """Return an HTML table.

    Parameters
    ----------
    title : str
        The caption.
    columns : sequence of str
        The names of the columns; columns without any value are left out.
    rows : sequence of sequences
        One value per column: text, a number, or None or NaN for an empty cell.
    max_length : int
        Longer cells are cut.

    Examples
    --------
    >>> html_table("1 < 2", ["agent", "loss"], [["north", 0.25]])
    '<table><caption ...>1 &lt; 2</caption><thead><tr><th>agent</th><th>loss</th></tr></thead>...'
    """
    cells = [[_cell_text(value, max_length) for value in row] for row in rows[:MAX_ROWS]]
    used = [i for i in range(len(columns)) if any(row[i] for row in cells)]
    head = "".join(f"<th>{escape(columns[i])}</th>" for i in used)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(row[i])}</td>" for i in used) + "</tr>" for row in cells
    )
    num_hidden = len(rows) - len(cells)
    if num_hidden > 0:
        body += f'<tr><td colspan="{len(used)}">and {num_hidden} more</td></tr>'
    style = "text-align: left; caption-side: top; padding: 0.3em 0"
    return (
        f'<table><caption style="{style}">{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def html_list(sentences: Sequence[str]) -> str:
    """Return sentences as an HTML list; nothing if there are none."""
    entries = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{entries}</ul>" if entries else ""


def _cell_text(value: object, max_length: int) -> str:
    """Return the text of a cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
