"""Logistic regression for two classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.special import expit

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import LOGISTIC
from pcfed.losses.features import Matrix
from pcfed.losses.linear import LinearModel, as_target_vector


class LogisticRegression(LinearModel):
    r"""Logistic regression, the cross-entropy of a linear model of two classes.

    $$f(w, b) = \frac1N \sum_j \log\big(1 + e^{-s_j (w^\top \varphi_j + b)}\big)
    + \frac{l_2}{2} \|w\|^2, \qquad s_j = \pm 1, \quad \varphi_j = \text{scale} \cdot X_j$$

    ``shape`` is (features,); the flat vector holds w, then b.

    Parameters
    ----------
    y : array of int or bool
        Labels, 0 and 1 or −1 and +1. `predict` returns −1 and +1 if y contains −1, and 0 and 1
        otherwise; `accuracy` accepts both codings.
    X, intercept, l2, scale, dtype
        As in `SoftmaxRegression`.

    Raises
    ------
    ValueError
        If an argument is out of range, empty, not finite or of the wrong shape.

    Examples
    --------
    >>> loss = LogisticRegression([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> round(loss.value([0.0, 0.0]), 6)  # log 2
    0.693147
    >>> loss.gradient([0.0, 0.0])
    array([ 0.25, -0.25])
    """

    max_logit_curvature = 0.25
    _kernel = LOGISTIC
    max_squared_logit_gradient = 1.0
    _negative_label: int

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
        labels = as_target_vector("LogisticRegression", y)
        self._negative_label = _negative_label(labels)
        super().__init__(X, labels, intercept=intercept, l2=l2, scale=scale, dtype=dtype)

    @property
    def sample_classes(self) -> NDArray[np.intp]:
        """The class of each sample: 0 or 1."""
        return (self._targets > 0).astype(np.intp)

    def _encode_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        negative = _negative_label(y)
        valid = (y == negative) | (y == 1)
        if not valid.all():
            row = int(np.argmin(valid))
            raise ValueError(
                f"LogisticRegression: y must be {negative} or 1, got {y[row]} at row {row}; "
                "code the two classes as 0 and 1 or as -1 and 1, "
                "and use SoftmaxRegression for more."
            )
        return np.where(y == 1, 1, -1).astype(self.dtype)

    def _sample_losses(self, logits: Array, targets: NDArray[Any]) -> Array:
        logits *= -targets
        # log(e⁰ + eᵗ) does not overflow, and keeps its digits for very negative t.
        losses: Array = np.logaddexp(0, logits, out=logits)
        return losses

    def _logit_gradients(self, logits: Array, targets: NDArray[Any]) -> Array:
        logits *= -targets
        expit(logits, out=logits)  # 1 / (1 + e⁻ᵗ), without overflow
        logits *= -targets
        return logits

    def _predict_from_logits(self, logits: Array) -> NDArray[np.int64]:
        return np.where(logits[0] > 0, 1, self._negative_label)

    def _errors(self, predictions: NDArray[Any], targets: NDArray[Any]) -> Float64Array:
        return np.asarray((predictions == 1) != (targets == 1), np.float64)

    def _score(self, predictions: NDArray[Any], targets: NDArray[Any]) -> float:
        return float(np.mean((predictions == 1) == (targets == 1)))


def _negative_label(y: NDArray[Any]) -> int:
    """Return the label of the negative class, −1 or 0."""
    return -1 if (y == -1).any() else 0
