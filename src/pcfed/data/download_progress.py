"""A progress line on the terminal during downloads."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pcfed.data.sources import Progress


@contextmanager
def progress_on_terminal(progress: Progress | None = None) -> Iterator[Progress]:
    """Yield ``progress`` if given, else a progress line on stderr if that is a terminal."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield lambda name, done, total: None
    else:
        shown = 0.0

        def line(name: str, done: int, total: int) -> None:
            nonlocal shown
            if done < total and time.monotonic() - shown < 0.1:
                return
            shown = time.monotonic()
            filled = "█" * round(20 * done / total)
            text = f"{filled:░<20} {done / 1e6:.1f} of {total / 1e6:.1f} MB  {name}"
            sys.stderr.write(f"\r{text:<79}")
            sys.stderr.flush()

        try:
            yield line
        finally:
            if shown:
                sys.stderr.write("\n")
