r"""PFedHN: a hypernetwork that makes every agent's model from a private embedding.

$$ \min_{\theta, v_1 \dots v_m} \frac1m \sum_i f_i\big(h(v_i; \theta)\big), \qquad
   h(v; \theta) = W a + b, \quad a = \text{a small network of } v $$

In the paper the server has the embeddings and gets every agent's change $\Delta_i$ of its model.
Here it only ever gets sums, so the agent has its own embedding and multiplies $\Delta_i$ by the
Jacobian matrices itself. The iterates are the same:

=============  ============================================================  =================
``theta0 …``   $\theta$, as vectors of n numbers, the last with zeros at     server
               its end
``v``          $v_i$                                                         agent, never sent
``joined``     1 after its first round                                       agent
``theta0 …``   $J_\theta^\top \Delta_i$                                      sent, summed
=============  ============================================================  =================

The first vectors are the columns of W, then b, then the other layers. So an agent sends and
receives ``hidden`` + 2 vectors or more, where the paper needs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise

import numpy as np

from pcfed.algorithms.base import PenaltyAlgorithm, RoundInfo, Sums, Update, Vectors
from pcfed.algorithms.constrained import ConstrainedAlgorithm
from pcfed.algorithms.fedmid import projected_descent
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.local_descent import descend
from pcfed.algorithms.registry import register
from pcfed.algorithms.schedules import Schedule
from pcfed.arrays import Array, Float64Array
from pcfed.validation import count, positive

Layer = tuple[Array, Array]
"""The matrix and the vector of a linear layer."""


@register
@dataclass(frozen=True)
class PFedHN(ConstrainedAlgorithm, PenaltyAlgorithm):
    r"""Personalized federated learning with a hypernetwork.

    In a round, an agent takes local steps from its model $x_i = h(v_i; \theta)$ to $y_i$. With
    $\Delta_i = x_i - y_i$, the server steps along the mean of $J_\theta^\top \Delta_i$, and the
    agent along its own $J_v^\top \Delta_i$.

    An agent draws its random embedding in its first round. Before, its model is $h(0; \theta)$,
    the same for all agents that have not joined; in the paper it is that of a random embedding.

    Parameters
    ----------
    step, penalty : float or callable
        As in `FedAvg`.
    constrained : bool
        Whether local steps are projected onto the agent's own set, and so is its model.
    server_step : float
        The step for $\theta$ and for the embeddings.
    embedding : int
        The number of entries of an embedding.
    hidden : int
        The width of the hidden layers.
    layers : int
        How many hidden layers follow the first one.
    seed : int
        The seed of the first $\theta$ and, with the agents' positions, of the first embeddings.

    References
    ----------
    Shamsian, Navon, Fetaya, Chechik, "Personalized federated learning using hypernetworks" (2021),
    Algorithm 1.

    Examples
    --------
    >>> PFedHN(step=0.1, hidden=8).server_step
    0.1
    """

    penalty: Schedule = 0.0
    _: KW_ONLY
    server_step: float = 0.1
    embedding: int = 4
    hidden: int = 16
    layers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("PFedHN: server_step", self.server_step)
        for name, minimum in {"embedding": 1, "hidden": 1, "layers": 0, "seed": 0}.items():
            count(f"PFedHN: {name}", getattr(self, name), minimum=minimum)

    def sent_vectors(self, server: Vectors, m: int) -> tuple[str, ...]:
        """Return the names of the parts of θ."""
        return _names(server)

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start with a random network whose last layer adds the mean of the models."""
        rng, n = np.random.default_rng(self.seed), models.shape[1]
        layers = [_random_layer(rng, *pair) for pair in self._widths()]
        # Small numbers, so that the first models are near those that were given.
        W = 0.1 * _random_layer(rng, self.hidden, n)[0]
        theta = _packed([*layers, (W, models.mean(axis=0))])
        private = {
            "v": np.zeros((len(models), self.embedding)),
            "joined": np.zeros((len(models), 1)),
        }
        return {f"theta{j}": row for j, row in enumerate(theta)}, private

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take local steps from the agent's model; send the product with the Jacobian of θ."""
        layers, v, x = self._layers(received), self._embeddings(context, private), context.empty()
        for row, embedding in zip(x, v, strict=True):
            row[...] = _forward(layers, embedding)[-1]
        if self.constrained:
            y = projected_descent(context, x, context.sets, round_info)
        else:
            y = descend(context, x, round_info)
        delta = np.subtract(x, y, out=y)
        names = _names(received)
        new, parts = np.empty_like(v), np.empty((len(v), len(names), x.shape[1]), context.dtype)
        for i, embedding in enumerate(v):
            gradients, slope = _backward(layers, _forward(layers, embedding), delta[i])
            new[i] = embedding - self.server_step * slope
            parts[i] = _packed(gradients)
        context.release(x, y)
        sent = {name: np.ascontiguousarray(parts[:, j]) for j, name in enumerate(names)}
        return Update(sent=sent, pending={"v": new})

    def aggregate(self, server: Vectors, sums: Sums, round_info: RoundInfo) -> Vectors:
        """Step along the mean gradient of the participants."""
        scale = self.server_step / sums.num_aggregated
        return {name: server[name] - scale * sums.vectors[name] for name in _names(server)}

    def commit(
        self, private: Vectors, pending: Vectors, received: Vectors, round_info: RoundInfo
    ) -> Vectors:
        """Keep the new embedding."""
        return {"v": pending["v"], "joined": np.ones_like(private["joined"])}

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return what the hypernetwork makes from the agents' embeddings."""
        layers = self._layers(server)
        return np.stack([_forward(layers, v)[-1] for v in np.atleast_2d(private["v"])])

    def average(self, server: Vectors) -> None:
        """Return None: the server does not know the embeddings."""
        return

    def shared_model(self, server: Vectors) -> None:
        """Return None: there is no model without an embedding."""
        return

    def _embeddings(self, context: LocalContext, private: Vectors) -> Array:
        """Return the embeddings of a group; those of agents that are new are drawn."""
        v = np.array(private["v"])
        for i in np.flatnonzero(private["joined"][:, 0] == 0):
            rng = np.random.default_rng([self.seed, 1 + context.positions[i]])
            v[i] = rng.standard_normal(self.embedding)
        return v

    def _widths(self) -> Iterator[tuple[int, int]]:
        """Return the numbers of inputs and outputs of all layers but the last."""
        return pairwise([self.embedding, *[self.hidden] * (self.layers + 1)])

    def _layers(self, server: Vectors) -> list[Layer]:
        """Return the layers of θ, the last one with the columns of its matrix as rows."""
        theta = np.stack([server[name] for name in _names(server)])
        flat, start, layers = theta[self.hidden + 1 :].ravel(), 0, list[Layer]()
        for inputs, outputs in self._widths():
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            layers.append((flat[start:middle].reshape(inputs, outputs), flat[middle:end]))
            start = end
        return [*layers, (theta[: self.hidden], theta[self.hidden])]


def _names(vectors: Vectors) -> tuple[str, ...]:
    """Return the names of the parts of θ in order; messages may have other vectors beside them."""
    return tuple(f"theta{j}" for j in range(sum(name.startswith("theta") for name in vectors)))


def _random_layer(rng: np.random.Generator, inputs: int, outputs: int) -> Layer:
    """Return a linear layer with PyTorch's usual start values; row j belongs to input j."""
    limit = inputs**-0.5
    return rng.uniform(-limit, limit, (inputs, outputs)), rng.uniform(-limit, limit, outputs)


def _packed(layers: list[Layer]) -> Array:
    """Return all layers as rows of n numbers: the last layer, then the others, then zeros."""
    W, b = layers[-1]
    others = [part.ravel() for layer in layers[:-1] for part in layer]
    rest = np.concatenate(others)
    rows = np.zeros((-(-len(rest) // len(b)), len(b)))
    rows.ravel()[: len(rest)] = rest
    return np.concatenate([W, b[None], rows])


def _forward(layers: list[Layer], v: Array) -> list[Array]:
    """Return the inputs of all layers, and the output; ReLU follows all layers but the last two."""
    values = [v]
    for j, (W, b) in enumerate(layers):
        z = values[-1] @ W + b
        values.append(np.maximum(z, 0) if j < len(layers) - 2 else z)
    return values


def _backward(layers: list[Layer], values: list[Array], delta: Array) -> tuple[list[Layer], Array]:
    """Return the products of the transposed Jacobian matrices of all layers and of v with delta."""
    slope, gradients = delta.astype(np.float64), list[Layer]()
    for j in reversed(range(len(layers))):
        if j < len(layers) - 2:
            slope = slope * (values[j + 1] > 0)
        gradients.append((np.outer(values[j], slope), slope))
        slope = layers[j][0] @ slope
    return gradients[::-1], slope
