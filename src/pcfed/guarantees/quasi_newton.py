r"""The limited-memory BFGS matrix, which approximates second derivatives from gradients.

Letters: $B \approx \nabla^2 F$, $s$ and $y$ differences of points and of gradients.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from pcfed.arrays import Float64Array

MEMORY = 10
"""Number of pairs of differences that the matrix is built from."""


class BFGSMatrix:
    r"""The BFGS matrix $B = \theta I - W M W^\top$ of the latest pairs (s, y), in compact form.

    Before there is a pair, $\theta$ is ``scale``, a Lipschitz constant of the gradient.

    References
    ----------
    Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their use in limited
    memory methods" (1994), theorem 2.3.
    """

    def __init__(self, scale: float) -> None:
        self._initial_scale = scale
        self._pairs: deque[tuple[Float64Array, Float64Array]] = deque(maxlen=MEMORY)
        self.reset()

    def reset(self) -> None:
        r"""Reset to $B = \theta I$ with the initial $\theta$."""
        self._pairs.clear()
        self._scale = self._initial_scale
        self._W: Float64Array | None = None
        self.largest_eigenvalue = self._scale
        """The largest eigenvalue of B."""

    @property
    def has_pairs(self) -> bool:
        """Whether B is more than a multiple of the identity."""
        return self._W is not None

    def update(self, s: Float64Array, y: Float64Array) -> None:
        """Add a pair of differences, unless its curvature is not positive."""
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
            self.reset()
            return
        self._scale, self._W, self._M = theta, W, M
        top = float(np.linalg.eigvals(-M @ (W @ W.T)).real.max())
        self.largest_eigenvalue = theta + max(0.0, top)

    def __matmul__(self, d: Float64Array) -> Float64Array:
        """Return B d."""
        product: Float64Array = self._scale * d
        if self._W is not None:
            product = product - self._W.T @ (self._M @ (self._W @ d))
        return product
