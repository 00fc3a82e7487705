"""A registry of all losses in all forms of data and options, for tests that hold for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.losses.linear import LinearModel

N, D, K = 150, 6, 4
SCALE = 0.01

rng = np.random.default_rng(7)
PIXELS = rng.integers(0, 256, (N, D), dtype=np.uint8)
PIXELS[rng.random((N, D)) < 0.3] = 0
TARGETS: dict[str, Any] = {
    "softmax": rng.integers(0, K, N),
    "logistic": rng.integers(0, 2, N),
    "squares": rng.standard_normal(N),
}
FORMS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda X: X,
    "fortran": np.asfortranarray,
    "sparse": sparse.csr_array,
    "coo": sparse.coo_matrix,
    "uint8": lambda X: X,
}


def make(kind: str, X: Any, y: Any, **options: Any) -> LinearModel:
    if kind == "softmax":
        return SoftmaxRegression(X, y, classes=K, **options)
    return {"logistic": LogisticRegression, "squares": LeastSquares}[kind](X, y, **options)


@dataclass(frozen=True)
class Case:
    kind: str
    form: str
    dtype: str
    intercept: bool
    l2: float

    def build(self, rows: Any = slice(None)) -> LinearModel:
        """The loss on some rows: in every form the features are SCALE * PIXELS."""
        X = PIXELS[rows] if self.form == "uint8" else PIXELS[rows].astype(self.dtype)
        return make(
            self.kind,
            FORMS[self.form](X),
            TARGETS[self.kind][rows],
            intercept=self.intercept,
            l2=self.l2,
            scale=SCALE,
            dtype=self.dtype,
        )

    def twin(self) -> LinearModel:
        """The same loss from dense, scaled float64 features."""
        y = TARGETS[self.kind]
        return make(self.kind, SCALE * PIXELS, y, intercept=self.intercept, l2=self.l2)

    def point(self, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(self.build().n)

    def __str__(self) -> str:
        parts = [self.kind, self.form, self.dtype]
        return "-".join(parts + ["intercept"] * self.intercept + ["l2"] * bool(self.l2))


CASES = [
    Case(*options)
    for options in product(TARGETS, FORMS, ("float64", "float32"), (False, True), (0.0, 0.3))
]
