"""The kinds of models that files can name, such as ``model.kind = "softmax"``.

A `ModelKind` connects a name with a loss, with what the model predicts (an `Output`) and with what
it is exported to. To add a linear model, write its loss and add one object to ``LINEAR_KINDS``.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from pcfed.arrays import Float64Array
from pcfed.losses.base import Loss
from pcfed.losses.least_squares import LeastSquares
from pcfed.losses.logistic import LogisticRegression
from pcfed.losses.softmax import SoftmaxRegression

Label = int | str
"""A class of a classification, as data files write it."""

MAX_LOGIT = 30.0
"""Default bound on the intercepts of classifiers: a score of 30 is a probability of 1 − 1e-13."""

Layout = Mapping[str, tuple[int, ...]]
"""Names and shapes of the parameters of a model, in the order of its flat vector."""


# -- what models predict ----------------------------------------------------------------------


@dataclass(frozen=True)
class Output(ABC):
    """What a model predicts, and how its scores (one row a sample) become predictions.

    Attributes
    ----------
    min_labels, max_labels : float
        How many labels the targets may have; 0 and 0 where numbers are predicted.
    score_name : str
        What `Loss.accuracy` is called; ``"loss"`` if models are compared by their loss instead.
    """

    min_labels: ClassVar[float] = 2
    max_labels: ClassVar[float] = math.inf
    score_name: str = "accuracy"

    @property
    def is_classification(self) -> bool:
        """Whether labels are predicted."""
        return self.max_labels > 0

    def accepts(self, labels: Sequence[Label] | None) -> bool:
        """Return whether a model may have these labels; None where numbers are predicted."""
        return self.min_labels <= len(labels or ()) <= self.max_labels

    @abstractmethod
    def predict(self, scores: Float64Array) -> NDArray[Any]:
        """Return the predicted numbers, or the positions of the predicted labels."""

    def probabilities(self, scores: Float64Array) -> Float64Array:
        """Return the probability of every label, one column a label."""
        raise ValueError("probabilities must be of a classification; predict numbers instead.")


@dataclass(frozen=True)
class Numbers(Output):
    """A number, which is the score itself."""

    min_labels: ClassVar[float] = 0
    max_labels: ClassVar[float] = 0
    score_name: str = "R²"

    def predict(self, scores: Float64Array) -> NDArray[Any]:
        """Return the scores."""
        return scores[:, 0]


class BinaryLabel(Output):
    """One of two labels: the second where the only score is positive."""

    max_labels: ClassVar[float] = 2

    def predict(self, scores: Float64Array) -> NDArray[Any]:
        """Return 1 for positive scores, else 0."""
        return (scores[:, 0] > 0).astype(np.intp)

    def probabilities(self, scores: Float64Array) -> Float64Array:
        """Return the logistic function of the score and of its negative."""
        return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])


class OneOfManyLabels(Output):
    """One of two or more labels: the one with the largest score."""

    def predict(self, scores: Float64Array) -> NDArray[Any]:
        """Return the position of the largest score."""
        positions: NDArray[np.intp] = scores.argmax(axis=1)
        return positions

    def probabilities(self, scores: Float64Array) -> Float64Array:
        """Return the softmax of the scores."""
        shares: Float64Array = softmax(scores, axis=1)
        return shares


# -- kinds of models --------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelKind(ABC):
    """A kind of model that files can name.

    Attributes
    ----------
    name : str
        The name in files.
    purpose : str
        What it is for, as in "softmax for labels".
    is_linear : bool
        Whether models are coefficients and perhaps an intercept; otherwise a PyTorch module.
    """

    is_linear: ClassVar[bool]
    name: str
    purpose: str

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def output_for(self, labels: Sequence[Label] | None) -> Output:
        """Return what models of this kind predict, where the targets have these labels."""

    def torch_parameters(self, parts: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
        """Return the parameters under the names of a PyTorch module's ``state_dict``."""
        return dict(parts)

    def sklearn_attributes(
        self, parts: Mapping[str, Float64Array], labels: Sequence[Label] | None
    ) -> dict[str, Any]:
        """Return an estimator's name in ``sklearn.linear_model`` and its fitted attributes."""
        raise ValueError(
            f"export: sklearn has linear models only, got {self.name}; export to torch or npz."
        )


@dataclass(frozen=True)
class LinearKind(ModelKind):
    """A linear model: scores are ``coefficients @ features + intercept``.

    Attributes
    ----------
    loss : callable
        The class of its loss, a subclass of `pcfed.losses.linear.LinearModel`.
    output : Output
        What it predicts.
    sklearn_estimator : str
        The class of ``sklearn.linear_model`` that predicts the same.
    """

    is_linear: ClassVar[bool] = True
    loss: Callable[..., Loss]
    output: Output
    sklearn_estimator: str

    @property
    def has_row_per_label(self) -> bool:
        """Whether the coefficients are a matrix with one row a label."""
        return isinstance(self.output, OneOfManyLabels)

    @property
    def intercept_bound(self) -> float | None:
        """The default bound on intercepts; None where it depends on the targets."""
        return MAX_LOGIT if self.output.is_classification else None

    def output_for(self, labels: Sequence[Label] | None) -> Output:
        """Return ``output``."""
        return self.output

    def build_loss(
        self,
        X: Float64Array,
        y: NDArray[Any],
        labels: Sequence[Label] | None,
        *,
        intercept: bool,
        l2: float,
        dtype: str,
    ) -> Loss:
        """Return the loss on some rows; y are numbers, or positions in ``labels``."""
        classes = {"classes": len(labels or ())} if self.has_row_per_label else {}
        return self.loss(X, y, intercept=intercept, l2=l2, dtype=dtype, **classes)

    def layout(self, columns: int, labels: Sequence[Label] | None, *, intercept: bool) -> Layout:
        """Return the names and shapes of the parameters of such a model."""
        rows = len(labels or ()) if self.has_row_per_label else 1
        shape = (rows, columns) if self.has_row_per_label else (columns,)
        return {"coefficients": shape} | ({"intercept": (rows,)} if intercept else {})

    def scores(self, parts: Mapping[str, Float64Array], X: Float64Array) -> Float64Array:
        """Return the scores of every row of X."""
        W = np.atleast_2d(parts["coefficients"])
        with np.errstate(over="ignore"):  # an infinite score is as good as a large one
            scores: Float64Array = X @ W.T + parts.get("intercept", 0.0)
        return scores

    def torch_parameters(self, parts: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
        """Return the parameters of ``nn.Linear``, whose outputs are the scores."""
        parameters = {"weight": np.atleast_2d(parts["coefficients"])}
        return parameters | ({"bias": parts["intercept"]} if "intercept" in parts else {})

    def sklearn_attributes(
        self, parts: Mapping[str, Float64Array], labels: Sequence[Label] | None
    ) -> dict[str, Any]:
        """Return the attributes of ``sklearn_estimator``."""
        W = np.atleast_2d(parts["coefficients"])
        b = parts.get("intercept", np.zeros(len(W)))
        estimator = {"estimator": self.sklearn_estimator}
        if labels is None:
            return {**estimator, "coef_": W[0].tolist(), "intercept_": float(b[0])}
        if len(W) == 2:  # for two labels, scikit-learn has one row: the difference
            W, b = W[1:] - W[:1], b[1:] - b[:1]
        fitted = {"coef_": W.tolist(), "intercept_": b.tolist(), "classes_": list(labels)}
        return {**estimator, **fitted}


@dataclass(frozen=True)
class ModuleKind(ModelKind):
    """A PyTorch module of the user.

    Attributes
    ----------
    outputs : mapping of str to Output
        What the module predicts, by the name in files of the loss that it minimises.
    """

    is_linear: ClassVar[bool] = False
    outputs: Mapping[str, Output]

    def output_for(self, labels: Sequence[Label] | None) -> Output:
        """Return the output that predicts labels, or the one that predicts numbers."""
        return self.outputs["mse" if labels is None else "cross-entropy"]

    def build_loss(self, module: Any, X: Float64Array, y: NDArray[Any], loss: str) -> Loss:
        """Return the loss of a module on some rows; ``loss`` is one of ``outputs``."""
        from pcfed.losses import TorchLoss  # the rest of this file does without PyTorch

        functional = importlib.import_module("torch.nn.functional")

        def mean_squared_error(output: Any, y: Any) -> Any:
            has_one_column = output.ndim == 2 and output.shape[1] == 1
            return functional.mse_loss(output[:, 0] if has_one_column else output, y)

        functions = {"cross-entropy": functional.cross_entropy, "mse": mean_squared_error}
        return TorchLoss(module, (X, y), functions[loss])


# -- the registry -----------------------------------------------------------------------------

SOFTMAX = LinearKind(
    "softmax", "labels", SoftmaxRegression, OneOfManyLabels(), "LogisticRegression"
)
LOGISTIC = LinearKind(
    "logistic", "two labels", LogisticRegression, BinaryLabel(), "LogisticRegression"
)
LEAST_SQUARES = LinearKind("least-squares", "numbers", LeastSquares, Numbers(), "LinearRegression")
TORCH = ModuleKind(
    "torch",
    "a PyTorch module of your own",
    # TorchLoss has no R², so modules that predict numbers are compared by their loss.
    {"cross-entropy": OneOfManyLabels(), "mse": Numbers(score_name="loss")},
)

LINEAR_KINDS = {kind.name: kind for kind in (SOFTMAX, LOGISTIC, LEAST_SQUARES)}
"""The linear models by name."""

MODEL_KINDS: dict[str, ModelKind] = {**LINEAR_KINDS, TORCH.name: TORCH}
"""All kinds by name."""
