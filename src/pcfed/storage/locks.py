"""Locks that keep other processes from using the same files."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pcfed.storage.atomic import FileError
from pcfed.storage.reading import open_file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False where that cannot be found out."""
    if os.name != "posix" or not path.exists():
        return False
    fcntl = importlib.import_module("fcntl")
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def exclusive_lock(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes from using the same files, until the block or this process ends.

    Parameters
    ----------
    path : Path
        The lock file, which is created and not removed.
    wait : float
        How many seconds to wait for another process that holds the lock.

    Raises
    ------
    ValueError
        If another process holds the lock.
    FileError
        If the file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_file(path, "a+b")
    except OSError as error:
        raise FileError(path, error) from None
    handle = file.fileno()
    try:
        if os.name == "posix":
            fcntl = importlib.import_module("fcntl")
            end = time.monotonic() + wait
            while not (locked := _try_lock(fcntl, handle)) and time.monotonic() < end:
                time.sleep(0.02)
            if not locked:
                file.seek(0)
                holder = file.read(20).decode("ascii", "replace").strip()
                raise ValueError(
                    f"{path}: another process ({holder or 'unknown'}) is using these files; wait "
                    "until it ends, stop it, or use another directory."
                )
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        file.close()


def _try_lock(fcntl: Any, handle: int) -> bool:
    """Lock a file unless another process has locked it; return whether it is locked now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
