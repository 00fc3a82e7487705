"""Compiled loops, where numba is installed; the rest of the package does without it.

Modules named ``kernels`` import numba. Nobody imports them but through here, when a loop is first
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

U = np.uintp
"""The type of indices in kernels.

Of others a kernel must ask whether they are negative, which stands in the way of vector
instructions.
"""


@cache
def kernels(module: str) -> ModuleType | None:
    """Return a module of kernels, or None where numba is not installed."""
    try:
        return import_module(module)
    except ImportError:
        return None


def entry(function: Any, signature: tuple[Any, ...]) -> Callable[..., Any]:
    """Compile a jitted function for one signature; keep the machine code on disk if we may."""
    import numba

    found: Callable[..., Any]
    try:
        compiler = numba.njit(signature, cache=True, nogil=True, error_model="numpy")
        found = compiler(function.py_func)
    except (OSError, RuntimeError):  # numba has no directory to write to
        found = numba.njit(signature, nogil=True, error_model="numpy")(function.py_func)
    return found
