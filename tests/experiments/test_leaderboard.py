"""The leaderboard: separate samples, fair trials, ranks, and methods of users."""

from __future__ import annotations

import math
import platform
import re
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from pcfed import Ditto, FedAvg, run
from pcfed.cli import app, reproduce
from pcfed.experiments import leaderboard
from pcfed.experiments.leaderboard import (
    ALONE,
    CELLS,
    DEFAULTS,
    OURS,
    QUICK_CELLS,
    SEEDS,
    TRIALS,
    TRIALS_OF,
    MethodResults,
    MethodScores,
    SeedScore,
    SharedScore,
    Trial,
    methods_for,
    num_rounds,
    run_leaderboard,
    score_method,
    total_rounds,
)
from pcfed.experiments.personal_cells import Cell, Samples, limits, load_samples, split_rows
from pcfed.report.methods_findings import method_findings
from pcfed.report.methods_section import methods_section
from pcfed.report.page import ChartGroup
from pcfed.sets import SetRows

DOCS = Path(__file__).parents[2] / "docs"
TINY = replace(QUICK_CELLS[0], agents=3, search_rounds=2, rounds=4)
TINY_NETWORK = replace(TINY, limit="box", radii=(0.05, 0.5), model="network", batch=16)

MINE = """
from pcfed import FedAvg
from pcfed.experiments.leaderboard import Method, Trial, add_method


def trials(L):
    return [Trial(FedAvg(step=k / (8 * L))) for k in range(1, 9)]


add_method(Method("mine", trials))
"""


@pytest.fixture(scope="module")
def samples():
    return load_samples("digits")


@pytest.mark.parametrize(
    ("method", "cell"),
    [(method, cell) for cell in (TINY, TINY_NETWORK) for method in methods_for(cell)],
)
def test_every_method_has_the_same_budget_and_delivers_models_inside_the_sets(
    method, cell, samples
):
    found = score_method(method, cell, samples, 1)
    (score,) = found.scores
    assert len(leaderboard._METHODS[method].trials(1.0)) == (1 if method == DEFAULTS else TRIALS)
    assert [done for done, _ in score.course] == [1, 2, 3, 4]
    assert score.course[-1][1] == pytest.approx(score.accuracy, abs=1e-4)
    assert 0 < score.accuracy <= 1
    assert score.worst == min(score.accuracies)
    assert (score.bytes_per_round == 0) == (method == ALONE)
    assert score.infeasibility_after < 1e-9
    if method in (OURS, ALONE):  # local steps in float32 end in the set up to their precision
        assert score.infeasibility < 1e-6
    if method in ("ProxAL", "FedMiD", "FedDualAvg", "pFedHN"):  # their results are projected
        assert score.infeasibility > 1e-3


def test_the_best_trial_on_validation_samples_is_taken(samples, monkeypatch):
    """Test samples do not choose: the best one on them is another."""
    scores = {}

    def fit(trial, cell, samples, rows, scored, rounds, evaluated=()):
        scored_rows = sum(loss.size for loss in scored)
        is_test = scored_rows == cell.agents * cell.tests
        value = trial.algorithm.step if is_test else -((trial.algorithm.step - 0.3) ** 2)
        scores.setdefault(is_test, []).append(trial.algorithm.step)
        return SeedScore((value,) * cell.agents, 0.0, 0.0, ((1, value),), 0.0, 0.0)

    monkeypatch.setattr(leaderboard, "_fit", fit)
    steps = [k / 10 for k in range(1, TRIALS + 1)]
    method = leaderboard.Method("steps", lambda L: [Trial(FedAvg(step)) for step in steps])
    monkeypatch.setitem(leaderboard._METHODS, "steps", method)
    found = score_method("steps", TINY, samples, 2)
    assert scores[False] == pytest.approx(steps)  # once, not once for every seed
    assert scores[True] == pytest.approx([0.3, 0.3])
    assert found.trial == "step 0.3"
    assert found.trials == tuple(f"step {step:.3g}" for step in steps)


def test_models_are_projected_before_they_are_scored(samples):
    cell = replace(TINY, limit="box", radii=(0.001, 0.01), rounds=3)
    rows = split_rows(cell, samples, 0)
    tests = [samples.loss(each.test) for each in rows]
    trial, fit = Trial(FedAvg(1.0)), [each.fit for each in rows]
    score = leaderboard._fit(trial, cell, samples, fit, tests, 3, (1, 2))
    problem = leaderboard._problem(cell, samples, fit)
    x = run(problem, trial.algorithm, rounds=3, local_steps=10).models
    inside = [each.feasible_set.project(w) for each, w in zip(problem.agents, x, strict=True)]
    expected, far = (
        [loss.accuracy(w) for loss, w in zip(tests, models, strict=True)] for models in (inside, x)
    )
    assert score.accuracies == pytest.approx(expected, abs=1e-3)
    assert np.mean(far) > np.mean(expected) + 0.05, "the projection must matter"
    assert score.course[-1] == (3, pytest.approx(np.mean(expected), abs=1e-3))
    assert score.infeasibility == pytest.approx(problem.infeasibility(x).max())
    assert score.infeasibility_after < 1e-12
    assert score.shared.accuracy == pytest.approx(np.mean(far), abs=1e-3)
    assert score.shared.infeasibility == score.infeasibility > 1


def test_training_alone_is_ditto_without_a_pull(samples):
    problem = leaderboard._problem(TINY, samples, [r.fit for r in split_rows(TINY, samples, 0)])
    options = {"rounds": 4, "local_steps": 3, "batch": 0.3}
    found = run(problem, leaderboard.Alone(0.1), **options)
    np.testing.assert_array_equal(
        found.models, run(problem, Ditto(0.1, prox=0.0), **options).models
    )
    assert found.history[-1].bytes_up == found.history[-1].bytes_down == 0


@pytest.mark.parametrize("split", ["relations", "travellers"])
def test_no_test_sample_is_used_in_the_search(split):
    persons = np.repeat(np.arange(240), 9)
    relations = np.random.default_rng(0).integers(0, 5, 240)[persons]
    size, features = len(persons), np.zeros((2160, 3), np.float32)
    data = Samples(features, np.arange(size) % 3, 3, np.arange(3), None, None, persons, relations)
    cell = replace(TINY, split=split, agents=5, samples=90, tests=90)
    parts = [split_rows(cell, data, seed, unseen_tests=True) for seed in range(3)]
    train, tests = (
        [np.concatenate([getattr(each, name) for each in part]) for part in parts]
        for name in ("train", "test")
    )
    for other in tests[1:]:
        assert not np.isin(other, train[0]).any()
        assert np.array_equal(other, tests[0]) == (split == "relations")
    assert not np.array_equal(train[0], train[1])
    if split == "travellers":
        with pytest.raises(ValueError, match="there must be 245 persons, got 240; take fewer"):
            split_rows(cell, data, 48, unseen_tests=True)
        return
    # Without it, they are drawn again for every seed.
    again = np.concatenate([each.test for each in split_rows(cell, data, 1)])
    assert np.isin(again, train[0]).any()


def test_another_number_of_trials_is_an_error(samples, monkeypatch):
    method = leaderboard.Method("one", lambda L: [Trial(FedAvg(1.0))])
    monkeypatch.setitem(leaderboard._METHODS, "one", method)
    with pytest.raises(ValueError, match="one: trials must be 8, as for all methods, got 1"):
        score_method("one", TINY, samples, 1)


def test_a_wrong_parameter_in_trials_names_the_method(samples, monkeypatch):
    method = leaderboard.Method("typo", lambda L: [Trial(FedAvg(1.0, momentm=0.9))] * TRIALS)
    monkeypatch.setitem(leaderboard._METHODS, "typo", method)
    with pytest.raises(ValueError, match=r"typo: its trials can't be built \(TypeError: .*momentm"):
        score_method("typo", TINY, samples, 1)


@pytest.mark.parametrize("name", ["Ditto", "Ditto!", "DITTO"])
def test_names_with_the_same_file_name_are_refused(name):
    with pytest.raises(ValueError, match="the name must be another than 'Ditto', got"):
        leaderboard.add_method(leaderboard.Method(name, lambda L: []))


def test_cells_are_searched_with_the_rounds_of_the_scores():
    assert all(cell.search_rounds == cell.rounds for cell in (*CELLS, *QUICK_CELLS))


def test_a_training_that_diverges_scores_nothing(samples, monkeypatch):
    method = leaderboard.Method("far", lambda L: [Trial(FedAvg(1e200))] * TRIALS)
    monkeypatch.setitem(leaderboard._METHODS, "far", method)
    (score,) = score_method("far", TINY, samples, 1).scores
    assert (score.accuracy, score.course) == (0.0, ())
    assert score.rounds_to(0.1) == math.inf


def scores(cell: Cell, method: str, accuracy: float, course=((1, 0.2), (5, 0.9))) -> MethodScores:
    seeds = [SeedScore((accuracy - 0.1, accuracy + 0.1), 0.0, 0.0, course, 80.0, 1.0)] * 2
    return MethodScores(cell, method, "", tuple(seeds))


def test_ranks_and_the_critical_difference():
    cells = [replace(TINY, agents=k) for k in range(3, 17)]
    table = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.7}
    runs = [scores(cell, name, value) for cell in cells for name, value in table.items()]
    found = MethodResults(tuple(runs))
    assert found.mean_ranks() == {"a": 1.0, "b": 2.0, "c": 3.5, "d": 3.5}
    # The example of Demšar: four classifiers on 14 data sets.
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    assert found.target(cells[0]) == pytest.approx(0.855)
    assert found.rounds(cells[0], "a") == 5
    assert found.bytes_to_target(cells[0], "a") == 400
    assert found.worst(cells[0], "b") == pytest.approx(0.7)
    assert scores(TINY, "a", 0.9, ((1, 0.2),)).scores[0].rounds_to(0.5) == math.inf


def test_fairness_limits_bound_the_difference_of_mean_scores():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    protected = rng.random(40) < 0.4
    data = Samples(X, rng.integers(0, 2, 40), 2, np.arange(3), protected=protected)
    cell = replace(TINY, limit="fairness", radii=(0.1, 0.4))
    sets = limits(cell, data)
    far = 10 * rng.normal(size=(3, 6))
    inside = SetRows(sets).project(far, np.empty_like(far))
    for w, radius in zip(inside, (0.1, 0.2, 0.4), strict=True):
        difference = X[protected].mean(axis=0) @ w[:3] - X[~protected].mean(axis=0) @ w[:3]
        assert difference <= radius + 1e-5
    assert not np.array_equal(inside, far)
    np.testing.assert_array_equal(inside[:, 3:], far[:, 3:])


@pytest.mark.parametrize(
    ("limit", "radii"),
    [("l1", (0.5, 5.0)), ("box", (0.01, 0.3)), ("groups", (0.3, 10.0)), ("fairness", (0.01, 1.0))],
)
def test_every_kind_of_limit_binds(limit, radii):
    """Without projections the models are outside; the protected group takes the first class."""
    rng = np.random.default_rng(0)
    persons = np.repeat(np.arange(120), 9)
    protected = (rng.random(120) < 0.4)[persons]
    X = rng.normal(size=(1080, 4)).astype(np.float32)
    X[:, 0] += 2 * protected
    y = np.where(X[:, 0] > 1, 0, 1 + (X[:, 1] > 0))
    relations = rng.integers(0, 4, 120)[persons]
    data = Samples(X, y, 3, np.arange(4), None, None, persons, relations, protected)
    cell = replace(TINY, split="relations", limit=limit, radii=radii, agents=4)
    rows = split_rows(cell, data, 0)
    train, tests = [each.fit for each in rows], [data.loss(each.test) for each in rows]
    score = leaderboard._fit(Trial(FedAvg(0.5)), cell, data, train, tests, 10)
    assert score.infeasibility > 0.1
    assert score.infeasibility_after < 1e-9


def test_scores_are_saved_and_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(leaderboard, "_METHODS", {OURS: leaderboard._METHODS[OURS]})
    first = run_leaderboard(tmp_path, cells=(TINY,), seeds=2, workers=1)
    (path,) = (tmp_path / "methods").glob(f"{TINY.slug}-pcfedsplit-*.json")
    assert MethodScores.load(path) == first.of(TINY, OURS)
    monkeypatch.setattr(leaderboard, "score_method", None)
    assert leaderboard._load_or_run(tmp_path, OURS, TINY, 2, (), None) == first.of(TINY, OURS)
    assert num_rounds(TINY, 2) == TRIALS * 2 + 2 * 4


def test_scores_of_another_method_or_cell_are_not_loaded(tmp_path, monkeypatch):
    file = tmp_path / "my_scores.py"
    cell, digests = replace(TINY, rounds=1, search_rounds=1), []
    computed = MethodScores(cell, "mine", "", (SeedScore((0.5,), 0.0, 0.0, (), 0.0, 0.0),))
    calls = []
    monkeypatch.setattr(leaderboard, "score_method", lambda *each: calls.append(each) or computed)
    texts = (MINE, MINE, MINE.replace("k / (8 * L)", "k / (9 * L)"), MINE + "# another file\n")
    for text in texts:
        monkeypatch.setattr(leaderboard, "_METHODS", {})
        monkeypatch.delitem(sys.modules, "my_scores", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        file.write_text(text)
        found = leaderboard._load_or_run(tmp_path, "mine", cell, 1, (file,), None)
        digests.append(found.digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == len(calls) == 3
    method = leaderboard._METHODS["mine"]
    others = [
        leaderboard._digest(replace(method, trials=TRIALS_OF["FedAvg"]), cell, 1),
        leaderboard._digest(replace(method, trials=TRIALS_OF["FedMiD"]), cell, 1),
        leaderboard._digest(replace(method, trials=lambda L: [Trial(FedAvg(L))] * TRIALS), cell, 1),
        leaderboard._digest(
            replace(method, trials=lambda L: [Trial(FedAvg(2 * L))] * TRIALS), cell, 1
        ),
        leaderboard._digest(method, replace(cell, rounds=2), 1),
        leaderboard._digest(method, cell, 2),
        leaderboard._digest(replace(method, name="other"), cell, 1),
    ]
    assert len({*digests, *others}) == 3 + len(others)
    # Every file of pcfed on which scores depend counts.
    files = ["algorithms/pcfedsplit_steps.py", "sets/balls.py", "experiments/personal_cells.py"]
    root, copy, found_digests = Path(leaderboard.__file__).parents[1], tmp_path / "copy", set()
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in files:
        found_digests.add(leaderboard._sources_digest.__wrapped__(copy))
        (copy / name).write_text((copy / name).read_text("utf-8") + "# changed\n", "utf-8")
    found_digests.add(leaderboard._sources_digest.__wrapped__(copy))
    assert len(found_digests) == 1 + len(files)
    assert leaderboard._sources_digest(root) in found_digests
    # A file under the name of another one is not taken.
    path = next((tmp_path / "methods").glob(f"*-{digests[-1]}.json"))
    replace(found, method="Ditto").save(path)
    leaderboard._load_or_run(tmp_path, "mine", cell, 1, (file,), None)
    assert len(calls) == 4


def test_a_quick_run_with_a_method_of_the_user(tmp_path, monkeypatch):
    file = tmp_path / "my_method.py"
    file.write_text(MINE)
    assert reproduce.OTHERS[-1] == leaderboard.METHODS
    kept = {name: leaderboard._METHODS[name] for name in (OURS, "Ditto")}
    monkeypatch.setattr(leaderboard, "_METHODS", kept)
    line = ["reproduce", "methods", "--quick", "--out", str(tmp_path), "--method"]
    wrong = CliRunner().invoke(app.app, [*line, str(tmp_path / "other.py")])
    assert "must be a Python file that calls add_method" in str(wrong.exception)
    done = CliRunner().invoke(app.app, [*line, str(file)])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert "Which method should I take?" in page
    assert ">mine<" in page
    assert (tmp_path / "figures" / "method-ranks.png").stat().st_size > 1000
    rows = (tmp_path / "figures" / "method-ranks.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * len(QUICK_CELLS) * leaderboard.QUICK_SEEDS


@pytest.mark.parametrize("cell", [c for c in CELLS if c.data == "digits"], ids=lambda c: c.slug)
def test_there_are_enough_samples_for_every_seed(cell, samples):
    for seed in range(SEEDS):
        assert len(split_rows(cell, samples, seed)) == cell.agents


def test_cells_are_of_all_kinds():
    assert {cell.split for cell in CELLS} >= {"iid", "dirichlet", "classes"}
    assert {cell.limit for cell in CELLS} == {"l1", "box", "groups", "fairness"}
    tables = {"swissmetro", "electricity"}
    assert {cell.data for cell in CELLS} == {"mnist", "cifar10", "digits", *tables}
    assert {cell.model for cell in CELLS} == {"linear", "network"}
    assert len({cell.slug for cell in CELLS}) == len(CELLS)


def test_a_method_for_networks_alone_has_no_rank():
    cells = (TINY, TINY_NETWORK)
    runs = [scores(cell, name, value) for cell in cells for name, value in (("a", 0.9), ("b", 0.8))]
    runs.append(scores(TINY_NETWORK, "FedRep", 0.95))
    found = MethodResults(tuple(runs))
    assert found.mean_ranks() == {"a": 1.0, "b": 2.0}
    assert found.methods == ("a", "b", "FedRep")
    assert found.methods_in(TINY) == ("a", "b")
    assert found.methods_in(TINY_NETWORK) == ("FedRep", "a", "b")
    assert found.target(TINY_NETWORK) == pytest.approx(0.95 * 0.95)
    assert "FedRep" not in methods_for(TINY)
    searched = sum(len(methods_for(cell)) - 1 for cell in cells)
    without = sum(num_rounds(cell, 2, 0) for cell in cells)  # of the defaults
    assert total_rounds(cells, 2) == num_rounds(TINY, 2) * searched + without


def test_a_network_of_a_table_is_an_error(samples):
    table = replace(samples, image_shape=None)
    with pytest.raises(ValueError, match="a network needs images, got a table"):
        score_method("FedAvg", TINY_NETWORK, table, 1)


def test_the_report_is_built_from_a_saved_leaderboard(tmp_path, monkeypatch):
    kept = {name: leaderboard._METHODS[name] for name in (OURS, "FedAvg")}
    monkeypatch.setattr(leaderboard, "_METHODS", kept)
    found = run_leaderboard(tmp_path, cells=(TINY,), seeds=2, workers=1)
    file = tmp_path / "saved.json"
    replace(found, command="pcfed reproduce methods").save(file)
    assert MethodResults.load(file) == replace(found, command="pcfed reproduce methods")
    monkeypatch.setattr(reproduce.leaderboard, "run_leaderboard", None)
    line = ["reproduce", "methods", "--from", str(file), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app.app, line)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert ">FedAvg<" in page
    assert "on the whole test set" not in page
    wrong = CliRunner().invoke(app.app, ["reproduce", "rates", *line[2:]])
    assert "--from: methods must be among the experiments" in str(wrong.exception)
    for option in (["--quick"], ["--method", "x.py"]):
        wrong = CliRunner().invoke(app.app, [*line, *option])
        assert f"--from: its results are not computed again, got {option[0]}" in str(
            wrong.exception
        )


def test_the_report_says_how_its_results_were_computed(tmp_path):
    versions = {"python": "3.99.0", "pcfed": "9.8.7", "numpy": "9.9.9"}
    runs = (scores(TINY, "a", 0.9), scores(TINY, "b", 0.8))
    file = tmp_path / "saved.json"
    MethodResults(runs, "pcfed reproduce methods --seeds 2", versions).save(file)
    line = ["reproduce", "methods", "--seeds", "7", "--from", str(file), "--out", str(tmp_path)]
    done = CliRunner().invoke(app.app, line)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    for each in ("pcfed reproduce methods --seeds 2", *versions.values(), "seeds 2"):
        assert each in text
    for each in ("seeds 7", np.__version__, platform.python_version(), "this call"):
        assert each not in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: replace(found, runs=()), "there are no runs in it"),
        (
            lambda found: replace(found, runs=(replace(found.runs[0], scores=()),)),
            "a has no scores",
        ),
        (
            lambda found: replace(
                found, runs=(replace(found.runs[0], scores=(SeedScore((), 0, 0, (), 0, 0),)),)
            ),
            "a score in it is of no agent",
        ),
    ],
)
def test_a_file_without_scores_is_one_sentence(change, reason, tmp_path):
    change(MethodResults((scores(TINY, "a", 0.9),))).save(tmp_path / "saved.json")
    line = ["reproduce", "methods", "--from", str(tmp_path / "saved.json")]
    wrong = CliRunner().invoke(app.app, line)
    assert f"is not a valid leaderboard: {reason}" in str(wrong.exception)


def test_findings_are_those_of_the_numbers():
    cells = [replace(TINY, agents=k) for k in range(3, 17)]
    table = {OURS: 0.9, "Ditto": 0.85, ALONE: 0.7, "d": 0.6}
    runs = [scores(cell, name, value) for cell in cells for name, value in table.items()]
    runs += [replace(scores(cell, DEFAULTS, 0.88), num_trials=0) for cell in cells]
    far = replace(scores(TINY, "", 0.4).scores[0], infeasibility=2.5, shared=SharedScore(0.5, 2.5))
    inside = replace(far, infeasibility=1e-5, shared=SharedScore(0.3, 1e-5))
    runs += [replace(scores(cell, "ProxAL", 0.4), scores=(far, inside)) for cell in cells]
    diverged = SeedScore((0.0, 0.0), math.inf, 0.0, (), 0.0, 1.0)
    runs[3] = replace(runs[3], scores=(runs[3].scores[0], diverged))
    results = MethodResults(tuple(runs))
    rank, wilcoxon, alone, ours, default, outside, shared, last = method_findings(results)
    assert rank.startswith("PCFedSplit has the best mean rank, 1.0 of 5. Nemenyi's test")
    assert rank.endswith("from alone, d and ProxAL, and not from Ditto.")
    p = f"{results.holm(OURS)['Ditto']:.2g}"
    assert wilcoxon.endswith(f"it from Ditto ({p}), alone ({p}), d ({p}) and ProxAL ({p}).")
    assert float(p) < 0.01
    assert alone.endswith(
        ": PCFedSplit (14) and Ditto (14). In half of them or fewer: d (0) and ProxAL (0)."
    )
    assert ours.startswith("PCFedSplit is 5.0 points more accurate than Ditto (mean over cells")
    assert default.startswith("“PCFedSplit, defaults” is 2.0 points less accurate than PCFedSplit")
    assert outside.startswith(
        "Before they are projected, models are outside their sets by up to: ProxAL 2.5."
    )
    assert "in 14 of 28 trainings; the largest distance is 2.5. Where it is, " in shared
    assert shared.endswith("its mean accuracy is 30.0 %.")
    assert last == (
        "Trainings of d have diverged and have the score 0, which lowers its mean: in the cell "
        f"{cells[0].title} its accuracies are 60.0, 0.0 %."
    )
    assert DEFAULTS not in results.mean_ranks()
    section = methods_section(results)
    (chart,) = (each for each in section.blocks if isinstance(each, ChartGroup))
    assert set(chart.styles) == {*table, "ProxAL"}
    assert chart.charts[0].caption.endswith(f"Without a rank: {DEFAULTS}.")


def test_wilcoxon_s_tests_with_holm_s_correction():
    cells = [replace(TINY, agents=k) for k in range(3, 17)]
    rng = np.random.default_rng(0)
    table = {"b": rng.normal(0.02, 0.03, 14), "c": rng.normal(0.03, 0.03, 14), "d": np.zeros(14)}
    runs = [
        scores(cell, name, 0.5 - change[i])
        for i, cell in enumerate(cells)
        for name, change in {"a": np.zeros(14), **table}.items()
    ]
    found = MethodResults(tuple(runs)).holm("a")
    b, c = (stats.wilcoxon(table[name]).pvalue for name in "bc")
    assert c < b < 0.05
    assert found == pytest.approx({"c": 3 * c, "b": max(2 * b, 3 * c), "d": 1.0})


def test_the_ends_of_grids_are_counted():
    grid = ("step 0.1, prox 2", "step 1e-05", "step 0.3, prox 2", "step 0.03, prox 1")
    cells = [replace(TINY, agents=k) for k in range(3, 8)]
    taken = [grid[1], grid[1], grid[2], grid[0], grid[3]]
    runs = [
        replace(scores(cell, "a", 0.9), trial=trial, trials=grid)
        for cell, trial in zip(cells, taken, strict=True)
    ]
    runs += [scores(cell, "b", 0.8) for cell in cells]
    results = MethodResults(tuple(runs))
    assert results.grid_ends("a") == {"step": (4, 2, 1, 5)}  # not every trial has a prox
    assert results.grid_ends("b") == {}


def test_files_without_the_trials_of_a_search_can_be_loaded(tmp_path):
    contents = scores(TINY, "a", 0.9)._to_json()
    del contents["trials"]
    assert MethodScores._from_json(contents) == scores(TINY, "a", 0.9)


def test_in_every_cell_of_the_saved_results_the_limits_bind():
    results = MethodResults.load(DOCS / "methods_results.json")
    for cell in results.cells:
        assert max(results.infeasibility(cell, name) for name in results.methods_in(cell)) > 0.1


def test_the_tables_of_the_documentation_are_those_of_the_saved_results():
    results = MethodResults.load(DOCS / "methods_results.json")
    assert results.cells == CELLS
    assert all(len(each.scores) == SEEDS for each in results.runs)
    pictures = runpy.run_path(str(DOCS / "methods_pictures.py"))
    page = (DOCS / "which-method.md").read_text("utf-8")
    assert pictures["with_tables"](page, pictures["tables"](results)) == page
    assert f"| {results.methods[0]} | " in page
