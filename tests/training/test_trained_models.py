"""Trained models are feasible, survive saving and loading, and predict as their losses do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed.storage.archive import save_arrays
from pcfed.training import TrainedModels, prepare
from tests.training.folders import (
    NORTH,
    OWN_CONFIG,
    SHARED_CONFIG,
    folder_with,
    paper_problem,
    without_intercept,
)
from tests.training.test_any_directory import JSON

SHORT = "\n[training]\nrounds = 20\n"
CONFIGS = {
    "softmax with intercept": SHARED_CONFIG + SHORT,
    "logistic with intercept": SHARED_CONFIG.replace("softmax", "logistic") + SHORT,
    "least-squares with intercept": OWN_CONFIG.replace("batch = 1.0", "rounds = 20"),
}
CONFIGS |= {
    name.removesuffix(" with intercept"): without_intercept(config)
    for name, config in CONFIGS.items()
}


def trained(folder: Path, name: str = "least-squares") -> tuple[TrainedModels, Path]:
    """Train, and return the models and the path of their file."""
    prepare(folder_with(folder, config=CONFIGS[name]), folder / "run").run()
    path = folder / "run" / "models.npz"
    return TrainedModels.load(path), path


def predict_in_training(setup, i, model, X):
    """The predictions of an agent's loss, which is that of centred data if there is a scaling."""
    loss, scaling = setup.problem.agents[i].loss, setup.scaling
    if scaling is None:
        return loss.predict(model, X)
    (hat,) = scaling.to_standardized_units(model[None])
    return loss.predict(hat, scaling.transform(X)) + (scaling.target_mean or 0)


@pytest.mark.parametrize("name", CONFIGS)
def test_predictions_are_those_of_the_losses(name, tmp_path):
    models = trained(tmp_path, name)[0]
    setup = prepare(tmp_path / "train.toml", tmp_path / "other").setup
    X = np.random.default_rng(0).normal(size=(50, 2))
    assert models.intercept == ("intercept" in name)
    assert models.shape == setup.problem.shape
    for i, agent in enumerate(setup.problem.names):
        expected = predict_in_training(setup, i, models.models[i], X)
        if models.labels is not None:
            expected = np.array(models.labels)[expected]
            probabilities = models.probabilities(agent, X)
            assert np.allclose(probabilities.sum(axis=1), 1)
            assert (np.array(models.labels)[probabilities.argmax(axis=1)] == expected).all()
            assert np.array_equal(models.predict(agent, X), expected)
        else:
            np.testing.assert_allclose(models.predict(agent, X), expected, rtol=1e-12)
    assert models.model("average").shape == models.models[0].shape


def test_the_shared_model_is_the_average_or_the_free_center(tmp_path):
    text = paper_problem(CONFIGS["least-squares"])
    prepare(folder_with(tmp_path, config=text), tmp_path / "run").run()
    models = TrainedModels.load(tmp_path / "run" / "models.npz")
    assert np.array_equal(models.model("average"), models.models.mean(axis=0))
    free_folder = tmp_path / "free"
    free_folder.mkdir()
    free = trained(free_folder, "least-squares")[0]
    assert not np.array_equal(free.model("average"), free.models.mean(axis=0))


def test_models_are_in_their_sets(tmp_path):
    config = CONFIGS["least-squares"].replace("l1 = 5", "l1 = 0.25")
    trainer = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    result = trainer.run()
    models = TrainedModels.load(trainer.directory.models)
    assert np.abs(models.models[0]).sum() <= 0.25 * (1 + 1e-12)
    assert np.array_equal(models.models[1], result.models[1])  # it has no constraint


def test_mistakes_are_sentences(tmp_path):
    models, path = trained(tmp_path)
    with pytest.raises(ValueError, match="got 'nort'; did you mean 'north'"):
        models.model("nort")
    with pytest.raises(ValueError, match=r"must have 2 columns, got shape \(1, 3\)"):
        models.predict("north", np.ones((1, 3)))
    with pytest.raises(ValueError, match="must be of a classification, got least-squares"):
        models.probabilities("north", np.ones((1, 2)))
    path.write_text(NORTH)
    with pytest.raises(ValueError, match="is not a valid file of trained models: File"):
        TrainedModels.load(path)
    with pytest.raises(ValueError, match=r"models: it cannot be read \(No such file"):
        TrainedModels.load(tmp_path / "nothing.npz")


METADATA = {
    "format": 1,
    "kind": "softmax",
    "names": ["north", "south"],
    "columns": ["area"],
    "labels": ["a", "b"],
    "layout": [["coefficients", [2, 1]]],
    "module": None,
}
ARRAYS = {"models": np.ones((2, 2)), "average": np.ones(2)}


@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from(sorted(METADATA)),
    value=JSON | st.sampled_from([[1, 2], [2**70, 1], ["a", "a"], [["w", [2]]], "torch", 1]),
    missing=st.booleans(),
)
def test_any_metadata_are_read_or_refused_in_one_sentence(key, value, missing):
    metadata = METADATA | {key: value}
    if missing:
        del metadata[key]
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "models.npz"
        save_arrays(path, metadata, ARRAYS)
        message, loaded = "", None
        try:
            loaded = TrainedModels.load(path)
        except ValueError as error:
            message = str(error)
    if loaded is None:
        assert "is not a valid file of trained models: " in message
        assert len(message) < 400
    elif loaded.kind.is_linear:
        agent = "south" if "south" in loaded.names else "average"
        assert len(loaded.predict(agent, [[1.0]])) == 1


WRONG = {
    "a row too many": {"models": np.ones((3, 2))},
    "whole numbers": {"models": np.ones((2, 2), int)},
    "not finite": {"average": np.array([1.0, np.nan])},
    "more": {"more": np.ones(2)},
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_do_not_fit_are_refused(name, tmp_path):
    save_arrays(tmp_path / "models.npz", METADATA, ARRAYS)
    assert TrainedModels.load(tmp_path / "models.npz").labels == ("a", "b")
    save_arrays(tmp_path / "models.npz", METADATA, ARRAYS | WRONG[name])
    with pytest.raises(ValueError, match=r"models: its|models: it has"):
        TrainedModels.load(tmp_path / "models.npz")
