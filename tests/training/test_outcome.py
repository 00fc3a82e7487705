"""The table at the end of a training, and the file that it is read from."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, replace

import numpy as np
import pytest

from pcfed import Problem, Result, certify
from pcfed.guarantees import optimum
from pcfed.training import Outcome, prepare
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 40\nsave_every = 7").replace(
    "l1 = 5", "l1 = 1"
)
CONFIG = CONFIG.replace('target = "load"', 'target = "load"\nheld_out = 0.5')


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A trainer that has run, and its result."""
    folder = tmp_path_factory.mktemp("ended")
    trainer = prepare(folder_with(folder, config=CONFIG), folder / "run")
    return trainer, trainer.run()


def test_the_metrics_are_those_of_the_feasible_models(ended):
    trainer, result = ended
    outcome = Outcome.load(trainer.directory.outcome)
    problem, proof = trainer.setup.problem, certify(trainer.setup.problem, result)
    north, south = outcome.agents
    assert (outcome.status, outcome.rounds, outcome.score_name) == ("finished", 40, "R²")
    assert (north.agent, north.constraint) == ("north", "L1Ball(radius=1.0)")
    assert north.used == np.abs(proof.models[0]).sum() <= 1.0
    assert north.budget == 1.0
    assert (south.used, south.budget) == (None, None)
    np.testing.assert_array_equal(
        [north.infeasibility, south.infeasibility], result.history[-1].infeasibility
    )
    for i, row in enumerate(outcome.agents):
        test = problem.agents[i].test
        assert row.score == test.accuracy(proof.models[i])
        assert row.average_score == test.accuracy(proof.models.mean(axis=0))
    assert outcome.objective == proof.objective


def test_local_training_finds_the_agents_own_optimum(tmp_path):
    rng = np.random.default_rng(1)
    files = {}
    for name in ("north", "south"):
        X = rng.normal(size=(40, 2))
        rows = np.column_stack([X, X @ [1.0, -2.0] + rng.normal(size=40)])
        files[name] = "area,rooms,load\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    trainer = prepare(folder_with(tmp_path, config=CONFIG, **files), tmp_path / "run")
    trainer.run()
    rows = Outcome.load(trainer.directory.outcome).agents
    for agent, row in zip(trainer.setup.problem.agents, rows, strict=True):
        best = optimum(Problem([agent])).models[0]
        close = 1e-6 if row.budget is None else 0.05  # a penalty, and a projection at the end
        assert row.local_score == pytest.approx(agent.test.accuracy(best), abs=close)
        assert abs(row.local_score - row.score) > 0.01


def test_the_relative_gap(ended):
    trainer, result = ended
    proof = certify(trainer.setup.problem, result)
    assert replace(proof, objective=-2.0, gap=1.0).relative_gap == 0.5
    assert replace(proof, objective=0.0, gap=1.0).relative_gap == np.inf
    assert replace(proof, objective=0.0, gap=0.0).relative_gap == 0.0
    assert replace(proof, gap=None).relative_gap is None


def test_no_zero_of_a_feasible_model_has_a_sign(ended):
    trainer, _ = ended
    proof = certify(trainer.setup.problem, np.array([-0.0, 3.0]))
    assert not np.signbit(proof.models[0]).any()


def test_without_local_training_there_is_a_note(tmp_path):
    config = CONFIG.replace("rounds = 40", "rounds = 3\nlocal_only = false")
    trainer = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    trainer.run()
    outcome = Outcome.load(trainer.directory.outcome)
    assert outcome.notes == ("No agent trained alone, because training.local_only is false.",)
    assert outcome.agents[0].score is not None
    assert outcome.agents[0].local_score is None
    assert not trainer.directory.local.exists()


def test_without_held_out_rows_there_is_a_note(tmp_path):
    config = CONFIG.replace("held_out = 0.5", "held_out = 0")
    trainer = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    trainer.run()
    outcome = Outcome.load(trainer.directory.outcome)
    assert outcome.notes[0].startswith("No rows are held out")
    assert outcome.agents[0].score is None


def test_with_more_rounds_the_comparison_resumes(ended, tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    prepare(path, tmp_path / "run").run()
    path.write_text(CONFIG.replace("rounds = 40", "rounds = 60"))
    rounds = []
    trainer = prepare(path, tmp_path / "run")
    trainer.run(local_callbacks=[lambda e: rounds.append(e.record.round)])
    assert min(rounds) == 41
    assert max(rounds) == 60
    whole = prepare(path, tmp_path / "whole")
    whole.run()
    assert Outcome.load(trainer.directory.outcome) == Outcome.load(whole.directory.outcome)


def test_an_interrupted_comparison_resumes(tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    trainer = prepare(path, tmp_path / "run")

    def stop(evaluation):
        if evaluation.record.round == 5:
            os.kill(os.getpid(), signal.SIGINT)

    assert trainer.run(local_callbacks=[stop]).status == "interrupted"
    assert not trainer.directory.outcome.exists()
    assert Result.load(trainer.directory.result).status == "finished"
    assert prepare(path, tmp_path / "run").run().status == "finished"
    whole = prepare(path, tmp_path / "whole")
    whole.run()
    assert Outcome.load(trainer.directory.outcome) == Outcome.load(whole.directory.outcome)


BROKEN = {
    "no JSON": lambda table: "{",
    "a list": lambda table: [],
    "another format": lambda table: {**table, "format": 3},
    "a format that is no integer": lambda table: {**table, "format": True},
    "the format of the last version": lambda table: {**table, "format": 1},
    "a key less": lambda table: {k: v for k, v in table.items() if k != "gap"},
    "a key more": lambda table: {**table, "more": 1},
    "another kind": lambda table: {**table, "rounds": "3"},
    "agents": lambda table: {**table, "agents": [{}]},
    "not finite": lambda table: {**table, "gap": float("nan")},
    "notes": lambda table: {**table, "notes": [1]},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_of_something_else_is_refused(name, ended, tmp_path):
    table = BROKEN[name](json.loads(ended[0].directory.outcome.read_text()))
    path = tmp_path / "outcome.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    with pytest.raises(
        ValueError, match=r"outcome.json is not a valid training summary: .*rerun pcfed train"
    ):
        Outcome.load(path)


def test_a_file_of_the_last_version_is_read(ended, tmp_path):
    outcome = Outcome.load(ended[0].directory.outcome)
    table = {"format": 1, **asdict(outcome), "measure": outcome.score_name}
    table.pop("score_name")
    for row in table["agents"]:
        row["moved"] = row.pop("infeasibility")
    (tmp_path / "outcome.json").write_text(json.dumps(table))
    assert Outcome.load(tmp_path / "outcome.json") == outcome


def test_saving_and_loading_give_the_same(ended, tmp_path):
    outcome = Outcome.load(ended[0].directory.outcome)
    outcome.save(tmp_path / "outcome.json")
    assert Outcome.load(tmp_path / "outcome.json") == outcome
