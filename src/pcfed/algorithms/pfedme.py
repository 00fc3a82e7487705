r"""pFedMe: the shared model minimises the mean of the losses' Moreau envelopes.

$$ \min_x \frac1m \sum_i F_i(x), \qquad
   F_i(x) = \min_{v \in X_i} \; f_i(v) + \frac\lambda2 \|v - x\|^2 $$

The gradient of the envelope is $\lambda (x - v_i)$, where the own model $v_i$ is its minimiser.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from pcfed.algorithms.base import RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.own_models import OwnModelAlgorithm, take_steps
from pcfed.algorithms.registry import register
from pcfed.validation import count, positive


@register
@dataclass(frozen=True)
class PFedMe(OwnModelAlgorithm):
    r"""Personalized federated learning with Moreau envelopes.

    In each local step an agent takes ``own_steps`` gradient steps, all on one batch, on
    $f_i(v) + \frac\lambda2 \|v - w\|^2$ and then moves its copy w of the shared model by
    $w \leftarrow w - \gamma \lambda (w - v)$. In every round v begins at the shared model.

    In the paper all agents do so in every round, and the server averages a sample of their copies.
    Here only the participants do; the others keep the own model of their last round.

    Parameters
    ----------
    step : float, callable or "auto"
        The step $\gamma$ of the shared model along the gradient of the envelope.
    own_step : float or "auto"
        The step of the solver of own models; ``"auto"`` is that of the shared model.
    constrained : bool
        Whether steps of own models are projected onto the agent's own set; with False it is the
        published method.
    prox : float
        $\lambda > 0$, the pull of own models towards the shared one.
    own_steps : int
        Number of steps K on the own model in a local step.
    server_step : float
        The factor $\beta$ on the mean difference at the server.

    References
    ----------
    Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes" (2020), Algorithm 1.

    Examples
    --------
    >>> PFedMe(step=0.01, own_step=0.1, prox=15.0)
    PFedMe(step=0.01, own_step=0.1, constrained=True, prox=15.0, own_steps=5, server_step=1.0)
    """

    _: KW_ONLY
    prox: float
    own_steps: int = 5
    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("PFedMe: prox", self.prox)
        count("PFedMe: own_steps", self.own_steps)
        positive("PFedMe: server_step", self.server_step)

    def _added_curvature(self, rounds: int) -> float:
        return float(self.prox)

    def num_gradients(self, local_steps: int) -> int:
        """Return ``own_steps`` per local step."""
        return self.own_steps * local_steps

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps along the gradients of the envelope, and send the difference."""
        x = received["x"].astype(context.dtype)[None]
        w, v, change = context.rows(x), context.rows(x), context.empty()
        for k in range(context.steps):
            take_steps(
                context,
                v,
                [k] * self.own_steps,
                step=self._own_step(round_info),
                project=self.constrained,
                prox=self.prox,
                center=w,
            )
            np.subtract(w, v, out=change)
            change *= w.dtype.type(round_info.step * self.prox)
            w -= change
        context.release(change)
        return Update(sent={"delta": np.subtract(w, x, out=w)}, pending={"v": v})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        r"""Return $(1 - \beta) x$ plus $\beta$ times the mean of the participants' w."""
        return {"x": server["x"] + self.server_step * sums.mean("delta")}
