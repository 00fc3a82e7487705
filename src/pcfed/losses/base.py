r"""What every local loss offers to the algorithms: value, gradient, smoothness.

In this folder $x$ is the flat parameter vector, $\varphi_j$ the features of sample $j$ and
$N$ the number of samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array

Rows = slice | NDArray[np.integer[Any]] | None
"""Which samples: a slice, an array of whole numbers (repeats count twice), or None for all."""


class Loss(ABC):
    r"""A local loss $f(x) = \frac1N \sum_j \ell_j(x) + r(x)$ over the data of one agent.

    A loss is immutable: data and options are fixed when it is made, and parameters are always
    passed in, as one flat vector. To use a model of your own, set the attributes below and
    implement the four methods.

    Attributes
    ----------
    n : int
        Number of parameters, an intercept included.
    shape : tuple of int
        Shape of the coefficients, which come first in the flat vector, row-major.
    size : int
        Number of samples, $N$.
    dtype : numpy.dtype
        float32 or float64, the dtype of gradients and so of local steps.
    convex : bool
        Whether $f$ is convex; certificates need it.
    free : slice or None
        The part of the flat vector that constraints leave alone (the intercept).
    """

    n: int
    shape: tuple[int, ...]
    size: int
    dtype: np.dtype[Any]
    convex: bool
    free: slice | None

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

    @abstractmethod
    def smoothness(self) -> float:
        """Return $L_f$, a Lipschitz constant of the gradient."""

    def typical_smoothness(self, batch: int | None = None) -> float:
        """Return the curvature to expect, where $L_f$ is a bound that data hardly ever reach.

        ``step="auto"`` is made from it; $L_f$ where nothing better is known.

        Parameters
        ----------
        batch : int, optional
            Number of samples in a gradient; all by default. Few samples are more curved than many.
        """
        return self.smoothness()

    def gradient_spread(self) -> float:
        r"""Return a bound of the variance of the gradient of one sample, wherever it is taken.

        $$ \sup_x \frac1N \sum_j \|\nabla \ell_j(x) - \nabla \bar\ell(x)\|^2,
           \qquad \bar\ell = \frac1N \sum_j \ell_j $$

        Infinite where there is none, or none is known.
        """
        return math.inf

    def double(self) -> Loss:
        """Return the same loss with float64 arithmetic; itself where there is no such form."""
        return self

    def accuracy(self, x: ArrayLike) -> float:
        """Return the share of samples that the model gets right; NaN where that has no meaning."""
        return math.nan

    @abstractmethod
    def permuted(self, order: ArrayLike) -> Loss:
        """Return this loss with its samples in another order, so that batches can be slices."""
