"""Named arrays in one file: a NumPy archive without pickle, with a checksum over all of it.

``numpy.load`` reads such a file too. Beside the arrays it holds ``about``, a JSON text that says
what they are and in which version, and the SHA-256 of everything. A file is only ever read, never
believed: sizes are checked before memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pcfed.storage.atomic import write_atomically

AnyArray = NDArray[Any]
PIECE = 2**20
"""Bytes that are read at a time."""


def save_arrays(path: Path, about: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
    """Write arrays and facts about them, whole or not at all.

    Parameters
    ----------
    path : Path
        The file; an older one is replaced.
    about : mapping
        Facts that JSON can hold.
    arrays : mapping of str to array
        Numbers of any kind.

    Raises
    ------
    FileError
        If the file cannot be written; an older one is as it was.
    """
    text = json.dumps(about)
    facts = json.dumps({"about": text, "sha256": _checksum(text, arrays)})

    def write(stream: IO[bytes]) -> None:
        np.savez(stream, allow_pickle=False, **{"about": np.array(facts), **arrays})

    write_atomically(path, write)


def load_arrays(path: Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the facts and the arrays that ``save_arrays`` wrote.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    ValueError
        If it cannot be read, is something else or damaged: a half sentence that says why.
    """
    arrays: dict[str, AnyArray] = {}
    try:
        with path.open("rb") as stream:
            for name, array in read_members(stream):
                arrays[name] = array
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror or type(error).__name__})") from None
    try:
        facts = json.loads(str(arrays.pop("about")))
        text, checksum = facts["about"], facts["sha256"]
        about = json.loads(text)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError("it does not say what it is") from None
    if checksum != _checksum(text, arrays) or not isinstance(about, dict):
        raise ValueError("its checksum is wrong: it is damaged")
    return about, arrays


def _checksum(text: str, arrays: Mapping[str, AnyArray]) -> str:
    """Return the SHA-256 of facts and arrays, whatever their order."""
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"\n{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def read_members(stream: IO[bytes], most: int | None = None) -> Iterator[tuple[str, AnyArray]]:
    """Yield the arrays of a NumPy archive, each with its name.

    Parameters
    ----------
    stream : file
        What ``numpy.savez`` wrote, or any bytes at all.
    most : int, optional
        Bytes that its arrays may have together; without it, as many as the file has, so that
        nothing in it may be packed.

    Raises
    ------
    ValueError
        Whatever the bytes are, if they are no such archive: a half sentence that says why.
    """
    room = stream.seek(0, 2) if most is None else most
    try:
        archive = zipfile.ZipFile(stream)
    except Exception as error:  # bytes of any kind make it raise errors of any kind
        raise ValueError(_in_short(error)) from None
    with archive:
        if (size := sum(member.file_size for member in archive.infolist())) > room:
            raise ValueError(f"its arrays have {size} bytes, more than {room}")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            try:
                with archive.open(member) as part:
                    array = _array(part, member.file_size)
            except Exception as error:  # as above
                raise ValueError(f"{_in_short(error)} in {name[:30]!r}") from None
            yield name, array


def _in_short(error: Exception) -> str:
    """Return the beginning of what an error says, in one line."""
    return " ".join(str(error).split())[:100] or type(error).__name__


def _array(stream: IO[bytes], size: int) -> AnyArray:
    """Return an array in the npy format whose header tells the truth."""
    major = np.lib.format.read_magic(stream)[0]
    read_header = {
        1: np.lib.format.read_array_header_1_0,
        2: np.lib.format.read_array_header_2_0,
    }
    shape, by_columns, dtype = read_header[major](stream)
    if dtype.hasobject:
        raise ValueError("Python objects, which are never read,")
    if not dtype.itemsize:  # NumPy would make such texts longer, one character each
        raise ValueError("entries without any bytes")
    # The size is that in the archive's index, beyond which nothing is unpacked.
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"an array of shape {shape} that is longer than its file")
    array = np.empty(shape, dtype, order="F" if by_columns else "C")
    place = array.reshape(-1, order="A").view(np.uint8).data if array.nbytes else memoryview(b"")
    done = 0
    while done < array.nbytes:
        piece = stream.read(min(PIECE, array.nbytes - done))
        if not piece:
            raise ValueError("an array that ends too early")
        place[done : done + len(piece)] = piece
        done += len(piece)
    return array
