"""PyTorch modules of users: imported only with consent, from the folder of train.toml.

An import runs code, so train.toml alone never causes one: the person who starts the training must
allow it. Errors in the user's code become one sentence.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.config.fields import LayerSets
from pcfed.config.train_file import Config
from pcfed.data.readers import read_bytes
from pcfed.errors import did_you_mean, display_path, install_command, one_line
from pcfed.losses import Loss
from pcfed.sets import Blocks, ConvexSet
from pcfed.storage.atomic import FileError

OWN_ERRORS = (ValueError, OSError, ArithmeticError, FileError)
"""Errors that pcfed raises itself; their messages are sentences."""

RUN_MODULES: list[ModuleType] = []
"""Files of users that have been run as modules, which other processes cannot import."""


def load_module(config: Config, *, allow_import: bool) -> tuple[Any, str]:
    """Return the module of ``model.module`` and the SHA-256 of the code that was run.

    The module's initial parameters depend on the seed.
    """
    file, name = config.model.file, (config.model.module or "").partition(":")[2]
    where = f"{config.where}: model.module"
    if file is None or not allow_import:
        raise ValueError(
            f"{where} must be allowed to run {file}, which is code; look at it, then repeat the "
            "command with --allow-import."
        )
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise ValueError(
            f"{where} needs PyTorch, which is not installed; run {install_command('torch')}."
        ) from None
    path = config.located(str(file))
    if not path.is_file():
        raise ValueError(f"{where} must be in {file} beside the configuration, got no such file.")
    content = read_bytes(display_path(path), path)
    with torch.random.fork_rng():
        torch.manual_seed(_torch_seed(config.training.seed))
        with user_code_errors(config, own=()):
            names = vars(_run_file(path, content))
        if name not in names:
            raise ValueError(
                f"{where} must name something in {file}, got {name!r}; "
                f"{did_you_mean(name, names)}Correct it."
            )
        with user_code_errors(config, own=()):
            module = names[name]()
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"{where} must make a torch.nn.Module, got {type(module).__name__} from {name}(); "
            "return one."
        )
    dtype = torch.float64 if config.data.dtype == "float64" else torch.float32
    return module.to(dtype), hashlib.sha256(content).hexdigest()


def _torch_seed(seed: int) -> int:
    """Return the seed of PyTorch for the seed of a training.

    Only the low 32 bits of a seed matter to PyTorch, and models that are published reveal which
    they were. A longer seed may be a secret, so it must not follow from them.
    """
    if seed < 2**32:
        return seed
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4], "big")


def constraint_for_module(constraint: ConvexSet, module: Any) -> ConvexSet:
    """Return a set of flat vectors, also if it was given as one set per layer of a module."""
    if module is not None and isinstance(constraint, LayerSets):
        return Blocks.for_module(module, constraint.sets)
    return constraint


def initial_parameters(loss: Loss) -> NDArray[np.floating[Any]] | None:
    """Return the parameters that a module was created with; None for linear models."""
    start: NDArray[np.floating[Any]] | None = getattr(loss, "start", None)
    return start


@contextmanager
def user_code_errors(
    config: Config, own: tuple[type[Exception], ...] = OWN_ERRORS
) -> Iterator[None]:
    """Turn errors in the code of a user into one sentence; errors in ``own`` are left unchanged."""
    try:
        yield
    except own:
        raise
    except (Exception, SystemExit) as error:
        if not config.model.is_torch:
            raise
        reason = one_line(str(error).strip().rstrip("."), 150)
        raise ValueError(
            f"{config.where}: model.module must run without errors, got {type(error).__name__} "
            f"({reason}); correct {config.model.file}."
        ) from None


class _BytesLoader(SourceLoader):
    """Imports the bytes that were hashed for the digest, never older code from ``__pycache__``."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._content = path, content

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: bytes | str) -> bytes:
        return self._content


def _run_file(path: Path, content: bytes) -> ModuleType:
    """Run the code of a file as a Python module that can import the other files in its folder."""
    name = f"pcfed_module_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    loader = _BytesLoader(path, content)
    spec = ModuleSpec(name, loader, origin=str(path))
    spec.has_location = True
    module = module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[name] = module  # dataclasses look for it there
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    for imported in sorted(sys.modules.keys() - before):
        file = Path(getattr(sys.modules[imported], "__file__", None) or "/")
        if file.resolve().is_relative_to(folder) and "site-packages" not in file.parts:
            RUN_MODULES.append(sys.modules[imported])
    return module
