"""Array types, and memory for arrays that are filled again and again."""

from __future__ import annotations

import math
import mmap
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating[Any]]
"""A float array: float64 for state, the dtype of the data for local steps."""

Float64Array = NDArray[np.float64]

CACHE_LINE = 64
"""Bytes of a cache line."""

MAX_MEMORY = 2**30
"""Bytes of an array with one row per agent, above which it is kept in a file."""

PAGES = 2**20
"""Arrays of at least this many bytes get memory pages of their own."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an uninitialised, cache-line-aligned array."""
    # NumPy aligns to 16 bytes; vector loads that straddle two cache lines made loops 5 % slower.
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size >= PAGES and hasattr(mmap, "MAP_PRIVATE"):
        # malloc keeps freed memory of threads; unmapped pages are returned to the system at once.
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype).reshape(shape)
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def large_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an uninitialised array; one of more than ``MAX_MEMORY`` bytes is memory-mapped.

    Its file is in the folder for temporary files (``TMPDIR``), without a name: the system removes
    it when the array is no longer used, also after a crash.
    """
    if math.prod(shape) * np.dtype(dtype).itemsize <= MAX_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


class Workspace:
    """Arrays that are reused from round to round, because allocating them takes longer.

    Memory does not grow with the rounds: only arrays of shapes that the last round used are kept.

    Examples
    --------
    >>> import numpy as np
    >>> workspace = Workspace()
    >>> first = workspace.empty((2, 3), np.float64)
    >>> workspace.release(first, np.ones((2, 3)))
    >>> workspace.empty((2, 3), np.float64) is first
    True
    """

    def __init__(self) -> None:
        self._free: dict[_Layout, list[Array]] = {}
        self._in_use: dict[int, Array] = {}
        self._requested: set[_Layout] = set()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialised array."""
        layout = shape, np.dtype(dtype)
        self._requested.add(layout)
        try:
            array = self._free[layout].pop()
        except (KeyError, IndexError):
            array = aligned_empty(shape, dtype)
        self._in_use[id(array)] = array
        return array

    def release(self, *arrays: Array) -> None:
        """Return arrays that are no longer read; arrays from elsewhere are ignored."""
        for array in arrays:
            if self._in_use.pop(id(array), None) is not None:
                self._free.setdefault((array.shape, array.dtype), []).append(array)

    def start_round(self) -> None:
        """Forget arrays that were not released, and shapes that the last round did not use."""
        self._free = {layout: self._free[layout] for layout in self._requested & self._free.keys()}
        self._in_use.clear()
        self._requested.clear()

    def clear(self) -> None:
        """Free all memory."""
        self._free.clear()
        self._in_use.clear()


_Layout = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""
