"""Additions to private state: compiled where numba is installed, else by NumPy, same bits."""

from __future__ import annotations

import numpy as np

from pcfed import kernels
from pcfed.arrays import Array


def add_quotient(rows: Array, update: Array, divisor: float) -> None:
    """Add ``update / divisor`` to rows in place, in float64.

    Parameters
    ----------
    rows : array of shape (agents, n)
        In float64, in C order.
    update : array of shape (agents, n)
        float32 or float64, in C order.
    divisor : float
        The size of the roster.
    """
    if (compiled := kernels.load("sums")) is not None:
        compiled.add_quotient(update.dtype)(rows, update, float(divisor))
        return
    # Not a product with 1 / divisor, which would round twice.
    rows += np.divide(update, divisor, dtype=np.float64)


def add_scaled(rows: Array, update: Array, factor: float) -> None:
    """Add ``factor * update`` to rows in place, in float64.

    Parameters
    ----------
    rows : array of shape (agents, n)
        In float64, in C order.
    update : array of shape (agents, n)
        float32 or float64, in C order.
    factor : float
        On the update.
    """
    if (compiled := kernels.load("sums")) is not None:
        compiled.add_scaled(update.dtype)(rows, update, float(factor))
        return
    rows += np.multiply(factor, update, dtype=np.float64)
