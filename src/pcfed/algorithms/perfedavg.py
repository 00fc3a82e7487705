r"""Per-FedAvg: the shared model is a good start for a gradient step of every agent.

$$ \min_x \frac1m \sum_i f_i\big( x - \alpha \nabla f_i(x) \big) $$
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from pcfed.algorithms.base import RoundInfo, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.own_models import OwnModelAlgorithm, take_steps
from pcfed.algorithms.registry import register
from pcfed.arrays import Array
from pcfed.errors import short_repr
from pcfed.validation import boolean, count, positive


@register
@dataclass(frozen=True)
class PerFedAvg(OwnModelAlgorithm):
    r"""Personalized federated averaging, with first-order or Hessian-free meta-gradients.

    A local step from w computes $\tilde w = w - \alpha \nabla f_i(w)$, then
    $w \leftarrow w - \gamma\, d$ with $d = \nabla f_i(\tilde w)$ or, Hessian-free,
    $d = \nabla f_i(\tilde w) - \alpha \nabla^2 f_i(w) \nabla f_i(\tilde w)$, whose product is a
    difference of gradients at $w \pm \delta \nabla f_i(\tilde w)$. Each of the two or three
    gradients has a batch of its own: a local step uses as many consecutive batches.

    The own model is ``own_steps`` gradient steps away from the shared model of the last round in
    which the agent took part, on further batches. Only these steps are projected: the gradient at
    a projected point would not vanish where sets bind, and the shared model would run away.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma$ of the shared model.
    own_step : float or "auto"
        The step $\alpha$ of own models; ``"auto"`` is that of the shared model.
    constrained : bool
        Whether steps of own models are projected onto the agent's own set; with False it is the
        published method.
    own_steps : int
        Number of steps from the shared model to an own model.
    hessian_free : bool
        Whether to approximate products with the Hessian; False leaves them out.
    difference : float
        The $\delta$ of these products: at most 1, and at least 100 times the spacing of the numbers
        around 1 in the dtype of the models, 1.2e-5 in float32. Smaller ones are lost in rounding.

    References
    ----------
    Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical guarantees: A
    model-agnostic meta-learning approach" (2020), Algorithm 1 and its two variants in Section 5.

    Examples
    --------
    >>> PerFedAvg(step=0.001, own_step=0.01, hessian_free=True, own_steps=1).difference
    0.001
    """

    _: KW_ONLY
    own_steps: int = 1
    hessian_free: bool = False
    difference: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        count("PerFedAvg: own_steps", self.own_steps)
        boolean("PerFedAvg: hessian_free", self.hessian_free)
        positive("PerFedAvg: difference", self.difference)

    def num_gradients(self, local_steps: int) -> int:
        """Return two or three per local step, and those of the own model."""
        return (3 if self.hessian_free else 2) * local_steps + self.own_steps

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps along meta-gradients; send the difference, and adapt the own model."""
        x = received["x"].astype(context.dtype)[None]
        gamma, alpha = map(x.dtype.type, (round_info.step, self._own_step(round_info)))
        batches_per_step = 3 if self.hessian_free else 2
        used = batches_per_step * context.steps
        if self.hessian_free:
            self._check_difference(x.dtype)
        more = context.with_steps(used + self.own_steps)
        w, g, d = context.rows(x), context.empty(), context.empty()
        for k in range(0, used, batches_per_step):
            more.gradient(w, k, out=g)
            g *= alpha
            more.gradient(np.subtract(w, g, out=g), k + 1, out=d)
            if self.hessian_free:
                self._hessian_product(more, w, d, k + 2, out=g)
                g *= alpha
                d -= g
            d *= gamma
            w -= d
        context.release(g, d)
        v = context.rows(x)
        own = range(used, used + self.own_steps)
        take_steps(more, v, own, step=float(alpha), project=self.constrained)
        return Update(sent={"delta": np.subtract(w, x, out=w)}, pending={"v": v})

    def _check_difference(self, dtype: np.dtype[Any]) -> None:
        """Raise unless differences of gradients are products with the Hessian, up to rounding."""
        smallest = 100 * float(np.finfo(dtype).eps)
        if not smallest <= self.difference <= 1:
            raise ValueError(
                f"PerFedAvg: difference must be from {smallest:.2g} to 1 for models in {dtype}, "
                f"got {short_repr(self.difference)}; give one like 0.001."
            )

    def _hessian_product(
        self, context: LocalContext, w: Array, d: Array, batch: int, out: Array
    ) -> None:
        r"""Write $(\nabla f_i(w + \delta d) - \nabla f_i(w - \delta d)) / (2 \delta)$ to out."""
        delta = w.dtype.type(self.difference)
        points, gradients = context.empty(points=2), context.empty(points=2)
        np.multiply(d, delta, out=out)
        np.add(w, out, out=points[:, 0])
        np.subtract(w, out, out=points[:, 1])
        context.gradient(points, batch, out=gradients)
        np.subtract(gradients[:, 0], gradients[:, 1], out=out)
        out /= 2 * delta
        context.release(points, gradients)
