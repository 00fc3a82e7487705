r"""What the three linear models share: data, blocks, intercept, l2 term, smoothness.

A model sees its data only through the logits $t = \Phi W^\top + b$. A subclass says what a
logit costs, its derivative, and what it predicts. Logits are kept as (outputs, samples): sums
over ten classes are then sums of whole rows, measurably faster than (samples, outputs).
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pcfed.arrays import Array
from pcfed.kernels.arguments import OTHER
from pcfed.losses import compiled
from pcfed.losses.base import Rows
from pcfed.losses.features import Features, Index, Matrix, is_sparse, read_features
from pcfed.losses.samples import EVERY, SampleLoss
from pcfed.losses.spectrum import largest_eigenvalue, largest_row, trace
from pcfed.validation import positive


class LinearModel(SampleLoss):
    """Base of the losses that see a sample only through ``coefficients @ features + intercept``.

    The flat vector holds the coefficients (``shape``, row-major), then the intercept.
    """

    convex = True
    curvature: float
    """The largest second derivative of the loss of one sample with respect to its logits."""
    steepest: float = math.inf
    """The supremum of the squared length of the derivative with respect to the logits."""
    intercept: bool
    l2: float
    scale: float
    _scale: float | None
    _features: Features
    _targets: NDArray[Any]
    _outputs: int
    _kernel: int = OTHER
    """Which of the losses of ``pcfed.kernels.arguments`` it is."""

    def __init__(
        self,
        X: Matrix,
        y: ArrayLike,
        *,
        outputs: int | None,
        intercept: bool,
        l2: float,
        scale: float | None,
        dtype: DTypeLike | None,
    ) -> None:
        name = type(self).__name__
        if not isinstance(intercept, (bool, np.bool_)):
            raise ValueError(
                f"{name}: intercept must be True or False, got {intercept!r}; give one of the two."
            )
        self.intercept = bool(intercept)
        self.l2 = positive(f"{name}: l2", l2, zero=True)
        self._scale = scale
        self._features = read_features(name, X, scale=scale, dtype=dtype)
        self.scale = self._features.scale
        self.dtype = self._features.dtype
        self.size, columns = self._features.shape
        self._outputs = outputs or 1
        self.shape = (columns,) if outputs is None else (outputs, columns)
        coefficients = self._outputs * columns
        self.n = coefficients + (self._outputs if intercept else 0)
        self.free = slice(coefficients, self.n) if intercept else None
        self._targets = self._checked_targets(vector(name, y, self.size))
        self._targets.setflags(write=False)
        self._sealed = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} samples, shape {self.shape}, {self.dtype})"

    @abstractmethod
    def _checked_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return a checked copy of a vector of targets in the form that the methods below want."""

    @abstractmethod
    def _costs(self, logits: Array, targets: NDArray[Any]) -> Array:
        """Return the loss of every sample; may overwrite the logits."""

    @abstractmethod
    def _slopes(self, logits: Array, targets: NDArray[Any]) -> Array:
        """Return the derivative of every sample's loss in its logits; may overwrite the logits."""

    @abstractmethod
    def _predictions(self, logits: Array) -> NDArray[Any]:
        """Return what the model predicts from logits."""

    @abstractmethod
    def _score(self, predictions: NDArray[Any], y: NDArray[Any]) -> float:
        """Return how well predictions match checked targets."""

    def value(self, x: ArrayLike) -> float:
        """Return the mean loss over all samples plus the l2 term, summed in float64."""
        with np.errstate(all="ignore"):
            W, b = self._split(self._parameters(x))
            total = 0.0
            for block, part in self._features.blocks(EVERY):
                costs = self._costs(logits_of(block, W, b, self.scale), self._targets[part])
                total += float(costs.sum(dtype=np.float64))
            penalty = float(np.square(W, dtype=np.float64).sum()) if self.l2 else 0.0
        return total / self.size + self.l2 / 2 * penalty

    def gradient(self, x: ArrayLike, rows: Rows = None, out: Array | None = None) -> Array:
        """Return the gradient of the mean over ``rows`` plus the l2 term; see `Loss.gradient`.

        A slice reads the features in place; an array of row numbers copies those rows, a block
        at a time.
        """
        index, count = self._batch(rows)
        with np.errstate(all="ignore"):
            x = self._parameters(x)
            grad = self._buffer(x, out)
            if compiled.is_supported(self, count):
                compiled.gradient(self, x, index, grad)
            else:
                self._sum_slopes(index, count, x, grad)
            if out is not None and out is not grad:
                out[...] = grad
        return grad if out is None else out

    def _sum_slopes(self, index: Index, count: int, x: Array, grad: Array) -> None:
        """Write the gradient: means over the rows of slope ⊗ features and of slopes, and l2 W."""
        W, b = self._split(x)
        G, c = self._split(grad)
        first = True
        for block, part in self._features.blocks(index):
            R = self._slopes(logits_of(block, W, b, self.scale), self._targets[part])
            R *= self.dtype.type(1 / count)
            if c is not None:
                np.add(R.sum(axis=1), 0 if first else c, out=c)
            R *= self.dtype.type(self.scale)
            if first and not is_sparse(block):
                np.matmul(R, block, out=G)
            else:
                np.add(R @ block, 0 if first else G, out=G)
            first = False
        if self.l2:
            G += self.dtype.type(self.l2) * W

    def smoothness(self) -> float:
        r"""Return $L_f = c\,\lambda_{\max}(\Phi^\top\Phi/N) + l_2$, an upper bound.

        An intercept counts as a feature that is always 1. The factor $c$ is ½ for softmax, ¼ for
        logistic and 1 for least squares. The eigenvalue is computed once, by Lanczos, and raised
        by one part in 1,000, which is more than the error of Lanczos.
        """
        return self.curvature * self._eigenvalue + self.l2

    def typical_smoothness(self, batch: int | None = None) -> float:
        r"""Return the smoothness to expect of batches of b, of all N samples by default.

        $$ \frac{N (b - 1)}{b (N - 1)} L_f + \frac{N - b}{b (N - 1)} L_1, \qquad
           L_1 = c \max_j \|\varphi_j\|^2 + l_2 $$

        References
        ----------
        Gower et al., "SGD: general analysis and improved rates" (2019), proposition 3.8.
        """
        N = self.size
        if batch is None or batch >= N:
            return self.smoothness()
        single = self.curvature * self._largest_row + self.l2
        many, few = N * (batch - 1), N - batch
        return (many * self.smoothness() + few * single) / (batch * (N - 1))

    def gradient_spread(self) -> float:
        r"""Return $c \cdot \frac1N \sum_j \|\varphi_j\|^2$, a bound of the variance of one sample.

        A sample's gradient is its slope times its features, and $c$ bounds the squared slope: 2
        for softmax, since $\|p - e_y\|^2 \le 2$, and 1 for logistic regression. The slope of
        least squares has no bound, and neither has its variance.
        """
        if math.isinf(self.steepest):
            return math.inf
        return self.steepest * trace(self._features, self.intercept) / self.size

    def double(self) -> Self:
        """Return the same loss with float64 arithmetic on the same data."""
        if self.dtype == np.float64:
            return self
        other = copy.copy(self)
        other.__dict__.update(_features=self._features.double(), dtype=np.dtype(np.float64))
        return other

    @cached_property
    def _eigenvalue(self) -> float:
        """The largest eigenvalue of ΦᵀΦ/N, computed when first asked for."""
        return largest_eigenvalue(self._features, intercept=self.intercept)

    @cached_property
    def _largest_row(self) -> float:
        """The largest ‖φ‖², computed when first asked for."""
        return largest_row(self._features, self.intercept)

    def permuted(self, order: ArrayLike) -> Self:
        """Return this loss with its samples in another order, so that batches can be slices.

        Parameters
        ----------
        order : array of int
            Every row number 0..size-1 once. Features and targets are copied in that order.
        """
        index = self._order(order)
        other = copy.copy(self)
        targets = self._targets[index]
        targets.setflags(write=False)
        other.__dict__.update(_features=self._features.permuted(index), _targets=targets)
        return other

    def unpack(self, x: ArrayLike) -> tuple[Array, Array | None]:
        """Return the coefficients, of ``shape``, and the intercept (None if there is none).

        Both are views on ``x`` if it has the dtype of the loss.
        """
        with np.errstate(all="ignore"):
            W, b = self._split(self._parameters(x))
        return W.reshape(self.shape), b

    def predict(self, x: ArrayLike, X: Matrix) -> NDArray[Any]:
        """Return the prediction for every row of ``X`` by the model with parameters ``x``.

        ``X`` is read as the constructor reads it: with ``scale`` if that was given; otherwise
        uint8 pixels are divided by 255 and other features are taken as they are.
        """
        return self._predict(x, self._other_features(X))

    def accuracy(self, x: ArrayLike, X: Matrix | None = None, y: ArrayLike | None = None) -> float:
        """Return the share of samples whose label is predicted; of the own data by default.

        Parameters
        ----------
        x : array of shape (n,)
            The parameters.
        X, y : arrays, optional
            Other data, in the form that the constructor takes. Give both or neither.
        """
        if (X is None) != (y is None):
            missing = "y" if y is None else "X"
            raise ValueError(
                f"{type(self).__name__}: accuracy needs X and y together, got no {missing}; "
                "give both, or neither for the loss's own data."
            )
        if X is None or y is None:
            return self._score(self._predict(x, self._features), self._targets)
        data = self._other_features(X)
        targets = self._checked_targets(vector(type(self).__name__, y, data.shape[0]))
        return self._score(self._predict(x, data), targets)

    def _other_features(self, X: Matrix) -> Features:
        """Return features for predictions, checked against the shape of the model."""
        name = type(self).__name__
        data = read_features(name, X, scale=self._scale, dtype=self.dtype)
        if data.shape[1] != self.shape[-1]:
            raise ValueError(
                f"{name}: X must have {self.shape[-1]} features like the data of the loss, "
                f"got {data.shape[1]}; give one row per sample, in the same columns."
            )
        return data

    def _predict(self, x: ArrayLike, data: Features) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            W, b = self._split(self._parameters(x))
            logits = (logits_of(block, W, b, data.scale) for block, _ in data.blocks(EVERY))
            return np.concatenate([self._predictions(each) for each in logits])

    def _split(self, x: Array) -> tuple[Array, Array | None]:
        """Return views on the coefficients, (outputs, features), and the intercept."""
        coefficients = self._outputs * self.shape[-1]
        W = x[:coefficients].reshape(self._outputs, -1)
        return W, x[coefficients:] if self.intercept else None


def vector(name: str, y: ArrayLike, size: int | None = None) -> NDArray[Any]:
    """Return targets as an array of real numbers, one per sample if their number is given."""
    try:
        array = np.asarray(y)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        array = np.asarray("no numbers")
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name}: y must be a vector of real numbers, got {type(y).__name__} of "
            f"{array.dtype}; turn names into numbers with numpy.unique(y, return_inverse=True)."
        )
    if size is not None and array.shape != (size,):
        raise ValueError(
            f"{name}: y must have one entry per row of X, shape ({size},), got shape "
            f"{array.shape}; give as many targets as samples, in a flat vector."
        )
    return array


def logits_of(block: Matrix, W: Array, b: Array | None, scale: float) -> Array:
    """Return W φ + b for every row φ of the scaled block, as (outputs, samples)."""
    logits: Array = np.ascontiguousarray((block @ W.T).T)
    if scale != 1:
        logits *= logits.dtype.type(scale)
    if b is not None:
        logits += b[:, None]
    return logits
