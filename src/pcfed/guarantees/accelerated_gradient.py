"""Accelerated proximal gradient steps with restarts, for `optimum` and `tighten`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from pcfed.arrays import Float64Array


def accelerated_steps(
    gradient_step: Callable[[Float64Array], Float64Array], x: Float64Array
) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Yield the iterates of the accelerated proximal gradient method, without end.

    With each iterate comes the extrapolated point minus the iterate, which is zero at a minimum.
    ``gradient_step`` does one proximal gradient step of length 1/L; for a constrained problem, the
    projection of y − ∇f(y)/L. The momentum is reset whenever it points uphill.

    References
    ----------
    O'Donoghue, Candès, "Adaptive restart for accelerated gradient schemes" (2015), §3.2.
    """
    y, t = x, 1.0
    while True:
        new = gradient_step(y)
        back = y - new
        yield new, back
        move = new - x
        restart = np.vdot(back, move) > 0
        next_t = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = new if restart else new + (t - 1) / next_t * move
        x, t = new, 1.0 if restart else next_t
