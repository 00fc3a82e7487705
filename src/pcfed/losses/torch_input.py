"""What a loss of a PyTorch module is made from, checked: the module, the data, the function."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pcfed.errors import one_line
from pcfed.losses.features import BLOCK_ROWS, FLOATS, PIXELS
from pcfed.validation import positive

KINDS: dict[torch.dtype, np.dtype[Any]] = {torch.float32: FLOATS[0], torch.float64: FLOATS[1]}


def read_module(
    module: nn.Module, device: str | torch.device | None
) -> tuple[nn.Module, torch.device]:
    """Return a copy of the module on the device, and the device."""
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"TorchLoss: module must be a torch.nn.Module, got {type(module).__name__}; "
            "wrap functions of parameters in a class with forward."
        )
    for name, layer in module.named_modules():
        mixes = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if mixes or getattr(layer, "track_running_stats", False):
            raise ValueError(
                f"TorchLoss: module must not keep statistics of batches, got {name or 'module'!r}, "
                f"a {type(layer).__name__}; take GroupNorm or LayerNorm in its place."
            )
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError(
            f"TorchLoss: module must have trainable parameters, got none in "
            f"{type(module).__name__}; set requires_grad=True where x should be."
        )
    first = next(iter(named.values()))
    for name, p in named.items():
        if nn.parameter.is_lazy(p):
            raise ValueError(
                f"TorchLoss: module must know the shapes of its parameters, got {name!r} without "
                "one; call the module once on a batch before."
            )
        if p.dtype not in KINDS or p.dtype != first.dtype:
            raise ValueError(
                f"TorchLoss: trainable parameters must be all float32 or all float64, got {name!r} "
                f"of {plain(p.dtype)}; convert with module.float() or module.double()."
            )
        if not bool(p.isfinite().all()):
            raise ValueError(
                f"TorchLoss: trainable parameters must be finite, got NaN or inf in {name!r}; "
                "initialise the module afresh."
            )
    try:
        where = first.device if device is None else torch.device(device)
        return copy.deepcopy(module).to(where), where
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"TorchLoss: module must be one that can be copied to a device, got {in_words(error)}; "
            f'give device="cpu", or a module whose parameters it made itself.'
        ) from error


def read_data(
    data: tuple[Any, Any], scale: float | None, dtype: np.dtype[Any], device: torch.device
) -> tuple[Tensor, Tensor, float]:
    """Return features and targets as tensors on the device, and the factor on features."""
    try:
        given_X, given_y = data
    except (TypeError, ValueError):
        raise ValueError(
            f"TorchLoss: data must be a pair (X, y), got {type(data).__name__}; "
            "give features and targets."
        ) from None
    X, y = _tensor("X", given_X), _tensor("y", given_y)
    if scale is not None:
        factor = positive("TorchLoss: scale", scale)
    else:
        factor = 1 / 255 if X.dtype == torch.uint8 else 1.0
    kind = torch.float64 if dtype == np.float64 else torch.float32
    if X.dtype != torch.uint8:
        words = not X.is_floating_point() and X.dtype != torch.bool and scale is None
        X = X.to(torch.int64 if words else kind)
    y = y.to(kind if y.is_floating_point() or y.dtype == torch.bool else torch.int64)
    if not X.ndim or not len(X) or not X.numel():
        raise ValueError(
            f"TorchLoss: X must have at least one sample, one a row, got shape {tuple(X.shape)}; "
            "give one row per sample."
        )
    if y.shape[:1] != X.shape[:1]:
        raise ValueError(
            f"TorchLoss: y must have one entry per row of X, {len(X)} of them, got shape "
            f"{tuple(y.shape)}; give as many targets as samples."
        )
    for name, tensor in (("X", X), ("y", y)):
        for start in range(0, len(tensor) if tensor.is_floating_point() else 0, BLOCK_ROWS):
            finite = tensor[start : start + BLOCK_ROWS].isfinite()
            if not finite.all():
                at = finite.logical_not().nonzero()[0]
                at[0] += start
                raise ValueError(
                    f"TorchLoss: {name} must be finite in {dtype}, got "
                    f"{float(tensor[tuple(at.tolist())])} at row {int(at[0])}; remove or replace "
                    "such samples."
                )
    return X.to(device), y.to(device), factor


def _tensor(name: str, given: Any) -> Tensor:
    """Return real numbers as a tensor, without a copy where possible."""
    if isinstance(given, Tensor):
        tensor = given.detach()
        if tensor.is_complex() or tensor.layout != torch.strided:
            raise ValueError(
                f"TorchLoss: {name} must be real numbers in a dense tensor, got "
                f"{plain(tensor.dtype)} in {plain(tensor.layout)}; convert it."
            )
        return tensor
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        array = np.asarray("no numbers")
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"TorchLoss: {name} must be real numbers in a rectangular array, got "
            f"{type(given).__name__} of {array.dtype}; give an array or a tensor."
        )
    if array.dtype.kind == "f":
        array = array.astype(np.float32 if array.itemsize <= 4 else np.float64, copy=False)
    elif array.dtype.kind != "b" and array.dtype != PIXELS:
        array = array.astype(np.int64, copy=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor written to
        return torch.from_numpy(np.asarray(array, order="C"))


def read_loss_fn(
    loss_fn: Callable[[Any, Tensor], Tensor], device: torch.device
) -> Callable[[Any, Tensor], Tensor]:
    """Return what to call; a module is copied to the device."""
    if isinstance(loss_fn, nn.Module):
        return copy.deepcopy(loss_fn).to(device)
    if not callable(loss_fn) or isinstance(loss_fn, type):
        raise ValueError(
            f"TorchLoss: loss_fn must be a function of outputs and y, got {loss_fn!r}; "
            "give for example torch.nn.CrossEntropyLoss()."
        )
    return loss_fn


def output_of(module: nn.Module, X: Tensor) -> Any:
    """Return what the module gives for a few rows, if it is a function of them and nothing else."""
    given, before = X.clone(), [buffer.clone() for buffer in module.buffers()]
    try:
        with torch.no_grad():
            output, again = module(X), module(given.clone())
    except Exception as error:
        raise ValueError(
            f"TorchLoss: module must take batches of X, got {in_words(error)} for shape "
            f"{tuple(X.shape)} of {plain(X.dtype)}; give X in the shape that its first layer "
            "wants."
        ) from error
    same = all(map(torch.equal, before, module.buffers()))
    if isinstance(output, Tensor):
        same = same and torch.equal(output.nan_to_num(), again.nan_to_num())
    if not same:
        raise ValueError(
            "TorchLoss: module must be a function of its input, got another output or another "
            "buffer when it was called twice; keep random numbers and counters out of forward."
        )
    if not torch.equal(X, given):
        raise ValueError(
            "TorchLoss: module must leave its input as it is, got a module that writes to it; "
            "take inplace=False in its first layers."
        )
    return output


def in_words(error: Exception) -> str:
    """Return an error of torch in a few words."""
    return f"{type(error).__name__} ({one_line(str(error).strip().rstrip('.'), 300)})"


def plain(name: object) -> str:
    """Return the name of a dtype without the name of torch."""
    return str(name).removeprefix("torch.")
