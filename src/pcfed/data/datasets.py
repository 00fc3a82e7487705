"""Data sets: images (MNIST, CIFAR-10, the digits of scikit-learn), and tables of choices.

Features of images are the pixels as bytes, one image per row; multiplied by ``scale`` they are in
[0, 1].
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pcfed.data import catalog
from pcfed.data.catalog import CatalogEntry
from pcfed.data.readers import read_csv
from pcfed.data.sources import Progress
from pcfed.data.store import Contents, cache_directory, find_files, obtain, user_directory
from pcfed.data.tables import Table
from pcfed.data.verified_file import DataError, import_optional
from pcfed.validation import positive

Bytes = NDArray[np.uint8]
PathLike = str | os.PathLike[str]

DIGITS = tuple("0123456789")
OBJECTS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with labels, split into a training and a test part, as read-only arrays of uint8.

    Parameters
    ----------
    name : str
        Its name.
    train_images, test_images : array of uint8, images × pixels
        One image per row, in the order of ``image_shape``.
    train_labels, test_labels : array of uint8
        One label in 0..classes−1 for each image.
    image_shape : tuple of int
        The shape of an image: rows, columns and, if there are colours, three channels.
    class_names : tuple of str
        The names of the labels.
    scale : float
        The factor that brings pixels to [0, 1].

    Raises
    ------
    ValueError
        If arrays do not fit each other, ``image_shape`` or ``class_names``.
    """

    name: str
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    scale: float

    def __post_init__(self) -> None:
        positive("Dataset: scale", self.scale)
        pixels = int(np.prod(self.image_shape))
        for part in ("train", "test"):
            images, labels = (
                _read_only_field(self, f"{part}_{what}") for what in ("images", "labels")
            )
            if images.ndim != 2 or images.shape[1] != pixels:
                raise ValueError(
                    f"Dataset: {part}_images must be images × {pixels} for image_shape "
                    f"{self.image_shape}, got shape {images.shape}; flatten every image to a row."
                )
            if labels.shape != images.shape[:1]:
                raise ValueError(
                    f"Dataset: {part}_labels must be one per image, {len(images)} of them, "
                    f"got shape {labels.shape}; give one label for each row."
                )
            if labels.size and labels.max() >= self.classes:
                raise ValueError(
                    f"Dataset: {part}_labels must be in 0..{self.classes - 1}, "
                    f"got {labels.max()}; name every class in class_names."
                )

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def image(self, index: int, *, part: Literal["train", "test"] = "train") -> Bytes:
        """Return one image in its ``image_shape``."""
        images = self.train_images if part == "train" else self.test_images
        image: Bytes = images[index]
        return image.reshape(self.image_shape)

    def __repr__(self) -> str:
        sizes = f"{len(self.train_images)} + {len(self.test_images)} images"
        return f"Dataset({self.name!r}, {sizes}, shape {self.image_shape}, {self.classes} classes)"


def _read_only_field(dataset: Dataset, field: str) -> Bytes:
    """Make a field C-contiguous and read-only; writeable arrays are copied."""
    array: Bytes = getattr(dataset, field)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        kind = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"Dataset: {field} must be an array of uint8, got {kind}; convert it.")
    array = np.array(array, order="C", copy=True if array.flags.writeable else None)
    array.setflags(write=False)
    object.__setattr__(dataset, field, array)
    return array


def digits() -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits of 8 × 8 pixels, which need no download.

    Pixels are 0..16. Every fifth image of each class is in the test part, so the split is always
    the same and has all classes in equal proportions.

    Examples
    --------
    >>> digits()
    Dataset('digits', 1442 + 355 images, shape (8, 8), 10 classes)
    """
    bunch = import_optional("sklearn.datasets").load_digits()
    images, labels = bunch.data.astype(np.uint8), bunch.target.astype(np.uint8)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[4::5]] = True
    parts = images[~test], labels[~test], images[test], labels[test]
    return Dataset("digits", *parts, image_shape=(8, 8), class_names=DIGITS, scale=1 / 16)


def mnist(
    *,
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return MNIST: 60,000 + 10,000 grey images of 28 × 28 pixels.

    Parameters
    ----------
    data_dir : path, optional
        A directory with the files, by default the value of ``PCFED_DATA``. If files are missing
        there, those in the cache are used, and downloaded first if necessary.
    cache_dir : path, optional
        The cache, by default pcfed's directory in the cache of the operating system.
    progress : callable, optional
        Called during downloads with a name, the bytes received and the bytes expected; by default
        there is a line on the terminal.

    Raises
    ------
    DataError
        If the files are not available; the message says which files to put where.

    References
    ----------
    LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998.
    """
    return load("mnist", data_dir=data_dir, cache_dir=cache_dir, progress=progress)


def cifar10(
    *,
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return CIFAR-10: 50,000 + 10,000 colour images of 32 × 32 pixels.

    The 3,072 features of an image are in the order row, column, colour. (The original
    files have the colours first; ``image(i).transpose(2, 0, 1)`` is that order.)

    Parameters
    ----------
    data_dir, cache_dir, progress
        As in :func:`mnist`.

    Raises
    ------
    DataError
        If the files are not available; the message says which files to put where.

    References
    ----------
    Krizhevsky: Learning multiple layers of features from tiny images, 2009.
    """
    return load("cifar10", data_dir=data_dir, cache_dir=cache_dir, progress=progress)


def swissmetro(
    *,
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    progress: Progress | None = None,
) -> Table:
    """Return Swissmetro: 10,728 choices of train, Swissmetro or car, nine by each traveller.

    A survey of 1998 in Switzerland: travellers (``ID``) on a relation (``ORIGIN``, ``DEST``,
    cantons) chose (``CHOICE``; 1 train, 2 Swissmetro, 3 car, 0 unknown) among hypothetical travel
    times (``_TT``), costs (``_CO``) and headways (``_HE``).

    Parameters
    ----------
    data_dir, cache_dir, progress
        As in :func:`mnist`.

    Raises
    ------
    DataError
        If the file is not available; the message says which file to put where.

    References
    ----------
    Bierlaire, Axhausen, Abay: The acceptance of modal innovation: the case of Swissmetro, 2001.
    """
    return _load_table(catalog.SWISSMETRO, data_dir, cache_dir, progress)


def electricity(
    *,
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    progress: Progress | None = None,
) -> Table:
    """Return Electricity: 4,308 choices among four suppliers, up to twelve by each customer.

    A survey of households in the United States, with four rows per choice (``chid``), one for each
    supplier (``alt``). Customers (``id``) saw the price (``pf``, 0 if it depends on the time), the
    length of the contract (``cl``), and whether the supplier is local (``loc``), well known
    (``wk``), and has prices by time of day (``tod``) or season (``seas``); ``choice`` is TRUE for
    the one that they chose.

    Parameters
    ----------
    data_dir, cache_dir, progress
        As in :func:`mnist`.

    Raises
    ------
    DataError
        If the file is not available; the message says which file to put where.

    References
    ----------
    Train: Discrete Choice Methods with Simulation, 2003.
    """
    return _load_table(catalog.ELECTRICITY, data_dir, cache_dir, progress)


def _load_table(
    entry: CatalogEntry,
    data_dir: PathLike | None,
    cache_dir: PathLike | None,
    progress: Progress | None,
) -> Table:
    """Return a table whose file, compressed or not, is the only one of its data set."""
    _, contents = obtain(entry, data_dir=data_dir, cache_dir=cache_dir, progress=progress)
    (content,) = contents.values()
    plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    parsed = read_csv(entry.name, plain, ())
    columns = dict(zip(parsed.names, parsed.columns, strict=True))
    return Table(entry.name, columns, parsed.lines)


def load(
    name: str,
    *,
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return the images of that name, one of :func:`available`; see :func:`mnist`."""
    if name not in available():
        raise ValueError(f"load: name must be one of {', '.join(available())}, got {name!r}.")
    entry = _catalog_entry("load", name)
    if entry is None:
        return digits()
    _, contents = obtain(entry, data_dir=data_dir, cache_dir=cache_dir, progress=progress)
    return _PARSERS[name](contents)


def fetch(
    name: str,
    *,
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    progress: Progress | None = None,
) -> Path | None:
    """Download a data set unless it is here already, and return the folder of its files.

    Files in ``data_dir`` are used and not changed; downloads go to the cache. The result is None
    for ``"digits"``, which comes with scikit-learn. See :func:`mnist` for the arguments.
    """
    entry = _catalog_entry("fetch", name)
    if entry is None:
        return None
    return obtain(entry, data_dir=data_dir, cache_dir=cache_dir, progress=progress)[0]


def available() -> tuple[str, ...]:
    """Return the names of the data sets of images, for :func:`load`.

    Examples
    --------
    >>> available()
    ('digits', 'mnist', 'cifar10')
    """
    return ("digits", "mnist", "cifar10")


def tables() -> tuple[str, ...]:
    """Return the names of the tables; each has a function of its name.

    Examples
    --------
    >>> tables()
    ('swissmetro', 'electricity')
    """
    return ("swissmetro", "electricity")


@dataclass(frozen=True)
class DatasetStatus:
    """Which files of a data set are on this machine.

    Parameters
    ----------
    name : str
        The data set.
    ready : bool
        Whether it can be loaded without a download.
    folder : Path or None
        The folder of its files, which need not exist yet; None for ``"digits"``.
    missing, damaged : tuple of str
        The files that must be downloaded, and the paths of those with a wrong checksum.
    size : int
        Total size of the files that are here, in bytes.
    """

    name: str
    ready: bool
    folder: Path | None
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    size: int


def status(
    name: str, *, data_dir: PathLike | None = None, cache_dir: PathLike | None = None
) -> DatasetStatus:
    """Return which files of a data set are here, verified, without a download.

    Examples
    --------
    >>> status("digits").ready
    True
    """
    entry = _catalog_entry("status", name)
    if entry is None:
        return DatasetStatus(name, True, None, (), (), 0)
    user = user_directory(name, data_dir)
    folder, found = user, None
    if user is not None:
        found = find_files(entry, user)
    if found is None or (found.missing(entry) and not found.damaged):
        folder = cache_directory(cache_dir) / name
        found = find_files(entry, folder)
    missing = tuple(file.name for file in found.missing(entry))
    size = sum(len(content) for content in found.contents.values())
    return DatasetStatus(name, not missing, folder, missing, tuple(found.damaged), size)


def path(
    name: str | None = None, *, data_dir: PathLike | None = None, cache_dir: PathLike | None = None
) -> Path | None:
    """Return the folder of a data set, which need not exist yet; without a name, the cache.

    The result is None for ``"digits"``, which comes with scikit-learn.
    """
    if name is None:
        return cache_directory(cache_dir)
    return status(name, data_dir=data_dir, cache_dir=cache_dir).folder


def _catalog_entry(where: str, name: str) -> CatalogEntry | None:
    """Return the catalog entry of a data set; None for "digits", which needs no files."""
    names = (*available(), *tables())
    if name not in names:
        raise ValueError(f"{where}: name must be one of {', '.join(names)}, got {name!r}.")
    entries = (catalog.MNIST, catalog.CIFAR10, catalog.SWISSMETRO, catalog.ELECTRICITY)
    return {entry.name: entry for entry in entries}.get(name)


def _mnist(contents: Contents) -> Dataset:
    parts = {
        f"{part}_{what}": _idx(contents[f"{file}-{what}-idx{ndim}-ubyte.gz"], ndim)
        for part, file in (("train", "train"), ("test", "t10k"))
        for what, ndim in (("images", 3), ("labels", 1))
    }
    shape = (28, 28)
    return Dataset("mnist", **parts, image_shape=shape, class_names=DIGITS, scale=1 / 255)


def _idx(content: bytes, ndim: int) -> Bytes:
    """Return the contents of an IDX file, compressed or not, flattened to one row per item."""
    plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    shape = tuple(np.frombuffer(plain, ">i4", ndim, 4).tolist())
    if plain[:4] != bytes([0, 0, 8, ndim]):
        raise DataError(f"mnist: an IDX file must have {ndim} dimensions of bytes; fetch it again.")
    array = np.frombuffer(plain, np.uint8, offset=4 + 4 * ndim)
    return array.reshape(shape[0], -1) if ndim > 1 else array.reshape(shape)


def _cifar10(contents: Contents) -> Dataset:
    batches = [contents[f"data_batch_{number}.bin"] for number in range(1, 6)]
    train, test = _cifar_images(batches), _cifar_images([contents["test_batch.bin"]])
    shape = (32, 32, 3)
    return Dataset("cifar10", *train, *test, image_shape=shape, class_names=OBJECTS, scale=1 / 255)


def _cifar_images(batches: list[bytes]) -> tuple[Bytes, Bytes]:
    """Return images (row, column, colour) and labels of records (label, colour, row, column)."""
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, 1 + 3 * 1024)
    colours = [records[:, 1 + 1024 * colour :][:, :1024] for colour in range(3)]
    images = np.stack(colours, axis=2).reshape(-1, 3 * 1024)
    images.setflags(write=False)
    return images, records[:, 0]


_PARSERS: dict[str, Callable[[Contents], Dataset]] = {"mnist": _mnist, "cifar10": _cifar10}
