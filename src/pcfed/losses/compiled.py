"""Gradients of linear models on small batches in compiled code, where numba is installed.

One loop reads a few samples, from whatever form they are kept in, and uses them while they are in
the cache. The rule which batches go there knows nothing of who asks, so an agent's gradient has the
same bits alone, in a team, and as a loss of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Array, Float64Array, empty
from pcfed.kernels import compiler
from pcfed.losses.features import is_sparse
from pcfed.losses.row_index import RowIndex

if TYPE_CHECKING:
    from pcfed.losses.linear import LinearModel

SOFTMAX, LOGISTIC, SQUARES, OTHER = range(4)
"""Losses whose derivatives the kernels know, and all others."""

# By measurement, against NumPy's products:
FEATURES = 2**22  # in a batch at most; beyond that BLAS may have threads to help it
OUTPUTS = 16  # with more of them NumPy's products are as quick, but for
SLOPES = 2000  # few samples: outputs × batch
BLOCK = 2**16  # features of a block of samples, which is in the cache for its second use
NEAR = 2**14  # numbers of four samples and of all rows of coefficients, in a near cache


class Source(NamedTuple):
    """What a compiled loop reads of the data of some agents."""

    features: NDArray[Any]
    """Those of all agents, end to end, in C order."""
    targets: Float64Array
    rows: NDArray[np.intp]
    """Of every batch the rows in ``features``, (steps, agents, batch)."""
    facts: tuple[int, int, bool, Any, Any]
    """Which loss, its number of outputs, whether it has an intercept, scale and l2."""

    @property
    def kernel(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """What a kernel must be compiled for: the dtypes of parameters and of features."""
        return self.facts[-1].dtype, self.features.dtype

    def room(self) -> tuple[Array, Array, Array]:
        """Return what a kernel works in: pieces of four samples, logits of one, slopes of many."""
        outputs, columns, dtype = self.facts[1], self.features.shape[1], self.facts[-1].dtype
        pieces = -(-columns * (outputs + 4) // NEAR)
        width = min(columns, -(-(columns // pieces) // 16) * 16)
        samples = -(-min(self.rows.shape[2], BLOCK // columns) // 4) * 4
        shapes = (4, width), (outputs,), (outputs, max(samples, 4))
        four, one, many = (empty(shape, dtype) for shape in shapes)
        return four, one, many


def takes(model: LinearModel, batch: int) -> bool:
    """Say whether batches of a size go to the compiled loop."""
    outputs, columns = model._outputs, model.shape[-1]
    return (
        model._kernel != OTHER
        and (outputs <= OUTPUTS or outputs * batch <= SLOPES)
        and batch * columns <= FEATURES
        and not is_sparse(model._features.matrix)
        and compiler.kernels("pcfed.kernels.gradients") is not None
    )


def source(
    model: LinearModel, features: NDArray[Any], targets: Float64Array, rows: NDArray[np.intp]
) -> Source:
    """Return what the loops read for models like this one, which takes batches of this size."""
    kind = model.dtype.type
    facts = (model._kernel, model._outputs, model.intercept, kind(model.scale), kind(model.l2))
    return Source(features, targets, rows, facts)


def gradients(read: Source, x: Array, out: Array) -> None:
    """Write every agent's gradient at its row of ``x``, on its first batch, to its row of ``out``.

    Parameters
    ----------
    read : Source
        The agents' data and batches.
    x, out : arrays of shape (agents, n)
        In the dtype of the losses and in C order; they share no memory.
    """
    kernels: Any = compiler.kernels("pcfed.kernels.gradients")
    kernels.gradient_rows(*read.kernel)(x, tuple(read), read.room(), out)


def gradient(model: LinearModel, x: Array, index: RowIndex, out: Array) -> None:
    """Write the gradient of one model on a batch that it ``takes``."""
    matrix, size = model._features.matrix, model.size
    rows = np.arange(*index.indices(size)) if isinstance(index, slice) else index % size
    targets = model._targets
    if not matrix.flags.c_contiguous:
        matrix, targets = matrix[rows], targets[rows]
        rows = np.arange(len(rows))
    read = source(model, matrix, targets.astype(np.float64, copy=False), rows[None, None])
    gradients(read, x[None], out[None])
