"""Linear least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import SQUARES
from pcfed.losses.features import Matrix
from pcfed.losses.linear import LinearModel


class LeastSquares(LinearModel):
    r"""Least squares, half the mean squared error of a linear model.

    $$f(w, b) = \frac1{2N} \sum_j (w^\top \varphi_j + b - y_j)^2 + \frac{l_2}{2} \|w\|^2,
    \qquad \varphi_j = \text{scale} \cdot X_j$$

    ``shape`` is (features,); the flat vector holds w, then b.

    Parameters
    ----------
    y : array of float
        Targets, one per row of X.
    X, intercept, l2, scale, dtype
        As in `SoftmaxRegression`.

    Raises
    ------
    ValueError
        If an argument is out of range, empty, not finite or of the wrong shape.

    Examples
    --------
    >>> loss = LeastSquares([[1.0, 0.0], [0.0, 2.0]], [1.0, 2.0])
    >>> loss.value([0.0, 0.0])
    1.25
    >>> loss.gradient([0.0, 0.0])
    array([-0.5, -2. ])
    """

    max_logit_curvature = 1.0
    _kernel = SQUARES

    def accuracy(self, x: ArrayLike, X: Matrix | None = None, y: ArrayLike | None = None) -> float:
        r"""Return $R^2 = 1 - \sum_j (\hat y_j - y_j)^2 / \sum_j (y_j - \bar y)^2$.

        The accuracy of a regression is the fraction of the variance that it explains: 1 is perfect,
        0 is as good as predicting the mean, and a worse model is negative. For constant targets
        it is 1 if they are predicted exactly and 0 otherwise.
        """
        return super().accuracy(x, X, y)

    def mean_squared_error(self, x: ArrayLike) -> float:
        r"""Return $\frac1N \sum_j (\hat y_j - y_j)^2$, without the l2 term."""
        with np.errstate(all="ignore"):
            residuals = self._predict_features(x, self._features) - self._targets
            return float(np.square(residuals, dtype=np.float64).mean())

    @property
    def target_variance(self) -> float:
        r"""The variance of the targets, $\frac1N \sum_j (y_j - \bar y)^2$."""
        return float(np.var(self._targets, dtype=np.float64))

    def _encode_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            targets = y.astype(self.dtype)
        finite = np.isfinite(targets)
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(
                f"LeastSquares: y must be finite in {self.dtype}, got {y[row]} at row {row}; "
                "remove or replace such samples."
            )
        return targets

    def _sample_losses(self, logits: Array, targets: NDArray[Any]) -> Array:
        logits -= targets
        # Squares of float32 residuals above 1e19 overflow, so they are computed in float64.
        losses: Array = np.square(logits, dtype=np.float64)
        losses *= 0.5
        return losses

    def _logit_gradients(self, logits: Array, targets: NDArray[Any]) -> Array:
        logits -= targets
        return logits

    def _predict_from_logits(self, logits: Array) -> NDArray[Any]:
        values: NDArray[Any] = logits[0]
        return values

    def _errors(self, predictions: NDArray[Any], targets: NDArray[Any]) -> Float64Array | None:
        with np.errstate(all="ignore"):
            y = targets.astype(np.float64)
            variance = float(np.mean((y - y.mean()) ** 2))
            # Of constant targets no variance can be explained, so that R² is no sum over samples.
            return np.asarray((predictions - y) ** 2 / variance) if variance > 0 else None

    def _score(self, predictions: NDArray[Any], targets: NDArray[Any]) -> float:
        with np.errstate(all="ignore"):
            y = targets.astype(np.float64)
            residual_squares = float(np.sum((predictions - y) ** 2))
            total_squares = float(np.sum((y - y.mean()) ** 2))
        if total_squares == 0:
            return 1.0 if residual_squares == 0 else 0.0
        return 1 - residual_squares / total_squares
