"""Clipped gradients with noise: against plain loops, and how far one record can move them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse

from pcfed import Privacy
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression, TorchLoss
from pcfed.losses.base import CLIP_MARGIN
from pcfed.privacy import Mechanism, NoisePlan, PrivateGradients
from pcfed.privacy import gradients as private_gradients
from pcfed.privacy.gradients import draw_rows, standard_normal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)) * RNG.uniform(0.1, 5, size=(30, 1))
LABELS = RNG.integers(3, size=30)
ROWS = np.array([3, 17, 4, 29, 8])

LOSSES = {
    "softmax": SoftmaxRegression(X, LABELS, classes=3, intercept=True, l2=0.3),
    "logistic": LogisticRegression(X, LABELS > 0, l2=0.1),
    "squares": LeastSquares(X, RNG.normal(size=30), intercept=True),
    "float32": SoftmaxRegression(X, LABELS, classes=3, dtype=np.float32),
    "sparse": LogisticRegression(sparse.csr_array(X), LABELS > 0, intercept=True),
    "pixels": SoftmaxRegression(
        RNG.integers(256, size=(30, 4)).astype(np.uint8), LABELS, classes=3, intercept=True
    ),
}


def plain(loss, points, rows, clip):
    """Return the mean of clipped gradients, from gradients of single samples, one by one."""
    total = np.zeros(points.shape)
    for row in rows:
        g = np.stack([loss.gradient(x, [row]) for x in points]) - regulariser(loss, points)
        total += g * min(1.0, clip * (1 - CLIP_MARGIN) / np.linalg.norm(g))
    return total / len(rows)


def attacked(canary, dtype):
    """Return a loss whose mean of clipped gradients is next to a half, with one record to guess."""
    y = np.repeat([0.0, 1.0], 500)
    y[0], y[500] = canary, 0
    return LogisticRegression(np.full((1000, 1), 1e3), y, l2=1.0, dtype=dtype)


def regulariser(loss, points):
    """Return the gradients of the regulariser, in plain numbers."""
    found = np.zeros(points.shape)
    end = loss.n if loss.intercept_slice is None else loss.intercept_slice.start
    found[:, :end] = getattr(loss, "l2", 0.0) * points[:, :end]
    return found


@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_single_samples_are_clipped(name, points):
    loss = LOSSES[name]
    x = np.random.default_rng(points).normal(size=(points, loss.n)).astype(loss.dtype)
    out = np.empty(x.shape)
    clip = 0.7
    loss.clipped_gradients(x, ROWS, clip, None, out)
    expected = plain(loss, x, ROWS, clip)
    tolerance = 1e-4 if loss.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    assert not np.allclose(out, plain(loss, x, ROWS, 1e9), atol=1e-2)  # the clip matters here


@pytest.mark.parametrize("name", LOSSES)
def test_the_regulariser_completes_the_gradient(name):
    loss = LOSSES[name]
    x = np.random.default_rng(0).normal(size=(2, loss.n)).astype(loss.dtype)
    out = np.empty(x.shape)
    loss.clipped_gradients(x, ROWS, 1e9, None, out)
    loss.add_regularizer_gradient(x, out)
    expected = [loss.gradient(row, ROWS) for row in x]
    tolerance = 1e-4 if loss.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    added = loss.add_regularizer_gradient(x, np.zeros(x.shape))
    np.testing.assert_allclose(added, regulariser(loss, x))


def test_the_first_gradient_of_pixels_is_that_of_its_own_rows():
    """Norms are computed at first use, and read blocks from the same memory as the gradient."""
    pixels = np.random.default_rng(0).integers(256, size=(30, 4)).astype(np.uint8)
    many = SoftmaxRegression(np.tile(pixels, (20, 1)), np.tile(LABELS, 20), classes=3)
    many.value(np.zeros(12))  # the memory of blocks is now large enough for all rows
    loss = SoftmaxRegression(pixels, LABELS, classes=3)
    x = np.random.default_rng(1).normal(size=(1, 12)).astype(np.float32)
    first, second = np.empty(x.shape), np.empty(x.shape)
    loss.clipped_gradients(x, ROWS, 0.7, None, first)
    loss.clipped_gradients(x, ROWS, 0.7, None, second)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, plain(loss, x, ROWS, 0.7), rtol=1e-4, atol=1e-5)


def test_long_rows_are_scaled_down():
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    scaled = SoftmaxRegression(
        X * np.minimum(1, 1.5 / norms), LABELS, classes=3, intercept=True, l2=0.3
    )
    x = RNG.normal(size=(1, scaled.n))
    out, expected = np.empty_like(x), np.empty_like(x)
    LOSSES["softmax"].clipped_gradients(x, ROWS, 0.7, 1.5, out)
    scaled.clipped_gradients(x, ROWS, 0.7, None, expected)
    np.testing.assert_allclose(out, expected, atol=1e-12)
    assert (norms > 1.5).any()


def test_the_public_curvature_bounds_that_of_the_records():
    norm = float(np.linalg.norm(X, axis=1).max())
    for name in ("logistic", "squares"):
        assert LOSSES[name].curvature_bound(norm) >= LOSSES[name].smoothness()
        assert LOSSES[name].curvature_bound(None) == np.inf
    softmax = LOSSES["softmax"]
    assert softmax.curvature_bound(norm) >= softmax.typical_smoothness()


def test_gradients_of_modules_are_those_of_the_same_linear_model():
    linear = LOSSES["softmax"]
    module = torch.nn.Linear(4, 3).double()
    loss = TorchLoss(module, (X, LABELS), torch.nn.CrossEntropyLoss(), block=3)
    x = RNG.normal(size=(2, loss.n))
    out, expected = np.empty_like(x), np.empty_like(x)
    loss.clipped_gradients(x, ROWS, 0.7, None, out)
    without_l2 = SoftmaxRegression(X, LABELS, classes=3, intercept=True)
    without_l2.clipped_gradients(x, ROWS, 0.7, None, expected)
    np.testing.assert_allclose(out, expected, atol=1e-10)
    assert linear.n == loss.n


@pytest.mark.parametrize("points", [1, 2])
def test_one_record_moves_a_gradient_by_at_most_twice_the_clip_over_the_batch(points):
    clip, moved = 0.5, 0.0
    for _ in range(50):
        other, labels = X.copy(), LABELS.copy()
        other[3], labels[3] = RNG.normal(size=4) * 10.0 ** RNG.uniform(-2, 4), RNG.integers(3)
        losses = (
            SoftmaxRegression(each, y, classes=3, intercept=True, l2=0.1)
            for each, y in ((X, LABELS), (other, labels))
        )
        x = RNG.normal(size=(points, 15))
        a, b = (
            loss.clipped_gradients(x, ROWS, clip, None, np.empty_like(x)).ravel() for loss in losses
        )
        distance = np.linalg.norm(a - b)
        assert distance <= 2 * clip / len(ROWS)
        moved = max(moved, distance)
    assert moved > 0.8 * 2 * clip / len(ROWS)  # the bound is not far off


def test_a_gradient_that_is_not_finite_counts_as_zero():
    wild = X.copy()
    wild[3] = 1e200
    loss = LeastSquares(wild, np.ones(30))
    out = np.empty((1, 4))
    loss.clipped_gradients(np.full((1, 4), 1e200), ROWS, 1.0, None, out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("clip", [1.0, 1e-6])
def test_huge_records_in_float32_are_not_longer_than_the_clip(clip):
    """Factors this small have few bits in float32."""
    x, out = np.zeros((1, 1), np.float32), np.empty((1, 1))
    for length in (1 / 0.72e-45, 1e45, 1 / 2.2e-45, 1e38, 3e25, 3e18):
        feature = np.float32(3e38)
        target = np.float32(length * clip / 3e38)
        loss = LeastSquares(np.array([[feature]]), np.array([target]), dtype=np.float32)
        loss.clipped_gradients(x, None, clip, None, out)
        assert np.abs(out).max() <= clip


@pytest.mark.parametrize("clip", [1.0, 1e-6, 1e-15])
def test_products_of_huge_and_tiny_numbers_are_not_longer_than_the_clip(clip):
    """Squares of numbers this small have few bits in float64, or none."""
    rng = np.random.default_rng(0)
    x, out, longest = np.zeros((1, 2)), np.empty((1, 2)), 0.0
    for large, small in [(154.1, -160.0), (153.9, -162.0), (150.0, -165.0), (300.0, -310.0)] * 20:
        pair = 10.0 ** (np.array([large, small]) + rng.uniform(-2, 0, 2))
        for feature, target in (pair, pair[::-1]):
            loss = LeastSquares(np.full((1, 2), feature), np.array([target]))
            loss.clipped_gradients(x, None, clip, None, out)
            longest = max(longest, np.linalg.norm(out / clip))
    assert longest <= 1


def test_sums_are_not_rounded_to_float32():
    """There, one record moves the sum of 400 gradients by up to 2.00004 clips."""
    rng, out, moved = np.random.default_rng(0), np.empty((1, 1)), []
    x, features = np.zeros((1, 1), np.float32), np.ones((400, 1), np.float32)
    for row in range(100):
        clip, targets, means = rng.uniform(0.5, 1), np.full(400, 1e3), []
        for target in (1e3, -1e3):
            targets[row] = target
            loss = LeastSquares(features, targets, dtype=np.float32)
            means.append(loss.clipped_gradients(x, None, clip, None, out)[0, 0])
        moved.append(400 * (means[1] - means[0]) / clip)
    np.testing.assert_allclose(moved, 2 * (1 - CLIP_MARGIN), rtol=1e-9)


# -- noise ------------------------------------------------------------------------------------


def gradients(mechanism, key=b"key", allowed=10**6, z=3.0, clip=0.5):
    """Return the gradients of a round."""
    return PrivateGradients(NoisePlan(Privacy(1.0, 1e-5, clip), mechanism, z), key, allowed)


@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize(
    ("mechanism", "size"),
    [
        (Mechanism(30, 30, is_sampled=False), 30),
        (Mechanism(30, 6, is_sampled=True), 6),
        (Mechanism(30, 15, is_sampled=False), 15),
    ],
)
def test_the_noise_has_the_deviation_that_is_accounted_for(mechanism, size, points):
    class Nothing(SoftmaxRegression):
        """A loss whose clipped gradients are zero, so that only noise is left."""

        def clipped_gradients(self, points, rows, clip, feature_norm, out):
            out[...] = 0.0
            return out

    loss, some = Nothing(X, LABELS, classes=3), gradients(mechanism)
    found = np.empty((2000, 12 * points))
    for out in found:
        some.write(loss, np.zeros((points, 12)), out.reshape(points, 12))
    deviation = 3.0 * 2 * 0.5 / size
    np.testing.assert_allclose(found.std(axis=0), deviation, rtol=0.1)
    np.testing.assert_allclose(found.std(), deviation, rtol=0.01)
    assert abs(found.mean()) < 4 * deviation / np.sqrt(found.size)
    products = found.T @ found / len(found) / deviation**2
    # Entries are independent, those of other points, too.
    assert np.abs(products - np.eye(12 * points)).max() < 0.15


def test_a_smaller_last_block_has_more_noise():
    rows_of, found = [], {10: [], 20: []}

    class Nothing(SoftmaxRegression):
        """A loss whose clipped gradients are zero."""

        def clipped_gradients(self, points, rows, clip, feature_norm, out):
            rows_of.append(rows.stop - rows.start)
            out[...] = 0.0
            return out

    loss, some = Nothing(X, LABELS, classes=3), gradients(Mechanism(30, 20, is_sampled=False))
    for _ in range(600):
        out = np.empty(12)
        some.write(loss, np.zeros(12), out)
        found[rows_of[-1]].append(out)
    assert len(found[10]) / 600 == pytest.approx(1 / 3, abs=0.1)
    for size, drawn in found.items():
        np.testing.assert_allclose(np.std(drawn), 3.0 * 2 * 0.5 / size, rtol=0.05)


@pytest.mark.parametrize("moving", [False, True], ids=["one point", "other points"])
def test_every_gradient_has_a_batch_of_its_own(moving):
    """One batch for all gradients of a round would not be amplified as is accounted for."""
    seen = []

    class Recording(SoftmaxRegression):
        def clipped_gradients(self, points, rows, clip, feature_norm, out):
            seen.append(rows)
            return super().clipped_gradients(points, rows, clip, feature_norm, out)

    loss, some = Recording(X, LABELS, classes=3), gradients(Mechanism(30, 6, is_sampled=True))
    for k in range(200):
        some.write(loss, np.full(12, 1e-9 * k * moving), np.empty(12))
    assert len({tuple(rows) for rows in seen}) == 200
    # Two batches have 6 · 6 / 30 rows in common on average, also two of neighbours.
    common = [len(np.intersect1d(*pair)) for pair in pairwise(seen)]
    assert np.mean(common) == pytest.approx(1.2, abs=0.2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_regulariser_does_not_round_the_noise_away(dtype):
    """At this point, gradients are whole numbers; a record would decide which, without noise."""
    huge = np.full(1, 2.0 ** np.finfo(dtype).nmant, dtype)

    def share_of_ones(canary):
        loss, mechanism = attacked(canary, dtype), Mechanism(1000, 1000, is_sampled=False)
        found = []
        for i in range(400):
            out = np.empty(1, dtype)
            some = gradients(mechanism, b"%d, %d" % (canary, i), z=4.077, clip=1.0)
            some.write(loss, huge, out)
            found.append(float(out[0]) - float(huge[0]))
        assert set(found) == {0.0, 1.0}
        return np.mean(found)

    assert abs(share_of_ones(1) - share_of_ones(0)) < 0.2


def test_bits_that_are_all_one_give_finite_noise(monkeypatch):
    for bits in (0, 2**64 - 1):
        monkeypatch.setattr(
            private_gradients,
            "random_bits",
            lambda key, purpose, n, bits=bits: np.full(n, bits, np.uint64),
        )
        assert np.isfinite(standard_normal(b"k", 3)).all()


def test_errors_of_modules_are_one_sentence():
    class Failing(SoftmaxRegression):
        def clipped_gradients(self, points, rows, clip, feature_norm, out):
            raise IndexError("index out of range in self")

    rule = r"run without errors on all records, got IndexError from Failing \(index out of range"
    with pytest.raises(ValueError, match=rule):
        gradients(Mechanism(30, 30, is_sampled=False)).write(
            Failing(X, LABELS, classes=3), np.zeros(12), np.empty(12)
        )


def test_batches_are_uniform_without_repeats():
    mechanism = Mechanism(12, 5, is_sampled=True)
    seen = np.zeros(12)
    for i in range(3000):
        rows = draw_rows(i.to_bytes(4, "little"), mechanism)
        assert len(set(rows.tolist())) == 5
        seen[rows] += 1
    np.testing.assert_allclose(seen / 3000, 5 / 12, atol=0.04)


def test_noise_is_standard_normal():
    from scipy.stats import kstest

    assert kstest(standard_normal(b"k", 20_000), "norm").pvalue > 1e-3


def test_the_same_question_has_the_same_answer_and_another_one_other_noise():
    loss, mechanism = LOSSES["softmax"], Mechanism(30, 6, is_sampled=True)
    x = RNG.normal(size=(2, loss.n))

    def answers(key=b"key", shift=0.0):
        some, out = gradients(mechanism, key), np.empty((2, loss.n))
        some.write(loss, x[0] + shift, out[0])
        some.write(loss, x[1], out[1])
        return out

    np.testing.assert_array_equal(answers(), answers())
    first = answers()
    # A tiny step away, gradients hardly differ, and the noise is another one.
    assert np.abs(answers(shift=1e-12)[0] - first[0]).max() > 0.05
    assert np.abs(answers(key=b"other") - first).min(axis=1).max() > 0
    plan = NoisePlan(Privacy(1.0, 1e-5), mechanism, 3.0)
    keys = {
        plan.key(b"secret", "run", 0, 0),
        plan.key(b"secret", "run", 0, 1),
        plan.key(b"secret", "run", 1, 0),
        plan.key(b"other", "run", 0, 0),
        NoisePlan(Privacy(1.0, 1e-5, 2.0), mechanism, 3.0).key(b"secret", "run", 0, 0),
    }
    assert len(keys) == 5


def test_more_gradients_than_were_accounted_for_are_refused():
    loss, some = LOSSES["softmax"], gradients(Mechanism(30, 30, is_sampled=False), allowed=2)
    out = np.empty(loss.n)
    some.write(loss, out * 0, out)
    some.write(loss, out * 0, out)
    with pytest.raises(ValueError, match="at most the 2 gradients of a round"):
        some.write(loss, out * 0, out)
