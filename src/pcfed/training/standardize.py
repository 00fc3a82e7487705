r"""Columns of one size: common means and scales, of which agents share only sums.

Letters: $x$ a feature as given, $\mu$ the mean of its column and $s$ its scale over the training
rows of all agents, $\hat x = (x - \mu) / s$ what the training sees.

A model $\hat w, \hat b$ of $\hat x$ is the model $w_j = \hat w_j / s_j$, $b = \hat b - \sum_j w_j
\mu_j$ of $x$. Training happens in $\hat w, \hat b$: there the l2 term and the coupling are
measured. Constraints always speak of $w$, what is delivered: $w \in X$ means $\hat w \in \{(s_1
v_1, .., s_n v_n) : v \in X\}$, a set that `pcfed.sets.scale_entries` knows exactly. Without an
intercept nothing could make up for the means, so $\mu = 0$.

It takes two rounds, in which agents send sums over their rows:

================  ========  =======================================================
step              receives  sends
================  ========  =======================================================
``send_totals``   nothing   the number of rows, $\sum x$
``send_squares``  $\mu$     $\sum (x - \mu)$, $\sum (x - \mu)^2$
================  ========  =======================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets import ConvexSet, scale_entries

CONSTANT = 1e-12
"""A column whose scale is this small beside its mean does not vary; its scale is then 1."""


class Totals(NamedTuple):
    """What an agent sends first: its number of rows, and the sum of each column."""

    rows: int
    sums: Float64Array


class Squares(NamedTuple):
    """What it sends then: the sums of differences from the mean, and of their squares."""

    sums: Float64Array
    squares: Float64Array


def send_totals(X: Float64Array) -> Totals:
    """Return an agent's number of rows and the sums of its columns: first round."""
    return Totals(len(X), X.sum(axis=0))


def send_squares(X: Float64Array, mean: Float64Array) -> Squares:
    """Return an agent's sums of differences from ``mean`` and of their squares: second round."""
    off = X - mean
    return Squares(off.sum(axis=0), np.square(off).sum(axis=0))


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""The means $\mu$ and scales $s$ of columns.

    Attributes
    ----------
    mean, scale : array of shape (columns,)
        Zero without an intercept; positive.
    intercept : bool
        Whether models have one.

    Examples
    --------
    >>> scaling = Scaling.of([np.array([[1.0], [3.0]]), np.array([[5.0]])], intercept=True)
    >>> scaling.mean, scaling.scale.round(3)
    (array([3.]), array([1.633]))
    >>> scaling.delivered(np.array([[1.633, 0.0]])).round(3)
    array([[ 1., -3.]])
    """

    mean: Float64Array
    scale: Float64Array
    intercept: bool

    @classmethod
    def of(cls, matrices: Sequence[Float64Array], *, intercept: bool) -> Scaling:
        """Return the scaling of all agents' rows, from what they send.

        Parameters
        ----------
        matrices : sequence of arrays
            Every agent's rows for training.
        intercept : bool
            Whether the model has one; without, columns keep their means and the scale is the root
            of the mean square.
        """
        totals = [send_totals(X) for X in matrices]
        rows = sum(each.rows for each in totals)
        found = np.sum([each.sums for each in totals], axis=0) / rows
        mean = found if intercept else np.zeros_like(found)
        sent = [send_squares(X, mean) for X in matrices]
        rest = np.sum([each.sums for each in sent], axis=0) / rows
        variance = np.sum([each.squares for each in sent], axis=0) / rows
        if intercept:  # what rounding left in the mean
            mean, variance = mean + rest, np.maximum(variance - rest**2, 0.0)
        scale = np.sqrt(variance)
        return cls(mean, np.where(scale > CONSTANT * np.abs(mean), scale, 1.0), intercept)

    def applied(self, X: Float64Array) -> Float64Array:
        r"""Return the features $\hat x$ of rows."""
        return np.asarray((X - self.mean) / self.scale)

    def delivered(self, models: Float64Array) -> Float64Array:
        """Return models of the data as given, one row each, from models of standardised data."""
        W, b = self._split(models)
        W = W / self.scale
        return self._flat(W, b - W @ self.mean)

    def standardised(self, models: Float64Array) -> Float64Array:
        """Return models of standardised data from those of the data as given."""
        W, b = self._split(models)
        return self._flat(W * self.scale, b + W @ self.mean)

    def mapped(self, constraint: ConvexSet, coefficients: int) -> ConvexSet:
        r"""Return the set of $\hat w$ for which $w$ is in a set.

        Parameters
        ----------
        constraint : ConvexSet
            The set of what is delivered.
        coefficients : int
            Number of entries of w: columns, times classes.

        Raises
        ------
        ValueError
            If its projection is not known.
        """
        constraint.project(np.zeros(coefficients))  # refuses a set of another length
        try:
            return scale_entries(constraint, np.tile(self.scale, coefficients // self.scale.size))
        except ValueError as error:
            raise ValueError(f"{error} Or set data.standardize = false.") from None

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
