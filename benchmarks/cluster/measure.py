"""Clocks and memory of a run, without changing it."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from pcfed.simulation.ray_connection import LOCAL_SETTINGS

QUIET: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    **LOCAL_SETTINGS,  # those of a cluster that a run starts
}


class RoundClock:
    """Gives the number of local steps, and notes when it is asked for: once in every round.

    Two rounds with no evaluation between them are as far apart as one round takes.

    Parameters
    ----------
    steps : int
        Number of local steps, ``run(..., local_steps=RoundClock(5))``.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.stamps: dict[int, float] = {}

    def __call__(self, index: int) -> int:
        """Return the number of local steps in the round with this index."""
        if index == 0:  # before its first round, a run asks for all rounds
            self.stamps.clear()
        self.stamps[index] = time.perf_counter()
        return self._steps

    @property
    def begin(self) -> float:
        """When the first round began."""
        return self.stamps[0]

    @property
    def end(self) -> float:
        """When the last round began."""
        return max(self.stamps.values())

    def seconds(self, warm_up: int = 1) -> list[float]:
        """Return the seconds of every round but the first ones and the last one."""
        times = [self.stamps[index] for index in sorted(self.stamps)]
        return [after - before for before, after in pairwise(times)][warm_up:]

    def median(self) -> float:
        """Return the median seconds of a round."""
        return statistics.median(self.seconds())


class MemorySampler:
    """Samples the memory of this process and of all processes that it has started.

    The unit is the proportional set size (PSS): memory that several processes share, such as the
    object store, counts once in their sum.

    Attributes
    ----------
    phase : str
        The name under which peaks are kept.
    peaks : mapping of str to Counter
        By phase, the bytes of "driver", "actors", "ray" (the object store and the cluster's
        own processes) and "files" (pages of mapped files, which the system can reclaim) at the
        moment in which their sum was largest.
    """

    def __init__(self, interval: float = 0.5) -> None:
        self._interval, self._done = interval, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.phase = "start"
        self.peaks: dict[str, Counter[str]] = defaultdict(Counter)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(self._interval):
            phase, now = self.phase, memory()
            if now.total() > self.peaks[phase].total():
                self.peaks[phase] = now


def memory() -> Counter[str]:
    """Return the bytes of this process and its descendants by kind; see `MemorySampler`."""
    found: Counter[str] = Counter()
    own = os.getpid()
    for pid in [own, *descendants(own)]:
        sizes = _sizes(pid)
        if pid == own:
            kind = "driver"
        else:
            kind = "actors" if _command(pid).startswith("ray::RangeActor") else "ray"
        found[kind] += sizes["Pss_Anon"] + (sizes["Pss_Shmem"] if kind == "driver" else 0)
        found["files"] += sizes["Pss_File"]
        if kind != "driver":
            found["ray"] += sizes["Pss_Shmem"]
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(each) for each in task.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            yield child
            yield from descendants(child)


def _sizes(pid: int) -> Counter[str]:
    """Return the proportional sizes of a process in bytes, by kind."""
    sizes: Counter[str] = Counter()
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return sizes
    for line in lines[1:]:
        name, number, *_ = line.split()
        sizes[name.rstrip(":")] = int(number) * 1024
    return sizes


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def cluster(processors: int = 2) -> Iterator[float]:
    """Start a cluster on this machine, which runs then use; give the seconds that it took."""
    os.environ.update(VARIABLES)
    ray: Any = import_module("ray")
    begin = time.perf_counter()
    ray.init(address="local", num_cpus=processors, include_dashboard=False, **QUIET)
    try:
        yield time.perf_counter() - begin
    finally:
        ray.shutdown()
