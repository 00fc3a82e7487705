"""How tight a set is for a point of it: how much of a limit is used, and what more would gain.

Letters: x a point of the set, v the negative gradient of an objective at x. Where x minimizes the
objective over the set, v is in the normal cone of the set at x, and the multiplier λ of a limit is
the rate at which the minimum falls when that limit is relaxed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.sets.rounding import norm

ACTIVE = 1e-6
"""A limit is active if a point is closer to it than this, relative to their size."""

NORMAL_STEP, NORMAL_PASSES = 1e-5, 100
"""Length of the step, relative to x, with which normal vectors are measured by a projection, and
the number of passes over the members of an intersection."""


@dataclass(frozen=True)
class Usage:
    r"""How much of its limit a point uses.

    Attributes
    ----------
    text : str
        The limit in the terms of the set, such as ``"uses 4.8 of 5 (l1 norm)"``.
    active : bool
        Whether the point is at the limit, so that relaxing the limit may lower the objective.
    share : float or None
        How full the limit is, from 0 to 1: the used share of a radius, or the share of bounds or
        rows that are active. None where there is no such number.
    multiplier : float or None
        What one more unit of the budget gains in the objective, to first order; negative where one
        unit less would gain (only equations). None if it is not known.
    budget : str
        What the unit is of: ``"the radius"``, ``"the bound"``.
    entry : int or None
        The coefficient that the bound belongs to.
    span : (int, int) or None
        First and last plus one of the coefficients that the limit applies to; None for all.
    """

    text: str
    active: bool
    share: float | None = None
    multiplier: float | None = None
    budget: str = ""
    entry: int | None = None
    span: tuple[int, int] | None = None

    def within(self, start: int, stop: int) -> Usage:
        """Return the same usage for a set of which this is the block from start to stop."""
        first, last = (0, stop - start) if self.span is None else self.span
        entry = None if self.entry is None else self.entry + start
        return replace(self, entry=entry, span=(start + first, start + last))


def tightest(usages: Iterable[Usage]) -> Usage:
    """Return the usage of the tightest of several limits.

    Active limits come first, those with the largest multiplier before the others; limits that are
    not active are compared by their shares.
    """
    return max(usages, key=lambda use: (use.active, abs(use.multiplier or 0.0), use.share or 0.0))


def linear_usage(
    used: float, limit: float, size: float, multiplier: float | None, budget: str
) -> Usage:
    """Return the usage of a linear limit, ``used <= limit`` for numbers of about ``size``."""
    slack = limit - used
    active = slack <= ACTIVE * max(size, abs(limit))
    if active:
        return Usage(f"at its limit of {limit:.4g}", True, 1.0, multiplier, budget)
    share = max(0.0, used / limit) if limit > 0 else None
    none = None if multiplier is None else 0.0
    return Usage(f"{slack:.4g} below its limit of {limit:.4g}", False, share, none, budget)


def split_normal(
    projections: Sequence[Callable[[Float64Array], Float64Array]], x: Float64Array, v: Float64Array
) -> list[Float64Array]:
    r"""Return normal vectors $v_k$ of several sets at x whose sum is as close to v as possible.

    $$ \min_{v_k \in N_k(x)} \tfrac12 \Big\|v - \sum_k v_k\Big\|^2 $$

    by minimizing over one $v_k$ after the other. The projection of u onto the normal cone is
    measured: $(x + t u - \Pi_k[x + t u]) / t$ tends to it for small t.
    """
    parts = [np.zeros_like(v) for _ in projections]
    size = norm(v)
    if size == 0.0:
        return parts
    t = NORMAL_STEP * (norm(x) or 1.0) / size
    for _ in range(NORMAL_PASSES):
        change = 0.0
        for k, project in enumerate(projections):
            u = v - np.sum([part for j, part in enumerate(parts) if j != k], axis=0)
            moved = x + t * u
            new = np.asarray((moved - project(moved)) / t)
            change, parts[k] = max(change, norm(new - parts[k])), new
        if change <= 1e-6 * size:
            break
    return parts
