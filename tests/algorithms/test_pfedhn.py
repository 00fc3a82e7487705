"""PFedHN: the network and its derivatives by PyTorch, and what it can represent."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import PFedHN, certify, run
from pcfed.sets import WholeSpace
from tests.algorithms.plain import FEATURES, OPTIONS, STEPS, plain_problem
from tests.algorithms.test_fedmid import KINDS, SETS


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


def forward(torch, layers, v):
    """Linear, then ReLU and linear for each further hidden layer, then the last linear layer."""
    value = v @ layers[0] + layers[1]
    for W, b in zip(layers[2:-2:2], layers[3:-2:2], strict=True):
        value = torch.relu(value) @ W + b
    return value @ layers[-2] + layers[-1]


def pfedhn(torch, plain, algorithm, project):
    """Algorithm 1 of the paper, with several agents in a round, and autograd: models and v_i."""
    layers = torch_layers(torch, algorithm, FEATURES)
    v = [
        np.random.default_rng([algorithm.seed, 1 + i]).standard_normal(algorithm.embedding)
        for i in range(len(plain.X))
    ]
    v = [torch.tensor(each, requires_grad=True) for each in v]
    alpha = algorithm.server_step
    for r, present in enumerate(plain.plan):
        totals = [torch.zeros_like(each) for each in layers]
        slopes = {}
        for i in present:
            x = forward(torch, layers, v[i])
            y = x.detach().numpy().copy()
            for k in range(STEPS):
                y = project(i, y - algorithm.step * plain.gradient(i, r, k, y))
            delta = x.detach() - torch.tensor(y)
            *gradients, slopes[i] = torch.autograd.grad(x, [*layers, v[i]], grad_outputs=delta)
            totals = [a + b for a, b in zip(totals, gradients, strict=True)]
        with torch.no_grad():
            for each, total in zip(layers, totals, strict=True):
                each -= alpha * total / len(present)
            for i, slope in slopes.items():
                v[i] -= alpha * slope
    models = [forward(torch, layers, each).detach().numpy() for each in v]
    return np.stack(models), np.stack([each.detach().numpy() for each in v])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("constrained", [True, False])
def test_equals_the_pseudocode_with_autograd(kind, layers, constrained):
    torch = pytest.importorskip("torch")
    plain = plain_problem(kind, SETS)
    algorithm = PFedHN(
        step=0.2, server_step=0.3, embedding=3, hidden=5, layers=layers, constrained=constrained
    )
    result = run(plain.problem, algorithm, **OPTIONS)

    def project(i, y):
        return SETS[i].project(y) if constrained else y

    models, v = pfedhn(torch, plain, algorithm, project)
    np.testing.assert_allclose(result.state.private["v"], v, rtol=0, atol=1e-10)
    own = np.stack([project(i, x) for i, x in enumerate(models)])
    np.testing.assert_allclose(result.models, own, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.average, own.mean(axis=0), rtol=0, atol=1e-10)
    assert np.ptp(models, axis=0).max() > 0.01, "models must differ"


def test_models_of_their_own_without_limits():
    """With more entries in an embedding than agents, every agent can have its own optimum."""
    plain = plain_problem("least squares", [WholeSpace()] * 3)
    algorithm = PFedHN(step=0.3, server_step=0.1, embedding=6, hidden=8, layers=0)
    result = run(plain.problem, algorithm, rounds=1000, local_steps=3, eval_every=1000)
    for X, y, x in zip(plain.X, plain.y, result.models, strict=True):
        best = np.linalg.lstsq(X, y)[0]
        np.testing.assert_allclose(x, best, rtol=0, atol=1e-8)
    assert np.ptp(result.models, axis=0).max() > 1


def test_models_are_in_their_sets_and_certified():
    plain = plain_problem("logistic", SETS)
    result = run(plain.problem, PFedHN("auto"), rounds=30, local_steps=4)
    assert result.history[-1].infeasibility.max() < 1e-12
    assert result.history[-1].objective < result.start.objective
    assert 0 < certify(plain.problem, result).gap < 1


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
