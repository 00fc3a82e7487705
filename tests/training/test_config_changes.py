"""What a run directory says about a file that describes another training."""

from __future__ import annotations

import pytest

from pcfed.training import load_config
from pcfed.training.config_changes import describe_changes
from tests.training.folders import OWN_CONFIG, SHARED_CONFIG, folder_with

CHANGES = {
    "a number": ("batch = 1.0", "batch = 0.5", "training.batch was 1.0 and is 0.5"),
    "a set": (
        "{l1 = 5}",
        "{l2 = 5}",
        'agents.north.constraint was "L1Ball(radius=5.0)" and is "L2Ball(radius=5.0)"',
    ),
    "a default of all agents": (
        "[training]",
        "[defaults]\ncoupling = 2\n\n[training]",
        "agents.north.coupling (and of 1 more agents) was 0.1 and is 2.0",
    ),
    "another algorithm": (
        "[training]",
        '[algorithm]\nname = "FedAvg"\n\n[training]',
        'algorithm.name was "PCFedSplit" and is "FedAvg"',
    ),
    "a key that may change": ("batch = 1.0", "batch = 1.0\nrounds = 3", "its keys are the same"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_keys_are_named_with_both_values(name, tmp_path):
    before, after, expected = CHANGES[name]
    old = load_config(folder_with(tmp_path, config=OWN_CONFIG)).resolved()
    new = load_config(folder_with(tmp_path, config=OWN_CONFIG.replace(before, after))).resolved()
    assert describe_changes(old, new).startswith(expected)


def test_a_coupling_that_was_searched_is_no_change(tmp_path):
    text = SHARED_CONFIG + '[defaults]\ncoupling = "auto"\n'
    asked = load_config(folder_with(tmp_path, config=text))
    found = asked.with_coupling(0.5).resolved()
    other = {**asked.resolved(), "data": {**asked.resolved()["data"], "held_out": 0.5}}
    assert describe_changes(found, other) == "data.held_out was 0.2 and is 0.5"
    text = describe_changes(found, asked.resolved())
    assert text.startswith('defaults.coupling was 0.5 and is "auto"')
