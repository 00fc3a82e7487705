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

SERVER = {
    "training": "heating",
    "roster": 2,
    "model": {"kind": "least-squares", "features": ["a"]},
}
"""A valid server.toml."""


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
        "algorithm": {"step": "auto", "exakt": 1, "prox": 0, "relaxation": 2},
        "x": 1,
    }
    starts = [
        "training is missing; give a non-empty string",
        "roster must be a list of names or an integer ≥ 1, got 0;",
        "model.kind must be one of softmax, logistic, least-squares, got 'softmx'; did you mean",
        "model.features is missing; give a list of names",
        "algorithm has no key 'step' if name is 'PCFedSplit', the default; remove it, or choose an "
        "algorithm that has it: Ditto, FedAvg, FedMiD, FedDualAvg, FedProx, FedRep, Local, ",
        'algorithm.prox must be a number > 0 or "auto", got 0; give one such as 0.1.',
        "algorithm.relaxation must be a number in (0, 2), got 2; give one such as 1.8.",
        "algorithm has no key 'exakt'; valid keys are name, prox, relaxation.",
        "rounds.rounds must be an integer ≥ 1, got 1.5;",
        "the file has no key 'x'; valid keys are training, roster, imports, center, ",
    ]
    found = sentences(ServerFile, table)
    assert len(found) == len(starts)
    assert all(map(str.startswith, found, (f"a.toml: {start}" for start in starts)))


EXACT = {
    "true": ({"exact": True}, 'give name = "PCFedSplit", which replaces it, and remove exact.'),
    "of PCFedAvg": (
        {"name": "PCFedAvg", "exact": True, "step": "auto", "penalty": 1.0},
        'give name = "PCFedSplit", which replaces it, and remove exact, step and penalty.',
    ),
    "of PCFedSplit": (
        {"name": "PCFedSplit", "exact": True, "penalty": "auto"},
        'give name = "PCFedSplit", which replaces it, and remove exact and penalty.',
    ),
    "false": (
        {"exact": False, "step": 0.1},
        'remove it, and give name = "PCFedAvg", which is the algorithm of the paper.',
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_the_key_exact_of_earlier_versions(case):
    table, advice = EXACT[case]
    (found,) = sentences(ServerFile, {**SERVER, "algorithm": table})
    assert found == f"a.toml: algorithm has no key 'exact' any more; {advice}"


def test_exact_is_any_other_unknown_key_of_other_algorithms():
    (found,) = sentences(ServerFile, {**SERVER, "algorithm": {"name": "Local", "exact": True}})
    assert found == "a.toml: algorithm has no key 'exact'; valid keys are name, step, penalty."


NUMBERS = {"step": 0.1, "penalty": 1.0}


@pytest.mark.parametrize(
    ("table", "key", "others"),
    [
        (
            {"name": "PCFedSplit"},
            "penalty",
            "FedAvg, FedMiD, FedDualAvg, FedProx, Local, PCFedAvg, PFedHN, ProxAL",
        ),
        ({"name": "PCFedAvg", **NUMBERS}, "prox", "Ditto, FedProx, PCFedSplit, PFedMe, ProxAL"),
        ({"name": "FedProx", "prox": 0.1, **NUMBERS}, "relaxation", "PCFedSplit"),
        (
            {"name": "Local", **NUMBERS},
            "server_step",
            "FedMiD, FedDualAvg, PFedHN, PFedMe, Scaffold",
        ),
    ],
)
def test_a_key_of_another_algorithm(table, key, others):
    (found,) = sentences(ServerFile, {**SERVER, "algorithm": {**table, key: 0.5}})
    assert found.startswith(
        f"a.toml: algorithm has no key '{key}' if name is '{table['name']}'; remove it, or choose "
        f"an algorithm that has it: {others}"
    )


def test_not_more_errors_than_people_read():
    found = sentences(TrainFile, {f"key {i}": i for i in range(10_000)})
    assert len(found) == MAX_ERRORS + 1
    assert found[-1] == "a.toml: there are more errors; correct these first."


PARAMETERS = ("name", "step", "exact", "relaxation")
VALUES = [None, True, -1, 2**70, 10**5000, math.nan, "", "\0", "\ud800", [], [[]]]
VALUES += [{}, {"a": {}}, {"l1": 10**5000}, {"\ud800": 1}]


@pytest.mark.parametrize("value", VALUES, ids=short_repr)
@pytest.mark.parametrize("model", [ServerFile, AgentFile, TrainFile])
def test_any_value_for_any_key_ends_in_sentences(model, value):
    for key, field in model.model_fields.items():
        sentences(model, {key: value})
        for inner in getattr(field.annotation, "model_fields", PARAMETERS):
            sentences(model, {key: {inner: value}})
