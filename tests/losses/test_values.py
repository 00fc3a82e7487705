"""Values and gradients of linear models: by hand, against SciPy, and with all forms of data."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, log_softmax, softmax

from pcfed.losses import (
    LeastSquares,
    LogisticRegression,
    SoftmaxRegression,
    feature_norms,
    features,
)
from pcfed.losses.linear import LinearModel

from .cases import CASES, LABELS, LINEAR_MODELS, PIXELS, SCALE, TARGETS, Case, N, make

each = pytest.mark.parametrize("case", CASES, ids=str)
models = pytest.mark.parametrize("model", LINEAR_MODELS)


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many blocks":
        monkeypatch.setattr(features, "MAX_BLOCK_ROWS", 7)
        monkeypatch.setattr(features, "MAX_BLOCK_BYTES", 1)


def tolerance(case: Case, small: float, large: float) -> float:
    return small if case.dtype == "float64" else large


def test_softmax_by_hand() -> None:
    # Logits (ln 2, 0) and (0, ln 3) with the intercept (0, 0): p = (2/3, 1/3) and (1/4, 3/4).
    loss = SoftmaxRegression([[1.0, 0.0], [0.0, -1.0]], [0, 0], classes=2, intercept=True, l2=2.0)
    a, b = np.log(2), np.log(3)
    x = np.array([a, 0, 0, -b, 0, 0])
    assert_allclose(loss.value(x), (np.log(1.5) + np.log(4)) / 2 + a**2 + b**2)
    mean = np.array([-1 / 3, 3 / 4, 1 / 3, -3 / 4, -1 / 3 - 3 / 4, 1 / 3 + 3 / 4]) / 2
    assert_allclose(loss.gradient(x), mean + 2 * np.array([a, 0, 0, -b, 0, 0]))


def test_logistic_by_hand() -> None:
    loss = LogisticRegression([[2.0], [-1.0]], [1, 0], intercept=True, l2=1.0)
    x = np.array([np.log(3), 0.0])  # logits ln 9 and -ln 3: p = 9/10 and 1/4
    assert_allclose(loss.value(x), -(np.log(0.9) + np.log(0.75)) / 2 + np.log(3) ** 2 / 2)
    assert_allclose(loss.gradient(x), [(-0.2 - 0.25) / 2 + np.log(3), (-0.1 + 0.25) / 2])


def test_least_squares_by_hand() -> None:
    loss = LeastSquares([[1, 2], [3, -4]], [1, 2], intercept=True, l2=0.5, scale=2)
    x = np.array([1.0, -1.0, 0.5])  # residuals -2 + .5 - 1 and 14 + .5 - 2
    assert_allclose(loss.value(x), (2.5**2 + 12.5**2) / 4 + 0.5)
    assert_allclose(loss.gradient(x), [-2.5 + 37.5 + 0.5, -5 - 50 - 0.5, 5.0])


@pytest.mark.parametrize("model", [SoftmaxRegression, LogisticRegression, LeastSquares])
def test_scipy_agrees(model: type[LinearModel]) -> None:
    X, y = SCALE * PIXELS, TARGETS.get(model, LABELS)
    loss = make(model, X)
    x = np.random.default_rng(1).standard_normal(loss.n)
    t = X @ np.atleast_2d(loss.unpack(x)[0]).T
    if model is SoftmaxRegression:
        value, slopes = -log_softmax(t, axis=1)[np.arange(N), y].mean(), softmax(t, axis=1)
        slopes[np.arange(N), y] -= 1
    elif model is LogisticRegression:
        s = 2 * y - 1
        value, slopes = -np.log(expit(s * t[:, 0])).mean(), (expit(t[:, 0]) - y)[:, None]
    else:
        value, slopes = np.mean((t[:, 0] - y) ** 2) / 2, t - y[:, None]
    assert_allclose(loss.value(x), value, rtol=1e-13)
    assert_allclose(loss.gradient(x), (slopes.T @ X).ravel() / N, atol=1e-14)


@each
@pytest.mark.usefixtures("blocks")
def test_finite_differences(case: Case) -> None:
    loss, x, h = case.build(), case.point().astype(case.dtype).astype(float), 1e-5
    value = loss.to_float64().value  # differences of float32 values have too few digits
    expected = [(value(x + e) - value(x - e)) / (2 * h) for e in h * np.eye(loss.n)]
    gradient = loss.gradient(x)
    assert gradient.dtype == case.dtype
    error = np.linalg.norm(gradient - expected) / np.linalg.norm(expected)
    assert error < tolerance(case, 1e-8, 1e-6)


@each
@pytest.mark.usefixtures("blocks")
def test_every_form_is_the_same_loss(case: Case) -> None:
    loss, twin, x = case.build(), case.twin(), case.point()
    rtol = tolerance(case, 1e-13, 1e-5)
    rows = np.random.default_rng(3).integers(-N, N, 90)
    assert (loss.n, loss.shape, loss.size, loss.intercept_slice) == (
        twin.n,
        twin.shape,
        N,
        twin.intercept_slice,
    )
    assert_allclose(loss.value(x), twin.value(x), rtol=rtol)
    assert_allclose(loss.gradient(x), twin.gradient(x), rtol=rtol, atol=rtol)
    assert_allclose(loss.gradient(x, rows), twin.gradient(x, rows), rtol=rtol, atol=rtol)
    assert_allclose(loss.smoothness(), twin.smoothness(), rtol=1e-5)
    assert_allclose(loss.accuracy(x), twin.accuracy(x), rtol=1e-4)


@each
@pytest.mark.parametrize(
    "rows",
    [
        slice(20, 90),
        slice(None, None, 3),
        slice(140, None, -1),
        slice(-30, None),
        [5, 5, 5, 149, 0],
    ],
    ids=str,
)
@pytest.mark.usefixtures("blocks")
def test_a_batch_is_the_loss_on_its_rows(case: Case, rows: slice | list[int]) -> None:
    x, part = case.point(), case.build(rows)
    index = rows if isinstance(rows, slice) else np.array(rows)
    rtol = tolerance(case, 1e-12, 1e-4)
    assert_allclose(case.build().gradient(x, index), part.gradient(x), rtol=rtol, atol=rtol)


@each
def test_disjoint_batches_average_to_the_full_gradient(case: Case) -> None:
    loss, x = case.build(), case.point()
    order = np.random.default_rng(0).permutation(N).reshape(10, -1)
    rtol = tolerance(case, 1e-12, 1e-4)
    by_index = np.mean([loss.gradient(x, rows) for rows in order], axis=0)
    by_slice = np.mean([loss.gradient(x, slice(i, i + 15)) for i in range(0, N, 15)], axis=0)
    assert_allclose(by_index, loss.gradient(x), rtol=rtol, atol=rtol)
    assert_allclose(by_slice, loss.gradient(x), rtol=rtol, atol=rtol)


@each
def test_permuted_samples(case: Case) -> None:
    loss, x = case.build(), case.point()
    order = np.random.default_rng(5).permutation(N)
    other = loss.permute_samples(order)
    rtol = tolerance(case, 1e-12, 1e-4)
    assert type(other) is type(loss)
    assert_allclose(other.value(x), loss.value(x), rtol=rtol)
    assert other.accuracy(x) == pytest.approx(loss.accuracy(x), rel=1e-6)
    assert_allclose(other.smoothness(), loss.smoothness(), rtol=1e-6)
    batch = other.gradient(x, slice(10, 25))
    assert_allclose(batch, loss.gradient(x, order[10:25]), rtol=rtol, atol=rtol)


@each
def test_norms_of_permuted_samples_are_computed_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = case.build()
    other = loss.permute_samples(np.arange(N)[::-1])
    L, batch = other.smoothness(), other.typical_smoothness(10)
    for name in ("largest_eigenvalue", "max_squared_row_norm"):
        monkeypatch.delattr(feature_norms, name)
    assert loss.smoothness() == L
    assert loss.permute_samples(np.arange(N)).typical_smoothness(10) == batch


@each
def test_gradient_writes_to_out(case: Case) -> None:
    loss, x = case.build(), case.point().astype(case.dtype)
    expected = loss.gradient(x, slice(3, 99))
    for dtype in ("float32", "float64"):
        out = np.full(loss.n, np.nan, dtype)
        assert loss.gradient(x, slice(3, 99), out=out) is out
        assert_allclose(out, expected, rtol=1e-6)
    strided = np.empty((loss.n, 2), case.dtype)[:, 0]
    assert_array_equal(loss.gradient(x, slice(3, 99), out=strided), expected)
    assert_array_equal(loss.gradient(x, slice(3, 99), out=x), expected)


@models
@pytest.mark.usefixtures("blocks")
def test_out_may_be_x(model: type[LinearModel]) -> None:
    loss = make(model, SCALE * PIXELS, intercept=True)
    x = np.random.default_rng(0).standard_normal(loss.n)
    expected = loss.gradient(x)
    loss.gradient(x, out=x)
    assert_array_equal(x, expected)


@models
def test_parameters_of_any_dtype_and_lists(model: type[LinearModel]) -> None:
    loss = make(model, SCALE * PIXELS)
    ones = np.ones(loss.n)
    for x in (ones.astype("f4"), ones.astype(int), list(ones), np.ones((loss.n, 2))[:, 1]):
        assert loss.value(x) == loss.value(ones)
        assert_array_equal(loss.gradient(x), loss.gradient(ones))
