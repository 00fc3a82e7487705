r"""Ditto: FedAvg for the shared model, and an own model that is pulled towards it.

$$ \min_{v_i \in X_i} \; f_i(v_i) + \frac\mu2 \|v_i - x^*\|^2, \qquad
   x^* \in \operatorname{argmin}_x \frac1m \sum_i f_i(x) $$
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from pcfed.algorithms.base import RoundInfo, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.local_descent import descend
from pcfed.algorithms.own_models import OwnModelAlgorithm, take_steps
from pcfed.algorithms.registry import register
from pcfed.validation import positive


@register
@dataclass(frozen=True)
class Ditto(OwnModelAlgorithm):
    r"""FedAvg, beside which every agent trains an own model near the shared one.

    In a round an agent takes all local steps on the shared model, and as many, on the same batches,
    on $f_i(v) + \frac\mu2 \|v - x\|^2$ from its own model, where x is the shared model as it was
    received.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma$ of the shared model.
    own_step : float or "auto"
        The step of own models; ``"auto"`` is that of the shared model.
    constrained : bool
        Whether steps of own models are projected onto the agent's own set; with False it is the
        published method.
    prox : float
        $\mu \ge 0$, the pull of own models towards the shared one; with 0 every agent trains alone.

    References
    ----------
    Li, Hu, Beirami, Smith, "Ditto: Fair and robust federated learning through personalization"
    (2021), Algorithm 1.

    Examples
    --------
    >>> Ditto(step=0.01, prox=0.1)
    Ditto(step=0.01, own_step='auto', constrained=True, prox=0.1)
    """

    _: KW_ONLY
    prox: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("Ditto: prox", self.prox, zero=True)

    def _added_curvature(self, rounds: int) -> float:
        return float(self.prox)

    def num_gradients(self, local_steps: int) -> int:
        """Return one for the shared model and one for the own model per step."""
        return 2 * local_steps

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps on the shared model, and on the own one; send the shared difference."""
        x = received["x"].astype(context.dtype)[None]
        y = descend(context, x, round_info)
        v = context.rows(private["v"])
        take_steps(
            context,
            v,
            range(context.steps),
            step=self._own_step(round_info),
            project=self.constrained,
            prox=self.prox,
            center=x,
        )
        return Update(sent={"delta": np.subtract(y, x, out=y)}, pending={"v": v})
