r"""Centring and scaling of the data with common means and scales; agents share only sums.

Letters: $x$ a feature as given, $\mu$ the mean of its column and $s$ its scale over the training
rows of all agents, $\hat x = (x - \mu) / s$ the feature that the training uses; $y$ a target and
$\nu$ the mean of all targets, $\hat y = y - \nu$.

The model $\hat w, \hat b$ of $\hat x, \hat y$ is the model $w_j = \hat w_j / s_j$,
$b = \hat b + \nu - \sum_j w_j \mu_j$ of $x, y$. The l2 term and the coupling apply to
$\hat w, \hat b$. Constraints always apply to $w$: $w \in X$ is equivalent to
$\hat w \in \{(s_1 v_1, .., s_n v_n) : v \in X\}$, a set that `pcfed.sets.scale_entries` computes
exactly.

Models with an intercept are always trained on centred data, because features with a large mean,
such as a year, make the problem badly conditioned. Without scaling, $s = 1$, and
centring changes no coefficient. Without an intercept nothing could compensate for the means, so
$\mu = \nu = 0$. For labels $\nu = 0$.

The bound on intercepts applies to $\hat b$, the score at the mean of the features. This has the
size of the targets, while $b$, the score where all features are 0, may be far from all data.

Agents send sums over their rows, in two rounds, of features and of targets:

================  ========  =======================================================
step              receives  sends
================  ========  =======================================================
``send_totals``   nothing   the number of rows, $\sum x$
``send_squares``  $\mu$     $\sum (x - \mu)$, $\sum (x - \mu)^2$
================  ========  =======================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets import ConvexSet, scale_entries

CONSTANT = 1e-12
"""A column with a smaller scale relative to its mean counts as constant; its scale is set to 1."""


def send_totals(X: Float64Array) -> Float64Array:
    """Return an agent's number of rows, and then the sum of each column."""
    return np.concatenate([[len(X)], X.sum(axis=0)])


def send_squares(X: Float64Array, mean: Float64Array) -> Float64Array:
    """Return an agent's sums of differences from the mean of each column, and of their squares."""
    difference = X - mean
    return np.stack([difference.sum(axis=0), np.square(difference).sum(axis=0)])


def mean_of_totals(totals: Float64Array, *, intercept: bool) -> Float64Array:
    """Return the mean of each column from the sum of all totals; zeros without an intercept."""
    mean = totals[1:] / totals[0]
    return mean if intercept else np.zeros_like(mean)


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""The means $\mu$ and scales $s$ of all columns.

    Attributes
    ----------
    mean, scale : array of shape (columns,)
        The mean is zero without an intercept; the scale is positive.
    intercept : bool
        Whether models have an intercept.
    target_mean : float
        The mean $\nu$ of the targets; 0 for labels and without an intercept.

    Examples
    --------
    >>> scaling = Scaling.fit([np.array([[1.0], [3.0]]), np.array([[5.0]])], intercept=True)
    >>> scaling.mean, scaling.scale.round(3)
    (array([3.]), array([1.633]))
    >>> scaling.to_original_units(np.array([[1.633, 0.0]])).round(3)
    array([[ 1., -3.]])
    """

    mean: Float64Array
    scale: Float64Array
    intercept: bool
    target_mean: float = 0.0

    @classmethod
    def fit(cls, matrices: Sequence[Float64Array], *, intercept: bool) -> Scaling:
        """Compute the scaling from the messages of all agents, given their rows for training."""
        totals = np.sum([send_totals(X) for X in matrices], axis=0)
        mean = mean_of_totals(totals, intercept=intercept)
        squares = np.sum([send_squares(X, mean) for X in matrices], axis=0)
        return cls.from_sums(totals, squares, intercept=intercept)

    @classmethod
    def from_sums(cls, totals: Float64Array, squares: Float64Array, *, intercept: bool) -> Scaling:
        """Compute the scaling from the sums of the messages of all agents.

        Without an intercept, the scale is the root of the mean square.
        """
        mean = mean_of_totals(totals, intercept=intercept)
        error, variance = squares / totals[0]
        if intercept:  # remove the rounding error of the mean
            mean, variance = mean + error, np.maximum(variance - error**2, 0.0)
        scale = np.sqrt(variance)
        return cls(mean, np.where(scale > CONSTANT * np.abs(mean), scale, 1.0), intercept)

    def split_target(self) -> Scaling:
        """Return the scaling of all columns but the last, which is the target."""
        mean, scale = self.mean[:-1], self.scale[:-1]
        return replace(self, mean=mean, scale=scale, target_mean=float(self.mean[-1]))

    def without_scale(self) -> Scaling:
        """Return the same means with all scales equal to 1."""
        return replace(self, scale=np.ones_like(self.scale))

    def transform(self, X: Float64Array) -> Float64Array:
        r"""Return the features $\hat x$ of the training."""
        return np.asarray((X - self.mean) / self.scale)

    def to_original_units(self, models: Float64Array) -> Float64Array:
        """Return models of the data as given from models of the training, one per row."""
        W, b = self._split(models)
        W = W / self.scale
        return self._flat(W, b - W @ self.mean + self.target_mean)

    def to_standardized_units(self, models: Float64Array) -> Float64Array:
        """Return models of the training from models of the data as given, one per row."""
        W, b = self._split(models)
        return self._flat(W * self.scale, b + W @ self.mean - self.target_mean)

    def with_target_mean(self, targets: Sequence[Float64Array]) -> Scaling:
        """Return the same scaling with the mean of all targets, given those of every agent."""
        with np.errstate(all="ignore"):
            mean = Scaling.fit([y[:, None] for y in targets], intercept=True).mean[0]
        # The mean of targets that are too large for sums is not finite; their losses say so.
        return replace(self, target_mean=float(np.nan_to_num(mean, posinf=0, neginf=0)))

    def transform_constraint(
        self, constraint: ConvexSet, coefficients: int, *, option: str
    ) -> ConvexSet:
        r"""Return the set of $\hat w$ for which $w$ is in a set.

        ``option`` switches scaling off; the error for a set that cannot be scaled names it.
        """
        constraint.check_model_length(coefficients)
        constraint.project(np.zeros(coefficients))  # raises if the set is empty
        try:
            return scale_entries(constraint, np.tile(self.scale, coefficients // self.scale.size))
        except ValueError as error:
            raise ValueError(f"{error} Or set {option}.") from None

    def _split(self, models: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return coefficients, (rows, outputs, columns), and intercepts, (rows, outputs)."""
        columns = self.scale.size
        outputs = models.shape[1] // (columns + self.intercept)
        W = models[:, : outputs * columns].reshape(len(models), outputs, columns)
        b = models[:, outputs * columns :] if self.intercept else np.zeros(W.shape[:2])
        return W, b

    def _flat(self, W: Float64Array, b: Float64Array) -> Float64Array:
        flat = W.reshape(len(W), -1)
        return np.hstack([flat, b]) if self.intercept else flat
