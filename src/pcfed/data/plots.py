"""Plots with matplotlib: the classes of each agent, and single images.

Functions return a figure that pyplot does not manage; save it with ``figure.savefig("parts.png")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from pcfed.data.datasets import Dataset
from pcfed.data.partitions import class_counts
from pcfed.data.verified_file import import_optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NUMBERED = 20  # with more agents or classes, cells are too small for numbers


def plot_partition(
    labels: ArrayLike, parts: Sequence[ArrayLike], *, class_names: Sequence[str] | None = None
) -> Figure:
    """Plot how many samples of each class each agent has, and the size of each part.

    Parameters
    ----------
    labels : array of int
        The label of each sample.
    parts : sequence of arrays of int
        The samples of each agent.
    class_names : sequence of str, optional
        The names of the classes, by default their numbers.
    """
    if len(parts) == 0:
        raise ValueError("plot_partition: parts must not be empty; give the samples of each agent.")
    table = class_counts(labels, parts, None if class_names is None else len(class_names))
    agents, classes = table.shape
    names = [str(label) for label in range(classes)] if class_names is None else class_names
    height = 1.4 + min(0.3 * agents, 6.0)
    figure: Figure = import_optional("matplotlib.figure").Figure(
        (7.0, height), layout="constrained"
    )
    cells, sizes = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
    cells.imshow(table, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    cells.set(xlabel="class", ylabel="agent")
    cells.set_xticks(range(classes), names, rotation=90 if max(map(len, names)) > 3 else 0)
    if max(agents, classes) <= MAX_NUMBERED:
        cells.set_yticks(range(agents))
        for (agent, label), number in np.ndenumerate(table):
            shade = "white" if number > table.max() / 2 else "black"
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": shade}
            cells.text(label, agent, str(number) if number else "·", **style)
    sizes.barh(range(agents), table.sum(axis=1), height=0.8, color="tab:blue")
    sizes.set(xlabel="samples")
    sizes.tick_params(left=False)
    sizes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_image(dataset: Dataset, index: int, *, part: Literal["train", "test"] = "train") -> Figure:
    """Plot one image of a data set, with the name of its class.

    Parameters
    ----------
    dataset : Dataset
        The images.
    index : int
        The index of the image.
    part : "train" or "test"
        The part of the data set.
    """
    image = dataset.image(index, part=part)
    label = (dataset.train_labels if part == "train" else dataset.test_labels)[index]
    figure: Figure = import_optional("matplotlib.figure").Figure((2.0, 2.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(image * dataset.scale, cmap="gray", vmin=0.0, vmax=1.0)
    axes.set_title(dataset.class_names[label])
    axes.set_axis_off()
    return figure
