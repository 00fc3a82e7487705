"""Every kind of model that files can name: its loss, its parameters and its predictions agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pcfed.losses.kinds import LINEAR_KINDS, MODEL_KINDS, TORCH

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))


def labels_of(kind) -> tuple[str, ...] | None:
    """As many labels as the kind may have, three at most."""
    if not kind.output.is_classification:
        return None
    return ("a", "b", "c")[: int(min(3, kind.output.max_labels))]


@pytest.fixture(params=[(name, flag) for name in LINEAR_KINDS for flag in (False, True)])
def case(request):
    """A kind, its labels, its loss on random data and random parameters."""
    name, intercept = request.param
    kind = LINEAR_KINDS[name]
    labels = labels_of(kind)
    y = RNG.normal(size=40) if labels is None else np.arange(40) % len(labels)
    loss = kind.build_loss(X, y, labels, intercept=intercept, l2=0.1, dtype="float64")
    return kind, labels, loss, RNG.normal(size=loss.n)


def parts_of(kind, labels, loss, x) -> dict[str, np.ndarray]:
    layout = kind.layout(X.shape[1], labels, intercept=loss.intercept)
    ends = np.cumsum([math.prod(shape) for shape in layout.values()])
    assert ends[-1] == loss.n
    pieces = zip(layout.items(), np.split(x, ends[:-1]), strict=True)
    return {name: piece.reshape(shape) for (name, shape), piece in pieces}


def test_predictions_are_those_of_the_loss(case):
    kind, labels, loss, x = case
    scores = kind.scores(parts_of(*case), X)
    predicted = kind.output.predict(scores)
    assert predicted.tolist() == pytest.approx(loss.predict(x, X).tolist())
    if labels is None:
        with pytest.raises(ValueError, match="must be of a classification"):
            kind.output.probabilities(scores)
        return
    probabilities = kind.output.probabilities(scores)
    assert probabilities.shape == (len(X), len(labels))
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert (probabilities.argmax(axis=1) == predicted).all()


def test_labels_that_do_not_fit_are_not_accepted(case):
    kind, labels, _, _ = case
    assert kind.output.accepts(labels)
    assert not kind.output.accepts(("a",))
    assert kind.output.accepts(None) == (labels is None)


def test_exports_name_an_estimator_and_a_layer(case):
    kind, labels = case[:2]
    parts = parts_of(*case)
    attributes = kind.sklearn_attributes(parts, labels)
    assert np.size(attributes["coef_"]) in (X.shape[1], X.shape[1] * len(labels or (1,)))
    layer = kind.torch_parameters(parts)
    outputs = X @ layer["weight"].T + layer.get("bias", 0.0)
    assert outputs == pytest.approx(kind.scores(parts, X))


def test_a_module_predicts_labels_or_numbers():
    assert MODEL_KINDS["torch"] is TORCH
    assert TORCH.output_for(None).score_name == "loss"
    assert TORCH.output_for(("a", "b")).predict(np.array([[0.0, 1.0]])).tolist() == [1]
    with pytest.raises(ValueError, match="sklearn has linear models only, got torch"):
        TORCH.sklearn_attributes({}, None)
