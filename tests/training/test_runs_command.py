"""`pcfed runs`: every training in a line, the newest first; broken directories with a reason."""

from __future__ import annotations

import json
import os
import sys
import webbrowser

import pytest

from pcfed.__main__ import main
from pcfed.storage.locks import exclusive_lock
from pcfed.training import prepare
from pcfed.training.example import write_example
from pcfed.training.run_list import list_runs
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 3")


def command(arguments, monkeypatch):
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["pcfed", *map(str, arguments)])
    monkeypatch.setattr("pcfed.cli.app.console._width", 120)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two trainings, the example being the older one."""
    monkeypatch.chdir(tmp_path)
    write_example(tmp_path / "clinics")
    overrides = ["training.rounds=4", "training.eval_every=2"]
    prepare("clinics/train.toml", "runs/clinics", overrides=overrides).run()
    os.utime("runs/clinics/outcome.json", (0, 86400 * 365))
    (tmp_path / "homes").mkdir()
    prepare(folder_with(tmp_path / "homes", config=CONFIG), "runs/more/homes").run()
    return tmp_path


def test_the_newest_is_first_and_numbers_are_those_of_the_outcome(folder, monkeypatch, capsys):
    homes, clinics = list_runs(folder / "runs")
    outcome = json.loads((folder / "runs" / "clinics" / "outcome.json").read_text())
    assert clinics.path == folder / "runs" / "clinics"
    assert (clinics.model, clinics.num_agents, clinics.rounds) == ("logistic", 5, 4)
    assert clinics.status == homes.status == "finished"
    assert clinics.relative_gap == outcome["relative_gap"] > 0
    assert clinics.score == pytest.approx(sum(each["score"] for each in outcome["agents"]) / 5)
    alone = sum(each["local_score"] for each in outcome["agents"]) / 5
    assert clinics.local_score == pytest.approx(alone)
    assert clinics.when.year == 1971
    assert command(["runs"], monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = (next(i for i, line in enumerate(lines) if name in line) for name in NAMES)
    assert first < second
    assert lines[second].split()[:7] == ["clinics", "01", "Jan", "1971", "logistic", "5", "4"]
    assert lines[second].split()[-1] == "finished"
    assert lines[first].split()[:2] == ["more/homes", f"{homes.when:%d}"]
    assert len(lines) == 4  # no line is broken, in 80 columns


NAMES = ("more/homes", "clinics")


def test_a_training_that_is_not_finished(folder):
    run = folder / "runs" / "clinics"
    (run / "outcome.json").unlink()
    (found,) = list_runs(run)
    assert (found.status, found.rounds, found.num_agents) == ("unfinished", 4, 5)
    assert found.score is None
    with exclusive_lock(run / "lock"):
        assert list_runs(run)[0].status == "running"
    (run / "history.jsonl").unlink()
    (found,) = list_runs(run)
    assert (found.status, found.rounds, found.num_agents) == ("unfinished", 0, 5)


def test_a_training_that_is_continued_is_not_finished(folder):
    overrides = ["training.rounds=5", "training.norm_limit=1e6"]
    with pytest.raises(ValueError, match=r"training.norm_limit was not given and is 1000000.0"):
        prepare("clinics/train.toml", "runs/clinics", overrides=overrides)
    config = folder / "runs" / "clinics" / "config.json"
    contents = json.loads(config.read_text())
    contents["config"]["training"]["rounds"] = 9
    config.write_text(json.dumps(contents))
    assert list_runs(config.parent)[0].status == "unfinished"


BROKEN = {
    "config.json": ("{", "config.json is not a valid description of a training: it is not JSON"),
    "outcome.json": ("[]", "outcome.json is not a valid training summary"),
    "history.jsonl": ("what\n", "the last line of history.jsonl is not a record"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_directories_are_listed_with_a_reason(name, folder, monkeypatch, capsys):
    text, reason = BROKEN[name]
    (folder / "runs" / "clinics" / name).write_text(text)
    assert command(["runs"], monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "more/homes" in out
    assert "runs/clinics is broken: " in out
    assert reason in out
    assert err == ""


def test_directories_without_a_configuration(folder, monkeypatch, capsys):
    (folder / "runs" / "clinics" / "config.json").unlink()
    (folder / "runs" / "new").mkdir()
    (folder / "runs" / "new" / "lock").touch()
    (folder / "runs" / "other").mkdir()
    (folder / "runs" / "other" / "notes.txt").touch()
    assert command(["runs"], monkeypatch) == 0
    out = capsys.readouterr().out
    assert "runs/clinics is broken: it has no config.json." in out
    assert "not started" in out
    assert "other" not in out


def test_an_old_configuration_without_tables(folder):
    config = folder / "runs" / "clinics" / "config.json"
    contents = json.loads(config.read_text())
    config.write_text(json.dumps({**contents, "config": {"model": 3}}))
    assert list_runs(config.parent)[0].status.startswith("broken: ")


def test_no_trainings_are_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in (["runs"], ["runs", "."]):
        assert command(arguments, monkeypatch) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line == f"There are no trainings in {arguments[-1]}; pcfed train starts one."
    assert command(["runs", "gone"], monkeypatch) == 2
    assert (
        capsys.readouterr().err == "runs: there must be a folder gone, got none; check the path.\n"
    )


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_report_opens_in_the_browser(has_browser, folder, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or has_browser)
    assert command(["report", "runs/clinics"], monkeypatch) == 0
    assert opened == []
    assert command(["report", "runs/clinics", "--open"], monkeypatch) == 0
    page = folder / "runs" / "clinics" / "report.html"
    assert opened == [page.resolve().as_uri()]
    assert page.exists()
    last = capsys.readouterr().out.splitlines()[-1]
    shown = "runs/clinics/report.html is open in the browser." if has_browser else "Open runs/cl"
    assert last.startswith(shown)
