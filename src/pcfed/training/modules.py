"""PyTorch modules of a user: imported only with consent, from the folder of the configuration.

To import is to run code, so it never happens because a file says so: the person who starts the
training must say it too. What goes wrong in that code is told in a sentence.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.config.constraints import Layers
from pcfed.config.model_table import TORCH
from pcfed.config.train_file import Config
from pcfed.errors import did_you_mean, one_line
from pcfed.losses import Loss
from pcfed.sets import Blocks, ConvexSet
from pcfed.storage.atomic import FileError

OURS = (ValueError, OSError, ArithmeticError, FileError)
"""Errors of our own, which are sentences."""


def load_module(config: Config, *, allow_import: bool) -> Any:
    """Return the module that ``model.module`` makes, with the parameters that the seed gives it.

    Parameters
    ----------
    config : Config
        Of a training of kind torch.
    allow_import : bool
        Whether the file may be run.

    Raises
    ------
    ValueError
        If it may not, or anything in it goes wrong.
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
            f"{where} needs PyTorch, which is not installed; run pip install 'pcfed[torch]'."
        ) from None
    path = config.located(str(file))
    if not path.is_file():
        raise ValueError(f"{where} must be in {file} beside the configuration, got no such file.")
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        with in_a_sentence(config, ours=()):
            names = vars(_imported(path))
        if name not in names:
            raise ValueError(
                f"{where} must name something in {file}, got {name!r}; "
                f"{did_you_mean(name, names)}Correct it."
            )
        with in_a_sentence(config, ours=()):
            module = names[name]()
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"{where} must make a torch.nn.Module, got {type(module).__name__} from {name}(); "
            "return one."
        )
    return module.to(torch.float64 if config.data.dtype == "float64" else torch.float32)


def module_loss(config: Config, module: Any, X: Float64Array, y: NDArray[Any]) -> Loss:
    """Return the loss of a module on some rows."""
    from pcfed.losses import TorchLoss

    functional = importlib.import_module("torch.nn.functional")

    def mse(output: Any, y: Any) -> Any:
        flat = output.ndim == 2 and output.shape[1] == 1
        return functional.mse_loss(output[:, 0] if flat else output, y)

    loss_fn = mse if config.model.loss == "mse" else functional.cross_entropy
    return TorchLoss(module, (X, y), loss_fn)


def for_module(constraint: ConvexSet, module: Any) -> ConvexSet:
    """Return a set of flat vectors, where it may speak of named parameters."""
    if isinstance(constraint, Layers):
        return Blocks.for_module(module, constraint.sets)
    return constraint


def start_of(loss: Loss) -> NDArray[np.floating[Any]] | None:
    """Return the parameters that a module came with; None for linear models, which begin at 0."""
    start: NDArray[np.floating[Any]] | None = getattr(loss, "start", None)
    return start


def named_shapes(loss: Loss) -> dict[str, tuple[int, ...]] | None:
    """Return the named parameters of a module and their shapes; None for linear models."""
    if (start := start_of(loss)) is None:
        return None
    module: Any = loss
    parts = module.unpack(start)
    return {name: part.shape for name, part in parts.items()}


@contextmanager
def in_a_sentence(config: Config, ours: tuple[type[Exception], ...] = OURS) -> Iterator[None]:
    """Tell in a sentence what goes wrong in code of a user; ``ours`` are told already."""
    where = f"{config.where}: model.module"
    try:
        yield
    except ours:
        raise
    except (Exception, SystemExit) as error:
        if config.model.kind != TORCH:
            raise
        words = one_line(str(error).strip().rstrip("."), 150)
        raise ValueError(
            f"{where} must run without errors, got {type(error).__name__} ({words}); correct "
            f"{config.model.file}."
        ) from None


def _imported(path: Path) -> Any:
    """Run a file as a module of its own, which finds its neighbours."""
    name = f"pcfed_module_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look for it there
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(folder)
    return made
