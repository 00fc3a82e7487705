"""Colours and line styles of charts, in pages and in figures alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

COLOURS: Mapping[str, tuple[str, str]] = {
    "text": ("#1c2024", "#e4e7ea"),
    "series-0": ("#d55e00", "#ff8534"),
    "series-1": ("#0072b2", "#56b4e9"),
    "series-2": ("#4a5157", "#b9c1c8"),
    "series-3": ("#00966d", "#2cc79b"),
    "series-4": ("#a8508a", "#dd92bd"),
    "ordered-0": ("#e3b48f", "#7d4a26"),
    "ordered-1": ("#df8c4b", "#b0622a"),
    "ordered-2": ("#d55e00", "#df7a2e"),
    "ordered-3": ("#983f00", "#ffa668"),
    "ordered-4": ("#592400", "#ffd9bb"),
}
"""The colours by name, on a light and on a dark background.

Colour-blind readers can distinguish those of the series, which are near the palette of Okabe and
Ito. The ordered ones are for variants of one method.
"""

NUM_ORDERED = sum(name.startswith("ordered") for name in COLOURS)


@dataclass(frozen=True)
class Style:
    """How a series is drawn: the name of a colour, a dash pattern and a width in pixels."""

    colour: str
    dash: str
    width: float


STYLES = (
    Style("series-0", "solid", 3.25),
    Style("series-1", "solid", 2.5),
    Style("series-2", "6px,5px", 1.75),
    Style("series-3", "2px,3px", 2.25),
    Style("series-4", "8px,3px,2px,3px", 1.75),
)
REPEATED_DASHES = ("4px,2px", "9px,3px", "1px,2px")
"""Dash patterns for series beyond the number of colours, which reuse the colours."""


def series_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each series; the first one gets the most visible style."""
    found = {}
    for i, name in enumerate(names):
        repeats, index = divmod(i, len(STYLES))
        style = STYLES[index]
        if repeats:
            dash = REPEATED_DASHES[(repeats - 1) % len(REPEATED_DASHES)]
            style = Style(style.colour, dash, style.width)
        found[name] = style
    return found
