"""The folders of a federation open like those of trainings: report, compare, predict, export."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from pcfed.__main__ import main
from pcfed.federation.server import MissingAgents
from pcfed.training.run_list import list_runs
from pcfed.training.saved_run import open_models, open_run
from tests.federation.test_server import NAMES, change, folder, grid_of, simulated, train

__all__ = ["folder"]


def pcfed(monkeypatch, capsys, *words) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["pcfed", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_an_agents_folder_is_a_run_directory(folder):
    result = train(folder, grid_of(folder))
    problem, expected = simulated(folder)
    for i, name in enumerate(NAMES):
        run = open_run(folder / f"{name}.example")
        assert run.names == (name,)
        own, agent = run.models.model(name), problem.agents[i]
        np.testing.assert_allclose(own, expected.models[i], rtol=0, atol=1e-9)
        np.testing.assert_allclose(run.models.average, expected.center, rtol=0, atol=1e-9)
        verdict = run.outcome.agents[0]
        assert verdict.score == agent.loss.accuracy(own)
        assert verdict.average_score == agent.loss.accuracy(run.models.average)
        assert verdict.usage.share == pytest.approx(np.abs(own[:15]).sum() / (i + 1))
        assert (run.outcome.rounds, run.outcome.gap) == (2, result.certificate.gap)
        settings = run.config.resolved()
        assert settings["training"]["local_steps"] == 20
        assert run.config.agents[0].constraint.spec == f"l1({i + 1})"
        assert settings["agents"][name]["coupling"] == 0.1


def test_the_report_of_an_agent(folder, monkeypatch, capsys):
    train(folder, grid_of(folder))
    own = folder / "agent-1.example"
    written = (own / "report.html").read_bytes()
    code, said = pcfed(monkeypatch, capsys, "report", own, "--out", folder / "again.html")
    assert code == 0, said
    page = (folder / "again.html").read_text()
    assert (folder / "again.html").read_bytes() == written
    for part in (
        "1 agent, softmax models",
        "own model and shared model",
        "of 1 (l1 norm)",
        "above the optimum",
        "on which its model was trained: no rows are held out",
        "One of the 3 agents of the training example.",
    ):
        assert part in page
    assert re.search("[a-e] → [xyz]", page)  # the largest coefficients
    assert "agent-2" not in page


def test_predictions_with_an_agents_model(folder, monkeypatch, capsys):
    train(folder, grid_of(folder))
    own, data = folder / "agent-2.example", folder / "agent-2.csv"
    out = folder / "predictions.csv"
    line = ("predict", own, data, "--agent", "agent-2", "--out", out)
    code, said = pcfed(monkeypatch, capsys, *line)
    assert code == 0, said
    found = out.read_text().splitlines()[1:]
    expected = [row.rpartition(",")[2] for row in data.read_text().splitlines()[1:]]
    accuracy = np.mean([a == b for a, b in zip(found, expected, strict=True)])
    assert accuracy == pytest.approx(open_run(own).outcome.agents[0].score)
    line = ("predict", own, data, "--agent", "average", "--out", out)
    assert pcfed(monkeypatch, capsys, *line)[0] == 0


def test_the_models_of_an_agent_are_exported(folder, monkeypatch, capsys):
    train(folder, grid_of(folder))
    own = folder / "agent-1.example"
    code, said = pcfed(monkeypatch, capsys, "export", own, "--to", "sklearn")
    assert code == 0, said
    exported = json.loads((own / "export.json").read_text())
    assert exported.keys() == {"agent-1", "average"}
    coefficients = open_models(own).parts("agent-1")["coefficients"]
    np.testing.assert_array_equal(exported["agent-1"]["coef_"], coefficients)


def test_agents_can_be_compared(folder, monkeypatch, capsys):
    train(folder, grid_of(folder))
    runs = [folder / f"{name}.example" for name in NAMES[:2]]
    code, said = pcfed(monkeypatch, capsys, "compare", *runs, "--out", folder / "compare.html")
    assert code == 0, said
    assert (folder / "compare.html").exists()


def test_an_algorithm_without_a_shared_model(folder):
    change(folder, 'name = "PCFedSplit"\nprox = "auto"', 'name = "Local"\nstep = 0.1\npenalty = 1')
    change(folder, 'center = "free"', 'center = "average"')
    train(folder, grid_of(folder))
    run = open_run(folder / "agent-1.example")
    assert run.outcome.agents[0].average_score is None
    assert "The algorithm has no shared model" in run.outcome.notes[-1]


def test_the_report_of_the_server(folder, monkeypatch, capsys):
    change(folder, "minimum = 3", "minimum = 2")
    change(folder, 'report = ["loss"]', 'report = ["rows"]', "agent-3")
    train(folder, grid_of(folder, NAMES[:2]))
    page = report_page(folder, monkeypatch, capsys)
    for part in (
        "2 of 2",
        "A certificate needs all agents, and agent-3 did not answer",
        "The audit needs all agents, and agent-3 did not answer",
        "agent-3 did not answer at the end; run the training again.",
        "<td>agent-1, agent-2</td>",
    ):
        assert part in page
    result = train(folder, grid_of(folder))
    page = report_page(folder, monkeypatch, capsys)
    for part in (
        result.certificate.sentence,
        "All agents have written their models.",
        "The averages agree with the agents&#39; private vectors up to",
        f"<td>{result.metrics['agent-1']['loss']:.4g}</td>",
        "<td>60</td>",
    ):
        assert part in page


def report_page(folder, monkeypatch, capsys) -> str:
    code, said = pcfed(monkeypatch, capsys, "report", folder / "server.example")
    assert code == 0, said
    return (folder / "server.example" / "report.html").read_text()


def test_the_report_of_a_server_that_has_failed(folder, monkeypatch, capsys):
    change(folder, "minimum = 3", "minimum = 3\nattempts = 1")
    with pytest.raises(MissingAgents):
        train(folder, grid_of(folder, NAMES[:2]))
    page = report_page(folder, monkeypatch, capsys)
    assert "No result yet." in page
    assert "had fewer than 3 agents in 1 attempts" in page
    assert "No round is done yet." in page


def test_folders_without_models_are_one_sentence(folder, monkeypatch, capsys):
    change(folder, "minimum = 3", "minimum = 2")
    train(folder, grid_of(folder, NAMES[:2]))
    (folder / "agent-3.example").mkdir()
    (folder / "agent-3.example" / "state.npz").touch()
    server, own = folder / "server.example", folder / "agent-1.example"
    for words, reason in (
        (("predict", server, folder / "agent-1.csv", "--agent", "average"), "which has none"),
        (("export", server, "--to", "npz"), "which has none"),
        (("compare", own, server), "which has none"),
        (("export", folder / "agent-3.example", "--to", "npz"), "has not ended"),
    ):
        code, said = pcfed(monkeypatch, capsys, *words)
        assert code == 2
        assert reason in said
        assert len(said.splitlines()) == 1
    found = [run.path.name for run in list_runs(folder)]
    assert sorted(found) == ["agent-1.example", "agent-2.example"]
