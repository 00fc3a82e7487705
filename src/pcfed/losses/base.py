r"""The interface of a local loss: value, gradient, smoothness.

In this folder $x$ is the flat parameter vector, $\varphi_j$ the features of sample $j$ and
$N$ the number of samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array, Float64Array

Rows = slice | NDArray[np.integer[Any]] | None
"""The samples of a batch: a slice, an array of row numbers (repeats count twice), None for all."""

RowIndex = slice | NDArray[np.intp]
"""Checked rows: a slice or an array of row numbers, which may repeat or be negative."""

ALL_ROWS = slice(None)

CLIP_MARGIN = 1e-5
"""Gradients are clipped to a norm that is smaller by this share, so that no sum of them exceeds its
bound by rounding errors, which are below it even in the worst case for 100,000 samples."""


class Loss(ABC):
    r"""A local loss $f(x) = \frac1N \sum_j \ell_j(x) + r(x)$ over the data of one agent.

    A loss is immutable: its data and options are set in the constructor, and the parameters are an
    argument of every method, as one flat vector. To write a loss, set the attributes below and
    implement the four abstract methods.

    Attributes
    ----------
    n : int
        Number of parameters, including the intercept.
    shape : tuple of int
        Shape of the coefficients, which come first in the flat vector, row-major.
    size : int
        Number of samples, $N$.
    dtype : numpy.dtype
        float32 or float64, the dtype of gradients and so of local steps.
    convex : bool
        Whether $f$ is convex; certificates need it.
    intercept_slice : slice or None
        The intercept in the flat vector, where constraints do not apply; None, the default, if
        there is no intercept. It comes after all coefficients.
    """

    n: int
    shape: tuple[int, ...]
    size: int
    dtype: np.dtype[Any]
    convex: bool
    intercept_slice: slice | None = None

    @abstractmethod
    def value(self, x: ArrayLike) -> float:
        """Return the mean loss over all samples, with the regulariser, at the flat vector ``x``."""

    @abstractmethod
    def gradient(self, x: ArrayLike, rows: Rows = None, out: Array | None = None) -> Array:
        """Return the gradient of the mean over ``rows``, with the regulariser.

        Parameters
        ----------
        x : array of shape (n,)
            The parameters.
        rows : slice, array of int, or None
            The samples of the batch; None for all.
        out : array of shape (n,), optional
            Where to write the result; returned.
        """

    def gradients(self, points: Array, rows: Rows, out: Array) -> Array:
        """Write the gradients at several points, each as in `gradient`, to the rows of ``out``.

        A loss may override it to read the batch only once.
        """
        for x, g in zip(points, out, strict=True):
            self.gradient(x, rows, out=g)
        return out

    @property
    def can_clip(self) -> bool:
        """Whether it has `clipped_gradients`; False by default."""
        return False

    def clipped_gradients(
        self, points: Array, rows: Rows, clip: float, feature_norm: float | None, out: Array
    ) -> Array:
        r"""Write the means of clipped gradients of single samples to ``out``; for private agents.

        With $g_j$ the gradients of sample j at all points, joined to one vector, it is

        $$ \frac{1}{b} \sum_j \min\Big(1, \frac{\text{clip}}{\|g_j\|}\Big) g_j . $$

        Noise is added to it in float64. All that does not depend on samples, such as the gradient
        of the regulariser, belongs to `add_regularizer_gradient`: before the noise, a number that
        is large enough would round the samples, and so the noise, away.

        Parameters
        ----------
        points : array of shape (points, n)
            The parameters.
        rows : slice, array of int, or None
            The samples of the batch; None for all.
        clip : float
            The largest norm of the joined gradients of a sample.
        feature_norm : float, optional
            The largest norm of a row of features; longer ones are scaled down to it.
        out : array of shape (points, n)
            Where to write the result, in float64; returned.
        """
        name = type(self).__name__
        raise ValueError(
            f"{name}: a privacy budget needs a loss with clipped gradients of single samples, got "
            "one without; implement can_clip and clipped_gradients, or remove the budget."
        )

    def add_regularizer_gradient(self, points: Array, out: Array) -> Array:
        r"""Add $\nabla r$ at several points to the rows of ``out``; nothing by default.

        With it, the means of `clipped_gradients` are gradients of the loss.
        """
        return out

    def records(self) -> Sequence[NDArray[Any]] | None:
        """Return the arrays with the samples; None, the default, if they are not known.

        By their hash the loss of a private agent is recognised (`pcfed.losses.probe`); without
        them, that takes many gradients.
        """
        return None

    def curvature_bound(self, feature_norm: float | None) -> float:
        """Return the curvature to expect, from public numbers only; infinity by default."""
        return math.inf

    @abstractmethod
    def smoothness(self) -> float:
        """Return $L_f$, a Lipschitz constant of the gradient; infinity if none is known."""

    @abstractmethod
    def permute_samples(self, order: ArrayLike) -> Loss:
        """Return a copy of this loss with its samples in another order.

        ``order`` holds every row number 0..size-1 once. ``sampling="blocks"`` shuffles the samples
        once, so that every batch is a slice.
        """

    def take_samples(self, rows: ArrayLike) -> Loss:
        """Return a copy of this loss on some of its samples, given by their row numbers.

        Cross-validation (`pcfed.training.tune`) needs it; the default raises a ValueError.
        """
        name = type(self).__name__
        raise ValueError(
            f"{name}: cross-validation needs losses on some of the samples, got one without "
            "take_samples; implement it, or give the coupling as a number."
        )

    @property
    def sample_classes(self) -> NDArray[np.intp] | None:
        """The class of each sample as a number; None, the default, if targets are not classes."""
        return None

    def typical_smoothness(self, batch: int | None = None) -> float:
        """Return the curvature to expect in training, which may be far below the bound $L_f$.

        ``step="auto"`` is computed from it. The default is $L_f$. The mean over a small ``batch``
        of samples has a larger curvature than the mean over all of them.
        """
        return self.smoothness()

    def gradient_spread(self) -> float:
        r"""Return a bound on the variance of the gradient of one sample that holds at every $x$.

        $$ \sup_x \frac1N \sum_j \|\nabla \ell_j(x) - \nabla \bar\ell(x)\|^2,
           \qquad \bar\ell = \frac1N \sum_j \ell_j $$

        Infinity, the default, if there is no bound or none is known.
        """
        return math.inf

    def to_float64(self) -> Loss:
        """Return the same loss in float64 arithmetic, or the loss itself if it has no such form."""
        return self

    def accuracy(self, x: ArrayLike) -> float:
        """Return the fraction of samples that are predicted correctly; NaN if undefined."""
        return math.nan

    def sample_errors(self, x: ArrayLike) -> Float64Array | None:
        """Return the error of every sample, to compare models on the same samples; or None.

        ``accuracy`` is 1 minus the mean of the errors where it is defined; otherwise the errors are
        the losses of the samples, whose mean is ``value`` without the regulariser.
        """
        return None

    def sample_predictions(self, x: ArrayLike) -> NDArray[Any] | None:
        """Return the prediction for every sample, one row per sample, or None."""
        return None


def num_rows(index: RowIndex, size: int) -> int:
    """Return how many of ``size`` rows an index selects."""
    return len(range(*index.indices(size))) if isinstance(index, slice) else len(index)


def row_numbers(rows: Rows, size: int) -> NDArray[np.intp]:
    """Return the rows of a batch as an array of row numbers, none of them negative."""
    if rows is None or isinstance(rows, slice):
        return np.arange(*(rows or ALL_ROWS).indices(size))
    return np.asarray(rows, np.intp) % size


def split_index(index: RowIndex, size: int, max_rows: int) -> Iterator[RowIndex]:
    """Yield consecutive parts of an index of ``size`` rows, each of at most ``max_rows`` rows.

    Examples
    --------
    >>> list(split_index(slice(2, 9), 10, 3))
    [slice(2, 5, 1), slice(5, 8, 1), slice(8, 9, 1)]
    """
    count = num_rows(index, size)
    if count <= max_rows:
        yield index
    elif isinstance(index, slice):
        rows = range(*index.indices(size))
        for start in range(0, count, max_rows):
            part = rows[start : start + max_rows]
            # A backward range to row 0 stops at -1, which means the last row in a slice.
            yield slice(part.start, None if part.stop < 0 else part.stop, part.step)
    else:
        for start in range(0, count, max_rows):
            yield index[start : start + max_rows]
