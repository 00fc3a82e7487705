r"""The projection onto an l1 ball and bounds at once, by a search in one dimension.

$$ \min_p \tfrac12 \|p - x\|^2 \quad \text{subject to} \quad \|p\|_1 \le \tau,\; l \le p \le u $$

has the solution $p(\theta) = \operatorname{clip}(\operatorname{soft}(x, \theta), l, u)$ for the
smallest $\theta \ge 0$ with $\|p(\theta)\|_1 \le \tau$, because every entry is a problem of its own
once the multiplier θ is known. $\|p(\theta)\|_1$ falls, and is linear between the numbers
$|x_j|$, $|x_j| - |l_j|$ and $|x_j| - |u_j|$.
"""

from __future__ import annotations

import numpy as np

from pcfed.arrays import Float64Array


def project_l1_in_box(
    x: Float64Array, radius: float, lower: Float64Array, upper: Float64Array
) -> Float64Array | None:
    """Return the projection, or None if ball and bounds have no point in common.

    Parameters
    ----------
    x : array of shape (n,)
        The point.
    radius : float
        τ.
    lower, upper : arrays of shape (n,)
        The bounds, possibly infinite.
    """
    a = np.abs(x)

    def shrunk(theta: float) -> Float64Array:
        return np.clip(np.copysign(np.maximum(a - theta, 0.0), x), lower, upper)

    def size(theta: float) -> float:
        return float(np.abs(shrunk(theta)).sum())

    if size(0.0) <= radius:
        return shrunk(0.0)
    ends = np.concatenate(([0.0], a, a - np.abs(lower), a - np.abs(upper)))
    ends = np.unique(ends[np.isfinite(ends) & (ends >= 0.0)])
    if size(ends[-1]) > radius * (1.0 + 64.0 * float(np.finfo(np.float64).eps)):
        return None
    low, high = 0, ends.size - 1  # size(ends[low]) > radius, and ends[high] is enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(ends[middle]) > radius else (low, middle)
    over, under = size(ends[low]) - radius, radius - size(ends[high])
    share = over / (over + max(under, 0.0))
    return shrunk(ends[low] + share * (ends[high] - ends[low]))
