"""What losses over samples share: they never change, and they check what they are called with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array
from pcfed.losses.base import Loss, Rows
from pcfed.losses.features import Index, len_of

EVERY = slice(None)


class SampleLoss(Loss):
    """Base of the losses of this package: immutable, with the same words for the same mistakes."""

    def __setattr__(self, name: str, value: object) -> None:
        if "_sealed" in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__}: {name} cannot be changed; make a new loss instead."
            )
        super().__setattr__(name, value)

    def _parameters(self, x: ArrayLike) -> Array:
        """Return ``x`` as a contiguous vector in the dtype of the loss."""
        array = np.asarray(x)
        if array.shape != (self.n,) or array.dtype.kind not in "fiub":
            raise ValueError(
                f"{type(self).__name__}: x must be a flat vector of {self.n} real parameters, got "
                f"shape {array.shape} of {array.dtype}; flatten it with x.ravel()."
            )
        return np.ascontiguousarray(array, self.dtype)

    def _buffer(self, x: Array, out: Array | None) -> Array:
        """Return ``out`` if the gradient can be summed up in it, or else a new vector."""
        if out is None:
            return np.empty(self.n, self.dtype)
        if not isinstance(out, np.ndarray) or out.shape != (self.n,) or out.dtype.kind != "f":
            raise ValueError(
                f"{type(self).__name__}: out must be a float array of shape ({self.n},), got "
                f"{brief(out)}; make it with numpy.empty({self.n}, {str(self.dtype)!r})."
            )
        direct = out.dtype == self.dtype and out.flags.c_contiguous
        return out if direct and not np.may_share_memory(x, out) else np.empty_like(x)

    def _batch(self, rows: Rows) -> tuple[Index, int]:
        """Return rows as a slice or an array of row numbers, and how many there are."""
        index = self._index(rows)
        count = len_of(index, self.size)
        if count == 0:
            raise ValueError(
                f"{type(self).__name__}: rows must select at least one of the {self.size} "
                f"samples, got {rows!r}; give a batch that is not empty."
            )
        return index, count

    def _index(self, rows: Rows) -> Index:
        """Return rows as a slice or an array of row numbers."""
        if rows is None:
            return EVERY
        if isinstance(rows, slice):
            return rows
        index = np.asarray(rows)
        if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
            raise ValueError(
                f"{type(self).__name__}: rows must be a slice or a vector of row numbers, got "
                f"{brief(rows)}; for a mask give numpy.flatnonzero(mask)."
            )
        if index.size and not (-self.size <= index.min() and index.max() < self.size):
            raise ValueError(
                f"{type(self).__name__}: rows must lie in 0..{self.size - 1}, got "
                f"{index.min()} to {index.max()}; draw them from range({self.size})."
            )
        return index.astype(np.intp, copy=False)

    def _order(self, order: ArrayLike) -> NDArray[np.intp]:
        """Return a permutation of all rows as an array of row numbers."""
        index = np.asarray(order)
        fits = index.shape == (self.size,) and index.dtype.kind in "iu"
        if not (fits and np.array_equal(np.sort(index), np.arange(self.size))):
            raise ValueError(
                f"{type(self).__name__}: order must hold every row 0..{self.size - 1} once, "
                f"got {brief(index)}; make it with rng.permutation({self.size})."
            )
        return index.astype(np.intp)


def brief(value: object) -> str:
    """Describe an argument in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} of {value.dtype}"
    return f"{type(value).__name__} {value!r}"[:80]
