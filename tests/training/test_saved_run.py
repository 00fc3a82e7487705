"""Run directories of earlier versions, whose PCFedAvg had the key exact."""

from __future__ import annotations

import json

import pytest

from pcfed import PCFedAvg
from pcfed.training import prepare
from pcfed.training.saved_run import open_models, open_run
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 3") + '[algorithm]\nname = "PCFedAvg"\n'


@pytest.fixture
def directory(tmp_path):
    prepare(folder_with(tmp_path, config=CONFIG), tmp_path / "run").run()
    return tmp_path / "run"


def with_exact(directory, value):
    contents = json.loads((directory / "config.json").read_text())
    contents["config"]["algorithm"]["exact"] = value
    (directory / "config.json").write_text(json.dumps(contents))
    return directory


def test_false_is_what_pcfedavg_is_now(directory):
    run = open_run(with_exact(directory, False))
    assert run.config.algorithm == PCFedAvg("auto", "auto")
    assert len(run.history) == 3


def test_without_its_algorithm_there_are_models_but_no_report(directory):
    old = with_exact(directory, True)
    with pytest.raises(ValueError, match=r"run: the algorithm must be one of this version, got PC"):
        open_run(old)
    assert open_models(old).names == ("north", "south")
