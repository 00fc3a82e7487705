"""The table at the end of a training, and the file that it is read from."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

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
    """A job that is done, and its result."""
    folder = tmp_path_factory.mktemp("ended")
    job = prepare(folder_with(folder, config=CONFIG), folder / "run")
    return job, job.run()


def test_the_figures_are_those_of_the_feasible_models(ended):
    job, result = ended
    outcome = Outcome.load(job.directory.outcome)
    problem, proof = job.setup.problem, certify(job.setup.problem, result)
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


def test_alone_is_the_agents_own_optimum(tmp_path):
    rng = np.random.default_rng(1)
    files = {}
    for name in ("north", "south"):
        X = rng.normal(size=(40, 2))
        rows = np.column_stack([X, X @ [1.0, -2.0] + rng.normal(size=40)])
        files[name] = "area,rooms,load\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    job = prepare(folder_with(tmp_path, config=CONFIG, **files), tmp_path / "run")
    job.run()
    rows = Outcome.load(job.directory.outcome).agents
    for agent, row in zip(job.setup.problem.agents, rows, strict=True):
        best = optimum(Problem([agent])).models[0]
        close = 1e-6 if row.budget is None else 0.05  # a penalty, and a projection at the end
        assert row.local_score == pytest.approx(agent.test.accuracy(best), abs=close)
        assert abs(row.local_score - row.score) > 0.01


def test_the_relative_gap(ended):
    job, result = ended
    proof = certify(job.setup.problem, result)
    assert replace(proof, objective=-2.0, gap=1.0).relative_gap == 0.5
    assert replace(proof, objective=0.0, gap=1.0).relative_gap == np.inf
    assert replace(proof, objective=0.0, gap=0.0).relative_gap == 0.0
    assert replace(proof, gap=None).relative_gap is None


def test_no_zero_of_a_feasible_model_has_a_sign(ended):
    job, _ = ended
    proof = certify(job.setup.problem, np.array([-0.0, 3.0]))
    assert not np.signbit(proof.models[0]).any()


def test_without_local_training_it_says_so(tmp_path):
    config = CONFIG.replace("rounds = 40", "rounds = 3\nlocal_only = false")
    job = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    job.run()
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.notes == ("No agent trained alone, because training.local_only is false.",)
    assert outcome.agents[0].score is not None
    assert outcome.agents[0].local_score is None
    assert not job.directory.local.exists()


def test_without_held_out_rows_it_says_so(tmp_path):
    config = CONFIG.replace("held_out = 0.5", "held_out = 0")
    job = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    job.run()
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.notes[0].startswith("No rows are held out")
    assert outcome.agents[0].score is None


def test_more_rounds_and_the_comparison_goes_on(ended, tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    prepare(path, tmp_path / "run").run()
    path.write_text(CONFIG.replace("rounds = 40", "rounds = 60"))
    seen = []
    watch = [lambda e: seen.append(e.record.round)]
    job = prepare(path, tmp_path / "run")
    job.run(local_callbacks=watch)
    assert min(seen) == 41
    assert max(seen) == 60
    whole = prepare(path, tmp_path / "whole")
    whole.run()
    assert Outcome.load(job.directory.outcome) == Outcome.load(whole.directory.outcome)


def test_interrupted_while_agents_train_alone(tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    job = prepare(path, tmp_path / "run")

    def stop(seen):
        if seen.record.round == 5:
            os.kill(os.getpid(), signal.SIGINT)

    assert job.run(local_callbacks=[stop]).status == "interrupted"
    assert not job.directory.outcome.exists()
    assert Result.load(job.directory.result).status == "finished"
    assert prepare(path, tmp_path / "run").run().status == "finished"
    whole = prepare(path, tmp_path / "whole")
    whole.run()
    assert Outcome.load(job.directory.outcome) == Outcome.load(whole.directory.outcome)


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


def test_what_is_saved_is_what_is_loaded(ended, tmp_path):
    outcome = Outcome.load(ended[0].directory.outcome)
    outcome.save(tmp_path / "outcome.json")
    assert Outcome.load(tmp_path / "outcome.json") == outcome
