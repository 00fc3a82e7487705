"""Errors in files: all at once, one sentence each, whatever the values are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pcfed.config.federation_files import AgentFile, ServerFile
from pcfed.config.train_file import TrainFile
from pcfed.config.validation_errors import MAX_ERRORS, ConfigError, validate_file
from pcfed.errors import short_repr
from tests.training.test_bad_input import check_sentences


def sentences(model, table):
    with pytest.raises(ConfigError) as caught:
        validate_file(model, table, Path("a.toml"))
    check_sentences(caught.value)
    return caught.value.sentences


def test_all_errors_of_a_file_at_once():
    table = {
        "roster": 0,
        "model": {"kind": "softmx"},
        "rounds": {"rounds": 1.5},
        "algorithm": {"step": "auto", "exact": 1, "prox": 2},
        "x": 1,
    }
    starts = [
        "training is missing; give a non-empty string",
        "roster must be a list of names or an integer ≥ 1, got 0;",
        "model.kind must be one of softmax, logistic, least-squares, got 'softmx'; did you mean",
        "model.features is missing; give a list of names",
        "algorithm.exact must be true or false, got 1; give one of the two.",
        "algorithm has no key 'prox'; valid keys are name, step, penalty, exact.",
        "rounds.rounds must be an integer ≥ 1, got 1.5;",
        "the file has no key 'x'; valid keys are training, roster, imports, model, ",
    ]
    found = sentences(ServerFile, table)
    assert len(found) == len(starts)
    assert all(map(str.startswith, found, (f"a.toml: {start}" for start in starts)))


def test_not_more_errors_than_people_read():
    found = sentences(TrainFile, {f"key {i}": i for i in range(10_000)})
    assert len(found) == MAX_ERRORS + 1
    assert found[-1] == "a.toml: there are more errors; correct these first."


VALUES = [None, True, -1, 2**70, 10**5000, math.nan, "", "\0", "\ud800", [], [[]]]
VALUES += [{}, {"a": {}}, {"l1": 10**5000}, {"\ud800": 1}]


@pytest.mark.parametrize("value", VALUES, ids=short_repr)
@pytest.mark.parametrize("model", [ServerFile, AgentFile, TrainFile])
def test_any_value_for_any_key_ends_in_sentences(model, value):
    for key, field in model.model_fields.items():
        sentences(model, {key: value})
        for inner in getattr(field.annotation, "model_fields", ("name", "step")):
            sentences(model, {key: {inner: value}})
