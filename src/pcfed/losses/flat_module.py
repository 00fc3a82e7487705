"""A PyTorch module with its trainable parameters in one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from pcfed.arrays import Array


class FlatModule:
    """A copy of a module, in evaluation mode, whose parameters are views on one flat vector.

    ``names`` are the trainable parameters, all of one dtype, in the order of the vector.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.module = copy.deepcopy(module).eval()
        named = dict(self.module.named_parameters())
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

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as one flat vector; zeros for unused parameters."""
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])
