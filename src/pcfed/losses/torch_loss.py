r"""The loss of any PyTorch module, as a function of one flat vector of its parameters.

In this folder $x$ is the flat parameter vector and $N$ the number of samples. A loss keeps one copy
of the module as a template. Values and gradients are computed on further copies, a `FlatModule`
for each thread that computes at the same time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from pcfed.arrays import Array, Float64Array
from pcfed.losses import torch_checks
from pcfed.losses.base import ALL_ROWS, CLIP_MARGIN, RowIndex, Rows, row_numbers, split_index
from pcfed.losses.checked import CheckedLoss
from pcfed.losses.features import FLOAT64
from pcfed.losses.torch_checks import NUMPY_DTYPES, TORCH_DTYPES, LossFunction
from pcfed.validation import count

NUM_TRIAL_SAMPLES = 8
"""The largest number of samples on which the constructor runs the module."""

MAX_SAMPLE_GRADIENTS = 2**23
"""Numbers in the gradients of single samples that are in memory at the same time."""


class TorchLoss(CheckedLoss):
    r"""The loss of a PyTorch module, with gradients by automatic differentiation.

    $$f(x) = \frac1N \sum_j \text{loss\_fn}(\text{module}_x(X_j), y_j)$$

    The flat vector holds the trainable parameters in the order of ``module.parameters()``, each
    row-major. Parameters with ``requires_grad=False`` and buffers are constants. The ``shape`` is
    ``(n,)``; `unpack` returns the parameters by name, `module` returns a module with given
    parameters, and ``start`` holds the parameters of the given module. Start runs there
    (``x0=loss.start``): at zero, the default, the gradient of a network with hidden layers is zero
    in most parameters. For one set per parameter see `pcfed.sets.Blocks.for_module`.

    The module is copied and runs in evaluation mode, so that $f$ is a function: dropout does
    nothing, and layers whose output for one sample depends on other samples (batch norm) raise an
    error. The smoothness is not known: ``step`` must be a number, not ``"auto"``.

    Parameters
    ----------
    module : torch.nn.Module
        The model. The dtype of its trainable parameters, all float32 or all float64, is ``dtype``.
    data : (X, y)
        Arrays or tensors with one row per sample, X of any shape that the module takes. Read in
        place where possible, so do not change them afterwards. Integers in y become int64 (class
        labels) and other targets ``dtype``; in X, uint8 are pixels and other integers become int64
        (such as token ids).
    loss_fn : callable
        ``loss_fn(output, y)``, a mean over the batch, such as ``torch.nn.CrossEntropyLoss()``.
    scale : float, optional
        Factor on X: 1/255 for uint8 (pixels), otherwise 1.
    convex : bool
        Whether $f$ is convex in x, as for linear modules; it is not checked. Certificates need
        it.
    block : int
        The largest number of samples in one call of the module; larger batches are summed up.
    device : str or torch.device, optional
        Where to compute, for example ``"cuda"``; by default the device of the module.

    Raises
    ------
    ValueError
        If an argument, or the output or loss of a few samples, breaks one of these rules.

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

    def __init__(
        self,
        module: nn.Module,
        data: tuple[Any, Any],
        loss_fn: LossFunction,
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
        self._module, target = torch_checks.read_module(module, device)
        trainable = [(k, p) for k, p in self._module.named_parameters() if p.requires_grad]
        self._layout = {name: tuple(p.shape) for name, p in trainable}
        self.dtype = NUMPY_DTYPES[trainable[0][1].dtype]
        self.start = np.concatenate([p.detach().cpu().numpy().ravel() for _, p in trainable])
        self.start.setflags(write=False)
        self.n = self.start.size
        self.shape = (self.n,)
        X, y, self.scale = torch_checks.read_data(data, scale, self.dtype, target)
        self._features, self._targets = X, y
        self.size = len(self._features)
        self._loss_fn = torch_checks.read_loss_fn(loss_fn, target)
        self._idle_modules: list[FlatModule] = []
        self._num_classes = self._run_trial()
        self._freeze()

    def __repr__(self) -> str:
        name = type(self._module).__name__
        return f"TorchLoss({self.size} samples, {name} of {self.n} parameters, {self.dtype})"

    def __getstate__(self) -> dict[str, Any]:
        # Also for copies, whose module may have another dtype.
        return {**self.__dict__, "_idle_modules": []}

    def value(self, x: ArrayLike) -> float:
        """Return the mean loss over all samples, summed in float64 over blocks of them."""
        total = 0.0
        with self._flat_module(x) as flat, torch.no_grad():
            for X, y in self._blocks(ALL_ROWS, self.size):
                total += len(y) * float(self._loss_fn(flat.module(X), y))
        return total / self.size

    def _write_gradient(self, index: RowIndex, count: int, x: Array, grad: Array) -> None:
        with self._flat_module(x) as flat, torch.enable_grad():
            total = None
            for X, y in self._blocks(index, count):
                part = flat.gradient(self._loss_fn(flat.module(X), y))
                if len(y) < count:
                    part *= len(y) / count
                total = part if total is None else total.add_(part)
        np.copyto(grad, np.asarray(total.cpu() if total is not None else 0.0))

    @property
    def can_clip(self) -> bool:
        """True: gradients of single samples are those of `torch.func`."""
        return True

    def clipped_gradients(
        self, points: Array, rows: Rows, clip: float, feature_norm: float | None, out: Array
    ) -> Array:
        """Write the means of clipped gradients; see `Loss.clipped_gradients`.

        The loss of a sample is that of a batch of one, and all of it counts as the sample's.
        """
        if feature_norm is not None:
            raise ValueError(
                "TorchLoss: feature_norm must be left out for modules, got "
                f"{feature_norm:g}; remove it."
            )
        index, count = self._check_batch(rows)
        clip *= 1 - CLIP_MARGIN
        block = max(1, min(self.block, MAX_SAMPLE_GRADIENTS // (len(points) * self.n)))
        totals = torch.zeros((len(points), self.n), dtype=torch.float64)
        flats = []
        for x in points:
            flats.append(FlatModule(self._module, list(self._layout)))
            flats[-1].load(np.ascontiguousarray(x, self.dtype))
        for part in split_index(index, self.size, block):
            X, y = self._read_rows(part)
            grads = torch.stack([flat.sample_gradients(self._loss_fn, X, y) for flat in flats])
            lengths = grads.double().square().sum(dim=(0, 2)).sqrt()
            factors = torch.where(lengths > clip, clip / lengths, 1.0)
            # A gradient that is not finite would reveal its sample: it counts as zero.
            finite = torch.isfinite(lengths)
            grads[:, ~finite] = 0.0
            factors[~finite] = 0.0
            totals += torch.einsum("pjn,j->pn", grads.double(), factors).cpu()
        np.divide(totals.numpy(), count, out=out, casting="same_kind")
        return out

    def records(self) -> Sequence[NDArray[Any]]:
        """Return the features and the targets."""
        return self._features.cpu().numpy(), self._targets.cpu().numpy()

    def accuracy(self, x: ArrayLike) -> float:
        """Return the fraction of targets for which the module has its largest output.

        NaN unless y holds class labels: integers, for outputs of shape (samples, classes, ...).
        """
        if self._num_classes is None:
            return math.nan
        correct = 0
        with self._flat_module(x) as flat, torch.no_grad():
            for X, y in self._blocks(ALL_ROWS, self.size):
                correct += int((flat.module(X).argmax(dim=1) == y).sum())
        return correct / self._targets.numel()

    def sample_errors(self, x: ArrayLike) -> Float64Array | None:
        """Return the share of wrong labels of every sample, or its loss if y holds no labels."""
        errors = []
        with self._flat_module(x) as flat, torch.no_grad():
            for X, y in self._blocks(ALL_ROWS, self.size):
                output = flat.module(X)
                if self._num_classes is not None:
                    wrong = (output.argmax(dim=1) != y).double()
                    errors += wrong.reshape(len(y), -1).mean(dim=1).tolist()
                elif not isinstance(output, Tensor):
                    return None
                else:  # a loss is a mean over the batch, so it is evaluated on one row at a time
                    rows = [slice(j, j + 1) for j in range(len(y))]
                    errors += [float(self._loss_fn(output[row], y[row])) for row in rows]
        return np.array(errors)

    def sample_predictions(self, x: ArrayLike) -> NDArray[Any] | None:
        """Return the labels with the largest outputs, or the outputs if y holds no labels."""
        found = []
        with self._flat_module(x) as flat, torch.no_grad():
            for X, _ in self._blocks(ALL_ROWS, self.size):
                output = flat.module(X)
                if not isinstance(output, Tensor):
                    return None
                found.append(output if self._num_classes is None else output.argmax(dim=1))
        return np.asarray(torch.cat(found).cpu())

    def smoothness(self) -> float:
        """Return infinity: no Lipschitz constant of the gradient is known."""
        return math.inf

    def to_float64(self) -> Self:
        """Return the same loss in float64, or the loss itself if the module requires float32."""
        if self.dtype == np.float64:
            return self
        other, y = copy.copy(self), self._targets
        other.__dict__.update(
            _module=copy.deepcopy(self._module).double(),
            _targets=y.double() if y.is_floating_point() else y,
            dtype=FLOAT64,
        )
        try:
            other._run_trial()
        except ValueError:
            return self
        return other

    def permute_samples(self, order: ArrayLike) -> Self:
        """Return a copy of this loss, and of its data, with the samples in another order."""
        index = torch.from_numpy(self._check_order(order)).to(self._features.device)
        other = copy.copy(self)
        other.__dict__.update(_features=self._features[index], _targets=self._targets[index])
        return other

    def take_samples(self, rows: ArrayLike) -> Self:
        """Return a copy of this loss on some of its samples, given by their row numbers."""
        index, count = self._check_batch(np.asarray(rows))
        chosen = torch.from_numpy(row_numbers(index, self.size)).to(self._features.device)
        other = copy.copy(self)
        other.__dict__.update(
            _features=self._features[chosen], _targets=self._targets[chosen], size=count
        )
        return other

    @property
    def sample_classes(self) -> NDArray[np.intp] | None:
        """The class of each sample; None unless every sample has one class label."""
        if self._num_classes is None or self._targets.ndim != 1:
            return None
        return np.asarray(self._targets.cpu(), np.intp)

    def unpack(self, x: ArrayLike) -> dict[str, Array]:
        """Return the parameters of the module by name, in their own shapes.

        They are views on ``x`` if it has the dtype of the loss.
        """
        sizes = [math.prod(shape) for shape in self._layout.values()]
        parts = np.split(self._check_parameters(x), np.cumsum(sizes)[:-1])
        pairs = zip(self._layout.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in pairs}

    def module(self, x: ArrayLike) -> nn.Module:
        """Return a copy of the module with the parameters ``x``, which can be used and saved."""
        module = copy.deepcopy(self._module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, part in self.unpack(x).items():
                parameters[name].copy_(torch.from_numpy(part.copy()))
        return module

    @contextmanager
    def _flat_module(self, x: ArrayLike) -> Iterator[FlatModule]:
        """Yield a module with the parameters ``x`` that no other thread uses."""
        vector = self._check_parameters(x)
        try:
            flat = self._idle_modules.pop()
        except IndexError:
            flat = FlatModule(self._module, list(self._layout))
        flat.load(vector)
        yield flat
        self._idle_modules.append(flat)

    def _blocks(self, index: RowIndex, num_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the data of some rows, in blocks of nearly the same size."""
        max_rows = math.ceil(num_rows / math.ceil(num_rows / self.block))
        for part in split_index(index, self.size, max_rows):
            yield self._read_rows(part)

    def _read_rows(self, index: RowIndex) -> tuple[Tensor, Tensor]:
        """Return the scaled features and the targets of some rows."""
        X, y = self._features, self._targets
        if isinstance(index, slice) and (index.step or 1) > 0:
            X, y = X[index], y[index]
        else:  # torch has no slices with a negative step
            chosen = torch.from_numpy(row_numbers(index, self.size)).to(X.device)
            X, y = X.index_select(0, chosen), y.index_select(0, chosen)
        if X.is_floating_point() or X.dtype == torch.uint8:
            X = X.to(TORCH_DTYPES[self.dtype])
            X = X if self.scale == 1 else X * self.scale
        return X, y

    def _run_trial(self) -> int | None:
        """Check the module and the loss function on a few samples; return the number of classes."""
        num_rows = min(NUM_TRIAL_SAMPLES, self.size)
        X, y = self._read_rows(np.linspace(0, self.size - 1, num_rows).astype(np.intp))
        with self._flat_module(self.start) as flat:
            output = torch_checks.try_module(flat.module, X)
            num_classes = torch_checks.count_classes(output, y, self._targets)
            torch_checks.try_loss_fn(flat, self._loss_fn, X, y)
        return num_classes


class FlatModule:
    """A copy of a module, in evaluation mode, whose parameters are views on one flat vector.

    ``names`` are the trainable parameters, all of one dtype, in the order of the vector.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.module = copy.deepcopy(module).eval()
        named = dict(self.module.named_parameters())
        self.names = tuple(names)
        self.parameters = [named[name] for name in names]
        first, n = self.parameters[0], sum(p.numel() for p in self.parameters)
        self._host_vector = torch.empty(n, dtype=first.dtype)
        # On the CPU this is the same tensor, so that loading copies the numbers once.
        self._vector = self._host_vector.to(first.device)
        start = 0
        for p in self.parameters:
            p.data = self._vector[start : start + p.numel()].view(p.shape)
            start += p.numel()

    def load(self, x: Array) -> None:
        """Set all parameters."""
        np.copyto(self._host_vector.numpy(), x)
        if self._vector is not self._host_vector:
            self._vector.copy_(self._host_vector)

    def sample_gradients(self, loss_fn: LossFunction, X: Tensor, y: Tensor) -> Tensor:
        """Return the gradients of the losses of single samples, one row each."""

        def sample_loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
            output = torch.func.functional_call(self.module, parameters, (x[None],))
            return loss_fn(output, target[None])

        parameters = dict(zip(self.names, (p.detach() for p in self.parameters), strict=True))
        by_sample = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0, 0))
        grads = by_sample(parameters, X, y)
        return torch.cat([grads[name].reshape(len(X), -1) for name in self.names], dim=1)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as one flat vector; zeros for unused parameters."""
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])
