"""`--set KEY=VALUE`: any key of the file, checked like the file, recorded like the file."""

from __future__ import annotations

import tomllib

import pytest

from pcfed.config.overrides import Override, apply_overrides
from pcfed.config.toml_edit import set_value
from pcfed.training import ConfigError, load_config, prepare
from pcfed.training.directory import RunMetadata
from tests.training.folders import FULL_CONFIG, OWN_CONFIG, folder_with

VALUES = {
    "training.rounds=30": 30,
    "training.gap = 1e-3": 0.001,
    "defaults.coupling=auto": "auto",
    'defaults.coupling="auto"': "auto",
    "data.standardize=true": True,
    "agents.north.constraint={l1 = 5}": {"l1": 5},
    "agents.north.constraint=l1(5)": "l1(5)",
    'data.features=["a", "b"]': ["a", "b"],
    "data.target=": "",
    "data.target=a = b": "a = b",
    "data.target=1\nx = 2": "1\nx = 2",
}


@pytest.mark.parametrize("text", VALUES)
def test_values_are_toml_or_plain_strings(text):
    override = Override.parse(text)
    assert override.keys == tuple(text.partition("=")[0].strip().split("."))
    assert override.value == VALUES[text]


def test_names_in_quotes_may_have_dots_and_equals_signs():
    override = Override.parse('agents."a.b = c".coupling=1')
    assert override.keys == ("agents", "a.b = c", "coupling")
    assert override.value == 1


@pytest.mark.parametrize("text", ["", "rounds", "=3", "a..b=3", "a b=3", "# =3"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="--set must be KEY=VALUE with a key of the file, got"):
        Override.parse(text)


def test_every_key_can_be_set_and_the_last_value_counts(tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG)
    texts = ["training.rounds=3", "training.rounds=30", "algorithm.name=FedAvg"]
    config = load_config(path, [*texts, "defaults.coupling=1", "agents.south.constraint.l2=2"])
    assert config.training.rounds == 30
    assert type(config.algorithm).__name__ == "FedAvg"
    assert config.agent("south").coupling == 1
    assert config.agent("south").constraint.radius == 2
    expected = OWN_CONFIG.replace("batch = 1.0", "batch = 1.0\nrounds = 30")
    expected += 'constraint = {l2 = 2}\n[algorithm]\nname = "FedAvg"\n[defaults]\ncoupling = 1\n'
    path.write_text(expected)
    assert load_config(path).resolved() == config.resolved()


ERRORS = {
    "training.rounds=x": "training.rounds must be an integer ≥ 1, got 'x'; give one such as 200.",
    "training.round=3": "training has no key 'round'; did you mean 'rounds'? Valid",
    "trainings.rounds=3": "the file has no key 'trainings'; did you mean 'training'?",
    "algorithm.name=FedAvgg": "algorithm.name must be one of",
    "agents.north.constraint={l3 = 1}": "agents.north.constraint: parse_set: 'l3' is not a set",
    "model.kind=torch": "model.module is missing",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_are_those_of_the_file_and_name_the_option(text, tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG)
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.local_steps=3", text])
    where, _, rest = str(caught.value).partition(f"train.toml with --set {text}: ")
    assert str(tmp_path)[-20:] in where
    assert ERRORS[text] in rest


def test_errors_of_the_file_do_not_name_the_option(tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG.replace("batch = 1.0", "batch = -1"))
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.rounds=0"])
    rounds, batch = caught.value.sentences
    assert "train.toml with --set training.rounds=0: training.rounds must be" in rounds
    assert "train.toml: training.batch must be" in batch
    assert load_config(path, ["training.batch=2"]).training.batch == 2


def test_errors_in_the_data_name_the_option(tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG)
    with pytest.raises(ValueError, match=r"train.toml with --set training.batch=9: training.batch"):
        prepare(path, tmp_path / "run", overrides=["training.batch=9"])


def test_a_key_in_a_number_is_refused(tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG)
    expected = "--set training.batch.size=3: training.batch must be a table of the file, got 1.0;"
    with pytest.raises(ValueError, match=expected):
        load_config(path, ["training.batch.size=3"])


def test_the_tables_of_the_file_stay_as_they_are():
    table = {"training": {"rounds": 3}}
    apply_overrides(table, [Override.parse("training.rounds=4")])
    assert table == {"training": {"rounds": 3}}


def test_they_are_recorded_and_checked_like_values_of_the_file(tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG)
    texts = ["training.rounds=2", "training.batch=0.5"]
    prepare(path, tmp_path / "run", overrides=texts).run()
    training = RunMetadata.load(tmp_path / "run" / "config.json").config["training"]
    assert (training["rounds"], training["batch"]) == (2, 0.5)
    with pytest.raises(ValueError, match=r"training.batch was 0.5 and is 1.0"):
        prepare(path, tmp_path / "run")
    prepare(path, tmp_path / "run", overrides=[*texts, "training.rounds=3"]).run()
    training = RunMetadata.load(tmp_path / "run" / "config.json").config["training"]
    assert training["rounds"] == 3


@pytest.mark.parametrize(
    "value", [3, 0.5, True, 'a "b" 😀', ["a", 1], {"l1": 5, "a b": [1.5, {"c": False}]}]
)
def test_values_of_every_type_are_written_into_a_file(value):
    text = set_value(FULL_CONFIG, ("agents", "north", "constraint"), value)
    assert tomllib.loads(text)["agents"]["north"]["constraint"] == value
