"""Named arrays and metadata in one file: a NumPy archive without pickle, with a checksum.

``numpy.load`` reads such a file too. Beside the arrays it holds ``metadata``, a JSON text, and the
SHA-256 of everything. Files may come from anybody: sizes are checked before memory is allocated.
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
from pcfed.storage.reading import describe_error, open_file, parse_json

AnyArray = NDArray[Any]
CHUNK = 2**20
"""Bytes that are read at a time."""

MAX_MEMBERS = 2**20
"""Arrays in an archive at most."""

METADATA, OLD_METADATA = "metadata", "about"
"""The member with the metadata; files of pcfed 0.1 call it ``about``."""


def save_arrays(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
    """Write arrays and metadata to a file, atomically.

    Parameters
    ----------
    path : Path
        The file; an older one is replaced.
    metadata : mapping
        What JSON can hold.
    arrays : mapping of str to array
        Arrays of numbers.

    Raises
    ------
    FileError
        If the file cannot be written; an older one is as it was.
    """
    text = json.dumps(metadata)
    header = json.dumps({METADATA: text, "sha256": _checksum(text, arrays)})

    def write(stream: IO[bytes]) -> None:
        np.savez(stream, allow_pickle=False, **{METADATA: np.array(header), **arrays})

    write_atomically(path, write)


def load_arrays(path: Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the metadata and the arrays that ``save_arrays`` wrote.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    ValueError
        If it cannot be read, is something else or damaged; its text is a clause that says why.
    """
    arrays: dict[str, AnyArray] = {}
    try:
        with open_file(path) as stream:
            for name, array in read_members(stream):
                arrays[name] = array
    except OSError as error:
        raise ValueError(describe_error(error)) from None
    name = METADATA if METADATA in arrays else OLD_METADATA
    try:
        header = parse_json(str(arrays.pop(name)))
        text, checksum = header[name], header["sha256"]
        metadata = parse_json(text)
    # NumPy raises SystemError for text whose code points are not characters.
    except (KeyError, TypeError, AttributeError, ValueError, SystemError):
        raise ValueError("it has no metadata") from None
    if checksum != _checksum(text, arrays) or not isinstance(metadata, dict):
        raise ValueError("its checksum is wrong: it is damaged")
    return metadata, arrays


def _checksum(text: str, arrays: Mapping[str, AnyArray]) -> str:
    """Return the SHA-256 of metadata and arrays, whatever their order."""
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"\n{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def read_members(stream: IO[bytes], max_bytes: int | None = None) -> Iterator[tuple[str, AnyArray]]:
    """Yield the arrays of a NumPy archive, each with its name.

    Parameters
    ----------
    stream : file
        What ``numpy.savez`` wrote, or any bytes at all.
    max_bytes : int, optional
        The size of all arrays together, at most. By default the size of the file, so that nothing
        in it may be compressed.

    Raises
    ------
    ValueError
        Whatever the bytes are, if they are no such archive; its text is a clause that says why.
    """
    limit = stream.seek(0, 2) if max_bytes is None else max_bytes
    try:
        archive = zipfile.ZipFile(stream)
    except Exception as error:  # invalid bytes make zipfile raise errors of any type
        raise ValueError(_summary(error)) from None
    with archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise ValueError(f"it has {len(members):,} arrays, more than {MAX_MEMBERS:,}")
        if (size := sum(member.file_size for member in members)) > limit:
            raise ValueError(f"its arrays have {size} bytes, more than {limit}")
        for member in members:
            name = member.filename.removesuffix(".npy")
            try:
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("a compression that NumPy does not write")
                with archive.open(member) as part:
                    array = _array(part, member.file_size)
            except Exception as error:  # as above
                raise ValueError(f"{_summary(error)} in {name[:30]!r}") from None
            yield name, array


def _summary(error: Exception) -> str:
    """Return the beginning of an error's message, in one line."""
    return " ".join(str(error).split())[:100] or type(error).__name__


def _array(stream: IO[bytes], size: int) -> AnyArray:
    """Return an array in the npy format, whose header is checked against its size."""
    major = np.lib.format.read_magic(stream)[0]
    read_header = {
        1: np.lib.format.read_array_header_1_0,
        2: np.lib.format.read_array_header_2_0,
    }
    shape, by_columns, dtype = read_header[major](stream)
    if dtype.hasobject:
        raise ValueError("Python objects, which are never read,")
    if not dtype.itemsize:  # NumPy would widen such texts to one character each
        raise ValueError("entries without any bytes")
    # The size is that in the archive's index, beyond which nothing is unpacked.
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"an array of shape {shape} that is longer than its file")
    array = np.empty(shape, dtype, order="F" if by_columns else "C")
    place = array.reshape(-1, order="A").view(np.uint8).data if array.nbytes else memoryview(b"")
    done = 0
    while done < array.nbytes:
        piece = stream.read(min(CHUNK, array.nbytes - done))
        if not piece:
            raise ValueError("an array that ends too early")
        place[done : done + len(piece)] = piece
        done += len(piece)
    return array
