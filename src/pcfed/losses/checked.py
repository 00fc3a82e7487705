"""The base class of the losses of this package, which checks arguments and forbids changes."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array
from pcfed.errors import short_repr
from pcfed.losses.base import ALL_ROWS, Loss, RowIndex, Rows, num_rows


class CheckedLoss(Loss):
    """A loss that cannot be changed after its constructor, with checks of all arguments."""

    def __setattr__(self, name: str, value: object) -> None:
        if "_frozen" in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__}: {name} cannot be changed; make a new loss instead."
            )
        super().__setattr__(name, value)

    def gradient(self, x: ArrayLike, rows: Rows = None, out: Array | None = None) -> Array:
        """Return the gradient of the mean over ``rows``, with the regulariser; see `Loss.gradient`.

        A slice reads the data in place; an array of row numbers copies those rows, one block at a
        time.
        """
        index, count = self._check_batch(rows)
        with np.errstate(all="ignore"):
            x = self._check_parameters(x)
            grad = self._gradient_buffer(x, out)
            self._write_gradient(index, count, x, grad)
            if out is None or out is grad:
                return grad
            out[...] = grad
        return out

    @abstractmethod
    def _write_gradient(self, index: RowIndex, count: int, x: Array, grad: Array) -> None:
        """Write the gradient of the mean over ``count`` rows to ``grad``, which is not ``x``."""

    def _freeze(self) -> None:
        """Forbid changes from now on; the last call of a constructor."""
        self._frozen = True

    def _check_parameters(self, x: ArrayLike) -> Array:
        """Return ``x`` as a contiguous vector in the dtype of the loss."""
        array = np.asarray(x)
        if array.shape != (self.n,) or array.dtype.kind not in "fiub":
            raise ValueError(
                f"{type(self).__name__}: x must be a flat vector of {self.n} real parameters, got "
                f"shape {array.shape} of {array.dtype}; flatten it with x.ravel()."
            )
        return np.ascontiguousarray(array, self.dtype)

    def _gradient_buffer(self, x: Array, out: Array | None) -> Array:
        """Return ``out`` if the gradient can be accumulated in it, otherwise a new vector."""
        if out is None:
            return np.empty(self.n, self.dtype)
        if not isinstance(out, np.ndarray) or out.shape != (self.n,) or out.dtype.kind != "f":
            raise ValueError(
                f"{type(self).__name__}: out must be a float array of shape ({self.n},), got "
                f"{describe_argument(out)}; make it with "
                f"numpy.empty({self.n}, {str(self.dtype)!r})."
            )
        direct = out.dtype == self.dtype and out.flags.c_contiguous
        # Blocks after the first still read x, so it must not be overwritten by the first one.
        return out if direct and not np.may_share_memory(x, out) else np.empty_like(x)

    def _check_batch(self, rows: Rows) -> tuple[RowIndex, int]:
        """Return a batch as a slice or an array of row numbers, and how many rows it selects."""
        index: RowIndex
        if rows is None or isinstance(rows, slice):
            index = ALL_ROWS if rows is None else rows
        else:
            index = self._check_row_numbers(rows)
        count = num_rows(index, self.size)
        if count == 0:
            raise ValueError(
                f"{type(self).__name__}: rows must select at least one of the {self.size} "
                f"samples, got {rows!r}; give a batch that is not empty."
            )
        return index, count

    def _check_row_numbers(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return rows as a vector of row numbers, possibly empty."""
        index = np.asarray(rows)
        if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
            raise ValueError(
                f"{type(self).__name__}: rows must be a slice or a vector of row numbers, got "
                f"{describe_argument(rows)}; for a mask give numpy.flatnonzero(mask)."
            )
        if index.size and not (-self.size <= index.min() and index.max() < self.size):
            raise ValueError(
                f"{type(self).__name__}: rows must lie in 0..{self.size - 1}, got "
                f"{index.min()} to {index.max()}; draw them from range({self.size})."
            )
        return index.astype(np.intp, copy=False)

    def _check_order(self, order: ArrayLike) -> NDArray[np.intp]:
        """Return a permutation of all rows as an array of row numbers."""
        index = np.asarray(order)
        fits = index.shape == (self.size,) and index.dtype.kind in "iu"
        if not (fits and np.array_equal(np.sort(index), np.arange(self.size))):
            raise ValueError(
                f"{type(self).__name__}: order must hold every row 0..{self.size - 1} once, "
                f"got {describe_argument(index)}; make it with rng.permutation({self.size})."
            )
        return index.astype(np.intp)


def describe_argument(value: object) -> str:
    """Return a short description of an argument: shape and dtype of an array, else its repr."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} of {value.dtype}"
    return f"{type(value).__name__} {short_repr(value)}"
