r"""The local problems of PCFedSplit, solved by accelerated projected gradient steps.

With $\varphi(x, z') = \theta f(x) + (1 - \theta) f(z') + \frac\sigma2 \|x - z'\|^2$ an agent
minimises, over $x \in X$,

$$ \varphi(x, z') - \langle \bar y, x\rangle + \langle y, z'\rangle
   + \frac{1}{2\tau_x} \|x - s\|^2 + \frac{1}{2\tau} \|z' - z\|^2, \qquad
   s = z + W - P, \quad y = U - Y, \quad \tau_x = \alpha\tau. $$

x and z' have different curvatures, and so steps of different lengths,
$\eta_x = 1/(\theta L + 2\sigma + 1/\tau_x)$ and $\eta_z = 1/((1 - \theta) L + 2\sigma + 1/\tau)$.
From extrapolated points $\hat x, \hat z$ a step is

$$ x^+ = \Pi_X\big[ a_x \hat x + b_x \hat z + e_x - \eta_x \theta \nabla f(\hat x) \big], \qquad
   z^+ = a_z \hat z + b_z \hat x + e_z - \eta_z (1 - \theta) \nabla f(\hat z), $$

where $a = 1 - \eta (\sigma + 1/\tau)$ and $b = \eta \sigma$, each with its own $\eta$ and $\tau$,
and $e_x = \eta_x (\bar y + s/\tau_x)$ and $e_z = \eta_z (z/\tau - y)$ do not change in a round. If
the centre is free, $\alpha$ is infinite and $\bar y = 0$.

The curvature L is what the loss expects, times a factor. If the last step of a round is much longer
than the first or, in some rounds, not much shorter, the agent measures the curvature along it, with
one more gradient on the same batch. If that exceeds L by too much, steps are too long: the factor
is raised until it does not, and the agent takes the steps of the round again. Agents with a privacy
budget take L from public numbers and measure nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pcfed import kernels
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.schedules import decaying
from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import (
    EXCESS,
    MAX_ATTEMPTS,
    MIN_ROOT,
    RAISE,
    StepScratch,
    read_only,
)
from pcfed.losses.curvature import measured_curvature

SHORTER, LONGER = 0.5, 2.0
"""The curvature is measured unless the last step is shorter than this multiple of the first: in
rounds in which it is checked, and in all others."""

CHECKED_ROUNDS, CHECKED_EVERY = 10, 5
"""The curvature is checked in the first rounds, and then in every k-th."""

TRUST = {np.dtype(np.float32): 1e-3, np.dtype(np.float64): 1e-9}
"""Curvatures are measured only over differences of at least this size, relative to z and to the
gradient: smaller ones may be rounding errors."""


@dataclass(frozen=True, eq=False)
class LocalProblems:
    """The local problems of a group of agents, in float64.

    Attributes
    ----------
    z, y_mean, P, Y : array of shape (n,)
        What the server broadcast.
    x, W, U : array of shape (agents, n)
        The agents' own models, where their steps start, and totals.
    prox, ratio, relaxation : float
        τ, α (infinite if the centre is free) and κ.
    longest : float
        The curvature is measured if the last step is at least this multiple of the first.
    expected : array of shape (agents, 1)
        The curvature that each loss expects.
    """

    z: Array
    y_mean: Array
    P: Array
    Y: Array
    x: Array
    W: Array
    U: Array
    prox: float
    ratio: float
    relaxation: float
    longest: float
    expected: Float64Array


def expected_curvatures(context: LocalContext, index: int) -> Float64Array:
    """Return the curvature that each agent's loss expects on its batches, 1 if it knows none.

    For batches that are not full, it grows with the round's index, so that steps become shorter and
    their noise fades.
    """
    pairs = zip(context.agents, context.batches, strict=True)
    typical = np.array([agent.typical_smoothness(b.batch_size) for agent, b in pairs])
    typical[~np.isfinite(typical)] = 1.0
    typical[context.noisy] /= decaying(1.0)(index)
    return typical[:, None]


def longest_step(index: int) -> float:
    """Return the length of the last step, relative to the first, from which on L is measured."""
    checked = index < CHECKED_ROUNDS or index % CHECKED_EVERY == 0
    return SHORTER if checked else LONGER


def first_factors(context: LocalContext, z: Array, factors: Array) -> Float64Array:
    """Return the factors on the expected curvatures, in place of the 0 before the first round."""
    found = factors.astype(np.float64)
    for i in np.flatnonzero(~(factors > 0)):
        loss = context.agents[i].loss
        known = math.isfinite(loss.typical_smoothness(context.batches[i].batch_size))
        found[i] = 1.0 if known else measured_curvature(loss, z)
    return found


def solve(
    context: LocalContext, problems: LocalProblems, factors: Float64Array
) -> tuple[Array, Array, Array]:
    """Solve the local problems of a group, each with all local steps of the round.

    Parameters
    ----------
    context : LocalContext
        The agents' data, sets and couplings.
    problems : LocalProblems
        What the server and the agents know.
    factors : array of shape (agents, 1)
        The factors on the expected curvatures; raised in place where steps were too long.

    Returns
    -------
    x, dx, dz : arrays of shape (agents, n)
        The own models, in the sets, and the updates, in the dtype of the steps; dx is undefined if
        the centre is free.
    """
    x, dx, dz = context.empty(), context.empty(), context.empty()
    given = factors.copy()
    if not _solve_compiled(context, problems, factors, x, dx, dz):
        factors[...] = given
        _solve_rows(context, problems, factors, x, dx, dz)
    return x, dx, dz


@dataclass(frozen=True, eq=False)
class _Factors:
    """The factors of every agent's steps, columns in the dtype of the steps."""

    x_own: Array  # a_x
    x_other: Array  # b_x
    x_step: Array  # η_x
    x_share: Array  # η_x/τ_x
    x_slope: Array  # η_x θ
    z_own: Array  # a_z
    z_other: Array  # b_z
    z_step: Array  # η_z
    z_share: Array  # η_z/τ
    z_slope: Array  # η_z (1 − θ)
    momentum: Array  # β


def _step_factors(
    context: LocalContext, problems: LocalProblems, curvatures: Float64Array
) -> _Factors:
    """Return the factors that follow from the curvatures."""
    sigma = context.coupling.astype(np.float64)
    theta = context.personalization.astype(np.float64)
    columns: list[Float64Array] = []
    pulls = 1 / (problems.ratio * problems.prox), 1 / problems.prox
    for share, pull in zip((theta, 1 - theta), pulls, strict=True):
        curvature = share * curvatures + 2 * sigma + pull
        # Without any curvature, x stays where it is.
        step = np.divide(1, curvature, out=np.zeros_like(curvature), where=curvature > 0)
        columns += (1 - step * sigma - step * pull, step * sigma, step, step * pull, step * share)
    root = np.minimum(1.0, np.maximum(np.sqrt(_convexity(columns)), MIN_ROOT / context.steps))
    columns.append((1 - root) / (1 + root))
    return _Factors(*(each.astype(context.dtype) for each in columns))


def _convexity(columns: list[Float64Array]) -> Float64Array:
    r"""Return the strong convexity of coupling and proximal terms, in the metric $1/\eta$.

    It is the smaller eigenvalue of the matrix with the diagonal $\eta (\sigma + 1/\tau)$, for x and
    for z, and $-\sigma \sqrt{\eta_x \eta_z}$ beside it.
    """
    (_, x_coupling, _, x_pull, _), (_, z_coupling, _, z_pull, _) = columns[:5], columns[5:]
    a, b = x_coupling + x_pull, z_coupling + z_pull
    product = x_coupling * z_pull + x_pull * z_coupling + x_pull * z_pull
    largest = (a + b) / 2 + np.sqrt(((a - b) / 2) ** 2 + x_coupling * z_coupling)
    convexity: Float64Array = product / largest
    return convexity


def _solve_rows(
    context: LocalContext,
    problems: LocalProblems,
    factors: Float64Array,
    x: Array,
    dx: Array,
    dz: Array,
) -> None:
    """Solve the local problems with gradients and projections of any kind."""
    s = context.rows(problems.W + (problems.z - problems.P))
    y = context.rows(problems.U - problems.Y)
    z, y_mean = (each.astype(context.dtype) for each in (problems.z, problems.y_mean))
    for _ in range(MAX_ATTEMPTS):
        curvatures = factors * problems.expected
        steps = _step_factors(context, problems, curvatures)
        measured = _take_steps(context, steps, problems.longest, problems.x, z, y_mean, s, y, x, dz)
        tau = problems.prox if context.loss_points == "center" else problems.ratio * problems.prox
        allowed = (1 + EXCESS) * curvatures + EXCESS * (2 * context.coupling + 1 / tau)
        long = ~(measured <= allowed)
        if not long.any():
            break
        for i in np.flatnonzero(long):
            factors[i, 0] = _raised(factors[i, 0], measured[i, 0], curvatures[i, 0])
    kappa = context.dtype.type(problems.relaxation)
    np.multiply(kappa, x - s, out=dx)
    np.multiply(kappa, dz - z, out=dz)
    context.release(s, y)


def _raised(factor: float, measured: float, curvature: float) -> float:
    """Return the factor, raised until the curvature is the measured one; fourfold if it is none."""
    if not 0 < measured < math.inf or not curvature > 0:
        return 4 * factor
    # By multiplication, so that compiled code has the same bits.
    while curvature < measured:
        factor, curvature = RAISE * factor, RAISE * curvature
    return factor


def _take_steps(
    context: LocalContext,
    factors: _Factors,
    longest: float,
    start: Array,
    z: Array,
    y_mean: Array,
    s: Array,
    y: Array,
    x: Array,
    z_new: Array,
) -> Float64Array:
    """Take all local steps, write x and z', and return the measured curvatures, (agents, 1)."""
    e_x = factors.x_step * y_mean + factors.x_share * s
    e_z = factors.z_share * z - factors.z_step * y
    x[...], z_new[...] = start, z
    points, hats, next_ones = context.loss_points, context.empty(points=2), context.empty(points=2)
    x_hat, z_hat, x_next, z_next = hats[:, 0], hats[:, 1], next_ones[:, 0], next_ones[:, 1]
    x_hat[...], z_hat[...] = x, z
    # The points at which the loss is taken, and where they move to.
    at, moved = {
        "center": (z_hat, z_next),
        "own": (x_hat, x_next),
        "both": (hats, next_ones),
    }[points]
    g = context.empty(points=2 if points == "both" else 1)
    g_x, g_z = (g[:, 0], g[:, 1]) if points == "both" else (g, g)
    first = last = np.zeros(len(x))
    for k in range(context.steps):
        _gradients(context, at, k, g)
        np.add(factors.x_own * x_hat + factors.x_other * z_hat, e_x, out=z_next)
        if points != "center":
            z_next -= factors.x_slope * g_x
        finite = np.isfinite(z_next).all(axis=1, keepdims=True)
        context.project(np.where(finite, z_next, s), out=x_next)
        np.add(factors.z_own * z_hat + factors.z_other * x_hat, e_z, out=z_next)
        if points != "own":
            z_next -= factors.z_slope * g_z
        if k in (0, context.steps - 1):
            last = _norms(moved - at)
            first = last if k == 0 else first
        if k + 1 == context.steps:
            measured = _measure(context, longest * first, last, moved, g)
        np.add(x_next, factors.momentum * (x_next - x), out=x_hat)
        np.add(z_next, factors.momentum * (z_next - z_new), out=z_hat)
        x[...], z_new[...] = x_next, z_next
    context.release(hats, next_ones, g)
    return measured


def _gradients(context: LocalContext, at: Array, step: int, out: Array) -> Array:
    """Write the gradients at points that may be rows of a larger array."""
    return context.gradient(at if at.ndim == 3 else np.ascontiguousarray(at), step, out=out)


def _measure(
    context: LocalContext, longest: Float64Array, last: Float64Array, moved: Array, g: Array
) -> Float64Array:
    """Return the curvatures along the last step; 0 where it is short, NaN where steps overflow.

    ``moved`` has the points at which the last step ended, and ``g`` the gradients where it began.
    """
    # With noise for privacy, a difference of gradients says nothing about the curvature, and a
    # second attempt would take more gradients than are accounted for.
    if context.is_private:
        return np.zeros((len(last), 1))
    # A first step that is not finite is a fault of the data, which shorter steps do not mend.
    measured = np.where(np.isfinite(last) | ~np.isfinite(longest), 0.0, np.nan)
    asked = (last >= longest) & np.isfinite(last)
    if not asked.any():
        return measured[:, None]
    again = _gradients(context, moved, context.steps - 1, np.empty_like(g))
    size, change, norm = _norms(moved), _norms(again - g), _norms(again)
    trust = TRUST[context.dtype]
    asked &= ~((last <= trust * size) | (change <= trust * norm))
    measured[asked] = change[asked] / last[asked]
    return measured[:, None]


def _norms(rows: Array) -> Float64Array:
    """Return the norm of every agent's rows, in float64."""
    wide = rows.astype(np.float64, copy=False).reshape(len(rows), -1)
    norms: Float64Array = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return norms


def _solve_compiled(
    context: LocalContext,
    problems: LocalProblems,
    factors: Float64Array,
    x: Array,
    dx: Array,
    dz: Array,
) -> bool:
    """Solve the local problems in one compiled loop, to the same bits.

    Returns False if kernels do not support the losses, the sets or a point; the results are then
    undefined.
    """
    compiled, sources = kernels.load("pcfedsplit"), context.batch_sources()
    sets = context.sets.threshold_sets(x.dtype)
    if compiled is None or sets is None or not sources:
        return False
    model, W, U, shift, Y = (
        read_only(np.ascontiguousarray(each, np.float64))
        for each in (problems.x, problems.W, problems.U, problems.z - problems.P, problems.Y)
    )
    z, y_mean = (each.astype(x.dtype) for each in (problems.z, problems.y_mean))
    vectors = context.vectors(compiled.VECTORS)
    for part, source in sources:
        start = compiled.Start(
            x[part], dx[part], dz[part], model[part], W[part], U[part], shift, Y, z, y_mean
        )
        numbers = compiled.Numbers(
            couplings=context.coupling[part],
            personalization=context.personalization[part],
            expected=problems.expected[part],
            factors=factors[part],
            prox=problems.prox,
            ratio=problems.ratio,
            relaxation=x.dtype.type(problems.relaxation),
            longest=problems.longest,
            trust=TRUST[x.dtype],
        )
        points = 2 if context.loss_points == "both" else 1
        scratch = StepScratch(source.scratch(points), vectors)
        if not compiled.solve(*source.dtypes)(start, numbers, source, sets.take(part), scratch):
            return False
    context.release(vectors)
    context.sets.store_thresholds(sets.thresholds)
    return True
