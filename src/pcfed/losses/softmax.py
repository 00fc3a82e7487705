"""Softmax regression: multinomial logistic regression with K coefficient vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import SOFTMAX
from pcfed.losses.features import Matrix
from pcfed.losses.linear import LinearModel
from pcfed.validation import count


class SoftmaxRegression(LinearModel):
    r"""Softmax regression, the cross-entropy of a linear model of K classes.

    $$f(W, b) = \frac1N \sum_j \Big(\log \sum_k e^{t_{jk}} - t_{j y_j}\Big)
    + \frac{l_2}{2} \|W\|^2,
    \qquad t_j = W \varphi_j + b, \quad \varphi_j = \text{scale} \cdot X_j$$

    ``shape`` is (classes, features); the flat vector holds W row-major, then b.

    Parameters
    ----------
    X : array or scipy.sparse matrix, samples × features
        Float, integer or uint8. Read in place where possible, so do not change it afterwards.
    y : array of int
        Labels 0..classes-1, one per row of X.
    classes : int
        Number of classes K, at least 2, including classes of which this agent has no samples.
    intercept : bool
        Whether there is a $b$. The l2 term and constraints do not apply to it.
    l2 : float
        Weight of the l2 term, on the coefficients only.
    scale : float, optional
        Factor on X: 1/255 for uint8 (pixels), otherwise 1. uint8 data are converted in blocks only.
    dtype : float32 or float64, optional
        By default that of X, float32 for uint8 and float64 for other integers.

    Raises
    ------
    ValueError
        If an argument is out of range, empty, not finite or of the wrong shape.

    Examples
    --------
    >>> loss = SoftmaxRegression([[1.0, 0.0], [0.0, 1.0]], [0, 2], classes=3)
    >>> loss
    SoftmaxRegression(2 samples, shape (3, 2), float64)
    >>> round(loss.value([0.0] * 6), 6)  # log 3
    1.098612
    """

    max_logit_curvature = 0.5
    _kernel = SOFTMAX
    max_squared_logit_gradient = 2.0
    classes: int

    def __init__(
        self,
        X: Matrix,
        y: ArrayLike,
        *,
        classes: int,
        intercept: bool = False,
        l2: float = 0.0,
        scale: float | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.classes = count("SoftmaxRegression: classes", classes, minimum=2)
        super().__init__(X, y, intercept=intercept, l2=l2, scale=scale, dtype=dtype)

    def typical_smoothness(self, batch: int | None = None) -> float:
        r"""Return $\max(0.2, 2/K)$ times that of a linear model, and 0.8 of this for full batches.

        At the usual start, $x = 0$, all K classes are equally likely and the curvature in the
        logits is $1/K$. The bound ½ is attained only where every sample has probability ½ for two
        classes; in training on digits and MNIST, steps became unstable only at four to six times
        $1/L_f$. Mini-batches get the more careful factor because of their noise.
        """
        factor = 0.8 if batch is None or batch >= self.size else 1.0
        return factor * max(0.2, 2 / self.classes) * super().typical_smoothness(batch)

    def curvature_bound(self, feature_norm: float | None) -> float:
        r"""Return $\max(0.2, 2/K)$ times that of a linear model, as `typical_smoothness` does."""
        return max(0.2, 2 / self.classes) * super().curvature_bound(feature_norm)

    @property
    def sample_classes(self) -> NDArray[np.intp]:
        """The class of each sample."""
        return self._targets

    def _encode_targets(self, y: NDArray[Any]) -> NDArray[np.intp]:
        valid = (y >= 0) & (y < self.classes) & (y == np.floor(y))
        if not valid.all():
            row = int(np.argmin(valid))
            raise ValueError(
                f"SoftmaxRegression: y must be whole numbers in 0..{self.classes - 1}, got "
                f"{y[row]} at row {row}; renumber the labels or raise classes={self.classes}."
            )
        return y.astype(np.intp)

    def _sample_losses(self, logits: Array, targets: NDArray[Any]) -> Array:
        # Relative to the largest logit, no exponential overflows, and one of them is 1: the
        # logarithm of their sum is never that of zero.
        logits -= logits.max(axis=0)
        of_label = logits[targets, np.arange(len(targets))]
        losses: Array = np.log(np.exp(logits, out=logits).sum(axis=0))
        losses -= of_label
        return losses

    def _logit_gradients(self, logits: Array, targets: NDArray[Any]) -> Array:
        # The probabilities p minus the unit vector of the label, in place.
        logits -= logits.max(axis=0)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=0)
        logits[targets, np.arange(len(targets))] -= 1
        return logits

    def _predict_from_logits(self, logits: Array) -> NDArray[np.intp]:
        classes: NDArray[np.intp] = logits.argmax(axis=0)
        return classes

    def _errors(self, predictions: NDArray[Any], targets: NDArray[Any]) -> Float64Array:
        return np.asarray(predictions != targets, np.float64)

    def _score(self, predictions: NDArray[Any], targets: NDArray[Any]) -> float:
        return float(np.mean(predictions == targets))
