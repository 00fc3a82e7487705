"""The interface of every loss of pcfed.losses, tested on the example in its docstring."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pcfed.losses
from pcfed.losses import Loss

from .cases import LOSSES, example

losses = pytest.mark.parametrize("name", LOSSES)


def random_points(loss: Loss, count: int = 5) -> list[np.ndarray]:
    return list(np.random.default_rng(0).standard_normal((count, loss.n)))


def test_every_loss_is_exported() -> None:
    pytest.importorskip("torch")
    for module in pkgutil.iter_modules(pcfed.losses.__path__, "pcfed.losses."):
        for name, found in inspect.getmembers(import_module(module.name), inspect.isclass):
            # PublicLoss is what algorithms see of a loss that is private, and no loss of its own.
            if issubclass(found, Loss) and not inspect.isabstract(found) and name != "PublicLoss":
                assert name in LOSSES


@losses
def test_attributes(name: str) -> None:
    loss = example(name)
    assert isinstance(loss, Loss)
    assert repr(loss).startswith(f"{name}({loss.size} samples, ")
    assert loss.dtype in (np.float32, np.float64)
    assert isinstance(loss.convex, bool)
    num_coefficients = int(np.prod(loss.shape))
    if loss.intercept_slice is None:
        assert loss.n == num_coefficients
    else:
        assert loss.intercept_slice == slice(num_coefficients, loss.n)


@losses
def test_finite_differences(name: str) -> None:
    loss, h = example(name).to_float64(), 1e-6
    for x in random_points(loss):
        gradient = loss.gradient(x)
        differences = [loss.value(x + e) - loss.value(x - e) for e in h * np.eye(loss.n)]
        assert gradient.dtype == np.float64
        assert np.linalg.norm(gradient) > 1e-3
        assert_allclose(gradient, np.array(differences) / (2 * h), atol=1e-8)


@losses
def test_the_gradient_is_the_mean_over_samples(name: str) -> None:
    loss = example(name).to_float64()
    for x in random_points(loss):
        rows = np.arange(loss.size)
        by_index = np.mean([loss.gradient(x, rows[i : i + 1]) for i in rows], axis=0)
        by_slice = np.mean([loss.gradient(x, slice(i, i + 1)) for i in rows], axis=0)
        assert_allclose(by_index, loss.gradient(x), atol=1e-14)
        assert_allclose(by_slice, loss.gradient(x), atol=1e-14)
        assert_allclose(loss.gradient(x, np.append(rows, rows)), loss.gradient(x), atol=1e-14)


@losses
def test_permuted_samples(name: str) -> None:
    loss = example(name).to_float64()
    order = np.arange(loss.size)[::-1]
    other = loss.permute_samples(order)
    for x in random_points(loss):
        assert_allclose(other.value(x), loss.value(x), rtol=1e-13)
        assert_allclose(
            other.gradient(x, slice(0, 1)), loss.gradient(x, order[:1]), rtol=1e-12, atol=1e-14
        )
        assert_array_equal(other.accuracy(x), loss.accuracy(x))


@losses
def test_gradients_are_written_to_out(name: str) -> None:
    loss = example(name)
    x = random_points(loss)[0].astype(loss.dtype)
    expected = loss.gradient(x)
    same, wide = np.empty(loss.n, loss.dtype), np.empty(loss.n)
    strided = np.empty(2 * loss.n, loss.dtype)[::2]
    for out in (same, wide, strided, x):
        assert loss.gradient(x, out=out) is out
        assert_array_equal(out, expected)


@losses
def test_smoothness_and_convexity(name: str) -> None:
    loss = example(name).to_float64()
    assert loss.smoothness() > 0
    assert loss.typical_smoothness() <= loss.smoothness()
    for x, d in zip(random_points(loss), random_points(loss, 10)[5:], strict=True):
        change = loss.gradient(x + d) - loss.gradient(x)
        assert np.linalg.norm(change) <= loss.smoothness() * np.linalg.norm(d) * (1 + 1e-9)
        assert not loss.convex or change @ d >= -1e-12


@losses
def test_gradient_spread_bounds_the_variance(name: str) -> None:
    loss = example(name).to_float64()
    for x in random_points(loss):
        gradients = [loss.gradient(x, slice(i, i + 1)) for i in range(loss.size)]
        variance = np.sum((gradients - loss.gradient(x)) ** 2) / loss.size
        assert variance <= loss.gradient_spread()


@losses
def test_errors_of_samples_have_the_mean_of_the_score(name: str) -> None:
    loss = example(name)
    for x in random_points(loss):
        errors, predictions = loss.sample_errors(x), loss.sample_predictions(x)
        assert errors is not None
        assert predictions is not None
        assert errors.shape == (loss.size,)
        assert len(predictions) == loss.size
        np.testing.assert_allclose(1 - errors.mean(), loss.accuracy(x), rtol=1e-6, atol=1e-12)


@losses
def test_pickle(name: str) -> None:
    loss = example(name)
    loss.value(np.zeros(loss.n))  # what a loss caches is not pickled, or must be picklable
    other = pickle.loads(pickle.dumps(loss))
    for x in random_points(loss):
        assert other.value(x) == loss.value(x)
        assert_array_equal(other.gradient(x), loss.gradient(x))


@losses
def test_losses_are_immutable(name: str) -> None:
    with pytest.raises(AttributeError, match=f"{name}: size cannot be changed; make a new loss"):
        example(name).size = 3


CALLS: dict[str, Callable[[Loss, np.ndarray], object]] = {
    "x": lambda loss, bad: loss.value(bad),
    "rows": lambda loss, bad: loss.gradient(np.zeros(loss.n), rows=bad),
    "out": lambda loss, bad: loss.gradient(np.zeros(loss.n), out=bad),
    "order": lambda loss, bad: loss.permute_samples(bad),
}


@losses
@pytest.mark.parametrize("argument", CALLS)
def test_bad_arguments(name: str, argument: str) -> None:
    loss, bad = example(name), np.full(1000, 10**6)
    with pytest.raises(ValueError, match=rf"^{name}: {argument} must .*; .*\.$"):
        CALLS[argument](loss, bad)
