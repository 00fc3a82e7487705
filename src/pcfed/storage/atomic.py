"""Atomic writes: a file has its old contents or its new ones, even after a crash."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pcfed.storage.reading import NotAFileError

DRAFT = ".draft"
"""The suffix of temporary files, which are renamed once they are complete."""


class FileError(OSError):
    """A file could not be written; its earlier contents are unchanged."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.strerror = error.strerror or type(error).__name__
        remedy = "Free disk space or fix the permissions, then rerun the command."
        if isinstance(error, NotAFileError):
            remedy = "Give another path, or remove what is there."
        super().__init__(
            f"{path} could not be written: {self.strerror}; its earlier contents are unchanged. "
            f"{remedy}"
        )


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: readers see the old contents or the new ones, even after a crash.

    A temporary file in the same directory is written, flushed to the disk and renamed; then the
    directory is flushed.

    Parameters
    ----------
    path : Path
        The file; directories are created, an older file is replaced.
    content : bytes or callable
        The contents, or a function that writes them to the open file.

    Raises
    ------
    FileError
        If the disk is full or permissions are missing; an older file is unchanged.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{DRAFT}")
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would be replaced
            raise NotAFileError(0, "it is not a file")
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
        sync_directory(path.parent)
    except OSError as error:
        raise FileError(path, error) from None


@contextmanager
def private_files() -> Iterator[None]:
    """Make files that only their owner may read, also before they are renamed."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


def sync_directory(folder: Path) -> None:
    """Flush a directory to the disk, on systems where directories can be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_drafts(folder: Path, name: str = "*") -> None:
    """Remove temporary files of killed processes; no other process may be writing there."""
    for draft in folder.glob(f".{name}.*{DRAFT}"):
        draft.unlink(missing_ok=True)
