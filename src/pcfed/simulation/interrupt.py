"""Signals that end a run between two rounds instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interruption:
    """Whether somebody wants the run to end, and how they said so."""

    by: str | None = None


@contextmanager
def after_the_round() -> Iterator[Interruption]:
    """Note Ctrl-C and SIGTERM instead of dying of them; a second one is obeyed at once.

    Elsewhere than in the main thread, where Python lets nobody listen to signals, nothing changes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def note(number: int, _: FrameType | None) -> None:
        interruption.by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
