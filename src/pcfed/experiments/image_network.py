"""A small convolutional network for images, whose last layer is its head."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Array
from pcfed.extras import MissingExtra
from pcfed.losses.curvature import measured_curvature

try:
    import torch
    from torch import nn

    from pcfed.losses.torch_loss import TorchLoss
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "torch") from None

CHANNELS = (12, 24)
"""Channels of the two convolutions."""

POOLED = 2
"""Rows and columns of what the head receives, whatever the size of the images."""

ImageShape = tuple[int, int, int]
"""Rows, columns and colours."""


class NetworkLoss(TorchLoss):
    """The loss of the network on some images.

    Its typical smoothness is the curvature at its first parameters, so that steps can be
    ``"auto"``.

    Parameters
    ----------
    images : array of shape (images, pixels)
        Pixels in the order row, column, colour.
    labels : array of shape (images,)
        Their classes.
    image_shape : tuple of int
        Rows, columns and colours.
    classes : int
        Number of classes.
    """

    def __init__(
        self, images: Array, labels: NDArray[Any], image_shape: ImageShape, classes: int
    ) -> None:
        colours_first = images.reshape(-1, *image_shape).transpose(0, 3, 1, 2)
        X = np.ascontiguousarray(colours_first, np.float32)
        super().__init__(
            image_network(image_shape[-1], classes), (X, labels), nn.CrossEntropyLoss()
        )

    def typical_smoothness(self, batch: int | None = None) -> float:
        """Return the curvature at the first parameters, on all images."""
        return measured_curvature(self, self.start)


@cache
def image_network(colours: int, classes: int) -> nn.Sequential:
    """Return the network for images of some colours, always with the same first parameters."""
    first, second = CHANNELS
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(colours, first, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(POOLED),
            nn.Flatten(),
            nn.Linear(second * POOLED**2, classes),
        )


def head_size(classes: int) -> int:
    """Return the number of parameters of the last layer, which are the last ones of all."""
    return (CHANNELS[-1] * POOLED**2 + 1) * classes
