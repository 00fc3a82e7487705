"""The example of `pcfed init`: runs at once, explains every key, overwrites nothing."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from pcfed.config.train_file import AgentTable
from pcfed.training import Data, Model, TrainedModels, Training, prepare
from pcfed.training.example import write_example
from tests.training.test_train import command


def test_it_trains_at_once_and_every_limit_is_felt(tmp_path):
    config = write_example(tmp_path / "new" / "folder")[0]
    job = prepare(config, tmp_path / "run")
    result = job.run()
    assert result.status == "finished"
    assert not job.setup.warnings
    assert result.history[-1].infeasibility.max() < 1e-3
    given = TrainedModels.load(job.directory.models)
    harbour, hillside, market, riverside, university = given.models
    assert np.abs(harbour).sum() == pytest.approx(1, rel=1e-3)
    assert np.abs(hillside).max() == pytest.approx(0.4, rel=1e-3)
    assert market.min() == pytest.approx(0, abs=1e-3)
    assert riverside[0] == pytest.approx(riverside[2], rel=1e-3)  # age would weigh more
    assert np.abs(university).sum() > 2
    accuracy = result.history[-1].test_accuracy
    assert accuracy[4] > 0.75
    assert accuracy.min() > 0.55


def test_every_key_is_explained(tmp_path):
    """In comments of the example, or in the schema beside it, which editors show."""
    config, schema, *_ = write_example(tmp_path)
    text = config.read_text()
    explained = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    known = {key for kind in (Model, Data, Training, AgentTable) for key in kind.model_fields}
    assert {"kind", "target", "rounds", "seed", "constraint", "coupling"} <= explained
    assert explained <= known | {"name", "exact", "step", "penalty"}
    described = json.loads(schema.read_text())["properties"]
    assert all(
        described["training"]["properties"][key]["description"] for key in Training.model_fields
    )


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "market.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"of the example yet, got 'data/market.csv'; give"):
        write_example(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "market.csv"]


def test_the_command_says_what_to_do_next(tmp_path):
    done = command(tmp_path, "my example", name="init")
    assert done.returncode == 0
    assert "pcfed train 'my example/train.toml'" in done.stdout
    again = command(tmp_path, "my example", name="init")
    assert again.returncode == 2
    assert len(again.stderr.strip().splitlines()) == 1
