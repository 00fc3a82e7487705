"""The checks that every constructor shares.

Errors read *where: rule, got value, what to do*, and conditions are written so that NaN fails.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array


def positive(where: str, value: float, *, zero: bool = False) -> float:
    """Return ``value`` as a float, or explain that it must be finite and positive.

    Parameters
    ----------
    where : str
        The field for the message, for example ``"L1Ball: radius"``.
    value : float
        What the user gave.
    zero : bool
        Whether zero is allowed too.
    """
    rule = "≥ 0" if zero else "> 0"
    number = real(where, value)
    if not (number >= 0 if zero else number > 0):
        raise ValueError(f"{where} must be {rule}, got {value!r}; give a number {rule}.")
    return number


def real(where: str, value: float) -> float:
    """Return ``value`` as a finite float, or explain that it is none."""
    try:
        number = math.nan if isinstance(value, (str, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where} must be a finite number, got {value!r}; give one like 1.0.")
    return number


def count(where: str, value: int, *, minimum: int = 1) -> int:
    """Return ``value`` as an int, or explain that it must be a whole number ≥ ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise ValueError(
            f"{where} must be a whole number ≥ {minimum}, got {value!r}; "
            f"give an int such as {max(minimum, 1)}."
        )
    return int(value)


def floating(where: str, value: ArrayLike) -> Array:
    """Return ``value`` as a finite float array; float32 and float64 stay as they are."""
    try:
        array = np.asarray(value)
        if np.iscomplexobj(array):
            raise TypeError("complex numbers have an imaginary part that would be lost")
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        raise ValueError(f"{where} must be numbers, got {kind}; give an array of floats.") from None
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"{where} must be finite, got {array[tuple(bad)]} at index {bad}; "
            "remove or replace NaN and inf."
        )
    return array


def frozen(where: str, value: ArrayLike, *, ndim: int) -> Float64Array:
    """Return a read-only float64 copy of ``value`` with ``ndim`` dimensions."""
    array = floating(where, value).astype(np.float64, copy=True)
    if array.ndim != ndim or array.size == 0:
        raise ValueError(
            f"{where} must be a non-empty array with {ndim} dimension(s), got shape {array.shape}; "
            "reshape it."
        )
    array.setflags(write=False)
    return array
