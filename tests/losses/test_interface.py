"""Attributes, predictions, immutability and errors of linear models."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.losses.linear import LinearModel

from .cases import CASES, LABELS, LINEAR_MODELS, PIXELS, TARGETS, Case, D, K, N, make

each = pytest.mark.parametrize("case", CASES, ids=str)
models = pytest.mark.parametrize("model", LINEAR_MODELS)


@each
def test_attributes(case: Case) -> None:
    loss = case.build()
    outputs = case.outputs
    assert loss.shape == ((outputs, D) if outputs > 1 else (D,))
    assert loss.n == outputs * (D + case.intercept)
    assert loss.intercept_slice == (
        slice(outputs * D, outputs * (D + 1)) if case.intercept else None
    )
    assert (loss.size, loss.dtype, loss.convex) == (N, case.dtype, True)
    coefficients, intercept = loss.unpack(np.arange(loss.n))
    assert_array_equal(coefficients.ravel(), np.arange(outputs * D))
    assert coefficients.shape == loss.shape
    if case.intercept:
        assert_array_equal(intercept, np.arange(outputs * D, loss.n))
    else:
        assert intercept is None


def test_repr() -> None:
    loss = SoftmaxRegression(np.zeros((15, 7), np.float32), np.zeros(15), classes=10)
    assert repr(loss) == "SoftmaxRegression(15 samples, shape (10, 7), float32)"


@pytest.mark.parametrize(
    ("given", "dtype", "scale"),
    [
        ("uint8", "float32", 1 / 255),
        ("int64", "float64", 1.0),
        ("bool", "float64", 1.0),
        ("float16", "float32", 1.0),
        ("float32", "float32", 1.0),
        (">f4", "float32", 1.0),
        ("float64", "float64", 1.0),
        ("longdouble", "float64", 1.0),
    ],
)
@pytest.mark.parametrize("form", [np.array, sparse.csr_array, sparse.csc_matrix])
def test_dtype_and_scale_by_default(given: str, dtype: str, scale: float, form: Any) -> None:
    if given in ("float16", ">f4"):
        form = np.array  # SciPy has no such sparse arrays
    loss = LeastSquares(form(np.eye(3).astype(given)), [1, 2, 3])
    assert (loss.dtype, loss.scale) == (dtype, scale)
    assert loss.predict([1, 1, 1], np.eye(3, dtype=given)) == pytest.approx([scale] * 3)
    other = LeastSquares(form(np.eye(3).astype(given)), [1, 2, 3], dtype="f8", scale=3)
    assert (other.dtype, other.scale) == ("float64", 3)
    assert other.predict([1, 1, 1], np.eye(3)) == pytest.approx([3] * 3)


def test_pixels_and_scaled_features_have_the_same_predictions() -> None:
    X = PIXELS.astype(np.float32) / np.float32(255)
    y = TARGETS[SoftmaxRegression]
    x = np.random.default_rng(0).standard_normal(K * D)
    for loss in (SoftmaxRegression(X, y, classes=K), SoftmaxRegression(PIXELS, y, classes=K)):
        assert_array_equal(loss.predict(x, X), loss.predict(x, PIXELS))
        assert loss.accuracy(x, X, y) == loss.accuracy(x, PIXELS, y) == loss.accuracy(x)
    for features in (X, PIXELS):
        regression = LeastSquares(features, y)
        assert_allclose(regression.predict(x[:D], X), regression.predict(x[:D], PIXELS), atol=1e-5)


def test_softmax_predicts_classes() -> None:
    loss = SoftmaxRegression(np.eye(3), [0, 1, 2], classes=3)
    x = np.array([[2.0, 0, 0], [0, 2, 3], [0, 0, 1]]).ravel()
    assert_array_equal(loss.predict(x, np.eye(3)), [0, 1, 1])
    assert loss.accuracy(x) == pytest.approx(2 / 3)
    assert loss.accuracy(x, np.eye(3)[:2], [0, 2]) == 0.5


@pytest.mark.parametrize("lower", [0, -1])
def test_logistic_predicts_the_given_labels(lower: int) -> None:
    loss = LogisticRegression([[1.0], [-2.0], [3.0]], [1, lower, lower])
    assert_array_equal(loss.predict([1.0], [[1.0], [-1.0], [0.0]]), [1, lower, lower])
    assert loss.accuracy([1.0]) == pytest.approx(2 / 3)
    assert loss.accuracy([1.0], [[1.0], [-1.0]], [1, 0]) == 1
    assert loss.accuracy([1.0], [[1.0], [-1.0]], [1, -1]) == 1


def test_label_codings_are_the_same_loss() -> None:
    y = LABELS
    x = np.linspace(-1, 1, D)
    values = {LogisticRegression(PIXELS, form).value(x) for form in (y, 2 * y - 1, y == 1, y * 1.0)}
    assert len(values) == 1


def test_accuracy_of_a_regression_is_r_squared() -> None:
    loss = LeastSquares([[1.0], [2.0], [3.0]], [1.0, 2.0, 6.0])
    assert loss.accuracy([2.0]) == pytest.approx(1 - (1 + 4 + 0) / (4 + 1 + 9))
    assert loss.accuracy([1.0], [[1.0], [2.0]], [1.0, 2.0]) == 1
    assert loss.accuracy([1.0], [[2.0], [2.0]], [2.0, 2.0]) == 1
    assert loss.accuracy([1.0], [[2.0], [2.0]], [3.0, 3.0]) == 0


@models
def test_a_loss_cannot_be_changed(model: type[LinearModel]) -> None:
    y = TARGETS.get(model, LABELS).copy()
    loss = make(model, PIXELS, y)
    with pytest.raises(AttributeError, match=r"l2 cannot be changed; make a new loss"):
        loss.l2 = 1.0
    before = loss.value(np.ones(loss.n))
    y[:] = 1
    assert loss.value(np.ones(loss.n)) == before
    assert not loss._features.matrix.flags.writeable
    assert not loss._targets.flags.writeable
    assert y.flags.writeable
    assert PIXELS.flags.writeable


def test_a_sparse_matrix_of_the_caller_stays_writeable() -> None:
    X = sparse.random_array((20, 9), density=0.3, format="csr", rng=np.random.default_rng(0))
    loss = LeastSquares(X, np.zeros(20))
    loss.gradient(np.ones(9), np.array([3, 1]))
    assert np.shares_memory(loss._features.matrix.data, X.data)
    assert X.data.flags.writeable
    X *= 2.0


@each
def test_pickle(case: Case) -> None:
    loss, x = case.build(), case.point()
    other = pickle.loads(pickle.dumps(loss))
    assert other.value(x) == loss.value(x)
    assert_array_equal(other.gradient(x), loss.gradient(x))


X4, Y4, NAN = np.eye(4), [0, 1, 0, 1], float("nan")
BAD_X = [
    (np.zeros(4), r"X must be a matrix of samples × features.*got shape \(4,\); give"),
    (np.zeros((4, 2, 2)), r"X must be a matrix.*got shape \(4, 2, 2\); .*reshape"),
    (np.zeros((0, 4)), r"X must be a matrix.*got shape \(0, 4\); "),
    (np.zeros((4, 0)), r"X must be a matrix.*got shape \(4, 0\); "),
    (sparse.csr_array((0, 4)), r"X must be a matrix.*got shape \(0, 4\); "),
    (np.diag([1, 1, NAN, 1]), r"X must be finite.*got nan at row 2, column 2; remove"),
    (np.where(np.arange(5000) == 4500, NAN, 0)[:, None], r"got nan at row 4500, column 0; remove"),
    (np.diag([1, np.inf, 1, 1]), r"X must be finite.*got inf at row 1, column 1; remove"),
    (sparse.csr_array(np.diag([1, NAN, 1, 1])), r"X must be finite.*got nan among its stored"),
    (np.array([["a"] * 4] * 4), r"X must be real numbers.*got ndarray of <U1; give"),
    (np.eye(4) * 1j, r"X must be real numbers.*got ndarray of complex128; give"),
    (sparse.csr_array(np.eye(4) * 1j), r"X must be real numbers.*complex128; give"),
    ([[1, 2], [3]], r"X must be real numbers in a rectangular array, got list"),
    (None, r"X must be a matrix|X must be real numbers"),
    ("pixels", r"X must be real numbers.*got str"),
]
BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"l2": -1.0}, r"l2 must be ≥ 0, got -1.0; give"),
    ({"l2": NAN}, r"l2 must be a finite number, got nan; give"),
    ({"l2": "a"}, r"l2 must be a finite number, got 'a'; give"),
    ({"scale": 0}, r"scale must be > 0, got 0; give"),
    ({"scale": np.inf}, r"scale must be a finite number, got inf; give"),
    ({"dtype": "int8"}, r"dtype must be float32 or float64, got 'int8'; leave it out"),
    ({"dtype": "float16"}, r"dtype must be float32 or float64, got 'float16'; leave it out"),
    ({"dtype": "no"}, r"dtype must be float32 or float64, got 'no'; leave it out"),
    ({"intercept": 1}, r"intercept must be True or False, got 1; give"),
    ({"intercept": "no"}, r"intercept must be True or False, got 'no'; give"),
]
BAD_Y: list[tuple[Any, str]] = [
    ([0, 1, 0], r"y must have one entry per row of X, shape \(4,\), got shape \(3,\); give"),
    ([[0], [1], [0], [1]], r"y must have one entry per row of X.*got shape \(4, 1\); give"),
    (1, r"y must have one entry per row of X.*got shape \(\); give"),
    (["a", "b", "a", "b"], r"y must be a vector of real numbers, got list of <U1; turn"),
    ([[0, 1], [0]], r"y must be a vector of real numbers, got list"),
    ([0, 1, 0, 1j], r"y must be a vector of real numbers, got list of complex128"),
    ([0, 1, 0, NAN], r"y must be .*got nan at row 3; "),
    ([0, 1, np.inf, 1], r"y must be .*got inf at row 2; "),
    (None, r"y must (be|have)"),
]


def check_error(
    model: type[LinearModel], message: str, X: Any = X4, y: Any = Y4, **options: Any
) -> None:
    """Check that the constructor raises one sentence: where, rule, value and remedy."""
    with pytest.raises(ValueError, match=message) as error:
        make(model, X, y, **options)
    assert str(error.value).startswith(model.__name__ + ": ")
    assert str(error.value).endswith(".")
    assert str(error.value).count("; ") >= 1
    assert "\n" not in str(error.value)


@models
@pytest.mark.parametrize(("X", "message"), BAD_X)
def test_bad_features(model: type[LinearModel], X: Any, message: str) -> None:
    check_error(model, message, X=X)


@models
@pytest.mark.parametrize(("y", "message"), BAD_Y)
def test_bad_targets(model: type[LinearModel], y: Any, message: str) -> None:
    check_error(model, message, y=y)


@models
@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options(model: type[LinearModel], options: dict[str, Any], message: str) -> None:
    check_error(model, message, **options)


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (SoftmaxRegression, [0, 1, 3, 4], r"whole numbers in 0\.\.3, got 4 at row 3; renumber"),
        (SoftmaxRegression, [0, -1, 3, 3], r"whole numbers in 0\.\.3, got -1 at row 1; renumber"),
        (SoftmaxRegression, [0, 0.5, 3, 3], r"whole numbers in 0\.\.3, got 0.5 at row 1; renumber"),
        (
            LogisticRegression,
            [0, 1, 2, 1],
            r"y must be 0 or 1, got 2.* at row 2; code the two",
        ),
        (LogisticRegression, [0, 1, -1, 1], r"y must be -1 or 1, got 0.* at row 0; code the two"),
        (LogisticRegression, [0, 0.5, 1, 1], r"y must be 0 or 1, got 0.5 at row 1; code the two"),
    ],
)
def test_labels_out_of_range(model: type[LinearModel], y: Any, message: str) -> None:
    check_error(model, message, y=y)


@pytest.mark.parametrize("classes", [1, 0, -3, 2.0, True, "10", None, NAN])
def test_bad_classes(classes: Any) -> None:
    with pytest.raises(ValueError, match=r"SoftmaxRegression: classes must be a whole number ≥ 2"):
        SoftmaxRegression(X4, Y4, classes=classes)


def test_floats_that_do_not_fit_the_dtype() -> None:
    message = r"X must be finite in float32, got inf at row 0"
    check_error(LeastSquares, message, X=X4 * 1e60, dtype="f4")
    message = r"y must be finite in float32, got 1e\+60 at"
    check_error(LeastSquares, message, y=[1e60] * 4, dtype="f4")


CALLS: list[tuple[Any, str]] = [
    (lambda f: f.value(np.zeros(5)), r"x must be a flat vector of 4 real parameters, got shape"),
    (lambda f: f.gradient(np.zeros((2, 2))), r"x must be a flat vector.*\(2, 2\).*x\.ravel\(\)"),
    (lambda f: f.gradient(np.zeros(4) * 1j), r"x must be a flat vector of 4 real parameters"),
    (lambda f: f.unpack(None), r"x must be a flat vector of 4 real parameters"),
    (lambda f: f.predict(np.zeros(3), X4), r"x must be a flat vector of 4 real parameters"),
    (lambda f: f.gradient(np.zeros(4), slice(2, 2)), r"rows must select at least one of the 4"),
    (lambda f: f.gradient(np.zeros(4), slice(9, 12)), r"rows must select at least one of the 4"),
    (lambda f: f.gradient(np.zeros(4), np.array([])), r"rows must select at least one of the 4"),
    (lambda f: f.gradient(np.zeros(4), np.array([4])), r"rows must lie in 0\.\.3, got 4 to 4;"),
    (lambda f: f.gradient(np.zeros(4), np.array([-5])), r"rows must lie in 0\.\.3, got -5 to"),
    (lambda f: f.gradient(np.zeros(4), np.ones(4, bool)), r"rows must be a slice.*flatnonzero"),
    (lambda f: f.gradient(np.zeros(4), np.array([0.5])), r"rows must be a slice.*float64"),
    (lambda f: f.gradient(np.zeros(4), 3), r"rows must be a slice or a vector.*got int 3"),
    (lambda f: f.gradient(np.zeros(4), out=np.zeros(3)), r"out must be a float array.*\(3,\)"),
    (lambda f: f.gradient(np.zeros(4), out=np.zeros(4, int)), r"out must be a float array.*int"),
    (lambda f: f.gradient(np.zeros(4), out=[0.0] * 4), r"out must be a float array.*got list"),
    (lambda f: f.predict(np.zeros(4), np.eye(3)), r"X must have 4 features.*got 3; give"),
    (lambda f: f.predict(np.zeros(4), np.zeros(4)), r"X must be a matrix.*got shape \(4,\)"),
    (lambda f: f.accuracy(np.zeros(4), X4), r"accuracy needs X and y together, got no y; give"),
    (lambda f: f.accuracy(np.zeros(4), None, Y4), r"accuracy needs X and y together, got no X"),
    (lambda f: f.accuracy(np.zeros(4), X4, [0, 1]), r"y must have one entry per row of X"),
    (
        lambda f: f.permute_samples([0, 1, 2]),
        r"order must hold every row 0\.\.3 once, got an array",
    ),
    (lambda f: f.permute_samples([0, 1, 2, 2]), r"order must hold every row 0\.\.3 once"),
    (
        lambda f: f.permute_samples([0.0, 1, 2, 3]),
        r"order must hold every row 0\.\.3 once.*permutation",
    ),
    (lambda f: f.permute_samples([[0, 1], [2, 3]]), r"order must hold every row 0\.\.3 once"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
@pytest.mark.parametrize("model", [LogisticRegression, LeastSquares])
def test_bad_calls(model: type[LinearModel], call: Any, message: str) -> None:
    loss = make(model, X4, Y4)
    with pytest.raises(ValueError, match=message) as error:
        call(loss)
    assert str(error.value).startswith(type(loss).__name__ + ": ")
    assert "; " in str(error.value)
    assert str(error.value).endswith(".")
