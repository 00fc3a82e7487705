"""The experiment on personal models: independent solutions, separate samples, saved scores."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from typer.testing import CliRunner

from pcfed.cli import app, reproduce
from pcfed.data.tables import Table
from pcfed.experiments import personal as personal_models
from pcfed.experiments import personal_cells
from pcfed.experiments.claims import claims
from pcfed.experiments.figures import PERSONAL_ACCURACY, write_figures
from pcfed.experiments.personal import (
    ALONE,
    DITTO,
    EARLIER,
    INSIDE,
    METHODS,
    OURS,
    OWN,
    PAPER,
    SHARED,
    CellScores,
    Interval,
    PersonalResults,
    Score,
    num_rounds,
    run_personal,
    solve_joint,
    solve_local,
    solve_shared,
)
from pcfed.experiments.personal_cells import (
    CELLS,
    CHOICES,
    QUICK_CELLS,
    Cell,
    Samples,
    limits,
    load_samples,
    split_rows,
)
from pcfed.losses import LeastSquares, SoftmaxRegression
from pcfed.report import write_report
from pcfed.sets import GroupL1Ball, L1Ball, LinfBall

TINY = replace(QUICK_CELLS[0], agents=3, search_rounds=2, rounds=3)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("personal")
    cells = (TINY, replace(TINY, split="classes", limit="groups"))
    return out, run_personal(out, cells=cells, seeds=2, workers=1)


def travel_samples() -> Samples:
    """Return 1,000 travellers with nine choices each on 25 relations."""
    rng = np.random.default_rng(0)
    travellers = np.repeat(np.arange(1000), CHOICES)
    return Samples(
        rng.normal(size=(len(travellers), 4)).astype(np.float32),
        rng.integers(3, size=len(travellers)),
        3,
        np.arange(4),
        persons=travellers,
        relations=travellers % 25,
    )


# -- solutions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feasible", "norm"),
    [
        (L1Ball(0.8), lambda x: cp.norm1(x)),
        (LinfBall(0.8), lambda x: cp.norm_inf(x)),
        (GroupL1Ball([0, 0, 1, 1, 2], 0.8), lambda x: sum(map(cp.norm, (x[:2], x[2:4], x[4:])))),
    ],
)
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_local_problem_of_ditto_agrees_with_cvxpy(feasible, norm, weight):
    rng = np.random.default_rng(1)
    X, y, center = rng.normal(size=(30, 5)), rng.normal(size=30), rng.normal(size=5)
    solved = solve_local(
        LeastSquares(X, y), feasible, center, weight, iterations=5000, tolerance=1e-12
    )
    x = cp.Variable(5)
    squares = cp.sum_squares(X @ x - y) / 60 + weight / 2 * cp.sum_squares(x - center)
    precise = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
    cp.Problem(cp.Minimize(squares), [norm(x) <= 0.8]).solve(solver=cp.CLARABEL, **precise)
    assert feasible.contains(solved)
    np.testing.assert_allclose(solved, x.value, atol=1e-6)


def test_the_shared_model_minimises_the_mean_loss():
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(20, 3)), rng.normal(size=20)) for _ in range(4)]
    early, late = solve_shared([LeastSquares(*each) for each in data], (1, 400))
    X, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    best = np.linalg.lstsq(X, y)[0]
    np.testing.assert_allclose(late, best, atol=1e-6)
    assert np.linalg.norm(early - best) > 1e-3


def test_with_losses_at_own_models_both_centres_are_one_problem():
    rng = np.random.default_rng(3)
    losses = [LeastSquares(rng.normal(size=(20, 3)), rng.normal(size=20)) for _ in range(4)]
    sets = [L1Ball(radius) for radius in (0.1, 0.2, 0.5, 5.0)]
    found = [
        solve_joint(losses, sets, 0.1, theta=1.0, center=center, rounds=200)
        for center in ("average", "free")
    ]
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-7)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-7)
    np.testing.assert_allclose(found[0][1], found[0][0].mean(axis=0), atol=1e-7)


# -- samples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", QUICK_CELLS, ids=lambda cell: cell.slug)
@pytest.mark.parametrize("seed", range(3))
def test_validation_and_test_images_are_never_for_fitting(cell, seed):
    samples = load_samples(cell.data)
    for rows in split_rows(cell, samples, seed):
        parts = (rows.fit, rows.validation, rows.test)
        assert [len(part) for part in parts] == [32, 8, 30]
        assert len(np.unique(np.concatenate(parts))) == 70
        assert samples.in_test_part[rows.test].all()
        assert not samples.in_test_part[rows.train].any()
        if cell.split == "classes":
            assert set(samples.labels[rows.test]) <= set(samples.labels[rows.train])


@pytest.mark.parametrize("cell", [c for c in CELLS if c.data == "swissmetro"], ids=lambda c: c.slug)
def test_choices_of_a_relation_are_split_by_traveller(cell):
    samples = travel_samples()
    agents = split_rows(cell, samples, 0)
    assert len(agents) == cell.agents
    for rows in agents:
        parts = [set(samples.persons[p].tolist()) for p in (rows.fit, rows.validation, rows.test)]
        if cell.split == "travellers":
            assert parts[0] == parts[1] == parts[2]
            assert [len(rows.fit), len(rows.validation), len(rows.test)] == [4, 2, 3]
            assert len(np.unique(np.concatenate([rows.train, rows.test]))) == CHOICES
        else:
            assert all(parts)
            assert sum(map(len, parts)) == len(set.union(*parts))
            assert len(rows.train) <= cell.samples


def test_too_many_samples_of_a_class_are_refused():
    cell = replace(TINY, tests=3000)
    with pytest.raises(ValueError, match="take fewer samples per agent"):
        split_rows(cell, load_samples("digits"), 0)
    with pytest.raises(ValueError, match="the split needs a test part, got data without"):
        split_rows(cell, travel_samples(), 0)


def test_group_budgets_take_all_weights_of_a_feature_together():
    samples = travel_samples()
    groups = limits(replace(TINY, limit="groups"), samples)
    assert [each.radius for each in groups] == pytest.approx([2.0, 40**0.5, 20.0])
    assert groups[0].groups.reshape(3, 4).tolist() == [[0, 1, 2, 3]] * 3
    assert isinstance(limits(replace(TINY, limit="box"), samples)[0], LinfBall)


def test_pixels_are_pooled():
    fine, coarse = load_samples("digits").features, load_samples("digits", 2).features
    assert coarse.shape[1] == 16
    square = fine.reshape(-1, 8, 8)[:, :2, :2].mean(axis=(1, 2))
    np.testing.assert_allclose(coarse[:, 0], square, rtol=1e-6)


def test_every_data_set_split_and_limit_is_in_a_cell():
    assert {cell.data for cell in CELLS} == {"mnist", "cifar10", "swissmetro"}
    assert {cell.split for cell in CELLS} == {"dirichlet", "classes", "travellers", "relations"}
    assert {cell.limit for cell in CELLS} == {"l1", "box", "groups"}
    assert len({cell.slug for cell in CELLS}) == len(CELLS)


# -- runs ---------------------------------------------------------------------------------------


def test_models_are_in_their_sets_and_scores_are_loaded_again(measured, monkeypatch):
    out, results = measured
    for run in results.runs:
        assert [score.method for score in run.scores] == list(METHODS)
        assert all(run.of(method).infeasibility <= 1e-6 for method in INSIDE)
        assert run.of(SHARED).infeasibility > 0.1
        assert run.of(OURS).coupling in TINY.couplings
    files = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    seen = []
    again = run_personal(
        out, cells=results.cells, seeds=2, workers=1, on_progress=lambda s: seen.append(s.seed)
    )
    assert again == results
    assert sorted(seen) == [0, 0, 1, 1]
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == files


def test_an_interrupted_run_gives_the_same_scores(measured, tmp_path):
    _, results = measured
    run_personal(tmp_path, cells=results.cells[:1], seeds=1, workers=1)
    assert run_personal(tmp_path, cells=results.cells, seeds=2, workers=1) == results


def test_a_changed_cell_is_run_again(measured):
    out, _ = measured
    changed = replace(TINY, couplings=(0.1,))
    again = personal_models._load_or_run(out, changed, 0, None)
    assert again.cell == changed
    assert again.of(OURS).coupling == 0.1
    personal_models._load_or_run(out, TINY, 0, None)  # as it was, for the other tests


def test_couplings_are_chosen_without_test_samples(monkeypatch):
    samples = load_samples("digits")
    rows = split_rows(TINY, samples, 0)
    chosen = personal_models._Trial(TINY, samples, rows)
    used = []
    accuracy = SoftmaxRegression.accuracy
    monkeypatch.setattr(
        SoftmaxRegression,
        "accuracy",
        lambda self, *given: used.append(self) or accuracy(self, *given),
    )
    chosen._best(lambda weight: chosen._local(chosen.fit, chosen.shared_fit, weight))
    assert {id(each) for each in used} == {id(each) for each in chosen.validation}


# -- claims, figures, report --------------------------------------------------------------------


def scores_of(cell: Cell, seed: int, **changes: float) -> CellScores:
    """Return scores of 0.5 for all methods, changed by their names in the module."""
    values = dict.fromkeys(METHODS, 0.5)
    values |= {getattr(personal_models, name): value for name, value in changes.items()}
    return CellScores(
        cell,
        seed,
        tuple(Score(m, (value, value), 0.0, 0.1, value) for m, value in values.items()),
    )


@pytest.mark.parametrize(
    ("ours", "alone", "paper"),
    [
        ((0.6, 0.62, 0.61), "holds", "holds"),
        ((0.5, 0.5, 0.5), "holds", "does not hold"),
        ((0.45, 0.53, 0.5), "holds, but", "does not hold"),
        ((0.45, 0.58, 0.52), "holds", "holds, but"),
        ((0.4, 0.41, 0.42), "does not hold", "does not hold"),
    ],
)
def test_verdicts_follow_from_paired_intervals(ours, alone, paper):
    runs = tuple(scores_of(TINY, seed, OURS=value) for seed, value in enumerate(ours))
    found = {claim.claim: claim for claim in claims([], personal=PersonalResults(runs))}
    verdicts = {text: claim.verdict for text, claim in found.items()}
    assert verdicts[f"own models of {OURS} are at least as good as training alone"] == alone
    assert verdicts[f"own models of {OURS} are better than the paper's problem"] == paper
    best = f"{OURS} has the best mean rank of all methods inside the sets"
    assert verdicts[best] == ("holds" if np.mean(ours) >= 0.5 else "does not hold")


def test_the_first_measurement_is_compared_with_single_draws():
    near = {"PAPER": 0.64, "OWN": 0.74, "DITTO": 0.75, "OURS": 0.75, "ALONE": 0.71}
    runs = [scores_of(CELLS[0], k, **near, SHARED=0.87 + 0.02 * k, PROJECTED=0.1) for k in range(3)]
    found = [c for c in claims([], personal=PersonalResults(tuple(runs))) if "first" in c.claim]
    assert len(found) == len(EARLIER) + 1
    verdicts = {claim.measured.partition(":")[0]: claim.verdict for claim in found}
    assert verdicts[SHARED] == verdicts[PAPER] == verdicts[OWN] == "holds"
    assert verdicts[personal_models.PROJECTED] == "does not hold"
    assert verdicts[f"centre of {OURS}"] == "does not hold"


def test_intervals_are_those_of_student():
    found = Interval.of([1.0, 2.0, 3.0])
    assert (found.mean, found.low) == (2.0, pytest.approx(2.0 - 4.302653 / 3**0.5))
    assert str(Interval.of([0.5, 0.5])) == "0.500 (0.500 to 0.500)"
    assert Interval.of([0.5]).high == np.inf


def test_figures_data_and_report_are_written(measured, tmp_path):
    _, results = measured
    assert [path.stem for path in write_figures([], tmp_path, personal=results)] == [
        PERSONAL_ACCURACY
    ]
    rows = (tmp_path / f"{PERSONAL_ACCURACY}.csv").read_text().splitlines()
    assert len(rows) == 1 + len(results.runs) * len(METHODS)
    write_report([], tmp_path / "report.html", personal=results)
    page = (tmp_path / "report.html").read_text()
    assert "Models that are good for their owners" in page
    assert f"{results.accuracy(TINY, ALONE).mean:.3f}" in page
    assert f"{results.difference(TINY, DITTO, OURS).mean:+.3f}" in page


def test_the_command_writes_figures_report_and_claims(measured, monkeypatch):
    out, results = measured
    monkeypatch.setattr(reproduce, "QUICK_CELLS", results.cells)
    arguments = ["reproduce", "personal", "--quick", "--out", str(out), "--workers", "1"]
    done = CliRunner().invoke(app.app, arguments, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert (out / "figures" / f"{PERSONAL_ACCURACY}.pdf").exists()
    assert "at least as good as training alone" in (out / "report.html").read_text()
    assert num_rounds(TINY) == 5 * (2 * 2 + 3)


def test_electricity_is_split_by_customer():
    rng = np.random.default_rng(0)
    persons = np.repeat(np.arange(30), 12)[:-4]  # the last one has answered eight questions
    X = rng.normal(size=(len(persons), 3)).astype(np.float32)
    samples = Samples(X, rng.integers(4, size=len(X)), 4, np.arange(3), persons=persons)
    cell = Cell("electricity", "customers", "l1", (0.5, 5.0), agents=29)
    found = split_rows(cell, samples, 0)
    assert len(found) == 29
    for rows in found:
        assert [len(part) for part in (rows.fit, rows.validation, rows.test)] == [5, 3, 4]
        assert len(set(persons[np.concatenate([rows.train, rows.test])].tolist())) == 1
        assert len(set(np.concatenate([rows.train, rows.test]).tolist())) == 12
    assert not {29} & set(persons[np.concatenate([rows.train for rows in found])].tolist())


def test_electricity_has_one_sample_per_choice():
    columns = {name: np.zeros(12) for name in ("cl", "loc", "wk", "tod", "seas")}
    columns["pf"] = np.arange(12.0)
    columns["id"] = np.repeat([5.0, 5.0, 6.0], 4)
    chosen = np.full(12, "FALSE", object)
    chosen[[2, 4, 11]] = "TRUE"
    samples = personal_cells._electricity(Table("electricity", {**columns, "choice": chosen}))
    assert samples.labels.tolist() == [2, 0, 3]
    assert samples.persons.tolist() == [5, 5, 6]
    np.testing.assert_allclose(samples.features[1, :24:6], [0.4, 0.5, 0.6, 0.7], rtol=1e-6)
    assert samples.feature_groups.tolist() == [*range(6)] * 4 + [6]
