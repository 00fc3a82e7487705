"""The arithmetic of local steps, one row an agent: compiled if numba is installed, else by NumPy.

Both do the same operations on every entry in the same order, so they give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcfed import compiler
from pcfed.algorithms.work import Work
from pcfed.arrays import Array, Float64Array


def descend(
    y: Array,
    g: Array,
    p: Array,
    x: Array,
    *,
    step: float,
    penalty: float,
    prox: float,
    correction: Array | None,
) -> None:
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
    step, penalty, prox : float
        γ, ρ and FedProx's μ; terms with a factor of 0 are left out.
    correction : array of shape (agents, n), optional
        SCAFFOLD's difference of control variates.
    """
    gamma, rho, mu = (y.dtype.type(each) for each in (step, penalty, prox))
    if (kernels := compiler.kernels("pcfed.algorithms.kernels")) is not None:
        c = np.empty((0, 0), y.dtype) if correction is None else correction
        kernels.descend(y.dtype)(y, g, p, x, c, gamma, rho, mu)
        return
    if rho:
        g += rho * (y - p)
    if mu:
        g += mu * (y - x)
    if correction is not None:
        g += correction
    y -= gamma * g


def add_rows(total: Float64Array, rows: Array) -> None:
    """Add rows to a total in place, one after the other: the same bits however they are grouped.

    Parameters
    ----------
    total : array of shape (n,)
        In float64.
    rows : array of shape (rows, n)
        float32 or float64, in C order.
    """
    if (kernels := compiler.kernels("pcfed.algorithms.kernels")) is not None:
        kernels.add_rows(rows.dtype)(total, rows)
        return
    for row in rows:
        total += row


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

    Attributes
    ----------
    v, u : arrays of shape (agents, n)
        What all blocks got so far, and what only the own one got.
    x, z : arrays of shape (agents, n)
        The own block $C + w + v + u$ and the average $C + \bar w + v + u/m$ of the agent's
        blocks; with corrections, each also moves by $-\gamma\,cu/m$ a step.
    y : array of shape (agents, n)
        The point whose distance from the set is penalised, $x + \lambda/\rho$; x itself without
        corrections.
    """

    def __init__(self, work: Work, x0: Array, z0: Array, fix: Corrections | None) -> None:
        self.x0, self.z0, self.fix = x0, z0, fix
        self.v, self.u = work.rows(np.zeros(1)), work.rows(np.zeros(1))
        self.x, self.z = work.rows(x0), work.rows(z0)
        self.y = self.x if fix is None else np.add(x0, fix.offset, out=work.empty())
        self.taken = 0

    @property
    def scratch(self) -> tuple[Array, ...]:
        """The arrays that nobody reads after the last step."""
        mine = (self.x, self.z)
        return mine if self.fix is None else (*mine, self.y, *self.fix.rows)

    def advance(
        self, g: Array, p: Array, *, step: float, penalty: float, coupling: Array, m: int
    ) -> None:
        r"""Take one local step, in place.

        $$ v \leftarrow v - \gamma \big( (g - s)/m + \hat{cv} - cv \big), \quad
           u \leftarrow u - \gamma \big( \rho (y - p) + s - cu \big), \quad s = \sigma (x - z) $$

        Parameters
        ----------
        g, p : arrays of shape (agents, n)
            The gradients at z and the projections of y; both may be overwritten.
        step, penalty : float
            γ and ρ.
        coupling : array of shape (agents, 1)
            σ, in the dtype of the steps.
        m : int
            Size of the roster.
        """
        v, u, x, z, y, fix = self.v, self.u, self.x, self.z, self.y, self.fix
        self.taken += 1
        kind = v.dtype.type
        gamma, rho, share, k = kind(step), kind(penalty), kind(1 / m), kind(self.taken)
        if (kernels := compiler.kernels("pcfed.algorithms.kernels")) is not None:
            facts = (v, u, x, z, g, p, self.x0, self.z0, coupling, gamma, rho, share)
            if fix is None:
                kernels.advance(v.dtype)(*facts)
            else:
                kernels.advance_corrected(v.dtype)(*facts, y, *fix.rows, fix.mean_shift, k)
            return
        s = coupling * (x - z)
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
        np.add(self.x0, v + u, out=x)
        np.add(self.z0, v + share * u, out=z)
        if fix is not None:
            x -= k * fix.own_shift
            z -= k * fix.mean_shift
            np.add(x, fix.offset, out=y)
