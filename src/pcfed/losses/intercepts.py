r"""The public bound on intercepts, without which there would be no certificate.

Intercepts are free of the agents' sets, but a certificate needs a bounded set. The bound is
generous, so that no useful model reaches it, and it applies to the intercept of the centred data
(`pcfed.standardize`): the score at the mean of the features or, for numbers, its
difference from the mean $\nu$ of all targets. For numbers it is computed from sums over agents,

$$ 10 \sqrt{\frac1m \sum_i \frac1{N_i} \sum_j (y_{ij} - \nu)^2} $$

in which agents have equal weights, as they have in the objective: the mean over agents of their
mean centred targets, the best intercept without features, is at most a tenth of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.losses.kinds import LinearKind

FACTOR = 10.0
"""The default bound for numbers, in multiples of the root mean square of the centred targets."""

MAX_BOUND = 1e150
"""Larger bounds are left out: products with them would overflow."""


def default_intercept_bound(
    kind: LinearKind, targets: Sequence[Float64Array], target_mean: float
) -> float | None:
    """Return the bound on the intercepts of a kind of models; None if it would be too large.

    Parameters
    ----------
    kind : LinearKind
        The kind of model.
    targets : sequence of arrays
        The targets of every agent's training rows, as given.
    target_mean : float
        The mean of all targets, which the training subtracts.

    Examples
    --------
    >>> from pcfed.losses.kinds import LEAST_SQUARES, LOGISTIC
    >>> default_intercept_bound(LEAST_SQUARES, [np.array([1.0, 3.0])], 2.0)
    10.0
    >>> default_intercept_bound(LOGISTIC, [np.array([0.0, 1.0])], 0.0)
    30.0
    """
    if kind.intercept_bound is not None:
        return kind.intercept_bound
    with np.errstate(over="ignore"):
        mean_squares = [np.square(y - target_mean).mean() for y in targets]
        bound = FACTOR * float(np.sqrt(np.mean(mean_squares)))
    # Constant targets are predicted exactly by an intercept of 0, so any bound will do.
    return (bound or 1.0) if bound <= MAX_BOUND else None
