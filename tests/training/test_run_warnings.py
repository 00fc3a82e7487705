"""Every warning appears where it should, says what to change, and healthy trainings have none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pcfed.simulation.result import Refusal
from pcfed.training import Outcome, TrainedModels, prepare
from pcfed.training.outcome import evaluate_training
from pcfed.training.run_warnings import MAX_SENTENCES, RunWarning, _intercepts_at_bounds, _merged
from tests.training.folders import paper_problem, without_intercept

CONFIG = """
[model]
kind = "least-squares"

[data]
target = "load"

[training]
rounds = 60

[agents.north]
file = "north.csv"
constraint = {l1 = 1.5}

[agents.south]
file = "south.csv"
"""


def write_numbers(folder, *, shift=0.0, rows=60):
    """Write the data of two agents whose target is linear in two columns."""
    for i, name in enumerate(("north", "south")):
        rng = np.random.default_rng(i)
        X = rng.normal(size=(rows, 2))
        y = X @ [1.0, -2.0] + shift + 0.5 * rng.normal(size=rows)
        lines = (f"{a},{b},{c}\n" for (a, b), c in zip(X, y, strict=True))
        (folder / f"{name}.csv").write_text("area,rooms,load\n" + "".join(lines))


def write_labels(folder, missing=None):
    """Write the data of two agents with the labels low, middle and high."""
    for i, name in enumerate(("north", "south")):
        rng = np.random.default_rng(i)
        X = rng.normal(size=(90, 2))
        labels = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
        keep = labels != missing if name == "north" else np.full(90, True)
        lines = (f"{a},{b},{c}\n" for (a, b), c in zip(X[keep], labels[keep], strict=True))
        (folder / f"{name}.csv").write_text("area,rooms,load\n" + "".join(lines))


def trained(folder, config=CONFIG):
    """Return the trainer of a finished training, its result and its summary."""
    (folder / "train.toml").write_text(config)
    trainer = prepare(folder / "train.toml", folder / "run")
    result = trainer.run()
    return trainer, result, Outcome.load(trainer.directory.outcome)


def kinds(outcome):
    return [warning.kind for warning in outcome.warnings]


def test_a_healthy_training_has_none(tmp_path):
    write_numbers(tmp_path)
    assert trained(tmp_path)[2].warnings == ()


def test_a_healthy_classification_has_none(tmp_path):
    write_labels(tmp_path)
    config = CONFIG.replace("least-squares", "softmax").replace("rounds = 60", "rounds = 200")
    assert trained(tmp_path, config)[2].warnings == ()


def test_worse_than_the_mean(tmp_path):
    write_numbers(tmp_path, shift=50.0)
    _, _, outcome = trained(tmp_path, without_intercept(CONFIG))
    negative = [w for w in outcome.warnings if w.kind == "negative R²"]
    assert [w.agents for w in negative] == [("north",), ("south",)]
    score = outcome.agents[0].score
    assert negative[0].sentence == (
        f"north: predicts worse than the mean of its target, with R² {score:.3g} on 12 held-out "
        "rows; set model.intercept = true, relax its constraint, or take a larger personalization."
    )


def test_a_missing_label(tmp_path):
    write_labels(tmp_path, missing="middle")
    config = CONFIG.replace("least-squares", "softmax").replace("rounds = 60", "rounds = 200")
    _, _, outcome = trained(tmp_path, config)
    assert kinds(outcome) == ["missing labels"]
    assert outcome.warnings[0].agents == ("north",)
    assert 'north: no training row has the label "middle"' in outcome.warnings[0].sentence


@pytest.mark.parametrize(
    ("limit", "seen"),
    [("{l1 = 1000}", "no model is at its limit"), ('"whole_space"', "no agent has a limit")],
)
def test_limits_without_effect(tmp_path, limit, seen):
    write_numbers(tmp_path)
    _, _, outcome = trained(tmp_path, paper_problem(CONFIG).replace("{l1 = 1.5}", limit))
    assert "limits without effect" in kinds(outcome)
    assert seen in outcome.warnings[0].sentence
    assert "set personalization above 0" in outcome.warnings[0].sentence
    first, second = TrainedModels.load(tmp_path / "run" / "models.npz").models
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_model_of_zeros(tmp_path):
    write_numbers(tmp_path)
    _, _, outcome = trained(tmp_path, CONFIG.replace("l1 = 1.5", "l1 = 0"))
    (found,) = [w for w in outcome.warnings if w.kind == "constant model"]
    assert found.sentence.startswith("north: all coefficients are 0, so its model predicts the sam")


def test_one_label_for_all_rows(tmp_path):
    write_labels(tmp_path)
    config = CONFIG.replace('kind = "least-squares"', 'kind = "softmax"\nintercept = true')
    _, _, outcome = trained(tmp_path, config.replace("l1 = 1.5", "l1 = 0.01"))
    found = [w for w in outcome.warnings if w.kind == "constant model"]
    assert [w.agents for w in found] == [("north",)]
    assert 'north: its model predicts "' in found[0].sentence
    assert "for all 18 held-out rows" in found[0].sentence


def test_too_few_rounds(tmp_path):
    write_numbers(tmp_path)
    # Every agent needs a bounded set for a certified gap.
    bounded = CONFIG.replace('file = "south.csv"', 'file = "south.csv"\nconstraint = {l2 = 9}')
    _, _, outcome = trained(tmp_path, bounded.replace("rounds = 60", "rounds = 2"))
    (found,) = [w for w in outcome.warnings if w.kind == "not converged"]
    assert outcome.relative_gap > 0.01
    assert found.sentence.endswith("above the optimum; set training.rounds to more than 2.")
    assert "PCFedSplit" not in found.sentence
    _, _, other = trained_with(tmp_path / "other", bounded, 'name = "FedAvg"')
    (found,) = [w for w in other.warnings if w.kind == "not converged"]
    assert found.sentence.endswith('more than 60, or algorithm.name = "PCFedSplit".')


def trained_with(folder, config, algorithm):
    folder.mkdir()
    write_numbers(folder)
    return trained(folder, config.replace("[training]", f"[algorithm]\n{algorithm}\n\n[training]"))


def test_a_run_that_stopped_at_its_gap_is_not_warned_about(tmp_path):
    write_numbers(tmp_path)
    bounded = CONFIG.replace('file = "south.csv"', 'file = "south.csv"\nconstraint = {l2 = 9}')
    _, result, outcome = trained(tmp_path, bounded.replace("rounds = 60", "gap = 0.3"))
    assert result.status == "stopped"
    assert "not converged" not in kinds(outcome)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy")
    write_numbers(folder)
    trainer, result, _ = trained(folder)
    return trainer.setup, result, TrainedModels.load(trainer.directory.models)


def test_refused_updates(healthy):
    setup, result, models = healthy
    refusals = (Refusal(3, 1, "its norm is inf."), Refusal(9, 1, "its norm is 1e9."))
    outcome = evaluate_training(setup, replace(result, refusals=refusals), models, None, ())
    assert [w.sentence for w in outcome.warnings] == [
        "south: 2 updates were refused, the last in round 9 (its norm is 1e9); check its data for "
        "very large values, or set data.standardize = true."
    ]


@pytest.mark.parametrize(("factor", "expected"), [(99.0, []), (250.0, ["large curvature"])])
def test_steps_that_were_cut(healthy, factor, expected):
    setup, result, models = healthy
    private = {**result.state.private, "factor": np.array([[1.0], [factor]])}
    changed = replace(result, state=replace(result.state, private=private))
    outcome = evaluate_training(setup, changed, models, None, ())
    assert kinds(outcome) == expected
    if expected:
        assert outcome.warnings[0].sentence.startswith("south: its steps had to be 250 times")


@pytest.mark.parametrize(("intercept", "expected"), [(1.9, 0), (-2.0, 1)])
def test_an_intercept_at_its_bound(intercept, expected):
    loss = SimpleNamespace(intercept_slice=slice(1, 2))
    agent = SimpleNamespace(loss=loss, intercept_bound=2.0)
    end = SimpleNamespace(
        agents=[SimpleNamespace(agent="north")],
        setup=SimpleNamespace(problem=SimpleNamespace(agents=[agent])),
        own=np.array([[7.0, intercept]]),
    )
    found = list(_intercepts_at_bounds(end))
    assert len(found) == expected
    assert all("north: its intercept is at its bound of 2;" in each.sentence for each in found)


def test_losses_on_training_rows(tmp_path):
    write_numbers(tmp_path)
    config = paper_problem(CONFIG).replace('target = "load"', 'target = "load"\nheld_out = 0')
    config = config.replace("l1 = 1.5", "l1 = 2.8")
    loose = trained(tmp_path, config)[2]
    assert all(each.against_alone.verdict == "training rows" for each in loose.agents)
    assert "large loss" not in kinds(loose)
    # With targets of opposite signs, the average model is useless to both agents.
    text = (tmp_path / "south.csv").read_text().splitlines()
    flipped = [f"{line.rpartition(',')[0]},{-float(line.rpartition(',')[2])}" for line in text[1:]]
    (tmp_path / "south.csv").write_text("\n".join([text[0], *flipped]))
    (tmp_path / "other").mkdir()
    for name in ("north.csv", "south.csv"):
        (tmp_path / "other" / name).write_text((tmp_path / name).read_text())
    opposed = trained(tmp_path / "other", config)[2]
    found = [w for w in opposed.warnings if w.kind == "large loss"]
    assert [w.agents for w in found] == [("north",), ("south",)]
    assert "set personalization = 1" in found[0].sentence


def test_many_agents_share_a_sentence():
    found = [RunWarning("negative R²", (f"agent {i}",), f"sentence {i}.") for i in range(15)]
    assert _merged(found[:MAX_SENTENCES]) == found[:MAX_SENTENCES]
    *first, last = _merged(found)
    assert first == found[:MAX_SENTENCES]
    assert len(last.agents) == 12
    assert last.sentence.startswith("agent 3, agent 4, ")
    assert last.sentence.endswith("agent 10 and 4 more: the same (negative R²).")
