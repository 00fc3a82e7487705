r"""The loss of any PyTorch module, as a function of one flat vector of its parameters.

In this folder $x$ is the flat parameter vector and $N$ the number of samples. A loss keeps a copy
of the module that nobody runs. Gradients are taken on further copies, one for each thread at a
time, whose parameters are views on one flat vector: to load $x$ is to copy $n$ numbers.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from pcfed.arrays import Array
from pcfed.losses.base import Rows
from pcfed.losses.features import FLOATS, Index, parts
from pcfed.losses.samples import EVERY, SampleLoss
from pcfed.losses.torch_input import (
    KINDS,
    in_words,
    output_of,
    plain,
    read_data,
    read_loss_fn,
    read_module,
)
from pcfed.validation import count

TRIED = 8
"""Samples at most on which a module is tried when its loss is made."""


class TorchLoss(SampleLoss):
    r"""The loss of a PyTorch module, with gradients by automatic differentiation.

    $$f(x) = \frac1N \sum_j \text{loss\_fn}(\text{module}_x(X_j), y_j)$$

    The flat vector holds the trainable parameters in the order of ``module.parameters()``, each
    row-major; those with ``requires_grad=False`` are no part of it and stay as they are, and so do
    buffers. Its ``shape`` is ``(n,)``; `unpack` names the parts, `module` makes a module of it, and
    ``start`` holds the parameters that the module came with. Begin there (``x0=loss.start``): at
    zero, where runs begin by default, a network with hidden layers has no slope to follow. For a
    set per parameter see `pcfed.sets.Blocks.for_module`.

    The module is copied, and runs in evaluation mode, so that $f$ is a function: dropout does
    nothing, and layers whose output for one sample depends on the others (batch norm) are refused.
    Its smoothness is not known: ``step`` must be a number, not ``"auto"``.

    Parameters
    ----------
    module : torch.nn.Module
        The model. Its trainable parameters are all float32 or all float64, which becomes ``dtype``.
    data : (X, y)
        Arrays or tensors with one sample a row, X of any shape that the module takes. Read in place
        where possible, so do not change them afterwards. Of y, whole numbers become int64 (classes)
        and the rest ``dtype``; of X, uint8 are pixels and other whole numbers stay (words).
    loss_fn : callable
        ``loss_fn(output, y)``, a mean over the batch, such as ``torch.nn.CrossEntropyLoss()``.
    scale : float, optional
        Factor on X: 1/255 for uint8 (pixels), otherwise 1.
    convex : bool
        Whether $f$ is convex in x, which you know and we can't: linear models; certificates need
        it.
    block : int
        Samples at most that go through the module at once; larger batches are summed up.
    device : str or torch.device, optional
        Where to compute, for example ``"cuda"``; by default where the module is.

    Raises
    ------
    ValueError
        If the module, or what it does to a few rows of the data, breaks one of these rules.

    Examples
    --------
    >>> import torch
    >>> from pcfed.losses import TorchLoss
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    >>> data = [[1.0, 0.0], [0.0, 1.0]], [0, 2]
    >>> loss = TorchLoss(net, data, torch.nn.CrossEntropyLoss())
    >>> loss
    TorchLoss(2 samples, Sequential of 27 parameters, float32)
    >>> {name: part.shape for name, part in loss.unpack(loss.start).items()}
    {'0.weight': (4, 2), '0.bias': (4,), '2.weight': (3, 4), '2.bias': (3,)}
    >>> loss.gradient(loss.start, slice(0, 1)).shape
    (27,)

    An agent with a budget for its first layer:

    >>> from pcfed import Agent
    >>> from pcfed.sets import Blocks, L1Ball
    >>> Agent(loss, Blocks.for_module(net, {"0.weight": L1Ball(5)}), coupling=0.1).constraint
    Blocks({(0, 8): L1Ball(radius=5.0)})
    """

    free = None
    start: Array
    scale: float
    block: int
    _module: nn.Module
    _layout: dict[str, tuple[int, ...]]
    _features: Tensor
    _targets: Tensor
    _loss_fn: Callable[[Any, Tensor], Tensor]
    _classes: int | None
    _spare: list[_Machine]

    def __init__(
        self,
        module: nn.Module,
        data: tuple[Any, Any],
        loss_fn: Callable[[Any, Tensor], Tensor],
        *,
        scale: float | None = None,
        convex: bool = False,
        block: int = 512,
        device: str | torch.device | None = None,
    ) -> None:
        if not isinstance(convex, (bool, np.bool_)):
            raise ValueError(
                f"TorchLoss: convex must be True or False, got {convex!r}; give one of the two."
            )
        self.convex = bool(convex)
        self.block = count("TorchLoss: block", block)
        self._module, where = read_module(module, device)
        trainable = [(k, p) for k, p in self._module.named_parameters() if p.requires_grad]
        self._layout = {name: tuple(p.shape) for name, p in trainable}
        self.dtype = KINDS[trainable[0][1].dtype]
        self.start = np.concatenate([p.detach().cpu().numpy().ravel() for _, p in trainable])
        self.start.setflags(write=False)
        self.n = self.start.size
        self.shape = (self.n,)
        self._features, self._targets, self.scale = read_data(data, scale, self.dtype, where)
        self.size = len(self._features)
        self._loss_fn = read_loss_fn(loss_fn, where)
        self._spare = []
        self._classes = self._tried()
        self._sealed = True

    def __repr__(self) -> str:
        name = type(self._module).__name__
        return f"TorchLoss({self.size} samples, {name} of {self.n} parameters, {self.dtype})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spare": []}

    def value(self, x: ArrayLike) -> float:
        """Return the mean loss over all samples, summed in float64 over blocks of them."""
        total = 0.0
        with self._at(x) as machine, torch.no_grad():
            for X, y in self._blocks(EVERY, self.size):
                total += len(y) * float(self._loss_fn(machine.module(X), y))
        return total / self.size

    def gradient(self, x: ArrayLike, rows: Rows = None, out: Array | None = None) -> Array:
        """Return the gradient of the mean over ``rows``; see `Loss.gradient`."""
        index, number = self._batch(rows)
        x = self._parameters(x)
        grad = self._buffer(x, out)
        with self._at(x) as machine, torch.enable_grad():
            total = None
            for X, y in self._blocks(index, number):
                part = machine.slope(self._loss_fn(machine.module(X), y))
                if len(y) < number:
                    part *= len(y) / number
                total = part if total is None else total.add_(part)
        np.copyto(grad, np.asarray(total.cpu() if total is not None else 0.0))
        if out is not None and out is not grad:
            out[...] = grad
        return grad if out is None else out

    def accuracy(self, x: ArrayLike) -> float:
        """Return the share of targets to which the module gives the largest output.

        NaN unless y holds classes: whole numbers, one for each output of shape (samples, classes).
        """
        if self._classes is None:
            return math.nan
        right = 0
        with self._at(x) as machine, torch.no_grad():
            for X, y in self._blocks(EVERY, self.size):
                right += int((machine.module(X).argmax(dim=1) == y).sum())
        return right / self._targets.numel()

    def smoothness(self) -> float:
        """Return infinity: no Lipschitz constant of the gradient is known."""
        return math.inf

    def double(self) -> Self:
        """Return the same loss in float64; itself where the module insists on float32."""
        if self.dtype == np.float64:
            return self
        other, y = copy.copy(self), self._targets
        other.__dict__.update(
            _module=copy.deepcopy(self._module).double(),
            _targets=y.double() if y.is_floating_point() else y,
            dtype=FLOATS[1],
        )
        try:
            other._tried()
        except ValueError:
            return self
        return other

    def permuted(self, order: ArrayLike) -> Self:
        """Return this loss with its samples in another order, so that batches can be slices.

        Parameters
        ----------
        order : array of int
            Every row number 0..size-1 once. The data are copied in that order.
        """
        index = torch.from_numpy(self._order(order)).to(self._features.device)
        other = copy.copy(self)
        other.__dict__.update(_features=self._features[index], _targets=self._targets[index])
        return other

    def unpack(self, x: ArrayLike) -> dict[str, Array]:
        """Return the parts of ``x`` by the names and in the shapes that the module has for them.

        They are views on ``x`` if it has the dtype of the loss.
        """
        sizes = [math.prod(shape) for shape in self._layout.values()]
        pieces = np.split(self._parameters(x), np.cumsum(sizes)[:-1])
        pairs = zip(self._layout.items(), pieces, strict=True)
        return {name: piece.reshape(shape) for (name, shape), piece in pairs}

    def module(self, x: ArrayLike) -> nn.Module:
        """Return a copy of the module with the parameters ``x``, to use or to save as any other."""
        own = copy.deepcopy(self._module)
        parameters = dict(own.named_parameters())
        with torch.no_grad():
            for name, piece in self.unpack(x).items():
                parameters[name].copy_(torch.from_numpy(piece.copy()))
        return own

    @contextmanager
    def _at(self, x: ArrayLike) -> Iterator[_Machine]:
        """Lend out a copy of the module with the parameters ``x`` that nobody else is using."""
        vector = self._parameters(x)
        try:
            machine = self._spare.pop()
        except IndexError:
            machine = _Machine(self._module, list(self._layout))
        machine.load(vector)
        yield machine
        self._spare.append(machine)

    def _blocks(self, index: Index, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the data of rows, in blocks of nearly the same size."""
        step = math.ceil(number / math.ceil(number / self.block))
        for part in parts(index, number, self.size, step):
            yield self._rows(part)

    def _rows(self, part: Index) -> tuple[Tensor, Tensor]:
        """Return the scaled features and the targets of some rows."""
        X, y = self._features, self._targets
        if isinstance(part, slice) and (part.step or 1) > 0:
            X, y = X[part], y[part]
        else:
            rows = np.arange(self.size)[part] if isinstance(part, slice) else part % self.size
            chosen = torch.from_numpy(np.ascontiguousarray(rows)).to(X.device)
            X, y = X.index_select(0, chosen), y.index_select(0, chosen)
        if X.is_floating_point() or X.dtype == torch.uint8:
            X = X.to(torch.float64 if self.dtype == np.float64 else torch.float32)
            X = X if self.scale == 1 else X * self.scale
        return X, y

    def _tried(self) -> int | None:
        """Run the module on a few rows, refuse what breaks the rules, return how many classes."""
        rows = np.linspace(0, self.size - 1, min(TRIED, self.size)).astype(np.intp)
        with self._at(self.start) as machine:
            output = output_of(machine.module, self._rows(rows)[0])
            classes = self._count_classes(output, self._rows(rows)[1])
            loss = self._tell(machine, rows)
            if not loss.requires_grad:
                raise ValueError(
                    "TorchLoss: loss_fn must depend on the trainable parameters, got a number that "
                    "does not; keep .detach() and torch.no_grad() out of module and loss_fn."
                )
            self._check_mean(machine, rows, float(loss.detach()))
        return classes

    def _check_mean(self, machine: _Machine, rows: NDArray[np.intp], whole: float) -> None:
        """Refuse a loss of some rows that is not the mean of two parts of them."""
        halves = [rows[: len(rows) // 3], rows[len(rows) // 3 :]]
        some = [(len(half), self._tell(machine, half)) for half in halves if len(half)]
        mean = sum(number * float(loss.detach()) for number, loss in some) / len(rows)
        if math.isfinite(mean) and not abs(whole - mean) <= 1e-3 * abs(mean) + 1e-6:
            raise ValueError(
                f"TorchLoss: loss_fn must be a mean over the batch, got {whole:.4g} for "
                f"{len(rows)} rows that have a mean of {mean:.4g} in two parts; take "
                'reduction="mean" without weights, and no layers that mix samples.'
            )

    def _tell(self, machine: _Machine, rows: NDArray[np.intp]) -> Tensor:
        """Return the loss of a few rows with its graph, or say in a sentence why there is none."""
        X, y = self._rows(rows)
        try:
            with torch.enable_grad(), warnings.catch_warnings():
                warnings.filterwarnings("error", "Using a target size")
                loss = self._loss_fn(machine.module(X), y)
                if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad:
                    machine.slope(loss)
        except Exception as error:
            raise ValueError(
                f"TorchLoss: loss_fn must take outputs and y of shape {tuple(y.shape)} of "
                f"{plain(y.dtype)}, got {in_words(error)}; correct y or choose another loss_fn."
            ) from error
        if not isinstance(loss, Tensor) or loss.ndim:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"TorchLoss: loss_fn must return one number, the mean over the batch, got {got}; "
                'take reduction="mean".'
            )
        return loss

    def _count_classes(self, output: Any, some: Tensor) -> int | None:
        """Return the number of classes if y holds classes, all of them in range; else None."""
        if some.is_floating_point() or not isinstance(output, Tensor) or output.ndim < 2:
            return None
        classes = output.shape[1]
        if classes < 2 or output.shape[:1] + output.shape[2:] != some.shape:
            return None
        wrong = (self._targets < 0) | (self._targets >= classes)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"TorchLoss: y must be whole numbers in 0..{classes - 1}, got "
                f"{int(self._targets[at])} at row {at[0]}; renumber the labels or give the module "
                "more outputs."
            )
        return classes


class _Machine:
    """A copy of a module, in evaluation mode, whose parameters are views on one flat vector."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        self.module = copy.deepcopy(module).eval()
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in names]
        first, n = self.parameters[0], sum(p.numel() for p in self.parameters)
        self._host = torch.empty(n, dtype=first.dtype)
        self._flat = self._host if first.device.type == "cpu" else self._host.to(first.device)
        start = 0
        for p in self.parameters:
            p.data = self._flat[start : start + p.numel()].view(p.shape)
            start += p.numel()

    def load(self, x: Array) -> None:
        """Set the parameters."""
        np.copyto(self._host.numpy(), x)
        if self._flat is not self._host:
            self._flat.copy_(self._host)

    def slope(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as one flat vector; zeros for parameters it ignores."""
        slopes = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([each.reshape(-1) for each in slopes])
