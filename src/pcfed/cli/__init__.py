"""The command line: one module per command or per few related commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from pcfed.extras import require

MODULES = {
    "init": "init",
    "train": "train",
    "tune": "tune",
    "predict": "models",
    "export": "models",
    "runs": "runs",
    "report": "report",
    "compare": "report",
    "reproduce": "reproduce",
    "bounds": "guarantees",
    "certify": "guarantees",
    "data": "data",
    "federation": "federation_machines",
}
"""The module of each command."""


def load() -> Callable[[], NoReturn]:
    """Import the module of the requested command and return the function that runs the program.

    Other modules are not imported, because some of them take seconds.
    """
    require("The command line", "app", "pydantic", "rich", "threadpoolctl", "typer")
    requested = MODULES.get(sys.argv[1] if len(sys.argv) > 1 else "")
    for module in [requested] if requested else dict.fromkeys(MODULES.values()):
        import_module(f"pcfed.cli.{module}")
    from pcfed.cli.app import run_app

    return run_app
