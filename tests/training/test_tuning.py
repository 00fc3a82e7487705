"""Cross-validation finds settings that are good on other rows, and agents only send sums."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pcfed import Agent, PCFedSplit, Problem, run
from pcfed.config.toml_edit import set_value
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.sets import Blocks, Box, Intersection, L1Ball, L2Ball, Simplex, Translated, WholeSpace
from pcfed.training import build_setup, load_config, prepare
from pcfed.training.example import write_example
from pcfed.training.tuned_config import TuningCache, cross_validation, find_coupling, tuned_text
from pcfed.training.tuning import (
    Candidate,
    CandidateScore,
    CrossValidation,
    FoldScores,
    choose,
    compare_budgets,
    draw_folds,
    grid,
    rank,
    scale_budget,
    send_differences,
    send_scores,
    tune,
)
from tests.simulation.test_run import same
from tests.training.folders import OWN_CONFIG, folder_with

FREE = Candidate(0.5, 0.1, "free")

# -- what agents send ---------------------------------------------------------------------------


def test_by_hand():
    scores = np.array([[0.5, 1.0], [0.0, 0.5]])
    sent = send_scores(scores, np.array([[1.0, 3.0], [2.0, 2.0]]))
    # var = 0.125 for both candidates, over two folds
    assert sent.tolist() == [1, 0.75, 0.25, 2, 2, 0.0625, 0.0625]
    assert send_differences(scores, best=0).tolist() == [0, 0]  # the difference is always 0.5
    assert send_scores(np.empty((2, 0)), np.empty((2, 0))).tolist() == [0] * 7


def test_only_sums_leave_agents(monkeypatch):
    """The ranking is a function of the two sums: agents may be exchanged for others with them."""
    rng = np.random.default_rng(0)
    sums = {}

    def ranking(results):
        sums.clear()
        monkeypatch.setattr("pcfed.training.tuning.send_scores", recorded("scores", send_scores))
        monkeypatch.setattr(
            "pcfed.training.tuning.send_differences", recorded("differences", send_differences)
        )
        return rank(results, [np.arange(3)] * 4)

    def recorded(name, send):
        def call(*arguments):
            vector = send(*arguments)
            assert vector.ndim == 1
            sums[name] = sums.get(name, 0) + vector
            return vector

        return call

    scores, losses = rng.random((2, 5, 4, 3))
    candidates = grid()[:5]
    order = rng.permutation(4)
    results = dict(zip(candidates, map(FoldScores, scores, losses), strict=True))
    other = dict(zip(candidates, map(FoldScores, scores[:, order], losses[:, order]), strict=True))
    found = ranking(results)
    first = dict(sums)
    assert {name: len(each) for name, each in first.items()} == {"scores": 16, "differences": 5}
    for mine, theirs in zip(found, ranking(other), strict=True):
        assert mine.candidate == theirs.candidate
        assert mine.score == pytest.approx(theirs.score)
        assert mine.difference_error == pytest.approx(theirs.difference_error)
    by_candidate = {each.candidate: each for each in found}
    mean = first["scores"][1:6] / first["scores"][0]
    assert [by_candidate[each].score for each in candidates] == pytest.approx(mean.tolist())


def test_agents_without_folds_and_divergence():
    bad = FoldScores(np.full((2, 2), math.nan), np.full((2, 2), math.nan))
    good = FoldScores(np.array([[1.0, 0.5], [math.nan] * 2]), np.ones((2, 2)))
    folds = [np.arange(2), np.arange(0)]
    first, last = rank({FREE: bad, Candidate(1, 1, "free"): good}, folds)
    assert first.score == 0.75
    assert math.isnan(last.score)
    assert not last.is_equally_good
    with pytest.raises(ValueError, match="must train to finite models, got none"):
        rank({FREE: bad}, folds)
    with pytest.raises(ValueError, match=r"must have 2 rows for training, .* got none; add data"):
        rank({FREE: good}, [np.arange(0)] * 2)


def test_the_choice_within_one_standard_error():
    def scored(candidate, difference, error):
        return CandidateScore(candidate, 1 - difference, 0.1, 0.0, difference, error)

    best = scored(Candidate(1, 0.01, "free"), 0, 0)
    strong = scored(Candidate(0, 1, "average"), 0.02, 0.03)
    assert choose([best, strong, scored(FREE, 0.02, 0.02)]).candidate == FREE
    assert choose([best, strong, scored(FREE, 0.03, 0.02)]) is strong
    assert choose([best, scored(Candidate(0, 1, "average"), 0.04, 0.03)]) is best


# -- folds and the grid -------------------------------------------------------------------------


def test_no_class_vanishes_and_every_row_is_scored_once():
    classes = np.array([0] * 9 + [1] * 2 + [2])
    folds = draw_folds(4, 12, classes, np.random.default_rng(0))
    assert folds[11] == -1  # the only row of its class
    assert sorted(np.bincount(folds[:11])) == [2, 3, 3, 3]
    for f in range(4):
        assert set(classes[folds != f]) == {0, 1, 2}


@pytest.mark.parametrize(("rows", "expected"), [(1, [-1]), (2, [0, 1]), (3, [0, 1, 2])])
def test_few_rows(rows, expected):
    assert sorted(draw_folds(4, rows, None, np.random.default_rng(0))) == expected


def test_grid():
    found = grid()
    assert len(set(found)) == len(found) == 16
    assert FREE in found
    assert {each.center for each in found if each.personalization == 1} == {"free"}
    assert {each.center for each in found if each.personalization == 0} == {"average"}
    assert grid([0, 1], [0.1], ["average"]) == (
        Candidate(0, 0.1, "average"),
        Candidate(1, 0.1, "average"),
    )
    assert grid([0], [0]) == ()


# -- losses on some of the samples --------------------------------------------------------------


@pytest.mark.parametrize("kind", [LeastSquares, LogisticRegression, SoftmaxRegression])
def test_losses_on_some_samples(kind):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(9, 3)), rng.integers(2, size=9)
    options = {"l2": 0.1, "intercept": True} | ({"classes": 2} if kind is SoftmaxRegression else {})
    whole, rows = kind(X, y, **options), [7, 1, 2]
    whole.smoothness()  # is kept in the loss, and must not be in that of fewer samples
    part, expected = whole.take_samples(rows), kind(X[rows], y[rows], **options)
    x = rng.normal(size=whole.n)
    assert part.size == 3
    assert part.value(x) == pytest.approx(expected.value(x))
    assert part.gradient(x) == pytest.approx(expected.gradient(x))
    assert part.smoothness() == pytest.approx(expected.smoothness())
    assert part.accuracy(x) == expected.accuracy(x)
    if kind is not LeastSquares:
        assert whole.sample_classes.tolist() == y.tolist()
    else:
        assert part.mean_squared_error(x) / part.target_variance == pytest.approx(
            1 - part.accuracy(x)
        )


# -- the choice is good on other rows -----------------------------------------------------------


def true_score(problem, candidate):
    """The score on held-out rows, trained on all others."""
    agents = [
        replace(each, coupling=candidate.coupling, personalization=candidate.personalization)
        for each in problem.agents
    ]
    solved = run(
        Problem(agents, candidate.center), PCFedSplit(), rounds=30, local_steps=10, eval_every=30
    )
    pairs = zip(agents, solved.models, strict=True)
    return np.mean([each.test.accuracy(x) for each, x in pairs])


def classification(rng, num_agents, rows, *, same_task):
    w = 3 * rng.normal(size=10)
    agents = []
    for _ in range(num_agents):
        own = w if same_task else 3 * rng.normal(size=10)
        X = rng.normal(size=(rows + 1000, 10))
        y = rng.random(len(X)) < 1 / (1 + np.exp(-X @ own))
        losses = [LogisticRegression(X[part], y[part]) for part in (slice(rows), slice(rows, None))]
        agents.append(Agent(losses[0], L2Ball(20), 0.1, test=losses[1]))
    return Problem(agents)


@pytest.mark.parametrize(("rows", "same_task"), [(150, False), (15, True)])
def test_own_models_where_tasks_differ_and_shared_ones_where_rows_are_few(rows, same_task):
    problem = classification(np.random.default_rng(1), 6, rows, same_task=same_task)
    found = tune(CrossValidation(problem))
    fine = grid([0, 0.5, 1], [0.01, 0.03, 0.1, 0.3, 1, 10])
    best = max(true_score(problem, each) for each in fine)
    assert true_score(problem, found.chosen.candidate) >= best - 0.01
    # The choice matters: the opposite one is much worse.
    opposite = Candidate(1, 0.01, "free") if same_task else Candidate(0, 1, "average")
    assert true_score(problem, opposite) < best - 0.02


def test_the_example_within_one_point(tmp_path):
    write_example(tmp_path)
    config = load_config(tmp_path / "train.toml")
    setup = build_setup(config)
    found = tune(cross_validation(config, setup))
    fine = grid([0, 0.5, 1], [0.01, 0.03, 0.1, 0.3, 1])
    best = max(true_score(setup.problem, each) for each in fine)
    assert true_score(setup.problem, found.chosen.candidate) >= best - 0.01


def test_numbers_and_agents_with_few_rows():
    rng = np.random.default_rng(0)
    agents = []
    for rows in (1, 2, 30, 40):
        X = rng.normal(size=(rows, 3))
        agents.append(Agent(LeastSquares(X, X @ [1, 2, 3] + 5), WholeSpace(), 0.1))
    found = tune(CrossValidation(Problem(agents)), grid([1], [0.01, 1]))
    assert found.score_name == "R²"
    assert all(math.isfinite(each.score) for each in found.ranking)


def test_known_results_are_not_computed_again(monkeypatch):
    problem = classification(np.random.default_rng(0), 2, 20, same_task=True)
    known = {}
    first = tune(CrossValidation(problem), grid([1], [0.1, 1]), known=known)
    monkeypatch.setattr(CrossValidation, "evaluate", lambda *_, **__: pytest.fail("again"))
    again = tune(CrossValidation(problem), grid([1], [0.1, 1]), known=known)
    assert again.ranking == first.ranking
    assert again.chosen == first.chosen


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("convex", "expected"),
    [
        (L1Ball(3), "L1Ball(radius=6.0)"),
        (Simplex(1), "Simplex(total=2.0)"),
        (Box(0, 1), "None"),
        (Intersection(Box(0, 1), L2Ball(1)), "L2Ball(radius=2.0)"),
        (Blocks({(0, 2): L1Ball(1)}), "Blocks({(0, 2): L1Ball(radius=2.0)})"),
        (Translated(L1Ball(1), [1.0, 2.0]), "Translated(set=L1Ball(radius=2.0)"),
    ],
)
def test_budgets_are_scaled(convex, expected):
    assert expected in repr(scale_budget(convex, 2.0))


def test_changes_of_budgets():
    base, more = (FoldScores(np.array([[s, s], [s, s + 0.2]]), np.ones((2, 2))) for s in (0.5, 0.6))
    (change,) = compare_budgets(base, {2.0: more}, [np.arange(2)] * 2)
    assert (change.factor, change.change) == (2.0, pytest.approx(0.1))
    assert change.error == pytest.approx(0)


# -- files --------------------------------------------------------------------------------------


def test_agents_keep_what_differs(tmp_path):
    text = OWN_CONFIG.replace("{l1 = 5}", "{l1 = 5}  # mine\ncoupling = 0.05\npersonalization = 1")
    text += "personalization = 0.5\ncoupling = 0.1\n"
    config = load_config(folder_with(tmp_path, config=text))
    validation = cross_validation(config, build_setup(config))
    assert validation.couplings(2.0) == [1.0, 2.0]
    assert validation.keeps_personalization == [True, False]
    new, notes = tuned_text(text, config, ["north", "south"], Candidate(0.0, 2.0, "average"))
    expected = text.replace("0.05", "1.0").replace("personalization = 0.5", "personalization = 0.0")
    expected = expected.replace("coupling = 0.1", "coupling = 2.0")
    expected = expected.replace("batch = 1.0", 'batch = 1.0\ncenter = "average"')
    assert new == expected + "\n[defaults]\npersonalization = 0.0\ncoupling = 2.0\n"
    assert notes == [
        "The couplings of 'north' were multiplied by the same factor as that of [defaults].",
        "Agents' own values were kept: personalization of north.",
    ]


def test_without_a_factor_couplings_are_kept(tmp_path):
    text = OWN_CONFIG + 'coupling = 3\n[defaults]\ncoupling = "auto"\n'
    config = load_config(folder_with(tmp_path, config=text))
    assert cross_validation(config, build_setup(config)).couplings(2.0) == [2.0, 3.0]
    new, notes = tuned_text(text, config, ["north", "south"], FREE)
    assert "coupling = 3\n" in new
    assert notes == ["Agents' own values were kept: coupling of south."]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[defaults] # x\ncoupling = 1 # y\n", "[defaults] # x\ncoupling = 2.5 # y\n"),
        ("[defaults]\r\na = 1\r\n", "[defaults]\r\na = 1\r\ncoupling = 2.5\r\n"),
        ("defaults = {a = '}'}", "defaults = {coupling = 2.5, a = '}'}"),
        ("defaults = {}", "defaults = {coupling = 2.5}"),
        ("defaults.a = '''\n[x]\n'''\n", "defaults.coupling = 2.5\ndefaults.a = '''\n[x]\n'''\n"),
        ("'defaults' . \"coupling\" = 1", "'defaults' . \"coupling\" = 2.5"),
        ("a = [1, # ]\n {coupling = 3}]", None),
        ("[[a]]\ncoupling = 1\n[[a]]\ncoupling = 2", None),
        ("[defaults.b]\ncoupling = 1\n", None),
        ("", "[defaults]\ncoupling = 2.5\n"),
    ],
)
def test_one_value_of_toml_is_changed(before, after):
    new = set_value(before, ("defaults", "coupling"), 2.5)
    if after is None:
        after = f"{before.rstrip()}\n\n[defaults]\ncoupling = 2.5\n"
    assert new == after


def test_the_record_of_a_search(tmp_path):
    scores = FoldScores(np.array([[0.5, math.nan]]), np.array([[1.0, math.nan]]))
    TuningCache("abc", {(FREE, 2.0): scores}).save(tmp_path / "x.json")
    loaded = TuningCache.load(tmp_path / "x.json")
    assert loaded.digest == "abc"
    assert loaded.known() == {}
    assert np.array_equal(loaded.known(2.0)[FREE].scores, scores.scores, equal_nan=True)
    assert "NaN" not in (tmp_path / "x.json").read_text()


# -- coupling = "auto" --------------------------------------------------------------------------

AUTO = OWN_CONFIG.replace("batch = 1.0", "rounds = 8\nsave_every = 2") + (
    'coupling = "auto"\n[defaults]\ncoupling = "auto"\n'
)


def test_auto_trains_and_resumes_to_the_same_bits(tmp_path, monkeypatch):
    path, messages = folder_with(tmp_path, config=AUTO), []
    whole = prepare(path, tmp_path / "whole").run(notify=messages.append)
    (said,) = (each for each in messages if 'coupling = "auto" is' in each)
    assert said in (tmp_path / "whole" / "log.txt").read_text()
    found = float(said.split(" is ")[1].split(":")[0])

    def stop(evaluation):
        if evaluation.record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(path, tmp_path / "run").run(callbacks=[stop])
    monkeypatch.setattr("pcfed.training.trainer.find_coupling", lambda *_: pytest.fail("again"))
    resumed = prepare(path, tmp_path / "run")
    same(whole, resumed.run())
    saved = load_saved(tmp_path / "run")
    assert {saved["agents"][name]["coupling"] for name in ("north", "south")} == {found}
    monkeypatch.undo()
    number = AUTO.replace('"auto"', str(found))
    same(whole, prepare(folder_with(tmp_path, config=number), tmp_path / "number").run())


def load_saved(run):
    from pcfed.training.directory import RunMetadata

    return RunMetadata.load(run / "config.json").config


def test_auto_of_one_agent_changes_only_its_coupling(tmp_path):
    text = AUTO.replace('[defaults]\ncoupling = "auto"', "[defaults]\ncoupling = 0.7")
    config = load_config(folder_with(tmp_path, config=text))
    setup = build_setup(config)
    found = find_coupling(config, setup, [False, True])
    prepare(config.path, tmp_path / "run").run()
    saved = load_saved(tmp_path / "run")["agents"]
    assert saved["north"]["coupling"] == 0.7
    assert saved["south"]["coupling"] == found.chosen.candidate.coupling


def test_torch_modules(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "nets.py").write_text(
        "import torch\ndef Net():\n    return torch.nn.Linear(2, 1)\n"
    )
    text = AUTO.replace('"least-squares"', '"torch"\nmodule = "nets:Net"\nloss = "mse"')
    text = text.replace("rounds = 8", "rounds = 2").replace("{l1 = 5}", '"l1(5)"')
    path = folder_with(tmp_path, config=text)
    assert prepare(path, tmp_path / "run", allow_import=True).run().status == "finished"
