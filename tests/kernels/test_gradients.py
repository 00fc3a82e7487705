"""Compiled gradients against those of NumPy, and which batches are compiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from pcfed import kernels
from pcfed.kernels.arguments import BLOCK_FEATURES
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression, compiled
from pcfed.losses.linear import LinearModel
from tests.losses.cases import make


def by_numpy(loss: LinearModel, x: np.ndarray, rows: object) -> np.ndarray:
    index, count = loss._check_batch(rows)
    expected = np.empty(loss.n, loss.dtype)
    loss._numpy_gradients(index, count, x[None], expected[None])
    return expected


@settings(deadline=None, max_examples=150)
@given(
    model=st.sampled_from([SoftmaxRegression, LogisticRegression, LeastSquares]),
    form=st.sampled_from([np.uint8, np.float32, np.float64]),
    dtype=st.sampled_from(["float32", "float64"]),
    columns=st.sampled_from([1, 3, 8, 17, 1000, 2053]),
    batch=st.integers(1, 90),
    intercept=st.booleans(),
    l2=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_compiled_gradients_are_those_of_numpy(
    model, form, dtype, columns, batch, intercept, l2, seed
):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 256, (40, columns)).astype(form)
    options = {"intercept": intercept, "l2": l2, "scale": 1 / 255, "dtype": dtype}
    loss = make(model, X, rng.integers(2, size=40), **options)
    x = rng.normal(size=loss.n).astype(dtype) / columns
    rows = rng.integers(-40, 40, batch)
    assert compiled.is_supported(loss, batch)
    expected = by_numpy(loss, x, rows)
    tolerance = 50 * np.finfo(dtype).eps * (1 + np.abs(expected).max())
    np.testing.assert_allclose(loss.gradient(x, rows), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("classes", range(2, compiled.MAX_OUTPUTS + 1))
def test_any_number_of_outputs(classes):
    rng = np.random.default_rng(classes)
    X, y = rng.normal(size=(30, 20)), rng.integers(classes, size=30)
    loss = SoftmaxRegression(X, y, classes=classes)
    x = rng.normal(size=loss.n)
    np.testing.assert_allclose(loss.gradient(x), by_numpy(loss, x, None), atol=1e-14)


@pytest.mark.parametrize("rows", [None, slice(5, 2000), slice(None, None, -3)], ids=str)
def test_batches_of_several_blocks(rows):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2500, 100)), rng.integers(3, size=2500)
    assert X.size > 3 * BLOCK_FEATURES
    loss = SoftmaxRegression(X, y, classes=3, intercept=True)
    x = rng.normal(size=loss.n)
    np.testing.assert_allclose(loss.gradient(x, rows), by_numpy(loss, x, rows), atol=1e-14)


def test_rows_that_do_not_lie_end_to_end():
    rng = np.random.default_rng(0)
    wide, y = rng.normal(size=(20, 9)), rng.integers(3, size=20)
    loss = SoftmaxRegression(wide[::2, :5], y[::2], classes=3)
    same = SoftmaxRegression(wide[::2, :5].copy(), y[::2], classes=3)
    x = rng.normal(size=loss.n)
    for rows in (None, slice(2, 7), [-1, 0, 3]):
        np.testing.assert_array_equal(loss.gradient(x, rows), same.gradient(x, rows))


def test_numbers_that_are_not_finite_stay_in_sight():
    loss = SoftmaxRegression(np.eye(6), [0, 1, 2, 0, 1, 2], classes=3)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.zeros(loss.n)
        x[4] = bad
        assert not np.isfinite(loss.gradient(x)).all()


def test_which_batches_are_compiled(monkeypatch):
    X, y = np.eye(8), np.arange(8)
    few, many = SoftmaxRegression(X, y, classes=10), SoftmaxRegression(X, y, classes=100)
    assert compiled.is_supported(few, 2**18)
    assert not compiled.is_supported(few, 2**20)  # a batch for the threads of BLAS
    assert compiled.is_supported(many, 20)
    assert not compiled.is_supported(many, 200)  # a product for BLAS
    assert not compiled.is_supported(SoftmaxRegression(sparse.csr_array(X), y, classes=10), 2)
    monkeypatch.setattr(kernels, "load", lambda name: None)
    assert not compiled.is_supported(few, 2)
    np.testing.assert_allclose(few.gradient(np.zeros(80)), by_numpy(few, np.zeros(80), None))
