"""Reading archives that nobody vouches for.

Members are read by their exact name, into memory and up to a limit. Nothing is unpacked to a path
that an archive names, and nothing in an archive is ever run.
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

from pcfed.data.originals import File, optional

MOST_UNPACKED = 2**29  # a tar archive may unpack to half a gigabyte, not to more
SLACK = 2**20  # noise is longer as a PNG file than as it is, and a list of labels is short
PIXELS = 32 * 32


@dataclass(frozen=True)
class Archive:
    """An archive that holds files of a data set as they are.

    Parameters
    ----------
    name : str
        Its file name; one that ends in ``.whl`` is a zip archive, otherwise it is a ``.tar.gz``.
    members : Mapping[str, str]
        The exact name in the archive of each file, by the name of the file.
    """

    name: str
    members: Mapping[str, str]

    def read(self, path: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """Yield those of ``files`` that the archive at ``path`` holds, unchecked."""
        wanted = {self.members[file.name]: file for file in files if file.name in self.members}
        limits = {member: file.limit for member, file in wanted.items()}
        members = zip_members if self.name.endswith(".whl") else tar_members
        for member, content in members(path, limits):
            yield wanted[member], content


@dataclass(frozen=True)
class PictureArchive:
    """The archive that holds CIFAR-10 as PNG files of 1024 × 10000: one image a row.

    Parameters
    ----------
    name : str
        Its file name, a ``.tgz``.
    pictures : Mapping[str, str]
        The exact name in the archive of the picture of each ``.bin`` file.
    labels : Mapping[str, tuple[str, int]]
        The JSON list with the labels of each ``.bin`` file, and how many batches come before it.
    """

    name: str
    pictures: Mapping[str, str]
    labels: Mapping[str, tuple[str, int]]

    def read(self, path: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """Yield ``files``, rebuilt from the pictures in the archive at ``path``, unchecked."""
        pictures = {self.pictures[file.name]: file.size + SLACK for file in files}
        lists = {self.labels[file.name][0]: SLACK for file in files}
        content = dict(tar_members(path, pictures | lists))
        labels = {name: json.loads(content[name]) for name in lists}
        for file in files:
            source, batch = self.labels[file.name]
            rows = file.size // (1 + 3 * PIXELS)
            chosen = labels[source][batch * rows : (batch + 1) * rows]
            yield file, cifar_records(content[self.pictures[file.name]], chosen)


def cifar_records(picture: bytes, labels: Sequence[int]) -> bytes:
    """Return the ``.bin`` file of a picture: a label byte, then red, green and blue, per image.

    Parameters
    ----------
    picture : bytes
        A PNG file, 1024 pixels wide, with an image of 32 × 32 in each row.
    labels : Sequence[int]
        One label in 0..255 for each row.
    """
    image = optional("PIL.Image").open(io.BytesIO(picture), formats=["PNG"])
    rows = len(labels)
    if image.size != (PIXELS, rows) or image.mode != "RGB":
        raise ValueError(
            f"a picture must be RGB of {PIXELS} × {rows}, got {image.mode} of {image.size}"
        )
    records = np.empty((rows, 1 + 3 * PIXELS), dtype=np.uint8)
    records[:, 0] = labels
    channels = np.asarray(image).reshape(rows, PIXELS, 3).transpose(0, 2, 1)
    records[:, 1:] = channels.reshape(rows, 3 * PIXELS)
    return records.tobytes()


def zip_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the named members of a zip archive, each no longer than its limit."""
    with zipfile.ZipFile(path) as archive:
        present = set(archive.namelist())
        for name in (name for name in limits if name in present):
            with archive.open(name) as stream:
                yield name, _bounded(stream, name, limits[name])


def tar_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the named members of a ``.tar.gz`` archive, each no longer than its limit."""
    with gzip.open(path) as unpacked:
        stream: Any = _Bounded(unpacked)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.name in limits and member.isreg():
                    content = archive.extractfile(member)
                    if content is not None:
                        yield member.name, _bounded(content, member.name, limits[member.name])


def _bounded(stream: IO[bytes], name: str, limit: int) -> bytes:
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{name} is longer than the {limit} bytes that it should have")
    return content


class _Bounded:
    """A stream that ends in an error after ``MOST_UNPACKED`` bytes, for archives that explode."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._left = MOST_UNPACKED

    def read(self, size: int) -> bytes:
        content = self._stream.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"the archive unpacks to more than {MOST_UNPACKED} bytes")
        return content
