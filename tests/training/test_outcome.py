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
from pcfed.training import Outcome, RunWarning, prepare
from tests.training.folders import OWN_CONFIG, folder_with, paper_problem, without_intercept

CONFIG = paper_problem(without_intercept(OWN_CONFIG)).replace("l1 = 5", "l1 = 1")
CONFIG = CONFIG.replace("batch = 1.0", "rounds = 40\nsave_every = 7")
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
    assert (north.agent, north.constraint) == ("north", "l1(1)")
    assert north.usage.text == "uses 1 of 1 (l1 norm)"
    assert north.usage.share == pytest.approx(np.abs(proof.models[0]).sum())
    assert (south.constraint, south.usage.text) == ("whole_space", "no limit")
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
        assert row.local_score == pytest.approx(agent.test.accuracy(best), abs=1e-3)
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
    assert {each.against_alone.verdict for each in outcome.agents} == {"training rows"}
    assert "no rows are held out, so there is no interval" in outcome.agents[0].verdict


def test_training_alone_does_not_depend_on_the_rounds(tmp_path):
    scores = []
    for rounds in (2, 40):
        path = folder_with(tmp_path, config=CONFIG.replace("rounds = 40", f"rounds = {rounds}"))
        trainer = prepare(path, tmp_path / f"run{rounds}")
        trainer.run()
        agents = Outcome.load(trainer.directory.outcome).agents
        scores.append([agent.local_score for agent in agents])
    assert scores[0] == scores[1]


def test_an_interrupted_comparison_resumes(tmp_path):
    path = folder_with(tmp_path, config=CONFIG)
    trainer = prepare(path, tmp_path / "run")

    done = []

    def stop(agents, total):
        done.append((agents, total))
        if agents == 1:
            os.kill(os.getpid(), signal.SIGINT)

    assert trainer.run(on_alone=stop).status == "interrupted"
    assert done == [(0, 2), (1, 2)]
    assert not trainer.directory.outcome.exists()
    assert Result.load(trainer.directory.result).status == "finished"
    assert prepare(path, tmp_path / "run").run().status == "finished"
    whole = prepare(path, tmp_path / "whole")
    whole.run()
    assert Outcome.load(trainer.directory.outcome) == Outcome.load(whole.directory.outcome)


def with_comparison(table, **changes):
    """Return the summary with a changed comparison of its first agent."""
    north, *others = table["agents"]
    against = {**north["against_alone"], **changes}
    return {**table, "agents": [{**north, "against_alone": against}, *others]}


BROKEN = {
    "no JSON": lambda table: "{",
    "a list": lambda table: [],
    "another format": lambda table: {**table, "format": 4},
    "a format that is no integer": lambda table: {**table, "format": True},
    "the format of the first version": lambda table: {**table, "format": 1},
    "the format of the last version": lambda table: {**table, "format": 2},
    "a key less": lambda table: {k: v for k, v in table.items() if k != "gap"},
    "a key more": lambda table: {**table, "more": 1},
    "another kind": lambda table: {**table, "rounds": "3"},
    "agents": lambda table: {**table, "agents": [{}]},
    "not finite": lambda table: {**table, "gap": float("nan")},
    "notes": lambda table: {**table, "notes": [1]},
    "warnings": lambda table: {**table, "warnings": [{"kind": "x", "agents": [], "sentence": 1}]},
    "a verdict": lambda table: with_comparison(table, verdict="good"),
    "a difference": lambda table: with_comparison(table, difference="0"),
    "an interval": lambda table: with_comparison(table, low=True),
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


OLD_KEYS = {"used": 0.5, "budget": 1.0}
NEW_KEYS = ("usage", "held_out", "against_alone", "against_average")


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_version_is_read(version, ended, tmp_path):
    outcome = Outcome.load(ended[0].directory.outcome)
    table = {"format": version, **asdict(outcome)}
    del table["warnings"]
    for row in table["agents"]:
        for key in NEW_KEYS:
            del row[key]
        row |= OLD_KEYS if row["agent"] == "north" else dict.fromkeys(OLD_KEYS)
        if version == 1:
            row["moved"] = row.pop("infeasibility")
    if version == 1:
        table["measure"] = table.pop("score_name")
    (tmp_path / "outcome.json").write_text(json.dumps(table))
    found = Outcome.load(tmp_path / "outcome.json")
    assert found.warnings == ()
    north, south = found.agents
    assert north.usage.text == "uses 0.5 of 1"
    assert (south.usage, south.against_alone, south.verdict) == (None, None, "")
    kept = [name for name in asdict(north) if name not in NEW_KEYS]
    for new, old in zip(outcome.agents, found.agents, strict=True):
        assert all(getattr(new, name) == getattr(old, name) for name in kept)


def test_files_of_trainings_with_warnings_are_read_again(ended, tmp_path):
    outcome = Outcome.load(ended[0].directory.outcome)
    warned = replace(outcome, warnings=(RunWarning("kind", ("north",), "north: a sentence."),))
    warned.save(tmp_path / "outcome.json")
    assert Outcome.load(tmp_path / "outcome.json") == warned


def test_saving_and_loading_give_the_same(ended, tmp_path):
    outcome = Outcome.load(ended[0].directory.outcome)
    outcome.save(tmp_path / "outcome.json")
    assert Outcome.load(tmp_path / "outcome.json") == outcome


# -- verdicts -------------------------------------------------------------------------------------


def write_homes(folder, rows=400):
    """Write the data of two agents of which one has few rows, and similar coefficients."""
    for i, (name, count) in enumerate((("north", 16), ("south", rows))):
        rng = np.random.default_rng(i)
        X = rng.normal(size=(count, 6))
        y = X @ [1.0, -1.0, 0.5, 0.5, 1.0, -0.5] + rng.normal(size=count)
        header = ",".join([*"abcdef", "load"]) + "\n"
        table = np.column_stack([X, y]).tolist()
        lines = (",".join(map(str, row)) + "\n" for row in table)
        (folder / f"{name}.csv").write_text(header + "".join(lines))


def test_verdicts_are_those_of_the_held_out_rows(tmp_path):
    write_homes(tmp_path)
    config = CONFIG.replace("rounds = 40\nsave_every = 7", "rounds = 100").replace(
        "constraint = {l1 = 1}", "constraint = {box = [-0.75, 0.75]}"
    )
    (tmp_path / "train.toml").write_text(config.replace("held_out = 0.5", "held_out = 0.4"))
    trainer = prepare(tmp_path / "train.toml", tmp_path / "run")
    result = trainer.run()
    north, south = Outcome.load(trainer.directory.outcome).agents
    assert (north.held_out, south.held_out) == (6, 160)
    assert north.against_alone.verdict == "few rows"
    assert "too few held-out rows" in north.verdict
    models = certify(trainer.setup.problem, result).models
    agents = trainer.setup.problem.agents
    for row, agent, own in zip((north, south), agents, models, strict=True):
        assert row.against_average.difference == pytest.approx(row.score - row.average_score)
        assert row.against_alone.difference == pytest.approx(row.score - row.local_score)
        assert row.against_alone.rows == agent.test.size
        assert row.score == agent.test.accuracy(own)
    assert south.against_alone.low <= south.against_alone.difference <= south.against_alone.high
    # The multiplier belongs to the bound of a column, by the name in the file.
    gradient = trainer.setup.problem.gradient(models)[0]
    column = "abcdef"[int(np.argmax(np.abs(gradient)))]
    assert f"one more unit of the bound of {column} would lower the objective" in north.usage.gain
    assert north.usage.multiplier == pytest.approx(np.abs(gradient).max(), rel=1e-3)


def test_the_limit_is_that_of_the_delivered_model(tmp_path):
    # FedAvg's shared model is outside of north's set; what is delivered is not.
    config = CONFIG.replace("[training]", '[algorithm]\nname = "FedAvg"\n\n[training]')
    trainer = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    trainer.run()
    north = Outcome.load(trainer.directory.outcome).agents[0]
    assert north.infeasibility > 1e-3
    assert north.usage.text == "uses 1 of 1 (l1 norm)"
    assert north.usage.share <= 1


def test_the_multiplier_is_in_the_units_of_the_data(tmp_path):
    results = []
    for name, standardize in (("plain", False), ("standardized", True)):
        (tmp_path / name).mkdir()
        write_homes(tmp_path / name)
        config = CONFIG.replace("rounds = 40\nsave_every = 7", "rounds = 300").replace(
            'target = "load"', f'target = "load"\nstandardize = {str(standardize).lower()}'
        )
        # Without a coupling, standardizing changes nothing but the coordinates.
        config = config.replace("[defaults]", "[defaults]\ncoupling = 0\nconstraint = {l1 = 2}")
        (tmp_path / name / "train.toml").write_text(config)
        trainer = prepare(tmp_path / name / "train.toml", tmp_path / name / "run")
        trainer.run()
        results.append([each.usage for each in Outcome.load(trainer.directory.outcome).agents])
    for plain, standardized in zip(*results, strict=True):
        assert plain.text == standardized.text
        assert plain.multiplier > 0.01
        assert plain.multiplier == pytest.approx(standardized.multiplier, rel=1e-3)


def test_notebooks_show_verdicts_and_warnings(ended):
    outcome = Outcome.load(ended[0].directory.outcome)
    warned = replace(outcome, warnings=(RunWarning("kind", ("north",), "<b>: a sentence."),))
    text = warned._repr_html_()
    assert "uses 1 of 1 (l1 norm)" in text
    assert "too few held-out rows to compare with training alone" in text
    assert "<li>&lt;b&gt;: a sentence.</li>" in text
    assert "<ul>" not in outcome._repr_html_()
