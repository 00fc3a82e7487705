"""Files that are written whole or not at all, and folders in which one process works at a time."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

DRAFT = ".draft"
"""The end of the names of files that are not finished yet."""


class FileError(OSError):
    """A file could not be written; what it held before is still there."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.strerror = error.strerror or type(error).__name__
        super().__init__(
            f"{path} could not be written: {self.strerror}; what was saved before is still there: "
            "make room or get the right to write, then go on."
        )


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file such that others see all of it or nothing, whatever happens meanwhile.

    A draft beside it is written, brought to the disk and given the file's name; so is the entry in
    the folder.

    Parameters
    ----------
    path : Path
        The file; folders are made, an older one is replaced.
    content : bytes or callable
        What to write, or what writes to the open draft.

    Raises
    ------
    FileError
        If that is impossible: no room, no right. The older file, if any, is as it was.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{DRAFT}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as stream:
                if callable(content):
                    content(stream)
                else:
                    stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        bring_to_disk(path.parent)
    except OSError as error:
        raise FileError(path, error) from None


def bring_to_disk(folder: Path) -> None:
    """Make the names in a folder last; where folders cannot be opened there is nothing to do."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_drafts(folder: Path, name: str = "*") -> None:
    """Remove what writers that were killed have left; nobody else may be writing there."""
    for draft in folder.glob(f".{name}.*{DRAFT}"):
        draft.unlink(missing_ok=True)


@contextmanager
def sole_user(path: Path) -> Iterator[None]:
    """Keep other processes from using the same files, until the end or until this one dies.

    Parameters
    ----------
    path : Path
        A file for the purpose, which is made and stays.

    Raises
    ------
    ValueError
        If another process has it.
    FileError
        If it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FileError(path, error) from None
    try:
        if os.name == "posix":
            fcntl = importlib.import_module("fcntl")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.read(handle, 20).decode("ascii", "replace").strip()
                raise ValueError(
                    f"{path}: another process ({who or 'unknown'}) is at work here; wait for it, "
                    "stop it, or work in another place."
                ) from None
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)
