"""The example of `pcfed init`: runs at once, explains every key, overwrites nothing."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from pcfed.config.train_file import AgentTable
from pcfed.training import Data, Model, Outcome, TrainedModels, Training, prepare
from pcfed.training.example import write_example
from tests.training.test_train import command

ALGORITHMS = (
    *("Ditto", "FedAvg", "FedDualAvg", "FedMiD", "FedProx", "FedRep", "Local", "PCFedAvg"),
    *("PCFedSplit", "PFedHN", "PFedMe", "PerFedAvg", "ProxAL", "Scaffold"),
)


def test_it_trains_at_once_and_every_limit_is_felt(tmp_path):
    config = write_example(tmp_path / "new" / "folder")[0]
    job = prepare(config, tmp_path / "run")
    result = job.run()
    assert result.status == "finished"
    assert not job.setup.warnings
    assert result.history[-1].infeasibility.max() < 1e-12
    assert Outcome.load(job.directory.outcome).relative_gap < 1e-6
    given = TrainedModels.load(job.directory.models)
    harbour, hillside, market, riverside, university = given.models[:, :6]
    assert given.intercept
    assert np.abs(harbour).sum() == pytest.approx(1)
    assert np.abs(hillside).max() == pytest.approx(0.4)
    assert market.min() == 0
    assert riverside[0] == pytest.approx(riverside[2])  # age would weigh more
    assert np.abs(university).sum() > 2
    accuracy = result.history[-1].test_accuracy
    assert accuracy[4] > 0.7
    assert accuracy.min() > 0.55


def test_every_key_is_explained(tmp_path):
    """In comments of the example, or in the schema beside it, which editors show."""
    config, schema, *_ = write_example(tmp_path)
    text = config.read_text()
    explained = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    known = {key for kind in (Model, Data, Training, AgentTable) for key in kind.model_fields}
    assert {"kind", "target", "rounds", "seed", "constraint", "coupling"} <= explained
    assert explained <= known | {"name", "prox", "step", "penalty", "own"}
    described = json.loads(schema.read_text())["properties"]
    assert all(
        described["training"]["properties"][key]["description"] for key in Training.model_fields
    )


def named_algorithms(text):
    """Return the names in the lines of the algorithm's name: its own, and those of its comment."""
    (lines,) = re.findall(r"^name = .*$(?:\n +#.*$)*", text, re.MULTILINE)
    return re.findall(r'"(\w+)"', lines)


def key_comment(text, key):
    """Return the comment on a key of the algorithm."""
    (comment,) = re.findall(rf"^# {key} = .*? +# (.*)$", text, re.MULTILINE)
    return comment


def with_algorithm(text, name):
    """Return the example with another algorithm, and the keys that it needs."""
    text = text.replace('name = "PCFedSplit"', f'name = "{name}"')
    for key in ("prox", "own"):
        (needing,) = re.findall(r"needed with ([^;:]*)", key_comment(text, key))
        if name in re.findall(r"\w+", needing):
            text = text.replace(f"\n# {key} = ", f"\n{key} = ")
    return text


def test_the_comment_names_all_algorithms(tmp_path):
    names = named_algorithms(write_example(tmp_path)[0].read_text())
    assert names[0] == "PCFedSplit"
    assert sorted(names) == sorted(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_comments_on_the_algorithm_may_be_followed(name, tmp_path):
    config = write_example(tmp_path)[0]
    config.write_text(with_algorithm(config.read_text().replace("rounds = 30", "rounds = 2"), name))
    job = prepare(config, tmp_path / "run")
    assert type(job.setup.algorithm).__name__ == name
    result = job.run()
    assert (result.status, result.state.round) == ("finished", 2)
    assert np.any(result.models)
    scores = [agent.score for agent in Outcome.load(job.directory.outcome).agents]
    assert min(scores) > 0.3


@pytest.mark.parametrize("key", ["prox", "step", "penalty", "own"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_other_keys_of_the_algorithm_are_as_their_comments_say(name, key, tmp_path):
    config = write_example(tmp_path)[0]
    text = config.read_text()
    comment = key_comment(text, key)
    config.write_text(with_algorithm(text, name).replace(f"\n# {key} = ", f"\n{key} = "))
    if (name in re.findall(r"\w+", comment)) == ("not with" in comment):
        with pytest.raises(ValueError, match=f"algorithm has no key '{key}' if name is '{name}'"):
            prepare(config, tmp_path / "run")
    else:
        prepare(config, tmp_path / "run")


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
