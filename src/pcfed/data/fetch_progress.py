"""A line on the terminal while something is fetched."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pcfed.data.sources import Progress


@contextmanager
def terminal(progress: Progress | None = None) -> Iterator[Progress]:
    """Give ``progress``, or else a line on stderr if that is a terminal, or else nothing."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield lambda what, done, total: None
    else:
        shown = 0.0

        def line(what: str, done: int, total: int) -> None:
            nonlocal shown
            if done < total and time.monotonic() - shown < 0.1:
                return
            shown = time.monotonic()
            filled = "█" * round(20 * done / total)
            text = f"{filled:░<20} {done / 1e6:.1f} of {total / 1e6:.1f} MB  {what}"
            sys.stderr.write(f"\r{text:<79}")
            sys.stderr.flush()

        try:
            yield line
        finally:
            if shown:
                sys.stderr.write("\n")
