"""The models that a training hands out: in their sets, the same from file, right predictions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcfed.storage.archive import save_arrays
from pcfed.training import TrainedModels, prepare
from tests.training.folders import NORTH, OWN_CONFIG, SHARED_CONFIG, folder_with
from tests.training.test_any_directory import JSON

SHORT = "\n[training]\nrounds = 20\n"
CONFIGS = {
    "softmax": SHARED_CONFIG + SHORT,
    "logistic": SHARED_CONFIG.replace("softmax", "logistic") + SHORT,
    "least-squares": OWN_CONFIG.replace("batch = 1.0", "rounds = 20"),
}
CONFIGS |= {
    f"{kind} with intercept": config.replace("[data]", "intercept = true\n[data]")
    for kind, config in CONFIGS.items()
}


def trained(folder: Path, name: str = "least-squares") -> tuple[TrainedModels, Path]:
    """Train, and return what is handed out and where it is."""
    prepare(folder_with(folder, config=CONFIGS[name]), folder / "run").run()
    path = folder / "run" / "models.npz"
    return TrainedModels.load(path), path


@pytest.mark.parametrize("name", CONFIGS)
def test_predictions_are_those_of_the_losses(name, tmp_path):
    given = trained(tmp_path, name)[0]
    made = prepare(tmp_path / "train.toml", tmp_path / "other").setup
    X = np.random.default_rng(0).normal(size=(50, 2))
    assert given.intercept == ("intercept" in name)
    assert given.shape == made.problem.shape
    for i, agent in enumerate(made.problem.names):
        expected = made.problem.agents[i].loss.predict(given.models[i], X)
        if given.labels is not None:
            expected = np.array(given.labels)[expected]
            likely = given.probabilities(agent, X)
            assert np.allclose(likely.sum(axis=1), 1)
            assert (np.array(given.labels)[likely.argmax(axis=1)] == expected).all()
        assert np.array_equal(given.predict(agent, X), expected)
    assert np.array_equal(given.model("average"), given.models.mean(axis=0))


def test_models_are_in_their_sets(tmp_path):
    config = CONFIGS["least-squares"].replace("l1 = 5", "l1 = 0.25")
    job = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    result = job.run()
    given = TrainedModels.load(job.directory.models)
    assert np.abs(given.models[0]).sum() <= 0.25 * (1 + 1e-12)
    assert np.array_equal(given.models[1], result.models[1])  # it has no set to move into


def test_mistakes_are_sentences(tmp_path):
    given, path = trained(tmp_path)
    with pytest.raises(ValueError, match="got 'nort'; did you mean 'north'"):
        given.model("nort")
    with pytest.raises(ValueError, match=r"must have 2 columns, got shape \(1, 3\)"):
        given.predict("north", np.ones((1, 3)))
    with pytest.raises(ValueError, match="must be of a classification, got least-squares"):
        given.probabilities("north", np.ones((1, 2)))
    path.write_text(NORTH)
    with pytest.raises(ValueError, match="is not a valid file of trained models: File"):
        TrainedModels.load(path)
    with pytest.raises(ValueError, match=r"models: it cannot be read \(No such file"):
        TrainedModels.load(tmp_path / "nothing.npz")


ABOUT = {
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
    key=st.sampled_from(sorted(ABOUT)),
    value=JSON | st.sampled_from([[1, 2], [2**70, 1], ["a", "a"], [["w", [2]]], "torch", 1]),
    gone=st.booleans(),
)
def test_a_file_that_says_anything_is_read_or_refused_in_a_sentence(key, value, gone):
    about = {name: each for name, each in (ABOUT | {key: value}).items() if not gone or name != key}
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "models.npz"
        save_arrays(path, about, ARRAYS)
        said, found = "", None
        try:
            found = TrainedModels.load(path)
        except ValueError as error:
            said = str(error)
    if found is None:
        assert "is not a valid file of trained models: " in said
        assert len(said) < 400
    elif found.kind.is_linear:
        assert len(found.predict("south" if "south" in found.names else "average", [[1.0]])) == 1


WRONG = {
    "a row too many": {"models": np.ones((3, 2))},
    "whole numbers": {"models": np.ones((2, 2), int)},
    "not finite": {"average": np.array([1.0, np.nan])},
    "more": {"more": np.ones(2)},
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_do_not_fit_are_refused(name, tmp_path):
    save_arrays(tmp_path / "models.npz", ABOUT, ARRAYS)
    assert TrainedModels.load(tmp_path / "models.npz").labels == ("a", "b")
    save_arrays(tmp_path / "models.npz", ABOUT, ARRAYS | WRONG[name])
    with pytest.raises(ValueError, match=r"models: its|models: it has"):
        TrainedModels.load(tmp_path / "models.npz")
