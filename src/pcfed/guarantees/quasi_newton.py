r"""The two tools of `optimum`: a curvature that is learned from gradients, and accelerated steps.

Letters: $B \approx \nabla^2 F$ the curvature, $s$ and $y$ differences of points and of gradients,
$L$ a Lipschitz constant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from pcfed.arrays import Float64Array

MEMORY = 10
"""Pairs of differences that the curvature is built from."""


class Curvature:
    r"""The BFGS matrix $B = \theta I - W M W^\top$ of the last pairs (s, y), in compact form.

    Parameters
    ----------
    scale : float
        $\theta$ until there is a pair: a Lipschitz constant of the gradient.

    References
    ----------
    Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their use in limited
    memory methods" (1994), theorem 2.3.
    """

    def __init__(self, scale: float) -> None:
        self._first = scale
        self._pairs: deque[tuple[Float64Array, Float64Array]] = deque(maxlen=MEMORY)
        self.forget()

    def forget(self) -> None:
        r"""Go back to $B = \theta I$."""
        self._pairs.clear()
        self._scale = self._first
        self._W: Float64Array | None = None
        self.largest = self._scale
        """The largest eigenvalue of B."""

    @property
    def learned(self) -> bool:
        """Whether B is more than a multiple of the identity."""
        return self._W is not None

    def learn(self, s: Float64Array, y: Float64Array) -> None:
        """Take in a pair of differences; one without curvature is left out."""
        if not s @ y > 1e-12 * np.linalg.norm(s) * np.linalg.norm(y):
            return
        self._pairs.append((s, y))
        S, Y = (np.stack(column) for column in zip(*self._pairs, strict=True))
        inner = S @ Y.T
        lower, diagonal = np.tril(inner, -1), np.diag(np.diag(inner))
        theta = float(y @ y) / float(s @ y)
        middle = np.block([[theta * S @ S.T, lower], [lower.T, -diagonal]])
        W = np.concatenate((theta * S, Y))
        try:
            M = np.linalg.inv(middle)
        except np.linalg.LinAlgError:
            self.forget()
            return
        self._scale, self._W, self._M = theta, W, M
        top = float(np.linalg.eigvals(-M @ (W @ W.T)).real.max())
        self.largest = theta + max(0.0, top)

    def __matmul__(self, d: Float64Array) -> Float64Array:
        """Return B d."""
        product: Float64Array = self._scale * d
        if self._W is not None:
            product = product - self._W.T @ (self._M @ (self._W @ d))
        return product


def accelerate(
    gradient: Callable[[Float64Array], Float64Array],
    prox: Callable[[Float64Array], Float64Array],
    x: Float64Array,
    *,
    smoothness: float,
    tolerance: float,
    limit: int,
) -> Float64Array:
    """Minimize a smooth convex function plus a simple one by accelerated proximal gradients.

    The momentum starts again whenever it points uphill.

    Parameters
    ----------
    gradient : callable
        Of the smooth function.
    prox : callable
        Of the simple function, for steps of 1/L: the projection, if it stands for a set.
    x : Array
        Where to start.
    smoothness : float
        Lipschitz constant L of the gradient.
    tolerance : float
        The end, for L times the length of a step.
    limit : int
        Largest number of steps.

    References
    ----------
    O'Donoghue, Candès, "Adaptive restart for accelerated gradient schemes" (2015), §3.2.
    """
    y, t = x, 1.0
    for _ in range(limit):
        new = prox(y - gradient(y) / smoothness)
        back = y - new
        if smoothness * np.linalg.norm(back) <= tolerance:
            return new
        step = new - x
        uphill = np.vdot(back, step) > 0
        after = (1 + np.sqrt(1 + 4 * t * t)) / 2
        y = new if uphill else new + (t - 1) / after * step
        x, t = new, 1.0 if uphill else after
    return x
