r"""The variance $\nu^2$ of stochastic gradients: bounds for all x, and estimates at given points.

With S the variance of the gradient of one of N samples, the mean over a batch of b has the variance

====================  =============================  ==============================================
without replacement   $\frac{N - b}{b (N - 1)} S$    sampling from a finite population
with replacement      $\frac1b S$                    independent draws
blocks                at most $S$                    block means vary less than samples
====================  =============================  ==============================================

and 0 if the batch is all of the data. $\nu^2$ is the largest over the agents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.losses import Loss
from pcfed.problem import Problem
from pcfed.sampling import BatchSampler, Sampling, resolve_batch_size
from pcfed.validation import floating, instance, type_text

MAX_SAMPLES = 512
"""Maximal number of samples per agent whose gradients an estimate uses."""


def noise_bound(
    problem: Problem, *, batch: float | int, sampling: Sampling = "without_replacement"
) -> float:
    r"""Return a bound on $\nu^2$ that holds for all x; infinite if none is known.

    For softmax regression without replacement, for example,
    $\nu^2 \le \frac{N - b}{b (N - 1)} \cdot \frac2N \sum_j \|\varphi_j\|^2$; for least squares
    there is a bound only if batches are full.

    Parameters
    ----------
    problem : Problem
        The agents.
    batch, sampling
        As in `pcfed.run`.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed import Agent, Problem
    >>> from pcfed.losses import LogisticRegression
    >>> from pcfed.sets import L1Ball
    >>> problem = Problem([Agent(LogisticRegression(np.eye(2), [0, 1]), L1Ball(1.0), 0.1)])
    >>> noise_bound(problem, batch=1)
    1.0
    >>> noise_bound(problem, batch=2)
    0.0
    """
    instance("noise_bound: problem", problem, Problem, "call noise_bound(problem, batch=0.1)")
    factors = _factors(problem, batch, sampling)
    return max([0.0, *(factor * loss.gradient_spread() for factor, loss in factors if factor)])


def noise_estimate(
    problem: Problem,
    averages: Sequence[Array],
    *,
    batch: float | int,
    sampling: Sampling = "without_replacement",
) -> float:
    r"""Return an estimate of $\nu^2$ at given points; elsewhere it may be larger.

    Parameters
    ----------
    problem : Problem
        The agents.
    averages : sequence of arrays of shape (n,)
        The points, for example averages along a run.
    batch, sampling
        As in `pcfed.run`. For blocks, the variance of single samples is used, an upper bound.
    """
    order = "call noise_estimate(problem, [result.average], batch=0.1)"
    instance("noise_estimate: problem", problem, Problem, order)
    if not isinstance(averages, (Sequence, np.ndarray)):
        raise ValueError(
            f"noise_estimate: averages must be a list of vectors, got {type_text(averages)}; "
            f"{order}."
        )
    points = [floating("noise_estimate: averages", point) for point in averages]
    if not points or any(point.shape != (problem.n,) for point in points):
        shapes = [point.shape for point in points]
        raise ValueError(
            f"noise_estimate: averages must be vectors of {problem.n} entries, got shapes "
            f"{shapes}; give a list such as [result.average]."
        )
    factors = _factors(problem, batch, sampling)
    return max(
        [0.0, *(factor * _spread(loss, x) for factor, loss in factors if factor for x in points)]
    )


def _factors(problem: Problem, batch: float | int, sampling: Sampling) -> list[tuple[float, Loss]]:
    """Return the factor of S in the table of this module, and the loss, for every agent."""
    found = []
    for agent, name in zip(problem.agents, problem.names, strict=True):
        N = agent.loss.size
        b = resolve_batch_size(batch, N, agent=name)
        if BatchSampler(N, b, sampling).is_full_batch or N == 1:
            factor = 0.0
        elif sampling == "blocks":
            factor = 1.0
        else:
            factor = 1 / b if sampling == "with_replacement" else (N - b) / (b * (N - 1))
        found.append((factor, agent.loss))
    return found


def _spread(loss: Loss, x: Array) -> float:
    """Return the variance of the gradients of single samples at x, for at most `MAX_SAMPLES`."""
    chosen = np.unique(np.linspace(0, loss.size - 1, min(loss.size, MAX_SAMPLES)).round())
    mean: Float64Array = loss.gradient(x).astype(np.float64)
    squares = [
        float(np.sum((loss.gradient(x, np.array([row])) - mean) ** 2))
        for row in chosen.astype(np.intp)
    ]
    return math.fsum(squares) / len(squares)
