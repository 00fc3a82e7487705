"""Modules that only the report needs, imported when it is written."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str) -> Any:
    """Import a module of the ``experiments`` extra, or say in one sentence how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f"write_report: {module.partition('.')[0]} is not installed; "
            "run pip install 'pcfed[experiments]'."
        ) from None
