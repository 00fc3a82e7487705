"""``--set`` in a federation: values that replace those of server.toml, checked and recorded."""

from __future__ import annotations

import json
import sys

import pytest
from flwr.common.config import parse_config_args

from pcfed.__main__ import main
from pcfed.federation.local_federation import LocalFederation
from pcfed.federation.server_app import run_task
from pcfed.federation.server_folder import ServerFolder
from tests.federation.test_server import change, folder, grid_of, train

__all__ = ["folder"]


def settings(folder, training="example"):
    path = folder / f"server.{training}" / "settings.json"
    return json.loads(path.read_text())["settings"]


def pcfed(monkeypatch, capsys, *words) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["pcfed", "federation", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_values_are_used_and_recorded(folder):
    overrides = ["rounds.rounds=1", "rounds.local_steps=7"]
    run_task(grid_of(folder), folder / "server.toml", "train", overrides)
    found = settings(folder)
    assert (found["rounds.rounds"], found["rounds.local_steps"]) == (1, 7)
    assert found["roster"] == ["agent-1", "agent-2", "agent-3"]
    assert found["algorithm.name"] == "PCFedSplit"
    overrides[0] = "rounds.rounds=3"  # the number of rounds may change
    run_task(grid_of(folder), folder / "server.toml", "train", overrides)
    assert settings(folder)["rounds.rounds"] == 3
    ended = LocalFederation(folder, overrides).ended_result()
    assert ended.rounds == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rounds.local_steps=30", "rounds.local_steps was 20 and is 30;"),
        ("model.l2=0.5", "model.l2 was 0.0 and is 0.5;"),
        ('model.labels=["x", "y", "w"]', 'model.labels was ["x", "y", "z"] and is ["x", "y", "w"]'),
        ("algorithm.prox=2.0", 'algorithm.prox was "auto" and is 2.0;'),
        ('center="average"', 'center was "free" and is "average";'),
        ("roster=2", 'roster was ["agent-1", "agent-2", "agent-3"] and is 2;'),
    ],
)
def test_what_may_not_change_is_refused_with_both_values(
    folder, monkeypatch, capsys, override, said
):
    change(folder, "minimum = 3", "minimum = 2")
    train(folder, grid_of(folder))
    grid = grid_of(folder)
    with pytest.raises(ValueError, match="contains a training with other settings") as error:
        run_task(grid, folder / "server.toml", "train", [override])
    assert said in str(error.value)
    assert grid.kinds == []
    code, printed = pcfed(monkeypatch, capsys, "run", "--folder", folder, "--set", override)
    assert code == 2
    assert said in " ".join(printed.split())
    assert len(printed.splitlines()) == 1


def test_a_changed_file_is_refused_in_the_same_way(folder):
    train(folder, grid_of(folder))
    change(folder, "local_steps = 20", "local_steps = 21")
    with pytest.raises(ValueError, match="local_steps was 20 and is 21; change them back, or give"):
        train(folder, grid_of(folder))


def test_another_training_has_a_folder_of_its_own(folder):
    train(folder, grid_of(folder))
    overrides = ["training=second", "rounds.local_steps=3"]
    run_task(grid_of(folder), folder / "server.toml", "train", overrides)
    assert settings(folder, "second")["rounds.local_steps"] == 3
    assert settings(folder)["rounds.local_steps"] == 20
    assert (folder / "agent-1.second" / "models.npz").exists()


def test_an_invalid_value_names_its_option(folder, monkeypatch, capsys):
    line = ("run", "--folder", folder, "--set", "rounds.round=3", "--set", "rounds.minimum=0")
    code, said = pcfed(monkeypatch, capsys, *line)
    assert code == 2
    assert "with --set rounds.round=3: rounds has no key 'round'; did you mean 'rounds'?" in said
    assert "with --set rounds.minimum=0: rounds.minimum must be" in said


def test_flower_gets_the_values(folder, monkeypatch):
    """Flower's own parser reads what `ServerFolder.run` writes, quotation marks included."""
    calls = []
    monkeypatch.setattr(
        ServerFolder, "_flwr", lambda self, *line, on_tick: calls.append(line) or (0, "")
    )
    overrides = ['model.features=["a", "b"]', "training=it's"]
    assert not LocalFederation(folder, overrides).run()
    found = parse_config_args([str(calls[0][-1])])
    assert json.loads(found["overrides"]) == overrides
    assert (found["server"], found["task"]) == (str(folder / "server.toml"), "train")
