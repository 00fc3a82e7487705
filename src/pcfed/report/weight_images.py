"""Weights as images: one PNG per class and model, inside the page.

Data of grey images: the colour shows the sign and the opacity the size, so a zero is transparent.
Data of colour images: red, green and blue show the weights of the three channels, grey is zero.
"""

from __future__ import annotations

import base64
import io

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.data import Dataset
from pcfed.experiments.summary import Comparison
from pcfed.report.comparison_metrics import agents_by_model, format_agents, nonzero_fractions
from pcfed.report.page import Cell, RowGroup, Table, import_optional

QUANTILE = 0.995
"""Weights beyond this quantile of the absolute values of a comparison get the full colour."""

NEGATIVE, POSITIVE = (0, 114, 178), (213, 94, 0)


def weight_table(comparison: Comparison, dataset: Dataset) -> Table | None:
    """Return images of the weights of the first seed, one row per distinct model.

    The result is None if the models have no weight per pixel and class.
    """
    shape = (dataset.classes, *dataset.image_shape)
    models = {name: runs[0].models for name, runs in comparison.results.items()}
    if any(rows.shape[1] != np.prod(shape) for rows in models.values()):
        return None
    sizes = np.abs(np.concatenate([np.unique(rows, axis=0) for rows in models.values()]))
    limit = float(np.quantile(sizes[sizes > 0], QUANTILE)) if sizes.any() else 1.0
    rows = []
    for name, agent_models in models.items():
        for group in agents_by_model(agent_models):
            agents = format_agents(group)
            nonzero = 100 * nonzero_fractions(agent_models[group[:1], :])[0]
            images = [
                Cell(f"Weights of class {label}, {name}, {agents}", image=data_url(weights / limit))
                for label, weights in zip(
                    dataset.class_names, agent_models[group[0]].reshape(shape), strict=True
                )
            ]
            note = f"{agents}, {nonzero:.1f} % non-zero"
            rows.append([Cell(name, heading="row", note=note), *images])
    coloured = len(dataset.image_shape) == 3
    hint = f"One image per class, all with one scale: full colour from {limit:.2g} on."
    if coloured:
        hint += " Red, green and blue are the weights of the colour channels, grey is zero."
    return Table(
        "Weights as images",
        [Cell("model"), *map(Cell, dataset.class_names)],
        [RowGroup(rows)],
        css_class="weights coloured" if coloured else "weights",
        hint=hint + " Agents with the same model share a row.",
        signed_colours=not coloured,
    )


def data_url(weights: Float64Array) -> str:
    """Return weights in [-1, 1] as the data URL of a PNG; larger ones are clipped."""
    image = import_optional("PIL.Image")
    levels = np.round(127 * np.clip(weights, -1, 1)).astype(np.int16)
    file = io.BytesIO()
    if weights.ndim == 3:
        image.fromarray((levels + 128).astype(np.uint8)).save(file, "PNG", optimize=True)
    else:
        picture = image.fromarray((levels + 127).astype(np.uint8))
        level = np.arange(-127, 128)  # its opacity is zero in the middle
        colours = np.where(level[:, None] < 0, NEGATIVE, POSITIVE).astype(np.uint8)
        opacity = np.round(255 * np.abs(level) / 127).astype(np.uint8)
        picture.putpalette(colours.tobytes())
        picture.save(file, "PNG", transparency=opacity.tobytes(), optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
