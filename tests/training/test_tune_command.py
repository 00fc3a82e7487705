"""`pcfed tune`: writes a new file, resumes, and explains wrong arguments in one sentence."""

from __future__ import annotations

import json
import re
import sys
import tomllib

import pytest

from pcfed.__main__ import main
from pcfed.config.federation_files import read_agent_file
from pcfed.training import load_config
from pcfed.training.example import write_example
from pcfed.training.tuning import CrossValidation
from tests.training.folders import OWN_CONFIG, folder_with

QUICK = ("--coupling", "0.1,1", "--personalization", "0.5,1", "--folds", "2", "--rounds", "6")


def command(arguments, monkeypatch):
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["pcfed", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_new_file_that_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_example(tmp_path)
    before = (tmp_path / "train.toml").read_text()
    assert command(["tune", "train.toml", "--limits", *QUICK], monkeypatch) == 0
    out = capsys.readouterr().out
    assert "Twice the budget for all agents: " in out
    assert "The choice is personalization " in out
    assert out.count("→") == 1
    assert out.endswith("Next:\n  pcfed train train.tuned.toml\n")
    assert (tmp_path / "train.toml").read_text() == before
    assert (tmp_path / "train.tuning.png").read_bytes().startswith(b"\x89PNG")
    new = (tmp_path / "train.tuned.toml").read_text()
    old_lines, new_lines = before.splitlines(), new.splitlines()
    changed = [line for line in new_lines if line not in old_lines]
    assert all(line.split()[0] in ("personalization", "coupling", "center") for line in changed)
    replaced = [line for line in old_lines if line not in new_lines]
    assert all(line.split()[0] in ("personalization", "coupling") for line in replaced)
    config = load_config(tmp_path / "train.tuned.toml")
    assert config.agent("university").coupling == config.defaults.coupling / 2
    assert command(["train", "train.tuned.toml"], monkeypatch) == 0


def test_nothing_is_overwritten_without_being_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = folder_with(tmp_path, config=OWN_CONFIG)
    (tmp_path / "train.tuned.toml").write_text("mine")
    assert command(["tune", "train.toml", *QUICK], monkeypatch) == 2
    assert "train.tuned.toml must not exist, but does; give" in capsys.readouterr().err
    assert command(["tune", "train.toml", "--overwrite", *QUICK], monkeypatch) == 0
    tuned = (tmp_path / "train.tuned.toml").read_text()
    assert command(["tune", "train.toml", "--in-place", *QUICK], monkeypatch) == 0
    assert path.read_text() == tuned
    assert "center" in tomllib.loads(tuned)["training"]


def test_ctrl_c_keeps_what_is_computed_and_the_same_command_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path, config=OWN_CONFIG)
    evaluate, evaluated = CrossValidation.evaluate, []

    def interrupted(self, candidate, *arguments, **options):
        if len(evaluated) == 2:
            raise KeyboardInterrupt
        evaluated.append(candidate)
        return evaluate(self, candidate, *arguments, **options)

    monkeypatch.setattr(CrossValidation, "evaluate", interrupted)
    assert command(["tune", "train.toml", *QUICK], monkeypatch) == 130
    message = capsys.readouterr().err
    assert "Stopped after 2 of 6 candidates; they are saved in train.tuning.json." in message
    assert "Resume with: pcfed tune train.toml --coupling 0.1,1" in message
    assert not (tmp_path / "train.tuned.toml").exists()
    assert len(json.loads((tmp_path / "train.tuning.json").read_text())["results"]) == 2
    again = []

    def counted(self, candidate, *arguments, **options):
        again.append(candidate)
        return evaluate(self, candidate, *arguments, **options)

    monkeypatch.setattr(CrossValidation, "evaluate", counted)
    assert command(["tune", "train.toml", *QUICK], monkeypatch) == 0
    assert len(again) == 4
    assert not set(again) & set(evaluated)
    resumed = (tmp_path / "train.tuned.toml").read_text()
    (tmp_path / "train.tuning.json").unlink()
    assert command(["tune", "train.toml", "--overwrite", *QUICK], monkeypatch) == 0
    assert (tmp_path / "train.tuned.toml").read_text() == resumed


FEDAVG = OWN_CONFIG + '[algorithm]\nname = "FedAvg"\n'
PCFEDAVG = OWN_CONFIG + '[algorithm]\nname = "PCFedAvg"\n'
WRONG = {
    "center": (["--center", "fre"], OWN_CONFIG, "--center must be average, free or average,free"),
    "coupling": (["--coupling", "-1"], OWN_CONFIG, "--coupling must be numbers ≥ 0, separated by"),
    "word": (["--coupling", "x"], OWN_CONFIG, "--coupling must be numbers ≥ 0, .* got 'x'"),
    "theta": (["--personalization", "2"], OWN_CONFIG, "must be numbers from 0 to 1, separated by"),
    "nothing": (
        ["--personalization", "0", "--coupling", "0"],
        OWN_CONFIG,
        "must have a number > 0 where --personalization is only 0",
    ),
    "folder": (["--write", "../x.toml"], OWN_CONFIG, "--write must be in the folder of train.toml"),
    "both": (["--write", "x.toml", "--in-place"], OWN_CONFIG, "got both; leave one out"),
    "FedAvg": ([], FEDAVG, "must be PCFedSplit or PCFedAvg for tune, got FedAvg, which does not"),
    "free with PCFedAvg": (
        ["--center", "free"],
        PCFEDAVG,
        "--center must be average with PCFedAvg",
    ),
    "auto with FedAvg": (
        [],
        FEDAVG + '[defaults]\ncoupling = "auto"\n',
        "defaults.coupling must be a number with FedAvg, which does not use it, got 'auto'",
    ),
    "misspelt auto": (
        [],
        OWN_CONFIG + 'coupling = "atuo"\n',
        r"south.coupling must be a number ≥ 0 or \"auto\", got 'atuo'; did you mean 'auto'\?",
    ),
    "another cache": ([], OWN_CONFIG, "train.tuning.json is not a valid record of a search"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_one_sentence_and_nothing_is_written(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments, config, expected = WRONG[name]
    folder_with(tmp_path, config=config)
    if name == "another cache":
        (tmp_path / "train.tuning.json").write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert command(["tune", "train.toml", *arguments], monkeypatch) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert re.search(expected, sentence)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_pcfedavg_has_the_average_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path, config=PCFEDAVG)
    assert command(["tune", "train.toml", *QUICK], monkeypatch) == 0
    assert "free" not in capsys.readouterr().out


def test_auto_is_refused_in_a_federation(tmp_path):
    (tmp_path / "agent.toml").write_text(
        'name = "north"\nfile = "n.csv"\ntarget = "load"\ncoupling = "auto"\n'
    )
    with pytest.raises(ValueError, match="coupling must be a number in a federation, got 'auto'"):
        read_agent_file(tmp_path / "agent.toml")


def test_values_of_the_command_line_are_used_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_example(tmp_path)
    texts = ("training.seed=3", "agents.market.constraint={l2 = 1}", "training.rounds=5")
    options = [word for text in texts for word in ("--set", text)]
    few = ("--coupling", "1", "--personalization", "0.5", "--center", "free", "--folds", "2")
    assert command(["tune", "train.toml", *few, *options], monkeypatch) == 0
    tables = tomllib.loads((tmp_path / "train.tuned.toml").read_text())
    assert (tables["training"]["seed"], tables["training"]["rounds"]) == (3, 5)
    assert tables["agents"]["market"]["constraint"] == {"l2": 1}
    wrong = ["tune", "train.toml", "--overwrite", "--set", "training.seed=-1"]
    assert command(wrong, monkeypatch) == 2
    assert "train.toml with --set training.seed=-1: training.seed must" in capsys.readouterr().err
