"""A loss is recognised by a hash: the same for the same loss, another one for any change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression, TorchLoss
from pcfed.losses.probe import loss_digest

X = np.random.default_rng(0).normal(size=(9, 3))
Y = np.arange(9) % 2
SWAPPED = np.array([0, 1, 5, 3, 4, 2, 6, 7, 8])


class Unknown(LeastSquares):
    """A loss that does not say where its records are."""

    def records(self):
        return None


def module(X, y, loss_fn=None, factor=1.0):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight *= factor
    net[0].weight.requires_grad = False
    return TorchLoss(net.double(), (X, y), loss_fn or torch.nn.CrossEntropyLoss())


def other_loss(output, y):
    return torch.nn.functional.cross_entropy(2 * output, y)


LOSSES = {
    "squares": LeastSquares,
    "logistic": LogisticRegression,
    "sparse": lambda X, y: LogisticRegression(sparse.csr_array(X), y),
    "unknown": Unknown,
    "module": module,
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_hash_is_that_of_records_and_their_order(name):
    build, other, labels = LOSSES[name], X.copy(), Y.copy()
    other[4, 1] += 1e-9
    labels[7] = 1 - labels[7]
    found = {
        loss_digest(each)
        for each in (
            build(X, Y),
            build(X.copy(), Y.copy()),
            build(other, Y),
            build(X, labels),
            build(X[SWAPPED], Y[SWAPPED]),
            build(X, Y).permute_samples(np.arange(9)),
            build(X[:-1], Y[:-1]),
        )
    }
    assert len(found) == 5


def test_the_hash_is_that_of_the_function():
    losses = [
        SoftmaxRegression(X, Y, classes=2),
        SoftmaxRegression(X, Y, classes=2, intercept=True),
        SoftmaxRegression(X, Y, classes=3),
        LogisticRegression(X, Y),
        LogisticRegression(X, Y, l2=1e-6),
        LogisticRegression(X, Y, scale=2.0),
        LogisticRegression(X, Y, dtype=np.float32),
        LeastSquares(X, Y),
        module(X, Y),
        module(X, Y, other_loss),
        module(X, Y, factor=2.0),
    ]
    assert len({*map(loss_digest, losses)}) == len(losses)


def test_a_record_whose_gradient_vanishes_at_the_random_point_is_seen():
    large, larger = X * 1e5, X * 1e5
    larger[0] *= 1.5
    losses = [LogisticRegression(each, large[:, 0] > 0) for each in (large, larger)]
    assert loss_digest(losses[0]) != loss_digest(losses[1])
