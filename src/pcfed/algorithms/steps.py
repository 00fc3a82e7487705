"""The arithmetic of local steps, one row an agent: compiled if numba is installed, else by NumPy.

Both do the same operations on every entry in the same order, so they give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pcfed.algorithms.local_context import LocalContext
from pcfed.arrays import Array, Float64Array
from pcfed.kernels import compiler
from pcfed.sets.rows import ThresholdSets

Numbers = tuple[Any, Any, Any]
"""γ, ρ and 1/m or FedProx's μ, in the dtype of the steps."""

NO_TARGETS = ThresholdSets(is_l1_ball=False, totals=np.empty(0), slack=0.0, thresholds=np.empty(0))
"""For steps without projections."""


class Terms(NamedTuple):
    """What a local step of FedAvg, FedProx, SCAFFOLD or Local is made of."""

    step: float
    """γ"""
    penalty: float
    """ρ; terms with a factor of 0 are left out."""
    prox: float
    """FedProx's μ."""
    correction: Array | None
    """SCAFFOLD's difference of control variates, (agents, n)."""

    def numbers(self, dtype: np.dtype[Any]) -> Numbers:
        """Return γ, ρ and μ in a dtype."""
        return dtype.type(self.step), dtype.type(self.penalty), dtype.type(self.prox)

    def change(self, dtype: np.dtype[Any]) -> Array:
        """Return the correction as kernels want it: a row for all, with nothing in it, if none."""
        return np.empty((1, 0), dtype) if self.correction is None else self.correction


def descend(y: Array, g: Array, p: Array, x: Array, terms: Terms) -> None:
    r"""Take one local step of FedAvg, FedProx, SCAFFOLD and Local, in place.

    $$ y \leftarrow y - \gamma \big( g + \rho (y - p) + \text{prox} \cdot (y - x)
       + \text{correction} \big) $$

    Parameters
    ----------
    y : array of shape (agents, n)
        The models.
    g, p : arrays of shape (agents, n)
        Their gradients, and their projections onto the agents' sets; g is overwritten.
    x : array of shape (agents, n) or (1, n)
        Where the round began.
    terms : Terms
        The factors and the correction.
    """
    gamma, rho, mu = terms.numbers(y.dtype)
    if (kernels := compiler.kernels("pcfed.kernels.steps")) is not None:
        kernels.descend_rows(y.dtype)(y, g, p, x, terms.change(y.dtype), gamma, rho, mu)
        return
    if rho:
        g += rho * (y - p)
    if mu:
        g += mu * (y - x)
    if terms.correction is not None:
        g += terms.correction
    y -= gamma * g


def descend_all(context: LocalContext, y: Array, x: Array, terms: Terms) -> bool:
    """Take all local steps of a round in compiled code, if it can be done, and say whether it was.

    Otherwise y may have changed. Gradients and projections are those of ``context``; the rest is as
    in ``descend``, to the same bits.
    """
    kernels, sources = compiler.kernels("pcfed.kernels.steps"), context.sources()
    targets = context.sets.threshold_sets(y.dtype) if terms.penalty else NO_TARGETS
    if kernels is None or targets is None or not sources:
        return False
    rows = context.room(2)
    for run, source in sources:
        start, change = (
            rows if len(rows) == 1 else rows[run] for rows in (x, terms.change(y.dtype))
        )
        steps = kernels.descend_all(*source.kernel, projects=terms.penalty != 0)
        numbers, room = terms.numbers(y.dtype), (source.room(), rows)
        if not steps(y[run], start, change, numbers, tuple(source), targets.of(run), room):
            return False
    context.release(rows)
    if terms.penalty:
        context.sets.store_thresholds(targets.thresholds)
    return True


def add_rows(total: Float64Array, rows: Array) -> None:
    """Add rows to a total in place, one after the other: the same bits however they are grouped.

    Parameters
    ----------
    total : array of shape (n,)
        In float64.
    rows : array of shape (rows, n)
        float32 or float64, in C order.
    """
    if (kernels := compiler.kernels("pcfed.kernels.steps")) is not None:
        kernels.add_rows(rows.dtype)(total, rows)
        return
    for row in rows:
        total += row


def add_quotient(rows: Array, update: Array, m: int) -> None:
    """Add ``update / m`` to rows in place, in float64.

    Parameters
    ----------
    rows : array of shape (agents, n)
        In float64, in C order.
    update : array of shape (agents, n)
        float32 or float64, in C order.
    m : int
        Size of the roster.
    """
    if (kernels := compiler.kernels("pcfed.kernels.steps")) is not None:
        kernels.add_quotient(update.dtype)(rows, update, float(m))
        return
    rows += np.divide(update, m, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Corrections:
    """What exact PC-FedAvg adds to the local steps of a round, in the dtype of the steps.

    All have one row an agent but ``mean_shift``, which is the same for everybody.
    """

    every: Array  # ĉv − cv
    own: Array  # cu
    offset: Array  # λ/ρ
    own_shift: Array  # γ cu/m
    mean_shift: Array  # γ ĉu/m

    @property
    def rows(self) -> tuple[Array, ...]:
        """All that have one row an agent."""
        return self.every, self.own, self.offset, self.own_shift


class Blocks:
    r"""The m blocks of every agent in a round of PC-FedAvg, in the compact form.

    The own block is $x = C + w + v + u$. The point whose distance from the set is penalised is
    $y = x + \lambda/\rho$, which is x itself without corrections; with them, x and z also move by
    $-\gamma\,cu/m$ a step. A step is

    $$ v \leftarrow v - \gamma \big( (g - s)/m + \hat{cv} - cv \big), \quad
       u \leftarrow u - \gamma \big( \rho (y - \Pi_X[y]) + s - cu \big), \quad
       s = \sigma (x - z), $$

    where $g = \nabla f(z)$ on a batch and $z = C + \bar w + v + u/m$ is the average of the agent's
    blocks.

    Parameters
    ----------
    context : LocalContext
        The agents' data, sets and couplings.
    center : array of shape (n,)
        C.
    offsets : array of shape (agents, n)
        Their w.
    mean : array of shape (n,)
        Where the averages begin, $C + \bar w$.
    fix : Corrections, optional
        Those of the exact method.

    Attributes
    ----------
    v, u : arrays of shape (agents, n)
        What all blocks got in the round, and what only the own one got.
    """

    x0: Array  # where the own blocks begin, C + w
    z: Array
    taken: int  # steps so far

    def __init__(
        self,
        context: LocalContext,
        center: Array,
        offsets: Array,
        mean: Array,
        fix: Corrections | None,
    ) -> None:
        self.context, self.fix = context, fix
        self.center, self.offsets = (
            np.ascontiguousarray(each, np.float64) for each in (center, offsets)
        )
        self.z0 = mean.astype(context.dtype)
        self.v, self.u = context.empty(), context.empty()

    def walk(self, *, step: float, penalty: float, m: int) -> None:
        """Take all local steps of a round.

        Parameters
        ----------
        step, penalty : float
            γ and ρ.
        m : int
            Size of the roster.
        """
        context, kind = self.context, self.v.dtype.type
        numbers = (kind(step), kind(penalty), kind(1 / m))
        if not self._advance_all(numbers):
            self.v[...], self.u[...], self.taken = 0, 0, 0
            self.x0 = np.add(self.center, self.offsets, context.empty(), casting="same_kind")
            self.z = context.rows(self.z0)
            g = context.empty()
            for _ in range(context.steps):
                self._advance(context.gradient(self.z, out=g), numbers)
            context.release(g, self.x0, self.z)
        if self.fix is not None:
            context.release(*self.fix.rows)

    def _advance_all(self, numbers: Numbers) -> bool:
        """Take all local steps in compiled code, if it can be done, and say whether it was."""
        context, kernels = self.context, compiler.kernels("pcfed.kernels.steps")
        sources, targets = context.sources(), context.sets.threshold_sets(self.v.dtype)
        if kernels is None or targets is None or not sources:
            return False
        rows = context.room(5 if self.fix is None else 6)
        for run, source in sources:
            blocks = (self.v[run], self.u[run], self.z0, self.center, self.offsets[run])
            steps = kernels.advance_all(*source.kernel, fixed=self.fix is not None)
            facts, room = self._facts(run, numbers), (source.room(), rows)
            if not steps(blocks, *facts, tuple(source), targets.of(run), room):
                return False
        context.release(rows)
        context.sets.store_thresholds(targets.thresholds)
        return True

    def _advance(self, g: Array, numbers: Numbers) -> None:
        """Take one local step from the gradients at z, which may be overwritten."""
        kernels = compiler.kernels("pcfed.kernels.steps")
        done = 0 if kernels is None else self._advance_row_by_row(kernels, g, numbers)
        if done < len(g):
            self._advance_at_once(kernels, slice(done, None), g, numbers)
        self.taken += 1

    def _advance_row_by_row(self, kernels: Any, g: Array, numbers: Numbers) -> int:
        """Project and step, each row while it is in the cache; return how many rows went so."""
        targets = self.context.sets.threshold_sets(g.dtype)
        if targets is None:
            return 0
        room = self.context.room(2 if self.fix is None else 3)
        parts = self._parts(slice(None), numbers)
        done: int = kernels.step_rows(g.dtype, fixed=self.fix is not None)(
            *parts, g, tuple(targets), room
        )
        self.context.release(room)
        self.context.sets.store_thresholds(targets.thresholds)
        return done

    def _advance_at_once(self, kernels: Any, rows: slice, g: Array, numbers: Numbers) -> None:
        """Project all of these rows, then step."""
        context, fix = self.context, self.fix
        x, p = context.empty(), context.empty()
        y = x if fix is None else context.empty()
        points, parts = (x[rows], y[rows]), self._parts(rows, numbers)
        if kernels is None:
            self._place(*points)
        else:
            kernels.place_rows(g.dtype, fixed=self.fix is not None)(*parts, *points)
        context.project(y[rows], out=p[rows], first=rows.start)
        if kernels is None:
            self._step(g, *points, p, *numbers)
        else:
            kernels.advance_rows(g.dtype, fixed=self.fix is not None)(
                *parts, g[rows], *points, p[rows]
            )
        context.release(x, y, p)

    def _place(self, x: Array, y: Array) -> None:
        """Write the own blocks and the points to be projected."""
        np.add(self.x0, self.v + self.u, out=x)
        if self.fix is not None:
            x -= x.dtype.type(self.taken) * self.fix.own_shift
            np.add(x, self.fix.offset, out=y)

    def _step(
        self, g: Array, x: Array, y: Array, p: Array, gamma: Any, rho: Any, share: Any
    ) -> None:
        """Take the step, from gradients, own blocks, points y and their projections."""
        v, u, z, fix = self.v, self.u, self.z, self.fix
        s = self.context.coupling * (x - z)
        g -= s
        g *= share
        np.subtract(y, p, out=p)
        p *= rho
        p += s
        if fix is not None:
            g += fix.every
            p -= fix.own
        v -= gamma * g
        u -= gamma * p
        np.add(self.z0, v + share * u, out=z)
        if fix is not None:
            z -= z.dtype.type(self.taken + 1) * fix.mean_shift

    def _parts(self, rows: slice, numbers: Numbers) -> tuple[Any, ...]:
        """Return what all kernels of one step read, of some rows."""
        blocks = (self.v[rows], self.u[rows], self.z[rows], self.x0[rows], self.z0)
        return blocks, *self._facts(rows, numbers), self.v.dtype.type(self.taken)

    def _facts(self, rows: slice, numbers: Numbers) -> tuple[tuple[Any, ...] | None, Any]:
        """Return the corrections, if any, and the factors, of some rows."""
        fix, factors = self.fix, (self.context.coupling[rows], *numbers)
        if fix is None:
            return None, factors
        return (*(each[rows] for each in fix.rows), fix.mean_shift), factors
