"""Weights as pictures: one tile per class and model, as PNGs inside the page.

Grey images: the colour is the sign, the opacity the size, so a zero shows the page itself, light
or dark. Colour images: red, green and blue are the weights of the three channels, grey is zero.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.data import Dataset
from pcfed.experiments.summary import Comparison
from pcfed.report.measures import agents_named, nonzero_shares, same_models
from pcfed.report.optional import optional

QUANTILE = 0.995
"""Weights at this quantile of the sizes, over all models of the comparison, get the full colour."""

NEGATIVE, POSITIVE = (0, 114, 178), (213, 94, 0)


@dataclass(frozen=True)
class Tile:
    """The weights of one class: a PNG as a data URL, and what it shows."""

    url: str
    description: str


@dataclass(frozen=True)
class Row:
    """The tiles of one model: its method, the agents that have it, its share of non-zeros."""

    method: str
    agents: str
    nonzero: float
    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Pictures:
    """The weights of all models of a comparison, all with one scale."""

    classes: Sequence[str]
    rows: Sequence[Row]
    limit: float
    coloured: bool


def pictures(comparison: Comparison, dataset: Dataset) -> Pictures | None:
    """Return the weights of the first seed, one row per different model, or None if not images.

    Parameters
    ----------
    comparison : Comparison
        The finished setting.
    dataset : Dataset
        Its data: classes and the shape of an image.
    """
    shape = (dataset.classes, *dataset.image_shape)
    models = {name: runs[0].models for name, runs in comparison.results.items()}
    if any(each.shape[1] != np.prod(shape) for each in models.values()):
        return None
    sizes = np.abs(np.concatenate([np.unique(each, axis=0) for each in models.values()]))
    limit = float(np.quantile(sizes[sizes > 0], QUANTILE)) if sizes.any() else 1.0
    rows = [
        Row(
            method=name,
            agents=agents_named(agents),
            nonzero=float(nonzero_shares(each[agents[:1], :])[0]),
            tiles=[
                Tile(
                    data_url(weights / limit),
                    f"Weights of class {label}, {name}, {agents_named(agents)}",
                )
                for label, weights in zip(
                    dataset.class_names, each[agents[0]].reshape(shape), strict=True
                )
            ],
        )
        for name, each in models.items()
        for agents in same_models(each)
    ]
    return Pictures(dataset.class_names, rows, limit, coloured=len(dataset.image_shape) == 3)


def data_url(weights: Float64Array) -> str:
    """Return weights in [-1, 1] as the data URL of a PNG; larger ones are clipped."""
    image = optional("PIL.Image")
    levels = np.round(127 * np.clip(weights, -1, 1)).astype(np.int16)
    file = io.BytesIO()
    if weights.ndim == 3:
        image.fromarray((levels + 128).astype(np.uint8)).save(file, "PNG", optimize=True)
    else:
        picture = image.fromarray((levels + 127).astype(np.uint8))
        colours, opacity = _palette()
        picture.putpalette(colours.tobytes())
        picture.save(file, "PNG", transparency=opacity.tobytes(), optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _palette() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the colours of levels -127..127 and their opacity, zero in the middle."""
    level = np.arange(-127, 128)
    colours = np.where(level[:, None] < 0, NEGATIVE, POSITIVE).astype(np.uint8)
    return colours, np.round(255 * np.abs(level) / 127).astype(np.uint8)
