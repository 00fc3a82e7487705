"""Exported models predict the same in scikit-learn, PyTorch and NumPy; `pcfed predict`."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from pcfed.losses.kinds import MODEL_KINDS
from pcfed.training import TrainedModels, prepare
from pcfed.training.exports import export
from pcfed.training.saved_run import open_module
from tests.training.test_modules import CONFIG as MODULE_CONFIG
from tests.training.test_modules import NET
from tests.training.test_train import command
from tests.training.test_trained_models import CONFIGS, trained

X = np.random.default_rng(0).normal(size=(200, 2))


def three_labels(intercept: bool) -> TrainedModels:
    """Return models of three labels with random parameters."""
    rng = np.random.default_rng(1)
    layout = {"coefficients": (3, 2)} | ({"intercept": (3,)} if intercept else {})
    values = rng.normal(size=(2, 9 if intercept else 6))
    names, columns = ("north", "south"), ("area", "rooms")
    return TrainedModels(
        MODEL_KINDS["softmax"], names, columns, (3, 5, 8), layout, values, values.mean(axis=0)
    )


@pytest.fixture(params=[*CONFIGS, "three labels", "three labels with intercept"])
def models(request, tmp_path) -> TrainedModels:
    name = request.param
    return three_labels("with" in name) if "three" in name else trained(tmp_path, name)[0]


@pytest.mark.parametrize("agent", ["south", "average"])
def test_scikit_learn_predicts_the_same(models, agent):
    estimator = models.to_sklearn(agent)
    rows = pd.DataFrame(X, columns=list(models.columns))
    assert estimator.predict(rows).tolist() == pytest.approx(models.predict(agent, X).tolist())
    if models.labels is not None:
        assert estimator.predict_proba(rows) == pytest.approx(models.probabilities(agent, X))


def test_a_linear_layer_of_pytorch_predicts_the_same(models, tmp_path):
    export(models, tmp_path / "all.pt", "torch")
    export(models, tmp_path / "south.pt", "torch", "south")
    every = torch.load(tmp_path / "all.pt", weights_only=True)
    assert [*every] == ["north", "south", "average"]
    own = torch.load(tmp_path / "south.pt", weights_only=True)
    assert all(torch.equal(own[name], every["south"][name]) for name in own)
    inputs, outputs = own["weight"].shape[::-1]
    layer = nn.Linear(inputs, outputs, bias=models.intercept, dtype=torch.float64)
    layer.load_state_dict(own)
    found = layer(torch.tensor(X)).detach().numpy()
    assert found == pytest.approx(models.scores("south", X))


def test_arrays_and_json_hold_the_models(models, tmp_path):
    export(models, tmp_path / "all.npz", "npz")
    with np.load(tmp_path / "all.npz", allow_pickle=False) as arrays:
        assert arrays["columns"].tolist() == list(models.columns)
        for agent in ("north", "south", "average"):
            for part, values in models.parts(agent).items():
                assert np.array_equal(arrays[f"{agent}/{part}"], values)
    export(models, tmp_path / "one.json", "sklearn", "north")
    export(models, tmp_path / "all.json", "sklearn")
    one = json.loads((tmp_path / "one.json").read_text())
    assert json.loads((tmp_path / "all.json").read_text())["north"] == one
    assert one["feature_names_in_"] == list(models.columns)
    assert one.get("classes_") == (None if models.labels is None else list(models.labels))


def test_the_parameters_of_a_module_are_exported_by_name(tmp_path):
    layout = {"body.weight": (2, 2), "head.bias": (1,)}
    values = np.arange(5.0).reshape(1, 5)
    models = TrainedModels(
        MODEL_KINDS["torch"], ("a",), ("x", "y"), None, layout, values, values[0], "mine:Net"
    )
    export(models, tmp_path / "a.pt", "torch", "a")
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert {name: part.tolist() for name, part in loaded.items()} == {
        "body.weight": [[0, 1], [2, 3]],
        "head.bias": [4],
    }
    with pytest.raises(ValueError, match="sklearn has linear models only, got torch"):
        export(models, tmp_path / "a.json", "sklearn", "a")
    assert not (tmp_path / "a.json").exists()


def test_a_module_predicts_with_the_parameters_of_an_agent(tmp_path):
    (tmp_path / "my_models.py").write_text(NET)
    for name, sign in (("north", 1), ("south", -1)):
        rows = "".join(
            f"{a},{b},{'ab'[sign * a > b]}\n" for a in range(-4, 5) for b in range(-3, 4)
        )
        (tmp_path / f"{name}.csv").write_text("u,v,side\n" + rows)
    (tmp_path / "train.toml").write_text(MODULE_CONFIG.replace("rounds = 60", "rounds = 8"))
    trainer = prepare(tmp_path / "train.toml", tmp_path / "run", allow_import=True)
    trainer.run()
    models = TrainedModels.load(trainer.directory.models)
    north = trainer.setup.problem.agents[0].loss
    rows = np.array([[1.0, 2.0], [-3.0, 0.5], [2.0, -2.0]])
    expected = north.module(models.models[0])(torch.tensor(rows, dtype=torch.float32))
    module = open_module(tmp_path / "run", tmp_path)
    assert models.scores("north", rows, module=module) == pytest.approx(
        expected.detach().numpy(), abs=1e-5
    )
    (tmp_path / "new.csv").write_text("u,v\n1,2\n-3,0.5\n2,-2\n")
    arguments = ["run", "new.csv", "--agent", "north"]
    done = command(tmp_path, *arguments, "--module-folder", ".", name="predict")
    assert done.stdout.split() == ["prediction", *models.predict("north", rows, module=module)]
    done = command(tmp_path, *arguments, name="predict")
    assert done.returncode == 2
    assert "predictions need the module of the training, my_models:Net, got none" in done.stderr
    with pytest.raises(ValueError, match="must be that of the training, my_models:Net, but"):
        models.predict("north", rows, module=nn.Linear(2, 2))


def test_the_commands_predict_and_export(tmp_path):
    models = trained(tmp_path, "softmax")[0]
    (tmp_path / "new.csv").write_text("rooms,more,area\n1,a,2\n3,b,4\n")
    rows = np.array([[2.0, 1.0], [4.0, 3.0]])
    done = command(tmp_path, "run", "new.csv", "--agent", "north", name="predict")
    assert done.stdout.splitlines() == ["prediction", *models.predict("north", rows)]
    options = ["--agent", "average", "--probabilities", "--out", "out.csv"]
    done = command(tmp_path, "run", "new.csv", *options, name="predict")
    assert done.stdout == "2 predictions by average in out.csv.\n"
    written = pd.read_csv(tmp_path / "out.csv")
    assert [*written] == ["prediction", "p(a)", "p(b)"]
    assert written[["p(a)", "p(b)"]].to_numpy() == pytest.approx(
        models.probabilities("average", rows)
    )
    done = command(tmp_path, "run", "--to", "npz", "--agent", "north", name="export")
    assert done.returncode == 0
    with np.load(tmp_path / "run" / "export.npz") as arrays:
        assert np.array_equal(arrays["coefficients"].ravel(), models.models[0])


WRONG = {
    "another folder": (
        ["data", "new.csv", "--agent", "north"],
        "must be the run directory of a training",
    ),
    "another agent": (["run", "new.csv", "--agent", "nort"], "did you mean 'north'?"),
    "a column less": (["run", "less.csv", "--agent", "north"], "there must be a column 'rooms'"),
    "text": (["run", "text.csv", "--agent", "north"], "'rooms' must be numbers, got 'many'"),
    "onto itself": (["run", "new.csv", "--agent", "north", "--out", "new.csv"], "not be the data"),
    "no classes": (["run", "new.csv", "--agent", "north", "--probabilities"], "classification"),
}


def test_mistakes_are_one_sentence_and_write_nothing(tmp_path):
    trained(tmp_path)
    (tmp_path / "new.csv").write_text("area,rooms\n1,2\n")
    (tmp_path / "less.csv").write_text("area\n1\n")
    (tmp_path / "text.csv").write_text("area,rooms\n1,many\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for arguments, expected in WRONG.values():
        done = command(tmp_path, *arguments, name="predict")
        assert done.returncode == 2, done.stdout
        assert expected in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_unfinished_training_has_no_models_yet(tmp_path):
    trained(tmp_path)
    (tmp_path / "run" / "models.npz").unlink()
    done = command(tmp_path, "run", "--to", "npz", name="export")
    assert done.returncode == 2
    assert "the training must be finished, got one without models.npz" in done.stderr
