"""Files that prove what they are: a name, a size and a published checksum.

Nothing that enters :mod:`pcfed.data` is believed because of where it came from. A file counts only
if its bytes have the checksum below, whether a user, our cache, a registry or a mirror gave them.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class DataError(OSError):
    """A data set could not be had; the message says which files to put where."""


@dataclass(frozen=True)
class File:
    """One original file of a data set.

    Parameters
    ----------
    name : str
        The name under which it was published and is cached.
    size : int
        Its size in bytes.
    checksum : str
        The algorithm and the digest, as in ``"md5:9fb629c4189551a2d022fa330f9573f3"``.
    plain : File, optional
        The same content without its compression, which is accepted too.

    Examples
    --------
    >>> hello = File("hello.txt", 5, "md5:5d41402abc4b2a76b9719d911017c592")
    >>> hello.matches(b"hello"), hello.matches(b"hullo")
    (True, False)
    """

    name: str
    size: int
    checksum: str
    plain: File | None = None

    @property
    def forms(self) -> tuple[File, ...]:
        """The forms in which the file may come."""
        return (self,) if self.plain is None else (self, self.plain)

    @property
    def limit(self) -> int:
        """The most bytes that any form has: nobody reads more than this for the file."""
        return max(form.size for form in self.forms)

    def matches(self, content: bytes) -> bool:
        """Whether ``content`` is this file, in this form."""
        algorithm, _, digest = self.checksum.partition(":")
        if len(content) != self.size:
            return False
        return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == digest

    def form_of(self, content: bytes) -> File | None:
        """Return the form that ``content`` is, or None if it is damaged or something else."""
        return next((form for form in self.forms if form.matches(content)), None)


def read_at_most(path: Path, limit: int) -> bytes:
    """Return the first ``limit`` + 1 bytes of a file: one more than any that could be right."""
    with path.open("rb") as stream:
        return stream.read(limit + 1)


def optional(module: str) -> Any:
    """Import a module of the ``experiments`` extra, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f"pcfed.data: {module.partition('.')[0]} is not installed; "
            "run pip install 'pcfed[experiments]'."
        ) from None
