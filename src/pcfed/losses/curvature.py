"""The curvature of a loss whose smoothness is not known, measured at a point."""

from __future__ import annotations

import math

import numpy as np

from pcfed.arrays import Array
from pcfed.losses.base import Loss

POWER_STEPS = 10
"""Steps of the power method; it needs only the order of magnitude."""


def measured_curvature(loss: Loss, x: Array) -> float:
    """Return the largest curvature of a loss at a point, by the power method.

    It is 1 if no curvature is found there, and NaN if gradients are not finite.
    """
    x = x.astype(loss.dtype)
    g = loss.gradient(x).astype(np.float64)
    length = math.sqrt(np.finfo(loss.dtype).eps) * max(1.0, float(np.linalg.norm(x)))
    direction, curvature = g, 0.0
    for _ in range(POWER_STEPS):
        size = float(np.linalg.norm(direction))
        if not 0 < size < math.inf:
            break
        moved = (x + length / size * direction).astype(loss.dtype)
        direction = (loss.gradient(moved) - g) / length
        curvature = max(curvature, float(np.linalg.norm(direction)))
    if not math.isfinite(float(np.linalg.norm(direction))):
        return math.nan
    return curvature if curvature > 0 else 1.0
