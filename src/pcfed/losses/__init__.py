"""Local losses: value, gradient and smoothness over the data of one agent."""

from typing import TYPE_CHECKING, Any

from pcfed.errors import install_command
from pcfed.losses.base import Loss
from pcfed.losses.least_squares import LeastSquares
from pcfed.losses.logistic import LogisticRegression
from pcfed.losses.softmax import SoftmaxRegression

if TYPE_CHECKING:
    from pcfed.losses.torch_loss import TorchLoss as TorchLoss

# Without TorchLoss: `from pcfed.losses import *` must work without torch.
__all__ = ["LeastSquares", "LogisticRegression", "Loss", "SoftmaxRegression"]


def __getattr__(name: str) -> Any:
    """Import `TorchLoss` at its first use, so that the other losses work without torch."""
    if name != "TorchLoss":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pcfed.losses.torch_loss import TorchLoss
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(
            f"TorchLoss: torch is not installed; run {install_command('torch')}."
        ) from None
    return TorchLoss
