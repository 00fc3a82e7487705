"""PFedHN: the network and its derivatives by PyTorch, and what it can represent."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import PFedHN, certify, run
from pcfed.sets import WholeSpace
from tests.algorithms.plain import (
    KINDS,
    OPTIONS,
    N,
    pfedhn,
    plain_agents,
    problem_of,
)


def torch_layers(torch, algorithm, n):
    """Return the layers of a hypernetwork at its start as matrices and vectors of PyTorch."""
    server, _ = algorithm.start(np.zeros((1, n)))
    rows = np.stack([server[f"theta{j}"] for j in range(len(server))])
    h, flat, layers = algorithm.hidden, rows[algorithm.hidden + 1 :].ravel(), []
    for inputs in [algorithm.embedding, *[h] * algorithm.layers]:
        W, flat = flat[: inputs * h].reshape(inputs, h), flat[inputs * h :]
        b, flat = flat[:h], flat[h:]
        layers += [W, b]
    layers += [rows[:h], rows[h]]
    assert not flat.any(), "what is left is padding"
    return [torch.tensor(each.copy(), requires_grad=True) for each in layers]


def torch_embeddings(torch, algorithm, m):
    """Return the first embeddings of all agents as vectors of PyTorch."""
    streams = [np.random.default_rng([algorithm.seed, 1 + i]) for i in range(m)]
    drawn = [rng.standard_normal(algorithm.embedding) for rng in streams]
    return [torch.tensor(each, requires_grad=True) for each in drawn]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("constrained", [True, False])
def test_equals_the_pseudocode_with_autograd(kind, layers, constrained):
    torch = pytest.importorskip("torch")
    agents = plain_agents(kind, constrained=constrained)
    algorithm = PFedHN(
        step=0.2, server_step=0.3, embedding=3, hidden=5, layers=layers, constrained=constrained
    )
    result = run(problem_of(agents), algorithm, batch=0.3, **OPTIONS)
    start = torch_layers(torch, algorithm, N), torch_embeddings(torch, algorithm, len(agents))
    models, v = pfedhn(agents, *start, eta=0.2, alpha=0.3)
    np.testing.assert_allclose(result.state.private["v"], v, rtol=0, atol=1e-10)
    own = np.stack([agent.project(x) for agent, x in zip(agents, models, strict=True)])
    np.testing.assert_allclose(result.models, own, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, own.mean(axis=0), rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.01, "models must differ"


def test_models_of_their_own_without_limits():
    """With more entries in an embedding than agents, every agent can have its own optimum."""
    agents = plain_agents("least squares", [WholeSpace()] * 3)
    algorithm = PFedHN(step=0.3, server_step=0.1, embedding=6, hidden=8, layers=0)
    result = run(problem_of(agents), algorithm, rounds=1000, local_steps=3, eval_every=1000)
    for agent, x in zip(agents, result.models, strict=True):
        best = np.linalg.lstsq(agent.X, agent.y)[0]
        np.testing.assert_allclose(x, best, rtol=0, atol=1e-8)
    assert np.ptp(result.models, axis=0).max() > 1


def test_models_are_in_their_sets_and_certified():
    problem = problem_of(plain_agents("logistic"))
    result = run(problem, PFedHN("auto"), rounds=30, local_steps=4)
    assert result.history[-1].infeasibility.max() < 1e-12
    own_losses = [a.loss.value(x) for a, x in zip(problem.agents, result.models, strict=True)]
    assert np.mean(own_losses) < result.start.loss
    assert 0 < certify(problem, result).gap < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_step": 0.0}, "PFedHN: server_step must be > 0, got 0.0"),
        ({"hidden": 0}, "PFedHN: hidden must be a whole number ≥ 1, got 0"),
        ({"layers": -1}, "PFedHN: layers must be a whole number ≥ 0, got -1"),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        PFedHN(step=0.1, **options)
