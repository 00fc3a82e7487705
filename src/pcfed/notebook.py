"""HTML tables and small charts for notebooks, which the ``_repr_html_`` of pcfed's objects return.

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
WIDTH, HEIGHT = 320, 120
"""The plotting area of a chart with a line, in pixels."""
MARGIN = 16
"""Pixels above and below it, for text."""


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


def line_chart(title: str, points: Sequence[tuple[float, float]]) -> str:
    """Return a small SVG chart of a number by round; nothing if there are fewer than two points.

    Points that are not finite are left out. The axis is logarithmic if all numbers are positive and
    the largest is more than 10 times the smallest.

    Examples
    --------
    >>> line_chart("objective by round", [(1, 4.0), (2, 2.0)])
    '<svg ...objective by round: 4 in round 1, 2 in round 2...</svg>'
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) < 2:
        return ""
    xs, ys = zip(*finite, strict=True)
    log = min(ys) > 0 and max(ys) > 10 * min(ys)
    heights = [math.log(y) for y in ys] if log else list(ys)
    low, high = min(heights), max(heights)
    across = [WIDTH * (x - xs[0]) / ((xs[-1] - xs[0]) or 1.0) for x in xs]
    down = [MARGIN + HEIGHT * (high - y) / ((high - low) or 1.0) for y in heights]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    scale = ", logarithmic" if log else ""
    text = f"{title}: {ys[0]:.4g} in round {xs[0]:g}, {ys[-1]:.4g} in round {xs[-1]:g}{scale}"
    caption = f'<text x="0" y="{HEIGHT + 2 * MARGIN}">{escape(text)}</text>'
    path = f'<path d="M0,{MARGIN}V{HEIGHT + MARGIN}H{WIDTH}" fill="none" stroke="#999"/>'
    path += f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
    return _svg(text, WIDTH, HEIGHT + 2 * MARGIN + 6, path + caption)


def bar_chart(title: str, names: Sequence[str], values: Sequence[float]) -> str:
    """Return a small SVG chart with one bar per agent; nothing if no value is positive.

    Examples
    --------
    >>> bar_chart("loss", ["north", "south"], [0.5, 1.0])
    '<svg ...north...0.5...south...1...</svg>'
    """
    bars = [(n, v) for n, v in zip(names, values, strict=True) if math.isfinite(v) and v >= 0]
    largest = max((value for _, value in bars), default=0.0)
    if not largest > 0:
        return ""
    shown = bars[:MAX_ROWS]
    body = f'<text x="0" y="{MARGIN - 4}">{escape(title)}</text>'
    for k, (name, value) in enumerate(shown):
        top, length = MARGIN * (k + 1), (WIDTH / 2) * value / largest
        body += (
            f'<text x="0" y="{top + 12}">{escape(_cell_text(name, 18))}</text>'
            f'<rect x="120" y="{top + 2}" width="{length:.1f}" height="{MARGIN - 4}" '
            'fill="#1f77b4"/>'
            f'<text x="{124 + length:.1f}" y="{top + 12}">{value:.4g}</text>'
        )
    if len(bars) > len(shown):
        top = MARGIN * (len(shown) + 1)
        body += f'<text x="0" y="{top + 12}">and {len(bars) - len(shown)} more</text>'
    return _svg(title, WIDTH + 40, MARGIN * (len(shown) + 2) + 4, body)


def _svg(label: str, width: int, height: int, body: str) -> str:
    """Return an SVG image whose text has the color of the notebook's theme."""
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{width}" height="{height}" '
        f'viewBox="-4 0 {width + 8} {height}" style="display: block; margin: 0.5em 0" '
        f'font-size="11" font-family="sans-serif" fill="currentColor">{body}</svg>'
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
