"""The base of everything that is saved to a file and loaded with checks.

A subclass says what goes into the file and how to rebuild itself from it; the base writes the file
atomically, records the format's version, and turns whatever is wrong with a file into a sentence.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pcfed.errors import display_path, one_line, short_repr
from pcfed.storage.archive import AnyArray, load_arrays, save_arrays
from pcfed.storage.atomic import write_atomically
from pcfed.storage.reading import describe_error, parse_json, read_file
from pcfed.validation import is_path

Metadata = Mapping[str, Any]
"""What JSON can hold."""

Upgrades = Mapping[int, Callable[[Metadata], Metadata]]
"""Functions from the metadata of earlier formats to those of the current one."""

PathLike = str | os.PathLike[str]


class InvalidFile(ValueError):
    """A file is damaged, of another kind or of another version; ``reason`` is a clause."""

    def __init__(self, path: Path, kind: str, reason: str, advice: str) -> None:
        super().__init__(
            one_line(f"{display_path(path)} is not a valid {kind}: {reason}; {advice}")
        )
        self.reason = reason


class Saved(ABC):
    """Base of the saved files; use `SavedArchive` or `SavedJson`.

    Attributes
    ----------
    file_kind : str
        What messages call the file, for example ``"checkpoint"``.
    format : int
        The version of the file's layout that this class writes.
    upgrades : mapping of int to callable
        For earlier layouts that are still read, a function from the metadata of that layout to the
        metadata of the current one; 0 stands for files that do not name a format.
    read_by : mapping of int to str
        For earlier layouts that are no longer read, the version of pcfed that reads them.
    advice : str
        The end of the sentence on a file that can't be read.
    """

    file_kind: ClassVar[str]
    format: ClassVar[int]
    upgrades: ClassVar[Upgrades] = {}
    read_by: ClassVar[Mapping[int, str]] = {}
    advice: ClassVar[str] = "restore it from a backup, or write it again."

    @classmethod
    def _current(cls, metadata: object) -> Metadata:
        """Return the metadata of a file in the current layout, without the format.

        Metadata of an earlier layout are upgraded; those of an unknown one are refused.
        """
        if not isinstance(metadata, dict):
            raise TypeError
        contents = dict(metadata)
        found = contents.pop("format", 0)
        # JSON's true is equal to 1 in Python, so the type is compared, too.
        if type(found) is int and found in cls.upgrades:
            return cls.upgrades[found](contents)
        if type(found) is int and found in cls.read_by:
            raise ValueError(
                f"it has format {found}, which pcfed {cls.read_by[found]} reads, and this version "
                f"reads format {cls.format}"
            )
        if "format" not in metadata:
            raise ValueError("it does not say which format it has")
        if type(found) is not int or found != cls.format:
            raise ValueError(
                f"it has format {short_repr(found, 20)}, and this version reads {cls.format}"
            )
        return contents

    @abstractmethod
    def save(self, path: PathLike) -> None:
        """Write everything to one file, atomically; an older file is replaced."""

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is damaged, something else, or of another version.
        """
        is_path(f"{cls.__name__}.load: path", path)
        try:
            return cls._read(Path(path))
        except (LookupError, TypeError, AttributeError, RecursionError):
            reason = "its contents are those of another kind of file"
        except MemoryError:
            reason = "it needs more memory than there is"
        except ValueError as error:
            reason = str(error)
        raise InvalidFile(Path(path), cls.file_kind, reason, cls.advice) from None

    @classmethod
    @abstractmethod
    def _read(cls, path: Path) -> Self:
        """Read the file; may raise what ``load`` catches."""


class SavedArchive(Saved):
    """Base of what is saved as an archive of arrays with metadata (`pcfed.storage.archive`)."""

    @abstractmethod
    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        """Return the metadata, without the format, and the arrays."""

    @classmethod
    @abstractmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, AnyArray]) -> Self:
        """Rebuild the object.

        May raise LookupError, TypeError or AttributeError for contents of another kind, and
        ValueError with a clause that says what is wrong with them.
        """

    def save(self, path: PathLike) -> None:
        """Write everything to one file (a NumPy archive, no pickle), atomically."""
        is_path(f"{type(self).__name__}.save: path", path)
        metadata, arrays = self._to_archive()
        save_arrays(Path(path), {"format": self.format, **metadata}, arrays)

    @classmethod
    def _read(cls, path: Path) -> Self:
        metadata, arrays = load_arrays(path)
        return cls._from_archive(cls._current(metadata), arrays)


class SavedJson(Saved):
    """Base of what is saved as a JSON file.

    Attributes
    ----------
    max_bytes : int
        Larger files are refused before they are parsed.
    """

    max_bytes: ClassVar[int] = 2**26

    @abstractmethod
    def _to_json(self) -> Metadata:
        """Return the contents, without the format."""

    @classmethod
    @abstractmethod
    def _from_json(cls, contents: Metadata) -> Self:
        """Rebuild the object; may raise as `SavedArchive._from_archive` may."""

    def save(self, path: PathLike) -> None:
        """Write the JSON file, atomically."""
        is_path(f"{type(self).__name__}.save: path", path)
        text = json.dumps({"format": self.format, **self._to_json()}, indent=1)
        write_atomically(Path(path), text.encode())

    @classmethod
    def _read(cls, path: Path) -> Self:
        try:
            content = read_file(path, cls.max_bytes)
        except OSError as error:
            raise ValueError(describe_error(error)) from None
        return cls._from_json(cls._current(parse_json(content)))
