"""The local steps of one agent with NumPy, with reused arrays."""

from __future__ import annotations

import numpy as np

from .workload import SHAPE, STEP, Floats, Labels, Workload


def local_steps(workload: Workload, weights: Floats, images: Floats, labels: Labels) -> None:
    """Take the steps of one agent in one round, in place."""
    columns = np.arange(workload.batch)
    slopes = np.empty((SHAPE[0], workload.batch), dtype=np.float32)
    change = np.empty_like(weights)
    scale = np.float32(STEP / workload.batch)
    for rows in workload.batches:
        np.matmul(weights, images[rows].T, out=slopes)
        slopes -= slopes.max(axis=0)
        np.exp(slopes, out=slopes)
        slopes *= scale / slopes.sum(axis=0)
        slopes[labels[rows], columns] -= scale
        np.matmul(slopes, images[rows], out=change)
        weights -= change
