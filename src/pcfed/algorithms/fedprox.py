"""FedProx: FedAvg with a pull of the local steps back to the shared model."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pcfed.algorithms.fedavg import FedAvg
from pcfed.algorithms.registry import register
from pcfed.validation import positive


@register
@dataclass(frozen=True)
class FedProx(FedAvg):
    r"""FedAvg whose local losses have the extra term $\frac\mu2 \|y - x\|^2$.

    Parameters
    ----------
    step, penalty : float or callable
        As in `FedAvg`.
    prox : float
        $\mu \ge 0$; with 0 it is FedAvg.

    References
    ----------
    Li et al., "Federated optimization in heterogeneous networks" (2020).

    Examples
    --------
    >>> FedProx(step=0.01, prox=0.1)
    FedProx(step=0.01, penalty=0.0, prox=0.1)
    """

    _: KW_ONLY
    prox: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedProx: prox", self.prox, zero=True)

    @property
    def _prox(self) -> float:
        return float(self.prox)
