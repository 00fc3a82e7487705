r"""The base class of linear models: data, blocks, intercept, l2 term, smoothness.

The loss of a sample depends on the parameters only through its logits $t = W \varphi + b$. A
subclass defines the loss of a sample, its derivative and its prediction as functions of the
logits. Logits are arrays of shape (outputs, samples): sums over ten classes are then sums of
contiguous rows, which is measurably faster than (samples, outputs).
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import OTHER
from pcfed.losses import compiled, feature_norms
from pcfed.losses.base import ALL_ROWS, CLIP_MARGIN, RowIndex, Rows
from pcfed.losses.checked import CheckedLoss
from pcfed.losses.features import Features, Matrix, as_number_array, is_sparse, read_features
from pcfed.validation import boolean, positive

LEAST_NORM = 1e-140
"""For clipped gradients, no features are shorter, and no shorter derivatives count: the squares of
smaller numbers are rounded coarsely, and the other factor of a gradient may be huge."""


class LinearModel(CheckedLoss):
    """A convex loss of the logits ``coefficients @ features + intercept``.

    The flat vector holds the coefficients (``shape``, row-major), then the intercept. A subclass
    sets the first two attributes and implements the five abstract methods.

    Attributes
    ----------
    max_logit_curvature : float
        The largest eigenvalue of the second derivative of a sample's loss in its logits.
    max_squared_logit_gradient : float
        The supremum of the squared norm of the derivative of a sample's loss in its logits.
    classes : int or None
        The number of logits of a sample; None, the default, for one that is not a class.
    intercept, l2, scale
        As in `SoftmaxRegression`.
    """

    convex = True  # every subclass has a convex loss of the logits, which are linear in x
    max_logit_curvature: float
    max_squared_logit_gradient: float = math.inf
    classes: int | None = None
    _kernel: int = OTHER
    """The loss of ``pcfed.kernels.arguments`` that it is, for the compiled gradient."""
    _permuted_from: Self | None = None
    """The loss of which this has the samples in another order, and so the same norms."""

    def __init__(
        self,
        X: Matrix,
        y: ArrayLike,
        *,
        intercept: bool = False,
        l2: float = 0.0,
        scale: float | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        name = type(self).__name__
        self.intercept = boolean(f"{name}: intercept", intercept)
        self.l2 = positive(f"{name}: l2", l2, zero=True)
        self._given_scale = scale
        self._features = read_features(name, X, scale=scale, dtype=dtype)
        self.scale = self._features.scale
        self.dtype = self._features.dtype
        self.size, columns = self._features.shape
        self._outputs = self.classes or 1
        self.shape = (columns,) if self.classes is None else (self.classes, columns)
        num_coefficients = self._outputs * columns
        self.n = num_coefficients + (self._outputs if intercept else 0)
        self.intercept_slice = slice(num_coefficients, self.n) if intercept else None
        self._targets = self._encode_targets(as_target_vector(name, y, self.size))
        self._targets.setflags(write=False)
        self._freeze()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} samples, shape {self.shape}, {self.dtype})"

    @abstractmethod
    def _encode_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return a checked copy of the targets, encoded as the methods below expect them."""

    @abstractmethod
    def _sample_losses(self, logits: Array, targets: NDArray[Any]) -> Array:
        """Return the loss of every sample; may overwrite the logits."""

    @abstractmethod
    def _logit_gradients(self, logits: Array, targets: NDArray[Any]) -> Array:
        """Return the derivative of every sample's loss in its logits; may overwrite the logits."""

    @abstractmethod
    def _predict_from_logits(self, logits: Array) -> NDArray[Any]:
        """Return the prediction for every sample."""

    @abstractmethod
    def _score(self, predictions: NDArray[Any], targets: NDArray[Any]) -> float:
        """Return how well predictions match encoded targets."""

    # Parameters of any size are allowed: overflow gives inf or NaN as the value, which a run
    # reports as its status. So the methods below compute without NumPy's warnings.

    def value(self, x: ArrayLike) -> float:
        """Return the mean loss over all samples plus the l2 term, summed in float64."""
        with np.errstate(all="ignore"):
            W, b = self._split(self._check_parameters(x))
            total = 0.0
            for block, part in self._features.blocks(ALL_ROWS):
                logits = compute_logits(block, W, b, self.scale)
                losses = self._sample_losses(logits, self._targets[part])
                total += float(losses.sum(dtype=np.float64))
            squares = float(np.square(W, dtype=np.float64).sum()) if self.l2 else 0.0
        return total / self.size + self.l2 / 2 * squares

    def gradients(self, points: Array, rows: Rows, out: Array) -> Array:
        """Write the gradients at several points to ``out``, in one pass over the batch."""
        if type(self).gradient is not LinearModel.gradient:
            return super().gradients(points, rows, out)
        index, count = self._check_batch(rows)
        with np.errstate(all="ignore"):
            self._write_gradients(index, count, points, out)
        return out

    def _write_gradient(self, index: RowIndex, count: int, x: Array, grad: Array) -> None:
        self._write_gradients(index, count, x[None], grad[None])

    def _write_gradients(self, index: RowIndex, count: int, points: Array, grads: Array) -> None:
        if compiled.is_supported(self, count):
            compiled.gradient(self, points, index, grads)
        else:
            self._numpy_gradients(index, count, points, grads)

    def _numpy_gradients(self, index: RowIndex, count: int, points: Array, grads: Array) -> None:
        """Write the gradients on ``count`` rows, in one pass over their blocks."""
        # With the derivatives r of the rows in their logits, it is the mean of r φᵀ, plus l2 · W,
        # in the coefficients, and the mean of r in the intercept.
        first = True
        for block, part in self._features.blocks(index):
            for x, grad in zip(points, grads, strict=True):
                W, b = self._split(x)
                G, c = self._split(grad)
                logits = compute_logits(block, W, b, self.scale)
                R = self._logit_gradients(logits, self._targets[part])
                # R is much smaller than the block and its product, so factors are applied to R.
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
            for x, grad in zip(points, grads, strict=True):
                G, _ = self._split(grad)
                G += self.dtype.type(self.l2) * self._split(x)[0]

    @property
    def can_clip(self) -> bool:
        """Whether the gradient is that of this class, and not replaced by a subclass."""
        return type(self).gradient is LinearModel.gradient

    def clipped_gradients(
        self, points: Array, rows: Rows, clip: float, feature_norm: float | None, out: Array
    ) -> Array:
        """Write the means of clipped gradients; see `Loss.clipped_gradients`.

        The gradient of a sample is the product of the derivative r in its logits and its features,
        so that its norm is the product of their norms.
        """
        if not self.can_clip:
            return super().clipped_gradients(points, rows, clip, feature_norm, out)
        index, count = self._check_batch(rows)
        clip *= 1 - CLIP_MARGIN
        totals = np.zeros(points.shape)
        with np.errstate(all="ignore"):
            row_norms = self._row_norms  # before the loop: computing them overwrites its blocks
            for block, part in self._features.blocks(index):
                norms = np.maximum(row_norms[part], LEAST_NORM)
                shrink = np.ones_like(norms)
                if feature_norm is not None:
                    shrink = np.minimum(1, feature_norm / norms, where=norms > 0, out=shrink)
                slopes = []
                for x in points:
                    W, b = self._split(x)
                    logits = compute_logits(block, W, None, self.scale)
                    logits *= shrink.astype(self.dtype)
                    if b is not None:
                        logits += b[:, None]
                    slopes.append(self._logit_gradients(logits, self._targets[part]))
                squares = sum(np.square(R, dtype=np.float64).sum(axis=0) for R in slopes)
                lengths = np.sqrt(squares * ((shrink * norms) ** 2 + float(self.intercept)))
                # A gradient that is not finite would reveal its sample: it counts as zero.
                factors = np.where(lengths > clip, clip / lengths, 1.0)
                factors[~np.isfinite(lengths) | (squares < LEAST_NORM**2)] = 0.0
                # In float32, one record would move the rounding errors of a sum by too much.
                wide = block.astype(np.float64, copy=False)
                for slope, total in zip(slopes, totals, strict=True):
                    R = np.where(factors > 0, slope, 0) * factors
                    G, c = self._split(total)
                    if c is not None:
                        c += R.sum(axis=1)
                    R *= self.scale * shrink
                    # Numbers below this are rounded coarsely, and features may be huge.
                    R[np.abs(R) < np.finfo(np.float64).tiny] = 0
                    G += R @ wide
            np.divide(totals, count, out=out, casting="same_kind")
        return out

    def add_regularizer_gradient(self, points: Array, out: Array) -> Array:
        """Add l2 · W to the coefficients; see `Loss.add_regularizer_gradient`."""
        if self.l2:
            with np.errstate(all="ignore"):
                for x, grad in zip(points, out, strict=True):
                    G, _ = self._split(grad)
                    G += out.dtype.type(self.l2) * self._split(x)[0]
        return out

    def records(self) -> Sequence[NDArray[Any]]:
        """Return the features, for sparse ones the arrays that hold them, and the targets."""
        matrix = self._features.matrix
        dense = (matrix.data, matrix.indices, matrix.indptr) if is_sparse(matrix) else (matrix,)
        return (*dense, self._targets)

    def curvature_bound(self, feature_norm: float | None) -> float:
        r"""Return $c (F^2 + 1) + l_2$ for rows of norm F at most; the 1 is for an intercept."""
        if feature_norm is None:
            return math.inf
        return self.max_logit_curvature * (feature_norm**2 + self.intercept) + self.l2

    def smoothness(self) -> float:
        r"""Return $L_f = c\,\lambda_{\max}(\Phi^\top\Phi/N) + l_2$, an upper bound.

        An intercept counts as a feature that is always 1. The factor $c$ is ½ for softmax, ¼ for
        logistic and 1 for least squares. The eigenvalue is computed once, by Lanczos, and raised
        by one part in 1,000, which is more than the error of Lanczos.
        """
        return self.max_logit_curvature * self._largest_eigenvalue + self.l2

    def typical_smoothness(self, batch: int | None = None) -> float:
        r"""Return the expected smoothness of batches of b samples, all N by default.

        $$ \frac{N (b - 1)}{b (N - 1)} L_f + \frac{N - b}{b (N - 1)} L_1, \qquad
           L_1 = c \max_j \|\varphi_j\|^2 + l_2 $$

        References
        ----------
        Gower et al., "SGD: general analysis and improved rates" (2019), proposition 3.8.
        """
        N = self.size
        if batch is None or batch >= N:
            return self.smoothness()
        L_1 = self.max_logit_curvature * self._max_squared_row_norm + self.l2
        return (N * (batch - 1) * self.smoothness() + (N - batch) * L_1) / (batch * (N - 1))

    def gradient_spread(self) -> float:
        r"""Return $c \cdot \frac1N \sum_j \|\varphi_j\|^2$, a bound on the variance of one sample.

        The gradient of a sample is $r_j \varphi_j^\top$ with the derivative $r_j$ in its logits,
        and $c$ bounds $\|r_j\|^2$: 2 for softmax, since $\|p - e_y\|^2 \le 2$, and 1 for
        logistic regression. For least squares $r_j$ is unbounded, and so is the variance.
        """
        if math.isinf(self.max_squared_logit_gradient):
            return math.inf
        squares = feature_norms.squared_frobenius_norm(self._features, intercept=self.intercept)
        return self.max_squared_logit_gradient * squares / self.size

    def to_float64(self) -> Self:
        """Return the same loss in float64 arithmetic on the same data."""
        if self.dtype == np.float64:
            return self
        other = copy.copy(self)
        other.__dict__.update(_features=self._features.to_float64(), dtype=np.dtype(np.float64))
        return other

    @cached_property
    def _largest_eigenvalue(self) -> float:
        """The largest eigenvalue of ΦᵀΦ/N, computed at first use."""
        if self._permuted_from is not None:
            return self._permuted_from._largest_eigenvalue
        return feature_norms.largest_eigenvalue(self._features, intercept=self.intercept)

    @cached_property
    def _max_squared_row_norm(self) -> float:
        """The largest ‖φ‖², computed at first use."""
        if self._permuted_from is not None:
            return self._permuted_from._max_squared_row_norm
        return feature_norms.max_squared_row_norm(self._features, intercept=self.intercept)

    @cached_property
    def _row_norms(self) -> Float64Array:
        """The norm of the features of every sample, without the intercept."""
        return feature_norms.row_norms(self._features)

    def permute_samples(self, order: ArrayLike) -> Self:
        """Return a copy of this loss, and of its data, with the samples in another order."""
        index = self._check_order(order)
        other = copy.copy(self)
        targets = self._targets[index]
        targets.setflags(write=False)
        features = self._features.permute_rows(index)
        other.__dict__.pop("_row_norms", None)
        other.__dict__.update(_features=features, _targets=targets, _permuted_from=self)
        return other

    def take_samples(self, rows: ArrayLike) -> Self:
        """Return a copy of this loss on some of its samples, given by their row numbers."""
        index, count = self._check_batch(np.asarray(rows))
        other = copy.copy(self)
        norms = ("_largest_eigenvalue", "_max_squared_row_norm", "_row_norms")
        for name in (*norms, "_permuted_from"):
            other.__dict__.pop(name, None)  # they are those of all samples
        features, targets = self._features.permute_rows(np.asarray(index)), self._targets[index]
        targets.setflags(write=False)
        other.__dict__.update(_features=features, _targets=targets, size=count)
        return other

    def unpack(self, x: ArrayLike) -> tuple[Array, Array | None]:
        """Return the coefficients, of ``shape``, and the intercept (None if there is none).

        Both are views on ``x`` if it has the dtype of the loss.
        """
        with np.errstate(all="ignore"):
            W, b = self._split(self._check_parameters(x))
        return W.reshape(self.shape), b

    def predict(self, x: ArrayLike, X: Matrix) -> NDArray[Any]:
        """Return the prediction for every row of ``X`` by the model with parameters ``x``.

        ``X`` is read as in the constructor: it is multiplied by ``scale`` if that was given;
        otherwise uint8 pixels are divided by 255 and other features stay as they are.
        """
        return self._predict_features(x, self._read_new_features(X))

    def accuracy(self, x: ArrayLike, X: Matrix | None = None, y: ArrayLike | None = None) -> float:
        """Return the fraction of samples whose label is predicted correctly.

        Parameters
        ----------
        x : array of shape (n,)
            The parameters.
        X, y : arrays, optional
            Other data than those of the loss, as in the constructor. Give both or neither.
        """
        if (X is None) != (y is None):
            missing = "y" if y is None else "X"
            raise ValueError(
                f"{type(self).__name__}: accuracy needs X and y together, got no {missing}; "
                "give both, or neither for the loss's own data."
            )
        if X is None or y is None:
            return self._score(self._predict_features(x, self._features), self._targets)
        data = self._read_new_features(X)
        targets = self._encode_targets(as_target_vector(type(self).__name__, y, data.shape[0]))
        return self._score(self._predict_features(x, data), targets)

    def sample_errors(self, x: ArrayLike) -> Float64Array | None:
        """Return the error of every sample; ``accuracy`` is 1 minus their mean."""
        return self._errors(self._predict_features(x, self._features), self._targets)

    def sample_predictions(self, x: ArrayLike) -> NDArray[Any]:
        """Return the prediction for every sample."""
        return self._predict_features(x, self._features)

    def _errors(self, predictions: NDArray[Any], targets: NDArray[Any]) -> Float64Array | None:
        """Return the errors of predictions, whose mean is 1 minus the score; None by default."""
        return None

    def _read_new_features(self, X: Matrix) -> Features:
        """Return features for predictions, with as many columns as the data of the loss."""
        name = type(self).__name__
        data = read_features(name, X, scale=self._given_scale, dtype=self.dtype)
        if data.shape[1] != self.shape[-1]:
            raise ValueError(
                f"{name}: X must have {self.shape[-1]} features like the data of the loss, "
                f"got {data.shape[1]}; give one row per sample, in the same columns."
            )
        return data

    def _predict_features(self, x: ArrayLike, data: Features) -> NDArray[Any]:
        """Return the prediction for every row of features, one block at a time."""
        with np.errstate(all="ignore"):
            W, b = self._split(self._check_parameters(x))
            return np.concatenate(
                [
                    self._predict_from_logits(compute_logits(block, W, b, data.scale))
                    for block, _ in data.blocks(ALL_ROWS)
                ]
            )

    def _split(self, x: Array) -> tuple[Array, Array | None]:
        """Return views on the coefficients, (outputs, features), and the intercept."""
        num_coefficients = self._outputs * self.shape[-1]
        W = x[:num_coefficients].reshape(self._outputs, -1)
        return W, x[num_coefficients:] if self.intercept else None


def as_target_vector(name: str, y: ArrayLike, size: int | None = None) -> NDArray[Any]:
    """Return targets as an array of real numbers, of length ``size`` if that is given."""
    array = as_number_array(y)
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


def compute_logits(block: Matrix, W: Array, b: Array | None, scale: float) -> Array:
    """Return W φ + b for every row φ of the scaled block, of shape (outputs, samples)."""
    logits: Array = np.ascontiguousarray((block @ W.T).T)
    if scale != 1:
        logits *= logits.dtype.type(scale)
    if b is not None:
        logits += b[:, None]
    return logits
