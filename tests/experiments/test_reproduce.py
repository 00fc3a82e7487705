"""`pcfed reproduce`: finished runs are kept, interrupted ones resumed, and figures written."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pcfed.experiments import jobs as runner
from pcfed.experiments.claims import claims
from pcfed.experiments.figures import write_figures
from pcfed.experiments.jobs import distinct, jobs, results, run_jobs
from pcfed.experiments.presets import load_preset
from pcfed.experiments.summary import comparisons


def pcfed(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "pcfed", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes, **options)


def called(*arguments: str, **options) -> tuple[int, str, str]:
    process = pcfed(*arguments, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def tiny():
    """The `binding` and `local-steps` experiments on digits, with few rounds."""
    presets = []
    for name in ("binding", "local-steps", "mnist"):
        quick = load_preset(name).quick()
        presets.append(replace(quick, settings=tuple(replace(s, rounds=4) for s in quick.settings)))
    return presets


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    todo = jobs(tiny, seeds=1)
    run_jobs(todo, out)
    return out, todo, comparisons(tiny, results(todo, out))


def test_finished_runs_are_not_run_again(tiny, finished, monkeypatch):
    out, todo, _ = finished

    def refuse(*_, **__):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(runner, "run", refuse)
    reported = []
    run_jobs(todo, out, on_progress=lambda job, rounds: reported.append(rounds))
    assert sum(reported) == sum(job.setting.rounds for job in distinct(todo))


def test_workers_do_not_change_results(tiny, finished, tmp_path):
    out, todo, _ = finished
    run_jobs(todo[:3], tmp_path, workers=1)
    for job in todo[:3]:
        ours, theirs = results([job], out)[job], results([job], tmp_path)[job]
        np.testing.assert_array_equal(ours.models, theirs.models)


def test_every_figure_is_written_with_its_data(finished, tmp_path):
    _, _, compared = finished
    written = write_figures(compared, tmp_path)
    assert len(written) == 3 + 2 + 4
    for png in written:
        assert png.read_bytes().startswith(b"\x89PNG")
        assert png.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    with (tmp_path / "binding-all-images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 5  # runs × (start and four rounds)
    last = compared[0].results["PC-FedAvg"][0].history[-1]
    ours = [row for row in rows if row["run"] == "PC-FedAvg" and row["round"] == "4"]
    assert float(ours[0]["loss"]) == last.loss
    assert float(ours[0]["infeasibility[0]"]) == last.infeasibility[0]


def test_claims_depend_on_the_results(finished):
    """Verdicts and numbers change with the results."""
    _, _, compared = finished
    binding = compared[0]
    lower = [c for c in claims([binding]) if "lower loss" in c.claim]
    swapped = {
        "PC-FedAvg": binding.results["FedAvg"],
        "FedAvg": binding.results["PC-FedAvg"],
    }
    turned = [c for c in claims([replace(binding, results=swapped)]) if "lower loss" in c.claim]
    assert lower[0].verdict != turned[0].verdict
    assert lower[0].measured != turned[0].measured


def test_claims_say_when_a_constraint_does_not_bind(finished):
    _, _, compared = finished
    paper = [c for c in claims(compared) if c.where.startswith("MNIST")]
    feasible = next(c for c in paper if "stays feasible" in c.claim)
    assert feasible.verdict == "holds, but"
    assert "never binds" in feasible.measured
    models = next(c for c in paper if "different models" in c.claim)
    assert models.verdict == "does not hold"


def test_a_killed_run_is_resumed_with_the_same_results(tmp_path):
    arguments = ["reproduce", "binding", "--quick", "--out"]
    code, _, err = called(*arguments, str(tmp_path / "whole"))
    assert code == 0, err
    broken = tmp_path / "broken"
    process = pcfed(*arguments, str(broken))
    deadline = time.monotonic() + 120
    while not list(broken.rglob("*.npz")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = {path.name: path.stat().st_mtime_ns for path in broken.rglob("*.npz")}
    assert 0 < len(kept) < 4, "it must have been killed in the middle"
    code, _, err = called(*arguments, str(broken))
    assert code == 0, err
    assert (broken / "report.html").exists()
    whole = {path.name: path for path in (tmp_path / "whole").rglob("*.npz")}
    again = {path.name: path for path in broken.rglob("*.npz")}
    assert whole.keys() == again.keys()
    for name, path in again.items():
        assert kept.get(name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
        with np.load(path) as ours, np.load(whole[name]) as theirs:
            for key in set(ours) - {"metadata", "record/seconds"}:
                np.testing.assert_array_equal(ours[key], theirs[key])


def test_ctrl_c_keeps_finished_runs_and_says_how_to_resume(tmp_path):
    # If a shell runs the tests in the background, child processes ignore SIGINT by default.
    options = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = pcfed("reproduce", "binding", "--quick", "--out", str(tmp_path), **options)
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("*.npz")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "rerun the command to resume" in " ".join(err.split())
    assert "Traceback" not in err
    assert list(tmp_path.rglob("*.npz"))
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "minst"], "There is no experiment 'minst'; choose from mnist, cifar10"),
        (["bounds", "minst"], "There is no experiment 'minst'; choose from mnist, cifar10"),
        (["reproduce", "--quick", "--partition", "odd"], "partition must be one of label_sorted"),
        (["reproduce", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["data", "fetch", "imagenet"], "imagenet"),
        (["data", "path", "imagenet"], "imagenet"),
    ],
)
def test_invalid_arguments_get_a_sentence_and_exit_code_2(arguments, sentence, tmp_path):
    code, out, err = called(*arguments, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"})
    assert code == 2
    assert sentence in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == [], "nothing is half-written"


def test_data_commands(tmp_path):
    code, out, _ = called("data", "list", env={**os.environ, "COLUMNS": "200"})
    assert code == 0
    assert all(name in out for name in ("digits", "mnist", "cifar10"))
    code, out, _ = called("data", "path", "mnist")
    assert (code, Path(out.strip()).name) == (0, "mnist")
    assert called("--version")[1].startswith("pcfed ")
