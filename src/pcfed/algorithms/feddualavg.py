r"""FedDualAvg: federated dual averaging, in which agents and server average in the dual space.

$$ \min_x \frac1m \sum_i f_i(x) \quad \text{s.t. } x \in X $$

As in `pcfed.algorithms.fedmid`, the regulariser is the indicator function of a set and the mirror
map is Euclidean, so that the way from a dual point to its model is the projection:

==========  ==================================================  =================
``z``       the shared dual point; the model is $\Pi_X[z]$      server
``delta``   $z_i - z$, where local steps have ended             sent, summed
==========  ==================================================  =================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcfed.algorithms.base import RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.fedmid import OWN, FedMiD, penalized_gradient
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.registry import register
from pcfed.arrays import Array, Float64Array


@register
@dataclass(frozen=True)
class FedDualAvg(FedMiD):
    r"""Federated dual averaging: $z \leftarrow z - \gamma \nabla f_i(\Pi[z])$.

    With a public common set $X$, all project onto it; this is the published method. With ``"own"``,
    every agent projects onto its own set, and its own model is $\Pi_{X_i}[z]$. There is then no
    shared model, and where all sets bind, z may grow for ever while the models converge. Whoever
    takes part, the mean of the models is in the averaged set $\frac1m \sum_i X_i$ of `FedMiD`.

    Parameters
    ----------
    step, penalty, constrained, project_onto, server_step : float, callable, bool or str
        As in `FedMiD`; ``constrained=False`` needs a common set.

    References
    ----------
    Yuan, Zaheer, Reddi, "Federated composite optimization" (2021), Algorithm 3.

    Examples
    --------
    >>> FedDualAvg(step=0.01, project_onto="l2(3)").server_step
    1.0
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.project_onto == OWN and not self.constrained:
            raise ValueError(
                "FedDualAvg: constrained must be true without a common set, got False; give a set "
                'such as project_onto="l1(2)", or constrained=True.'
            )

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models, which is its own dual point."""
        server, private = super().start(models)
        return {"z": server["x"]}, private

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take dual steps from the shared dual point and send the difference."""
        start, sets = received["z"].astype(context.dtype), self._sets(context)
        z, y, g = context.rows(start), context.empty(), context.empty()
        for k in range(context.steps):
            sets.project(z, out=y)
            penalized_gradient(context, y, k, round_info, out=g)
            g *= round_info.step
            z -= g
        context.release(y, g)
        return Update(sent={"delta": np.subtract(z, start, out=z)}, pending={})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean difference of the participants."""
        return {"z": server["z"] + self.server_step * sums.vectors["delta"] / sums.num_aggregated}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the shared model, or the dual point, of which every agent takes its projection."""
        shared = self.shared_model(server)
        return server["z"] if shared is None else shared

    def shared_model(self, server: Vectors) -> Array | None:
        """Return the projection onto the common set; None if there is none."""
        common = self._common_set()
        return None if common is None else common.project(server["z"])
