"""Modules that only the report needs, imported when it is written."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str) -> Any:
    """Import a module of an extra, or say in one sentence how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        extra = "app" if package in ("jinja2", "plotly") else "experiments"
        raise ImportError(
            f"write_report: {package} is not installed; run pip install 'pcfed[{extra}]'."
        ) from None
