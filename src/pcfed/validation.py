"""The checks that every constructor shares.

Errors read *where: rule, got value, what to do*, and conditions are written so that NaN fails.
"""

from __future__ import annotations

import inspect
import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from pcfed.arrays import Array, Float64Array
from pcfed.errors import short_repr


def instance(where: str, value: object, expected: type, advice: str) -> None:
    """Raise a ValueError if ``value`` is not an instance of a class.

    Parameters
    ----------
    where : str
        The argument for the message, for example ``"run: problem"``.
    value : object
        What the user gave.
    expected : type
        The class.
    advice : str
        What to do, for example ``"give one such as L1Ball(1.0)"``.

    Examples
    --------
    >>> instance("run: problem", 3, dict, "give a dict")
    Traceback (most recent call last):
    ValueError: run: problem must be a dict, got int; give a dict.
    """
    if isinstance(value, expected):
        return
    article = "an" if expected.__name__[0] in "AEIOU" else "a"
    if isinstance(value, type) and issubclass(value, expected) and not inspect.isabstract(value):
        advice = f"create an object of it with {value.__name__}(...)"
    raise ValueError(
        f"{where} must be {article} {expected.__name__}, got {type_text(value)}; {advice}."
    )


def boolean(where: str, value: object) -> bool:
    """Return ``value`` as a bool, or explain that it is none."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(
            f"{where} must be True or False, got {short_repr(value)}; give one of the two."
        )
    return bool(value)


def is_path(where: str, value: object) -> None:
    """Raise a ValueError if ``value`` is not the path of a file."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(
            f"{where} must be the path of a file, got {type_text(value)}; give a str or a Path."
        )


def is_folder(where: str, value: object) -> None:
    """Raise a ValueError if ``value`` is not the path of an existing folder."""
    is_path(where, value)
    if not Path(str(value)).is_dir():
        raise ValueError(
            f"{where} must be an existing folder, got {short_repr(value)}; create it, or give "
            "another one."
        )


def type_text(value: object) -> str:
    """Return what a value is, for messages: a short text as it is, and of other values the type.

    Examples
    --------
    >>> type_text("PCFedAvg"), type_text(3), type_text(int)
    ("'PCFedAvg'", 'int', 'the class int')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str):
        return short_repr(value)
    return type(value).__name__


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
        raise ValueError(f"{where} must be {rule}, got {short_repr(value)}; give a number {rule}.")
    return number


def real(where: str, value: float) -> float:
    """Return ``value`` as a finite float, or explain that it is none."""
    try:
        number = math.nan if isinstance(value, (str, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"{where} must be a finite number, got {short_repr(value)}; give one like 1.0."
        )
    return number


def count(where: str, value: int, *, minimum: int = 1) -> int:
    """Return ``value`` as an int, or explain that it must be a whole number ≥ ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise ValueError(
            f"{where} must be a whole number ≥ {minimum}, got {short_repr(value)}; "
            f"give an int such as {max(minimum, 1)}."
        )
    return int(value)


def floating(where: str, value: ArrayLike) -> Array:
    """Return ``value`` as a finite float array; float32 and float64 stay as they are."""
    try:
        if value is None:  # NumPy would turn it into NaN
            raise TypeError("None is not a number")
        array = np.asarray(value)
        if np.iscomplexobj(array):
            raise TypeError("complex numbers have an imaginary part that would be lost")
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        kind = "None" if value is None else type(value).__name__
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
