r"""FedMiD: federated mirror descent, here projected gradient steps of the agents and the server.

$$ \min_x \frac1m \sum_i f_i(x) \quad \text{s.t. } x \in X $$

The regulariser of the paper is here the indicator function of a set, and its mirror map is
Euclidean, so that all its proximal steps are projections, whatever their length:

==========  ==================================================  =================
``x``       the shared model                                    server
``delta``   $y_i - x$, where local steps have ended             sent, summed
==========  ==================================================  =================
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache

import numpy as np

from pcfed.algorithms.base import RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.constrained import SharedModelAlgorithm
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.registry import register
from pcfed.arrays import Array, Float64Array
from pcfed.errors import error_context
from pcfed.sets import ConvexSet, SetRows, parse_set
from pcfed.validation import instance, positive

OWN = "own"
"""The value of ``project_onto`` for the agents' own sets."""


@register
@dataclass(frozen=True)
class FedMiD(SharedModelAlgorithm):
    r"""Projected federated averaging: $y \leftarrow \Pi[y - \gamma \nabla f_i(y)]$.

    With a public common set $X$, agents and server project onto it; this is the published method.
    It averages points of the set, and even with one local step the average need not be a step
    towards the optimum, if the agents' gradients differ on the boundary: the paper calls it the
    curse of primal averaging, and `FedDualAvg` avoids it. With ``"own"``, every agent projects onto
    its own set, and the server, which does not know the sets, only averages. If all agents take
    part and ``server_step`` is 1, the shared model is a mean of points of their sets. So it is in
    the averaged set $\frac1m \sum_i X_i = \{\frac1m \sum_i x_i : x_i \in X_i\}$, but it may be
    outside some of the sets: of l1 balls, the averaged set is the ball of the mean radius.

    Parameters
    ----------
    step : float or callable
        The local step $\gamma$.
    penalty : float or callable
        A penalty on the distance from the agent's own set, as in `FedAvg`, where local steps are
        projected onto a common set.
    constrained : bool
        Whether an agent's own model is the shared model projected onto its own set, or else the
        shared model itself.
    project_onto : str
        The common set as `pcfed.sets.parse_set` reads it, for example ``"l1(2)"``, or ``"own"``.
    server_step : float
        The factor on the mean difference at the server.

    References
    ----------
    Yuan, Zaheer, Reddi, "Federated composite optimization" (2021), Algorithm 2.

    Examples
    --------
    >>> FedMiD(step=0.01, project_onto="l1(2)").project_onto
    'l1(2)'
    """

    _: KW_ONLY
    project_onto: str = OWN
    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        positive(f"{name}: server_step", self.server_step)
        instance(f"{name}: project_onto", self.project_onto, str, 'give one such as "l1(2)"')
        if self.project_onto != OWN:
            with error_context(f'{name}: project_onto must be a set or "{OWN}"'):
                _parse(self.project_onto)

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start at the mean of the models, after a check that the common set fits them."""
        common = self._common_set()
        if common is not None:
            with error_context(f"{type(self).__name__}: project_onto"):
                common.check_model_length(models.shape[-1])
        return super().start(models)

    def _common_set(self) -> ConvexSet | None:
        """Return the common set, or None if there is none."""
        return None if self.project_onto == OWN else _parse(self.project_onto)

    def _sets(self, context: LocalContext) -> SetRows:
        """Return the sets onto which the local steps of a group are projected."""
        common = self._common_set()
        return context.sets if common is None else SetRows([common] * len(context.agents))

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take projected gradient steps from the shared model and send the difference."""
        x = received["x"].astype(context.dtype)
        y = projected_descent(context, x, self._sets(context), round_info)
        return Update(sent={"delta": np.subtract(y, x, out=y)}, pending={})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Add the mean difference of the participants and project onto the common set."""
        x = server["x"] + self.server_step * sums.vectors["delta"] / sums.num_aggregated
        common = self._common_set()
        return {"x": x if common is None else common.project(x)}


@cache
def _parse(text: str) -> ConvexSet:
    """Return the set that a text describes."""
    return parse_set(text)


def projected_descent(
    context: LocalContext, x: Array, sets: SetRows, round_info: RoundInfo
) -> Array:
    """Return the models after all local steps of a round, each projected onto these sets."""
    y, g = context.rows(x), context.empty()
    for k in range(context.steps):
        penalized_gradient(context, y, k, round_info, out=g)
        g *= -round_info.step
        g += y
        sets.project(g, out=y)
    context.release(g)
    return y


def penalized_gradient(
    context: LocalContext, y: Array, step: int, round_info: RoundInfo, out: Array
) -> Array:
    r"""Write $\nabla f_i(y) + \rho (y - \Pi_{X_i}[y])$ on the batch of a step to ``out``."""
    context.gradient(y, step, out=out)
    if round_info.penalty:
        p = context.project(y, out=context.empty())
        np.subtract(y, p, out=p)
        p *= round_info.penalty
        out += p
        context.release(p)
    return out
