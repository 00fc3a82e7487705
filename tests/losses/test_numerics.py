"""Huge logits, smoothness, convexity and memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse

from pcfed.losses import LeastSquares, LogisticRegression, Loss, SoftmaxRegression, feature_norms
from pcfed.losses.linear import LinearModel

from .cases import CASES, LABELS, PIXELS, SCALE, Case, make

each = pytest.mark.parametrize("case", CASES, ids=str)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


@dtypes
@pytest.mark.parametrize("size", [1e2, 1e4, 1e8, 1e30])
def test_softmax_with_huge_logits(dtype: str, size: float) -> None:
    X = np.array([[1.0], [1.0], [-1.0]], dtype)
    loss = SoftmaxRegression(X, [0, 1, 2], classes=3, intercept=True)
    x = np.array([size, -size, 0, 0, 0, 0])
    # Logits (s, -s, 0), (s, -s, 0), (-s, s, 0) with labels 0, 1, 2: costs 0, 2s and s.
    assert_allclose(loss.value(x), size, rtol=1e-6)
    assert_allclose(loss.gradient(x), np.array([1, -2, 1, 1, 0, -1]) / 3, atol=1e-6)


@dtypes
@pytest.mark.parametrize("size", [1e2, 1e4, 1e8, 1e30])
def test_logistic_with_huge_logits(dtype: str, size: float) -> None:
    loss = LogisticRegression(np.array([[1.0], [2.0]], dtype), [1, 0])
    assert_allclose(loss.value([size]), size, rtol=1e-6)
    assert_allclose(loss.gradient([size]), [1.0], rtol=1e-6)
    assert_allclose(loss.value([-size]), size / 2, rtol=1e-6)


@dtypes
def test_least_squares_with_huge_residuals(dtype: str) -> None:
    loss = LeastSquares(np.array([[1.0]], dtype), [0.0])
    assert_allclose(loss.value([1e30]), 5e59, rtol=1e-6)
    assert_allclose(loss.gradient([1e30]), [1e30], rtol=1e-6)


@each
@pytest.mark.parametrize("size", [1e30, 1e300, np.inf, np.nan])
def test_no_size_of_x_raises_or_warns(case: Case, size: float) -> None:
    loss = case.build()
    x = size * np.sign(case.point())
    with np.errstate(all="raise"):
        loss.value(x)
        loss.gradient(x)
        loss.gradient(x, slice(0, 9))
        loss.accuracy(x)
        loss.predict(x, PIXELS)
        loss.unpack(x)


def gram(case: Case) -> np.ndarray:
    X = SCALE * PIXELS
    phi = np.hstack([X, np.ones((len(X), int(case.intercept)))])
    return phi.T @ phi / len(X)


@each
@pytest.mark.parametrize("small", [feature_norms.MAX_GRAM_SIZE, 0], ids=["exact", "lanczos"])
def test_smoothness_is_the_eigenvalue(
    case: Case, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_norms, "MAX_GRAM_SIZE", small)
    exact = case.model.max_logit_curvature * np.linalg.eigvalsh(gram(case))[-1] + case.l2
    assert_allclose(case.build().smoothness(), exact, rtol=2e-3 if small == 0 else 1e-5)


@pytest.mark.parametrize("shape", [(900, 200), (200, 900), (40, 900), (900, 40)], ids=str)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("form", ["dense", "sparse", "float32"])
def test_smoothness_is_an_upper_bound(shape: tuple[int, int], intercept: bool, form: str) -> None:
    X = np.random.default_rng(2).standard_normal(shape)  # a crowded spectrum, the hard case
    data = {"dense": X, "sparse": sparse.csr_array(X), "float32": X.astype("f4")}[form]
    loss = LeastSquares(data, np.zeros(shape[0]), intercept=intercept)
    phi = np.hstack([X, np.ones((shape[0], int(intercept)))])
    exact = np.linalg.norm(phi, 2) ** 2 / shape[0]
    lanczos = min(shape) > feature_norms.MAX_GRAM_SIZE
    margin = 5e-4 if lanczos else -1e-6  # the result of Lanczos, which is too small, is raised
    assert exact * (1 + margin) <= loss.smoothness() <= exact * 1.002
    again = LeastSquares(data, np.zeros(shape[0]), intercept=intercept)
    assert loss.smoothness() == loss.smoothness() == again.smoothness()


def test_smoothness_of_degenerate_data(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.zeros(100)
    assert LeastSquares(np.zeros((100, 80)), y, l2=0.5).smoothness() == 0.5
    assert_allclose(LeastSquares(np.eye(100), y).smoothness(), 0.01, rtol=2e-3)
    assert_allclose(LeastSquares(np.ones((100, 80)), y).smoothness(), 80, rtol=2e-3)
    signs = np.tile([1.0, -1.0], (100, 40))  # orthogonal to (1, .., 1)
    assert_allclose(LeastSquares(signs, y).smoothness(), 80, rtol=2e-3)
    assert LeastSquares(np.full((100, 80), 1e200), y).smoothness() == np.inf
    assert LeastSquares(np.full((100, 8), 1e200), y).smoothness() == np.inf

    def fails(*_: object, **__: object) -> None:
        raise feature_norms.ArpackError(-9999)

    monkeypatch.setattr(feature_norms, "eigsh", fails)
    X = np.random.default_rng(0).standard_normal((100, 80))
    loss = LeastSquares(X, y, intercept=True)
    assert_allclose(loss.smoothness(), (np.sum(X**2) + 100) / 100)


@each
def test_gradients_are_lipschitz_and_monotone(case: Case) -> None:
    loss, L = case.build(), case.build().smoothness()
    slack = 1e-9 if case.dtype == "float64" else 1e-4
    for seed, spread in [(1, 1e-2), (2, 1.0), (3, 100.0)]:
        x, d = case.point(seed).astype(case.dtype), case.point(seed + 9).astype(case.dtype)
        d *= np.asarray(spread, case.dtype)
        change = loss.gradient(x + d).astype(float) - loss.gradient(x)
        assert np.linalg.norm(change) <= L * np.linalg.norm(d) * (1 + slack) + slack
        assert change @ d >= -slack * np.linalg.norm(d)


@pytest.mark.parametrize("model", [SoftmaxRegression, LogisticRegression, LeastSquares])
def test_smoothness_is_attained(model: type[LinearModel]) -> None:
    """The curvature at the worst point is L: at 0 with two classes, anywhere for squares."""
    X, v = SCALE * PIXELS, np.linalg.eigh(PIXELS.T @ (1.0 * PIXELS))[1][:, -1]
    if model is SoftmaxRegression:
        loss: Loss = SoftmaxRegression(X, LABELS, classes=2)
        d = 1e-5 * np.concatenate([v, -v]) / np.sqrt(2)
    else:
        loss, d = make(model, X), 1e-5 * v
    change = loss.gradient(d) - loss.gradient(-d)
    assert_allclose(np.linalg.norm(change), loss.smoothness() * 2e-5, rtol=1e-6)


@given(seed=st.integers(0, 10**6), shift=st.floats(-1e6, 1e6), size=st.floats(0, 1e4))
def test_softmax_ignores_a_shift_of_all_logits(seed: int, shift: float, size: float) -> None:
    rng = np.random.default_rng(seed)
    loss = SoftmaxRegression(rng.random((9, 3)), rng.integers(0, 4, 9), classes=4, intercept=True)
    x = size * rng.standard_normal(loss.n)
    moved = x.copy()
    moved[loss.intercept_slice] += shift
    assert loss.value(x) >= 0
    assert_allclose(loss.value(moved), loss.value(x), rtol=1e-8, atol=1e-8)
    assert_allclose(loss.gradient(moved), loss.gradient(x), atol=1e-6)
    assert_allclose(loss.gradient(x)[loss.intercept_slice].sum(), 0, atol=1e-12)


def peak(work: Callable[[], object]) -> int:
    """Return the largest number of bytes that were allocated at the same time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_pixels_are_converted_in_blocks() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (20_000, 784), dtype=np.uint8), rng.integers(0, 10, 20_000)

    def work() -> None:
        loss = SoftmaxRegression(X, y, classes=10)
        loss.value(np.zeros(loss.n))
        loss.gradient(np.zeros(loss.n))
        loss.gradient(np.zeros(loss.n), np.arange(15_000))
        loss.accuracy(np.zeros(loss.n))
        loss.smoothness()

    assert peak(work) < 8e6  # of 63 MB as float32


def test_a_slice_of_floats_is_read_in_place() -> None:
    X = np.random.default_rng(0).random((4000, 784), np.float32)
    before = X.copy()
    loss = SoftmaxRegression(X, np.arange(4000) % 10, classes=10)
    x, out = np.zeros(loss.n, np.float32), np.zeros(loss.n, np.float32)
    assert peak(lambda: loss.gradient(x, slice(1000, 2500), out=out)) < 250_000  # of 4.7 MB
    assert peak(lambda: SoftmaxRegression(X, np.arange(4000) % 10, classes=10)) < X.nbytes / 2
    assert X.flags.writeable
    assert np.array_equal(X, before)
