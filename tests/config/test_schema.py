"""What is derived from the models: the JSON schema for editors and the reference of all keys."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files

import pytest

from pcfed.config.json_schema import file_model, keys_markdown, schema_of, schema_text

KINDS = ("train", "server", "agent")
TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list}


def errors(value, schema, place="file"):
    """Where a value does not fit a schema: a small part of JSON schema, all that ours use."""
    if "anyOf" in schema:
        found = [errors(value, each, place) for each in schema["anyOf"]]
        return [] if [] in found else found[0]
    if "enum" in schema:
        return [] if value in schema["enum"] else [place]
    if schema["type"] != "object":
        is_bool = isinstance(value, bool) != (schema["type"] == "boolean")
        return [place] if is_bool or not isinstance(value, TYPES[schema["type"]]) else []
    if not isinstance(value, dict):
        return [place]
    found = [f"{place}.{key}" for key in schema.get("required", ()) if key not in value]
    for key, inner in value.items():
        below = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
        if below is False:
            found.append(f"{place}.{key}")
        elif below is not True:
            found += errors(inner, below, f"{place}.{key}")
    return found


def test_the_example_fits_the_schema():
    schema = json.loads(schema_text("train"))
    text = files("pcfed.training").joinpath("example.toml").read_text()
    assert text.startswith("#:schema ./train.schema.json\n")
    table = tomllib.loads(text)
    assert errors(table, schema) == []
    table["training"]["rouns"] = 3
    table["training"]["batch"] = "all"
    table["agents"]["market"]["coupling"] = "x"
    del table["model"]["kind"]
    assert set(errors(table, schema)) == {
        "file.training.rouns",
        "file.training.batch",
        "file.agents.market.coupling",
        "file.model.kind",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_described_and_every_default_fits(kind):
    def check(schema, place):
        for key, value in schema.get("properties", {}).items():
            assert value["description"].endswith("."), f"{place}.{key}"
            if "default" in value:
                assert errors(value["default"], value, f"{place}.{key}") == []
            check(value, f"{place}.{key}")
        if isinstance(each := schema.get("additionalProperties"), dict):
            check(each, place)

    check(schema_of(file_model(kind)), kind)
    assert "null" not in schema_text(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_has_every_key(kind):
    text = keys_markdown(kind)
    keys = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    expected = {
        "train": ["kind", "held_out", "prox", "save_every", "coupling"],
        "server": ["training", "labels", "server_step", "deadline"],
        "agent": ["name", "report"],
    }
    assert set(expected[kind]) <= set(keys)
    assert all(line.count(" | ") == 3 for line in text.splitlines() if line.startswith("| "))


def test_the_reference_states_rules_and_defaults():
    text = keys_markdown("train")
    assert "| `rounds` | an integer ≥ 1 | `200` | Number of rounds at most. |" in text
    assert "| `kind` | one of softmax, logistic, least-squares, torch | required | " in text
    assert "### `[agents.NAME]`" in text


def test_keys_with_another_meaning_for_another_algorithm():
    (line,) = (each for each in keys_markdown("train").splitlines() if each.startswith("| `prox`"))
    _, rule, default, meaning = line.strip("| ").split(" | ")
    rules = ('a number > 0 or "auto" with PCFedSplit', "a number ≥ 0 with Ditto, FedProx")
    assert rule == "; ".join((*rules, "a number > 0 with PFedMe, ProxAL"))
    assert default.strip() == ""
    assert "PCFedSplit: the length τ of the proximal steps; " in meaning
    assert "Ditto, FedProx, PFedMe: the weight of the proximal term. " in meaning
    defaults = '"auto" with PCFedSplit; must be given with Ditto, FedProx, PFedMe, ProxAL.'
    assert f"Default: {defaults}" in meaning
    assert "| `relaxation` | a number in (0, 2) | `1.8` | PCFedSplit: " in keys_markdown("train")


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"name": "PCFedSplit", "prox": "auto", "relaxation": 1.0},
        {"name": "PCFedSplit", "prox": 0.5},
        {"name": "PCFedAvg", "step": "theory", "penalty": "theory"},
        {"name": "FedProx", "prox": 0.0, "step": 0.1, "penalty": "auto"},
        {"name": "Scaffold", "server_step": 0.5},
        {"name": "Ditto", "prox": 0.0, "own_step": "auto", "constrained": False},
        {"name": "PFedMe", "prox": 15, "own_step": 0.1, "own_steps": 5, "server_step": 2.0},
        {"name": "PerFedAvg", "hessian_free": True, "difference": 0.01},
        {"name": "FedRep", "own": [[0, 3], [5, 9]], "own_steps": 2},
        {"name": "FedMiD", "project_onto": "l1(2)", "constrained": False},
        {"name": "PFedHN", "hidden": 8, "server_step": 0.5, "seed": 3},
        {"name": "ProxAL", "prox": 1.0, "inner_rounds": 3, "tolerance": 0.0},
    ],
)
def test_tables_that_fit_all_algorithms(table):
    schema = schema_of(file_model("train"))["properties"]["algorithm"]
    assert errors(table, schema, "algorithm") == []
    wrong = {**table, "exact": True, "relaxation": "x"}
    assert set(errors(wrong, schema, "algorithm")) == {"algorithm.exact", "algorithm.relaxation"}


def test_on_a_server_steps_are_numbers_and_prox_may_be_auto():
    schema = schema_of(file_model("server"))["properties"]["algorithm"]
    assert errors({"prox": "auto"}, schema, "algorithm") == []
    wrong = {"step": "auto", "penalty": "theory"}
    assert errors(wrong, schema, "algorithm") == ["algorithm.step", "algorithm.penalty"]
    assert "algorithm" not in schema_of(file_model("server"))["required"]
