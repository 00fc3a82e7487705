"""Checks of the arguments of `TorchLoss`: each by itself, then all of them on a few samples."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pcfed.errors import one_line
from pcfed.losses.features import FLOAT32, FLOAT64, MAX_BLOCK_ROWS, UINT8, as_number_array
from pcfed.validation import positive

if TYPE_CHECKING:
    from pcfed.losses.torch_loss import FlatModule

NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.float32: FLOAT32, torch.float64: FLOAT64}
TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in NUMPY_DTYPES.items()}

LossFunction = Callable[[Any, Tensor], Tensor]
"""A function of outputs and targets that returns their mean loss."""


# -- Each argument by itself -----------------------------------------------------------------------


def read_module(
    module: nn.Module, device: str | torch.device | None
) -> tuple[nn.Module, torch.device]:
    """Return a copy of the module on the device, and the device."""
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"TorchLoss: module must be a torch.nn.Module, got {type(module).__name__}; "
            "wrap functions of parameters in a class with forward."
        )
    _check_layers(module)
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"TorchLoss: module must have trainable parameters, got none in "
            f"{type(module).__name__}; set requires_grad=True for those to train."
        )
    _check_parameters(trainable)
    try:
        first = next(iter(trainable.values()))
        target = first.device if device is None else torch.device(device)
        return copy.deepcopy(module).to(target), target
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            "TorchLoss: module must be one that can be copied to a device, got "
            f'{_describe_error(error)}; give device="cpu", or a module whose parameters are '
            "created by itself."
        ) from error


def _check_layers(module: nn.Module) -> None:
    """Raise if a layer makes the output for one sample depend on other samples."""
    for name, layer in module.named_modules():
        is_batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if is_batch_norm or getattr(layer, "track_running_stats", False):
            raise ValueError(
                f"TorchLoss: module must not keep statistics of batches, got {name or 'module'!r}, "
                f"a {type(layer).__name__}; use GroupNorm or LayerNorm instead."
            )


def _check_parameters(trainable: dict[str, nn.Parameter]) -> None:
    """Raise unless the parameters have shapes, one float dtype and finite values."""
    first = next(iter(trainable.values()))
    for name, p in trainable.items():
        if nn.parameter.is_lazy(p):
            raise ValueError(
                f"TorchLoss: module must know the shapes of its parameters, got {name!r} without "
                "one; call the module once on a batch before."
            )
        if p.dtype not in NUMPY_DTYPES or p.dtype != first.dtype:
            raise ValueError(
                f"TorchLoss: trainable parameters must be all float32 or all float64, got {name!r} "
                f"of {_short_name(p.dtype)}; convert with module.float() or module.double()."
            )
        if not bool(p.isfinite().all()):
            raise ValueError(
                f"TorchLoss: trainable parameters must be finite, got NaN or inf in {name!r}; "
                "initialise the module again."
            )


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
    X, y = _read_tensor("X", given_X), _read_tensor("y", given_y)
    if scale is not None:
        factor = positive("TorchLoss: scale", scale)
    else:
        factor = 1 / 255 if X.dtype == torch.uint8 else 1.0
    float_dtype = TORCH_DTYPES[dtype]
    if X.dtype != torch.uint8:  # pixels need the least memory as they are
        is_integer = not X.is_floating_point() and X.dtype != torch.bool
        X = X.to(torch.int64 if is_integer and scale is None else float_dtype)
    y = y.to(float_dtype if y.is_floating_point() or y.dtype == torch.bool else torch.int64)
    if not X.ndim or not len(X) or not X.numel():
        raise ValueError(
            f"TorchLoss: X must have at least one sample, got shape {tuple(X.shape)}; "
            "give one row per sample."
        )
    if y.shape[:1] != X.shape[:1]:
        raise ValueError(
            f"TorchLoss: y must have one entry per row of X, {len(X)} of them, got shape "
            f"{tuple(y.shape)}; give as many targets as samples."
        )
    _check_finite("X", X, dtype)
    _check_finite("y", y, dtype)
    return X.to(device), y.to(device), factor


def _read_tensor(name: str, given: Any) -> Tensor:
    """Return real numbers as a tensor, without a copy if possible."""
    if isinstance(given, Tensor):
        tensor = given.detach()
        if tensor.is_complex() or tensor.layout != torch.strided:
            raise ValueError(
                f"TorchLoss: {name} must be real numbers in a dense tensor, got "
                f"{_short_name(tensor.dtype)} in {_short_name(tensor.layout)}; convert it."
            )
        return tensor
    array = as_number_array(given)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"TorchLoss: {name} must be real numbers in a rectangular array, got "
            f"{type(given).__name__} of {array.dtype}; give an array or a tensor."
        )
    # torch.from_numpy accepts neither long double nor a foreign byte order.
    if array.dtype.kind == "f":
        array = array.astype(np.float32 if array.itemsize <= 4 else np.float64, copy=False)
    elif array.dtype.kind != "b" and array.dtype != UINT8:
        array = array.astype(np.int64, copy=False)
    with warnings.catch_warnings():
        # The tensor shares the memory of a read-only array, but is never written to.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array, order="C"))


def _check_finite(name: str, tensor: Tensor, dtype: np.dtype[Any]) -> None:
    """Raise if there is NaN or inf, with one block of rows in memory at a time."""
    if not tensor.is_floating_point():
        return
    for start in range(0, len(tensor), MAX_BLOCK_ROWS):
        finite = tensor[start : start + MAX_BLOCK_ROWS].isfinite()
        if not finite.all():
            at = finite.logical_not().nonzero()[0]
            at[0] += start
            raise ValueError(
                f"TorchLoss: {name} must be finite in {dtype}, got "
                f"{float(tensor[tuple(at.tolist())])} at row {int(at[0])}; remove or replace "
                "such samples."
            )


def read_loss_fn(loss_fn: LossFunction, device: torch.device) -> LossFunction:
    """Return the loss function; a module is copied to the device."""
    if isinstance(loss_fn, nn.Module):
        return copy.deepcopy(loss_fn).to(device)
    if not callable(loss_fn) or isinstance(loss_fn, type):
        raise ValueError(
            f"TorchLoss: loss_fn must be a function of outputs and y, got {loss_fn!r}; "
            "give for example torch.nn.CrossEntropyLoss()."
        )
    return loss_fn


# -- A trial on a few samples ----------------------------------------------------------------------


def try_module(module: nn.Module, X: Tensor) -> Any:
    """Return the output for a few samples; raise unless it is a function of them alone."""
    inputs, buffers = X.clone(), [buffer.clone() for buffer in module.buffers()]
    try:
        with torch.no_grad():
            output, again = module(X), module(inputs.clone())
    except Exception as error:
        raise ValueError(
            f"TorchLoss: module must take batches of X, got {_describe_error(error)} for shape "
            f"{tuple(X.shape)} of {_short_name(X.dtype)}; give X in the shape that its first layer "
            "expects."
        ) from error
    is_function = all(map(torch.equal, buffers, module.buffers()))
    if isinstance(output, Tensor):
        # NaN differs from itself, but may be the right output.
        is_function = is_function and torch.equal(output.nan_to_num(), again.nan_to_num())
    if not is_function:
        raise ValueError(
            "TorchLoss: module must be a function of its input, got another output or another "
            "buffer when it was called twice; keep random numbers and counters out of forward."
        )
    if not torch.equal(X, inputs):
        raise ValueError(
            "TorchLoss: module must not change its input, got a module that writes to it; "
            "use inplace=False in its first layers."
        )
    return output


def count_classes(output: Any, y: Tensor, all_targets: Tensor) -> int | None:
    """Return the number of classes, or None if the targets of some outputs are not class labels.

    If they are, all targets must be valid labels.
    """
    if y.is_floating_point() or not isinstance(output, Tensor) or output.ndim < 2:
        return None
    num_classes = output.shape[1]
    if num_classes < 2 or output.shape[:1] + output.shape[2:] != y.shape:
        return None
    invalid = (all_targets < 0) | (all_targets >= num_classes)
    if invalid.any():
        at = tuple(invalid.nonzero()[0].tolist())
        raise ValueError(
            f"TorchLoss: y must be whole numbers in 0..{num_classes - 1}, got "
            f"{int(all_targets[at])} at row {at[0]}; renumber the labels or give the module "
            "more outputs."
        )
    return num_classes


def try_loss_fn(flat: FlatModule, loss_fn: LossFunction, X: Tensor, y: Tensor) -> None:
    """Raise unless the loss of a few samples is their mean and depends on the parameters."""
    loss = _trial_loss(flat, loss_fn, X, y)
    if not loss.requires_grad:
        raise ValueError(
            "TorchLoss: loss_fn must depend on the trainable parameters, got a number that "
            "does not; keep .detach() and torch.no_grad() out of module and loss_fn."
        )
    # Parts of different sizes, cut at two places: a sum, or a mean with weights, would have to pass
    # twice by chance.
    whole, size = float(loss.detach()), len(y)
    for cut in {size // 3, size // 2} - {0}:
        parts = slice(0, cut), slice(cut, size)
        losses = [float(_trial_loss(flat, loss_fn, X[rows], y[rows]).detach()) for rows in parts]
        mean = (cut * losses[0] + (size - cut) * losses[1]) / size
        if math.isfinite(mean) and not abs(whole - mean) <= 1e-4 * max(map(abs, losses)) + 1e-6:
            raise ValueError(
                f"TorchLoss: loss_fn must be a mean over the batch, got {whole:.4g} for "
                f"{size} rows that have a mean of {mean:.4g} in two parts; use "
                'reduction="mean" without weights, and no layers that mix samples.'
            )


def _trial_loss(flat: FlatModule, loss_fn: LossFunction, X: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a few samples, differentiable by the parameters."""
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            # Torch only warns if it broadcasts y against the outputs, which is always a mistake.
            warnings.filterwarnings("error", "Using a target size")
            loss = loss_fn(flat.module(X.clone()), y.clone())
            if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad:
                flat.gradient(loss)
    except Exception as error:
        raise ValueError(
            f"TorchLoss: loss_fn must take outputs and y of shape {tuple(y.shape)} of "
            f"{_short_name(y.dtype)}, got {_describe_error(error)}; correct y or choose another "
            "loss_fn."
        ) from error
    if not isinstance(loss, Tensor) or loss.ndim:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(
            f"TorchLoss: loss_fn must return one number, the mean over the batch, got {got}; "
            'use reduction="mean".'
        )
    return loss


def _describe_error(error: Exception) -> str:
    """Return the type and the shortened message of an error that torch raised."""
    return f"{type(error).__name__} ({one_line(str(error).strip().rstrip('.'), 300)})"


def _short_name(value: torch.dtype | torch.layout) -> str:
    """Return the name of a dtype or layout without the prefix ``torch.``."""
    return str(value).removeprefix("torch.")
