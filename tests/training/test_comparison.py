"""Two models on the same rows: intervals that cover the truth, and honest sentences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pcfed.losses import LeastSquares, LogisticRegression
from pcfed.training.comparison import (
    MIN_ROWS,
    compare_on_held_out_rows,
    compare_training_losses,
    paired_interval,
)


def coverage(draw, truth, *, labels, repetitions=2000):
    """Return how often the interval contains the true difference."""
    intervals = [paired_interval(draw(), labels=labels) for _ in range(repetitions)]
    return np.mean([low <= truth <= high for _, low, high in intervals])


@pytest.mark.parametrize("rows", [10, 20, 50, 200])
@pytest.mark.parametrize(("worse", "better"), [(0.05, 0.05), (0.1, 0.2), (0.02, 0.3)])
def test_intervals_of_labels_cover_the_difference(rows, worse, better):
    rng = np.random.default_rng(rows)
    shares = [worse, 1 - worse - better, better]

    def draw():
        return rng.choice([-1.0, 0.0, 1.0], rows, p=shares)

    # 2,000 repetitions: a share of 0.95 is measured to ±0.01.
    assert coverage(draw, better - worse, labels=True) > 0.93


@pytest.mark.parametrize(("rows", "least"), [(20, 0.89), (50, 0.92), (200, 0.935)])
@pytest.mark.parametrize("slope", [0.6, 1.0])
def test_intervals_of_squared_errors_cover_the_difference(rows, least, slope):
    rng = np.random.default_rng(rows)

    def draw():  # the squared errors of two models with the slopes ``slope`` and 0.3 off
        x, noise = rng.normal(size=(2, rows))
        return (noise + slope * x) ** 2 - (noise + 0.3 * x) ** 2

    assert coverage(draw, slope**2 - 0.3**2, labels=False) > least


def test_intervals_by_hand():
    mean, low, high = paired_interval(np.array([1.0, 2.0, 3.0]), labels=False)
    # The quantile of Student's distribution with 2 degrees of freedom is 4.3027.
    assert (mean, low, high) == pytest.approx((2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), 1e-4)
    mean, low, high = paired_interval(np.zeros(98), labels=True)
    assert mean == 0
    assert high == -low == pytest.approx(norm.ppf(0.975) / 100)  # not a point


def classification(rows=200, seed=0):
    """A loss with one feature that decides the label, in nine of ten rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = (x[:, 0] > 0) ^ (rng.random(rows) < 0.1)
    return LogisticRegression(x, y.astype(int))


def compare(loss, own, other, name="accuracy", advice="try this"):
    return compare_on_held_out_rows(
        loss,
        np.array(own),
        np.array(other),
        score_name=name,
        other_name="training alone",
        advice=advice,
    )


def test_sentences_of_labels():
    loss = classification()
    good, bad, same = [1.0, 0.0], [1.0, 1.0], [2.0, 0.0]
    better, worse = compare(loss, good, bad), compare(loss, bad, good)
    difference = loss.accuracy(good) - loss.accuracy(bad)
    assert better.verdict == "better"
    assert better.difference == pytest.approx(difference)
    points = f"{100 * difference:.1f}"
    span = f"95 %: {100 * better.low:.1f} to {100 * better.high:.1f}"
    assert better.sentence == f"+{points} points over training alone ({span})"
    assert worse.verdict == "worse"
    assert (worse.low, worse.high) == pytest.approx((-better.high, -better.low))
    assert worse.sentence == (f"worse than training alone by {points} points ({span}): try this")
    # Other parameters with the same predictions: the rows show no difference, but there may be one.
    unclear = compare(loss, good, same)
    assert unclear.verdict == "unclear"
    assert unclear.difference == 0
    assert unclear.sentence == (
        "no clear difference from training alone (0.0 points, 95 %: −1.0 to 1.0)"
    )


def test_identical_models_have_exactly_no_difference():
    for loss in (classification(), classification(3), LeastSquares(np.eye(2), [1.0, 2.0])):
        found = compare(loss, [1.0, 2.0], [1.0, 2.0])
        assert (found.verdict, found.difference, found.low, found.high) == ("same", 0, 0, 0)
        assert found.sentence == "no difference from training alone"
    loss = classification()
    x = np.array([1.0, 2.0])
    assert compare_training_losses(loss, x, x, "training alone").verdict == "same"


def test_few_rows_give_no_verdict():
    few = compare(classification(MIN_ROWS["labels"] - 1), [1.0, 0.0], [-1.0, 0.0])
    assert few.verdict == "few rows"
    assert (few.low, few.high) == (None, None)
    assert few.sentence == (
        "too few held-out rows to compare with training alone (9 rows, 10 are needed)"
    )
    assert compare(classification(MIN_ROWS["labels"]), [1.0, 0.0], [-1.0, 0.0]).low is not None


def regression(rows=100):
    x = np.random.default_rng(1).normal(size=(rows, 1))
    return LeastSquares(x, 2 * x[:, 0] + np.random.default_rng(2).normal(size=rows))


def test_sentences_of_numbers():
    loss = regression()
    worse = compare(loss, [0.0], [2.0], "R²")
    assert worse.difference == pytest.approx(loss.accuracy([0.0]) - loss.accuracy([2.0]))
    assert worse.sentence.startswith(f"worse than training alone by {-worse.difference:.3g} in R²")
    assert compare(loss, [2.0], [0.0], "R²").sentence.startswith("+")
    assert compare(regression(19), [2.0], [0.0], "R²").verdict == "few rows"


def test_a_lower_loss_is_better():
    # The errors of a loss are losses only for modules; the sentences are the same for any errors.
    loss = regression()
    better, worse = compare(loss, [2.0], [0.0], "loss"), compare(loss, [0.0], [2.0], "loss")
    assert better.sentence.startswith("better than training alone by ")
    assert worse.sentence.startswith("worse than training alone by ")
    higher, lower = compare(loss, [1.98], [2.0], "loss"), compare(loss, [2.0], [1.98], "loss")
    assert {higher.verdict, lower.verdict} == {"unclear"}
    words = {each.sentence.partition("(")[2].split(" by")[0] for each in (higher, lower)}
    assert words == {"loss higher", "loss lower"}


def test_training_losses_have_no_interval():
    found = compare_training_losses(
        regression(), np.array([0.0]), np.array([2.0]), "training alone"
    )
    assert (found.verdict, found.low, found.high) == ("training rows", None, None)
    assert found.difference < 0
    assert "no rows are held out, so there is no interval" in found.sentence


def test_without_errors_there_is_no_comparison():
    constant = LeastSquares(np.ones((20, 1)), np.full(20, 3.0))
    assert compare(constant, [1.0], [2.0], "R²") is None
    few = compare(LeastSquares([[1.0]], [3.0]), [1.0], [2.0], "R²")
    assert (few.verdict, few.difference) == ("few rows", None)
    assert few.sentence.endswith("(1 row, 20 are needed)")
