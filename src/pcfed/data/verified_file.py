"""Files with a known size and a published checksum.

No source of a file is trusted: its bytes are accepted only if they have the checksum, whether they
come from the user, the cache, a package registry or a website.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcfed.errors import install_command
from pcfed.storage.reading import open_file


class DataError(OSError):
    """The files of a data set are not available; the message says which files to put where."""


@dataclass(frozen=True)
class File:
    """One published file of a data set.

    Examples
    --------
    >>> hello = File("hello.txt", 5, "md5:5d41402abc4b2a76b9719d911017c592")
    >>> hello.matches(b"hello"), hello.matches(b"hullo")
    (True, False)
    """

    name: str
    size: int
    checksum: str  # algorithm and digest
    plain: File | None = None  # the same content without its compression, also accepted

    @property
    def forms(self) -> tuple[File, ...]:
        """The accepted forms of the file: as published, and uncompressed."""
        return (self,) if self.plain is None else (self, self.plain)

    @property
    def limit(self) -> int:
        """The size of the largest form; no more than this is read."""
        return max(form.size for form in self.forms)

    def matches(self, content: bytes) -> bool:
        """Whether ``content`` is this file, in this form."""
        algorithm, _, digest = self.checksum.partition(":")
        if len(content) != self.size:
            return False
        return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == digest

    def form_of(self, content: bytes) -> File | None:
        """Return the form that ``content`` has, or None if the checksum is wrong."""
        return next((form for form in self.forms if form.matches(content)), None)


def read_at_most(path: Path, limit: int) -> bytes:
    """Return the first ``limit`` + 1 bytes of a file; the extra byte shows that it is too long."""
    with open_file(path) as stream:
        return stream.read(limit + 1)


def import_optional(module: str) -> Any:
    """Import a module of the ``experiments`` extra, or raise an error with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f"pcfed.data: {module.partition('.')[0]} is not installed; "
            f"run {install_command('experiments')}."
        ) from None
