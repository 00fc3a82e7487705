"""Several linear models of one kind, whose gradients are computed in one call.

With tens of samples per agent, calling a product from Python takes longer than the product itself.
A stack calls a compiled loop over the agents. Without numba it gathers a batch of every agent into
one block (agents, samples, features) and calls NumPy once for all of them. An agent's results do
not depend on the other agents in the block.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import BatchSource
from pcfed.losses import compiled
from pcfed.losses.base import ALL_ROWS, Loss, Rows, row_numbers
from pcfed.losses.features import Features, is_sparse
from pcfed.losses.linear import LinearModel, compute_logits

MAX_BLOCK_FEATURES = 2**20
"""Features in a block at most: 4 MB in float32, so that its second use finds it in the cache."""


class Stack:
    """Several linear models that differ only in their data; the features are copied, once.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.losses import LeastSquares
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    >>> stack = Stack([LeastSquares(X, [1.0, 2.0, 3.0]), LeastSquares(2 * X, [0.0, 1.0, 0.0])])
    >>> batches = np.array([[0, 1], [1, 2]])
    >>> stack.gradient(np.array([0, 1]), np.zeros((2, 2)), batches, out=np.empty((2, 2)))
    array([[-0.5, -1. ],
           [ 0. , -1. ]])
    """

    def __init__(self, losses: Sequence[LinearModel]) -> None:
        self._model = losses[0]
        self._sizes = np.array([loss.size for loss in losses])
        self._starts = np.cumsum(self._sizes) - self._sizes
        matrix = np.concatenate([loss._features.matrix for loss in losses])
        self._features = Features(matrix, self._model.dtype, self._model.scale)
        self._targets = np.concatenate([loss._targets for loss in losses])
        self._numbers = self._targets.astype(np.float64, copy=False)

    @classmethod
    def build(cls, losses: Sequence[Loss]) -> Self | None:
        """Return the stack of these losses, or None if they cannot be stacked."""
        models = [loss for loss in losses if _has_standard_gradient(loss)]
        return cls(models) if cls.can_build(losses) else None

    @classmethod
    def can_build(cls, losses: Sequence[Loss]) -> bool:
        """Return whether these losses can be stacked."""
        models = [loss for loss in losses if _has_standard_gradient(loss)]
        if len(models) < len(losses) or is_sparse(models[0]._features.matrix):
            return False
        return len({_kind(model) for model in models}) == 1

    def source(self, positions: NDArray[np.intp], rows: NDArray[np.intp]) -> BatchSource | None:
        """Return the arguments of the kernels, or None if batches of this size are not supported.

        As in `gradient`, except that ``rows`` has the shape (steps, agents, batch).
        """
        if not compiled.is_supported(self._model, rows.shape[-1]):
            return None
        everywhere = np.add(rows, self._starts[positions, None], order="C")
        return compiled.batch_source(self._model, self._features.matrix, self._numbers, everywhere)

    def max_agents(self, batch: int) -> int:
        """Return the number of agents whose batches of this size go into one call, at most."""
        if compiled.is_supported(self._model, batch):
            return max(2, len(self._sizes))
        # For one sample NumPy may call another routine, with other bits, than for a lone model.
        return max(1, MAX_BLOCK_FEATURES // (batch * self._model.shape[-1])) if batch > 1 else 1

    def gradient(
        self, positions: NDArray[np.intp], x: Array, rows: NDArray[np.intp], *, out: Array
    ) -> Array:
        """Write the gradients of several models, each on a batch of its own, to ``out``.

        The models are given by their ``positions`` in the stack, their parameters by the rows of
        ``x``, of shape (agents, n) like ``out`` and in the dtype of the losses, and their batches
        by ``rows``, of shape (agents, batch): row numbers of each one's own data. If ``x`` has the
        shape (agents, points, n), the points of an agent share its batch.
        """
        if (source := self.source(positions, rows[None])) is not None:
            shape = (len(x), -1, x.shape[-1])
            compiled.gradients(source, x.reshape(shape), out.reshape(shape))
            return out
        if x.ndim == 3:
            for point in range(x.shape[1]):
                self.gradient(positions, x[:, point], rows, out=out[:, point])
            return out
        model, (a, b) = self._model, rows.shape
        index = (rows + self._starts[positions, None]).ravel()
        with np.errstate(all="ignore"):
            X = self._features.gather(index).reshape(a, b, -1)
            W, intercepts = self._split(x)
            G, c = self._split(out)
            logits = np.ascontiguousarray(np.matmul(X, W.transpose(0, 2, 1)).transpose(2, 0, 1))
            if model.scale != 1:
                logits *= model.dtype.type(model.scale)
            if intercepts is not None:
                logits += intercepts.T[:, :, None]
            R = model._logit_gradients(logits.reshape(-1, a * b), self._targets[index])
            R *= model.dtype.type(1 / b)
            slopes = R.reshape(-1, a, b).transpose(1, 0, 2)
            if c is not None:
                slopes.sum(axis=2, out=c)
            R *= model.dtype.type(model.scale)
            np.matmul(slopes, X, out=G)
            if model.l2:
                G += model.dtype.type(model.l2) * W
        return out

    def values(self, x: Array, some: slice = ALL_ROWS) -> Float64Array:
        """Return the value of every loss, or of some of them, at one vector of parameters."""
        model = self._model
        W, b = model._split(model._check_parameters(x))
        starts, sizes = self._starts[some], self._sizes[some]
        first, stop = int(starts[0]), int(starts[-1] + sizes[-1])
        costs = np.empty(stop - first)
        with np.errstate(all="ignore"):
            at = 0
            for block, part in self._features.blocks(slice(first, stop)):
                logits = compute_logits(block, W, b, model.scale)
                end = at + block.shape[0]
                costs[at:end] = model._sample_losses(logits, self._targets[part])
                at = end
            means: Float64Array = np.add.reduceat(costs, starts - first) / sizes
            penalty = float(np.square(W, dtype=np.float64).sum()) if model.l2 else 0.0
        return means + model.l2 / 2 * penalty

    def _split(self, x: Array) -> tuple[Array, Array | None]:
        """Return views on every row's coefficients, (outputs, features), and intercepts."""
        outputs, columns = self._model._outputs, self._model.shape[-1]
        W = x[:, : outputs * columns].reshape(len(x), outputs, columns)
        return W, x[:, outputs * columns :] if self._model.intercept else None


def own_source(loss: Loss, batches: Iterable[Rows]) -> BatchSource | None:
    """Return one loss and its batches as the arguments of the kernels.

    None if the batches differ in size, or the kernels do not support the loss: they support linear
    models of dense features in C order.
    """
    if not _has_standard_gradient(loss) or is_sparse(loss._features.matrix):
        return None
    matrix = loss._features.matrix
    rows = [row_numbers(each, loss.size) for each in batches]
    if len({len(each) for each in rows}) != 1 or not matrix.flags.c_contiguous:
        return None
    if not compiled.is_supported(loss, len(rows[0])):
        return None
    numbers = loss._targets.astype(np.float64, copy=False)
    return compiled.batch_source(loss, matrix, numbers, np.stack(rows)[:, None])


def _has_standard_gradient(loss: Loss) -> TypeGuard[LinearModel]:
    """Return whether a loss is a linear model whose class does not replace its gradient."""
    return isinstance(loss, LinearModel) and type(loss).gradient is LinearModel.gradient


def _kind(model: LinearModel) -> Hashable:
    """Return what models must have in common to be stacked."""
    matrix = model._features.matrix
    options = model.intercept, model.l2, model.scale
    return type(model), model.shape, model.dtype, options, is_sparse(matrix), matrix.dtype
