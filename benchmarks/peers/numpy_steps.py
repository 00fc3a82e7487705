"""The local steps of one agent with NumPy: slices of its data, arrays reused."""

from __future__ import annotations

import numpy as np

from .work import SHAPE, STEP, Floats, Labels, Work


def local_steps(work: Work, weights: Floats, images: Floats, labels: Labels) -> None:
    """Take the steps of one agent in one round, in place."""
    columns = np.arange(work.batch)
    slopes = np.empty((SHAPE[0], work.batch), dtype=np.float32)
    change = np.empty_like(weights)
    scale = np.float32(STEP / work.batch)
    for rows in work.batches:
        np.matmul(weights, images[rows].T, out=slopes)
        slopes -= slopes.max(axis=0)
        np.exp(slopes, out=slopes)
        slopes *= scale / slopes.sum(axis=0)
        slopes[labels[rows], columns] -= scale
        np.matmul(slopes, images[rows], out=change)
        weights -= change
