"""Everything that numba compiles, and nothing else.

numba is optional: `load` returns None where it is not installed, and callers then use NumPy.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def load(name: str) -> ModuleType | None:
    """Return the module ``pcfed.kernels.<name>``, or None where numba is not installed.

    Importing numba takes half a second, so kernels are imported when they are first needed.
    """
    try:
        return import_module(f"{__name__}.{name}")
    except ImportError:
        return None
