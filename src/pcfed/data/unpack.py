"""Reading untrusted archives.

Members are read by their exact name, into memory and up to a limit. Nothing is extracted to a path
that an archive names, and nothing in an archive is executed.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from pcfed.data.verified_file import File, import_optional

MAX_UNPACKED_BYTES = 2**29  # of a whole tar archive
MAX_OVERHEAD = 2**20  # a PNG file may be longer than its pixels; also the limit for label lists
PIXELS = 32 * 32


@dataclass(frozen=True)
class Archive:
    """An archive with unchanged files of a data set."""

    name: str  # ``.whl`` is a zip archive, anything else a ``.tar.gz``
    members: Mapping[str, str]  # name of each file → its exact name in the archive

    def read(self, path: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """Yield the requested files that are in the archive; their checksums are not verified."""
        wanted = {self.members[file.name]: file for file in files if file.name in self.members}
        limits = {member: file.limit for member, file in wanted.items()}
        members = zip_members if self.name.endswith(".whl") else tar_members
        for member, content in members(path, limits):
            yield wanted[member], content


@dataclass(frozen=True)
class PNGArchive:
    """The ``.tgz`` with CIFAR-10 as PNG files of 1024 × 10000 pixels, one image per row."""

    name: str
    png_files: Mapping[str, str]  # name of each ``.bin`` file → name of its PNG file
    # Name of each ``.bin`` file → the JSON list with its labels, and its index there.
    labels: Mapping[str, tuple[str, int]]

    def read(self, path: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """Yield the requested files, rebuilt from PNG files; their checksums are not verified."""
        png_limits = {self.png_files[file.name]: file.size + MAX_OVERHEAD for file in files}
        lists = {self.labels[file.name][0]: MAX_OVERHEAD for file in files}
        content = dict(tar_members(path, png_limits | lists))
        labels = {name: json.loads(content[name]) for name in lists}
        for file in files:
            source, batch = self.labels[file.name]
            rows = file.size // (1 + 3 * PIXELS)
            chosen = labels[source][batch * rows : (batch + 1) * rows]
            yield file, cifar_records(content[self.png_files[file.name]], chosen)


def cifar_records(png: bytes, labels: Sequence[int]) -> bytes:
    """Return the ``.bin`` file of a PNG file: per image a label, then red, green and blue."""
    image = import_optional("PIL.Image").open(io.BytesIO(png), formats=["PNG"])
    rows = len(labels)
    if image.size != (PIXELS, rows) or image.mode != "RGB":
        raise ValueError(
            f"a PNG file must be RGB of {PIXELS} × {rows}, got {image.mode} of {image.size}"
        )
    records = np.empty((rows, 1 + 3 * PIXELS), dtype=np.uint8)
    records[:, 0] = labels
    channels = np.asarray(image).reshape(rows, PIXELS, 3).transpose(0, 2, 1)
    records[:, 1:] = channels.reshape(rows, 3 * PIXELS)
    return records.tobytes()


def zip_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the named members of a zip archive, each at most as long as its limit."""
    with zipfile.ZipFile(path) as archive:
        present = set(archive.namelist())
        for name in (name for name in limits if name in present):
            with archive.open(name) as stream:
                yield name, _read_limited(stream, name, limits[name])


def tar_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the named members of a ``.tar.gz`` archive, each at most as long as its limit."""
    with gzip.open(path) as unpacked:
        stream: Any = _LimitedReader(unpacked)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.name in limits and member.isreg():
                    content = archive.extractfile(member)
                    if content is not None:
                        yield member.name, _read_limited(content, member.name, limits[member.name])


def _read_limited(stream: IO[bytes], name: str, limit: int) -> bytes:
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{name} is longer than the {limit} bytes that it should have")
    return content


class _LimitedReader:
    """A stream that raises after ``MAX_UNPACKED_BYTES`` bytes, against decompression bombs."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._remaining = MAX_UNPACKED_BYTES

    def read(self, size: int) -> bytes:
        content = self._stream.read(min(size, self._remaining + 1))
        self._remaining -= len(content)
        if self._remaining < 0:
            raise ValueError(f"the archive unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        return content
