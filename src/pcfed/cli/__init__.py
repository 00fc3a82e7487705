"""The command line, one file a command or a few that belong together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

MODULES = {
    "init": "init",
    "train": "train",
    "predict": "models",
    "export": "models",
    "report": "report",
    "compare": "report",
    "reproduce": "reproduce",
    "bounds": "guarantees",
    "certify": "guarantees",
    "data": "data",
    "federation": "federation",
}
"""Where each command is."""


def load() -> Callable[[], NoReturn]:
    """Import the file of the command that is asked for, and no other; return what runs it."""
    asked = MODULES.get(sys.argv[1] if len(sys.argv) > 1 else "")
    for module in [asked] if asked else dict.fromkeys(MODULES.values()):
        import_module(f"pcfed.cli.{module}")
    from pcfed.cli.app import run_app

    return run_app
