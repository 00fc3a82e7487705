"""What algorithms may know of the loss of an agent with a privacy budget."""

from __future__ import annotations

from typing import NoReturn

from numpy.typing import ArrayLike

from pcfed.arrays import Array
from pcfed.losses.base import Loss, Rows


class PublicLoss(Loss):
    """The public side of a loss: its shape and number of samples, and nothing of its data.

    Algorithms get the gradients of private agents from ``LocalContext.gradient`` only, which clips
    them and adds noise. Other methods raise a ValueError, or return that there is no answer: NaN as
    the accuracy, None as the errors and predictions of samples.

    Parameters
    ----------
    loss : Loss
        The loss with the data.
    curvature : float
        The curvature to expect, from public numbers; infinity if there is none.
    """

    def __init__(self, loss: Loss, curvature: float) -> None:
        self.n, self.shape, self.size = loss.n, loss.shape, loss.size
        self.dtype, self.convex = loss.dtype, loss.convex
        self.intercept_slice = loss.intercept_slice
        self._curvature = curvature

    def smoothness(self) -> float:
        """Return the bound that is public."""
        return self._curvature

    def curvature_bound(self, feature_norm: float | None) -> float:
        """Return the bound that is public."""
        return self._curvature

    def value(self, x: ArrayLike) -> float:
        """Raise a ValueError."""
        self._refuse()

    def gradient(self, x: ArrayLike, rows: Rows = None, out: Array | None = None) -> Array:
        """Raise a ValueError."""
        self._refuse()

    def permute_samples(self, order: ArrayLike) -> Loss:
        """Raise a ValueError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(
            "privacy: algorithms must read the data of agents with a privacy budget through "
            "LocalContext.gradient only, got another call; use it, or remove the budget."
        )
