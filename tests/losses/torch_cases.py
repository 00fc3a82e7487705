"""PyTorch modules and losses that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pcfed.losses import SoftmaxRegression

torch = pytest.importorskip("torch")
TorchLoss = pytest.importorskip("pcfed.losses.torch_loss").TorchLoss
nn = torch.nn

N, D, K = 60, 20, 10
RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((N, D)), RNG.integers(0, K, N)
PICTURES = RNG.integers(0, 256, (N, 1, 8, 8), dtype=np.uint8)
NAN = float("nan")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def linear(dtype: Any = torch.float64) -> Any:
    return nn.Linear(D, K, bias=False, dtype=dtype)


def network(dtype: Any = torch.float64) -> Any:
    """A small convolutional network with one layer of every kind."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(4 * 36, K),
        ).to(dtype)


def pictures(dtype: Any = torch.float64, **options: Any) -> Any:
    return TorchLoss(network(dtype), (PICTURES, Y), nn.CrossEntropyLoss(), **options)


def pair(rows: Any = slice(None), dtype: str = "float64") -> tuple[Any, SoftmaxRegression]:
    """The same softmax regression, by torch and by NumPy."""
    features = X[rows].astype(dtype)
    module = linear(getattr(torch, dtype))
    by_torch = TorchLoss(module, (features, Y[rows]), nn.CrossEntropyLoss(), convex=True)
    return by_torch, SoftmaxRegression(features, Y[rows], classes=K)
