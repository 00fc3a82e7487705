"""Data sets and where their bytes come from; partitions of samples among agents.

A data set arrives from a directory that you name, our cache, the package registries, or its public
home, in this order. Nothing of this is trusted: every file is compared with its checksum.
"""

from pcfed.data.datasets import (
    Dataset,
    Status,
    available,
    cifar10,
    digits,
    fetch,
    load,
    mnist,
    path,
    status,
)
from pcfed.data.originals import DataError
from pcfed.data.partitions import by_classes, counts, dirichlet, iid, label_sorted, unequal
from pcfed.data.pictures import picture, show

__all__ = [
    "DataError",
    "Dataset",
    "Status",
    "available",
    "by_classes",
    "cifar10",
    "counts",
    "digits",
    "dirichlet",
    "fetch",
    "iid",
    "label_sorted",
    "load",
    "mnist",
    "path",
    "picture",
    "show",
    "status",
    "unequal",
]
