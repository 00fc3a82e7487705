"""Gradients of linear models on small batches in compiled code, where numba is installed.

Whether a batch is computed by the kernel depends only on the model and the size of the batch, so an
agent's gradient has the same bits alone, in a group, and as a loss of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pcfed import kernels
from pcfed.arrays import Array, Float64Array
from pcfed.kernels.arguments import OTHER, BatchSource, LinearModelSpec, read_only
from pcfed.losses.base import RowIndex, row_numbers
from pcfed.losses.features import is_sparse

if TYPE_CHECKING:
    from pcfed.losses.linear import LinearModel

# By measurement, against NumPy's products:
MAX_FEATURES = 2**22  # in a batch; beyond that BLAS may use several threads
MAX_OUTPUTS = 16  # with more of them NumPy's products are as fast, except for
MAX_SLOPES = 2000  # few samples: outputs × batch


def is_supported(model: LinearModel, batch: int) -> bool:
    """Return whether the kernel computes gradients on batches of this size."""
    outputs, columns = model._outputs, model.shape[-1]
    return (
        model._kernel != OTHER
        and (outputs <= MAX_OUTPUTS or outputs * batch <= MAX_SLOPES)
        and batch * columns <= MAX_FEATURES
        and not is_sparse(model._features.matrix)
        and kernels.load("gradients") is not None
    )


def batch_source(
    model: LinearModel, features: NDArray[Any], targets: Float64Array, batches: NDArray[np.intp]
) -> BatchSource:
    """Return the arguments of the kernel for models like this one, which it must support.

    ``features`` (in C order) and ``targets`` are those of one or several models, one after the
    other; ``batches``, of shape (steps, agents, batch), holds row numbers of ``features``.
    """
    dtype = model.dtype.type
    spec = LinearModelSpec(
        model._kernel, model._outputs, model.intercept, dtype(model.scale), dtype(model.l2)
    )
    return BatchSource(read_only(features), read_only(targets), read_only(batches), spec)


def gradients(source: BatchSource, x: Array, out: Array) -> None:
    """Write every agent's gradients at its points, on its first batch, to its part of ``out``.

    ``x`` and ``out`` have the shape (agents, points, n), are in the dtype of the losses and in C
    order, and share no memory.
    """
    compiled: Any = kernels.load("gradients")
    agents, points, _ = x.shape
    flat, written = x.reshape(agents, -1), out.reshape(agents, -1)
    compiled.gradient_rows(*source.dtypes)(flat, source, source.scratch(points), written)


def gradient(model: LinearModel, x: Array, index: RowIndex, out: Array) -> None:
    """Write the gradients of one model, on a batch of a size that is supported, at its points.

    ``x`` and ``out`` have the shape (points, n).
    """
    matrix, targets = model._features.matrix, model._targets
    rows = row_numbers(index, model.size)
    if not matrix.flags.c_contiguous:
        matrix, targets = matrix[rows], targets[rows]
        rows = np.arange(len(rows))
    numbers = targets.astype(np.float64, copy=False)
    source = batch_source(model, matrix, numbers, rows[None, None])
    gradients(source, x[None], out[None])
