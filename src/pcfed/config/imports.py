"""Modules of the user that a file names, for example to register algorithms."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from pcfed.errors import display_path, one_line


def import_modules(names: Iterable[str], file: Path) -> None:
    """Import modules that are beside the file that names them or on Python's path."""
    folder = str(file.absolute().parent)
    where = f"{display_path(file)}: imports"
    # Only while modules are imported: data files beside it must not hide modules of Python.
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        for name in names:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{where}: there is no module {error.name!r} beside the file or on Python's path; "
            "write or install it, or correct the name."
        ) from None
    except Exception as error:  # the module's own code may raise anything
        raise ValueError(
            one_line(f"{where}: {name} can't be imported ({type(error).__name__}: {error}).")
        ) from error
    finally:
        sys.path.remove(folder)
