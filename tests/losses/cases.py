"""All losses, and all linear models with all forms of data and options, for tests of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from doctest import DocTestParser
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

import pcfed.losses
from pcfed.losses import LeastSquares, Loss, SoftmaxRegression
from pcfed.losses.linear import LinearModel

N, D, K = 150, 6, 4
SCALE = 0.01

LOSSES = [name for name in pcfed.losses.__all__ if name != "Loss"]
LOSSES += ["TorchLoss"] * (find_spec("torch") is not None)
LINEAR_MODELS: list[type[LinearModel]] = [
    model
    for name in pcfed.losses.__all__
    if issubclass(model := getattr(pcfed.losses, name), LinearModel)
]

rng = np.random.default_rng(7)
PIXELS = rng.integers(0, 256, (N, D), dtype=np.uint8)
PIXELS[rng.random((N, D)) < 0.3] = 0
LABELS = rng.integers(0, 2, N)
"""Targets for every linear model: 0 and 1 are labels as well as numbers."""
TARGETS: dict[type[LinearModel], Any] = {
    SoftmaxRegression: rng.integers(0, K, N),
    LeastSquares: rng.standard_normal(N),
}
OPTIONS: dict[type[LinearModel], dict[str, Any]] = {SoftmaxRegression: {"classes": K}}
FORMS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda X: X,
    "fortran": np.asfortranarray,
    "sparse": sparse.csr_array,
    "coo": sparse.coo_matrix,
    "uint8": lambda X: X,
}


def example(name: str) -> Loss:
    """Return the ``loss`` that the examples in the docstring of a loss define."""
    namespace = {name: getattr(pcfed.losses, name)}
    for statement in DocTestParser().get_examples(namespace[name].__doc__):
        exec(statement.source, namespace)
    return namespace["loss"]


def make(model: type[LinearModel], X: Any, y: Any = None, **options: Any) -> LinearModel:
    y = TARGETS.get(model, LABELS) if y is None else y
    return model(X, y, **OPTIONS.get(model, {}), **options)


@dataclass(frozen=True)
class Case:
    model: type[LinearModel]
    form: str
    dtype: str
    intercept: bool
    l2: float

    @property
    def outputs(self) -> int:
        return OPTIONS.get(self.model, {}).get("classes", 1)

    def build(self, rows: Any = slice(None)) -> LinearModel:
        """The loss on some rows: in every form the features are SCALE * PIXELS."""
        X = PIXELS[rows] if self.form == "uint8" else PIXELS[rows].astype(self.dtype)
        return make(
            self.model,
            FORMS[self.form](X),
            TARGETS.get(self.model, LABELS)[rows],
            intercept=self.intercept,
            l2=self.l2,
            scale=SCALE,
            dtype=self.dtype,
        )

    def twin(self) -> LinearModel:
        """The same loss from dense, scaled float64 features."""
        return make(self.model, SCALE * PIXELS, intercept=self.intercept, l2=self.l2)

    def point(self, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(self.build().n)

    def __str__(self) -> str:
        parts = [self.model.__name__, self.form, self.dtype]
        return "-".join(parts + ["intercept"] * self.intercept + ["l2"] * bool(self.l2))


CASES = [
    Case(*options)
    for options in product(LINEAR_MODELS, FORMS, ("float64", "float32"), (False, True), (0.0, 0.3))
]
