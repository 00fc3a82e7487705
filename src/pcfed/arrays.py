"""Types of arrays, and memory for them."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating[Any]]
"""A float array: float64 for state, the dtype of the data for local steps."""

Float64Array = NDArray[np.float64]

LINE, LARGE = 64, 2**20
"""Bytes of a line of the cache, and of an array that gets pages of its own."""


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an array with anything in it that begins with a line of the cache.

    Loops over arrays that begin in the middle of one, as NumPy's do, load most vectors from two.
    A large one gives its memory back at once when nobody uses it any more: of those that threads
    get from ``malloc``, much is kept for later.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size >= LARGE and hasattr(mmap, "MAP_PRIVATE"):
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype).reshape(shape)
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype).reshape(shape)
