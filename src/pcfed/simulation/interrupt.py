"""Signals that end a run between two rounds instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class PendingSignal:
    """The signal that has arrived, if any."""

    name: str | None = None


@contextmanager
def deferred_signals() -> Iterator[PendingSignal]:
    """Record Ctrl-C and SIGTERM instead of ending the process; a second one ends it at once.

    Outside the main thread, where Python does not allow signal handlers, this does nothing.
    """
    pending = PendingSignal()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return

    def record(number: int, _: FrameType | None) -> None:
        pending.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, record) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pending
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
