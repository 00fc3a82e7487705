"""Ordinary files with targets far from zero: intercepts by default, centred data, exact zeros."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pcfed.config.train_file import Model
from pcfed.report import write_training_report
from pcfed.sets import parse_set
from pcfed.training import Outcome, TrainedModels, prepare
from pcfed.training.saved_run import open_run
from pcfed.training.setup import intercept_bound
from pcfed.training.trained_models import project_with_zeros

COLUMNS = ("age", "year", "bmi", "income", "rooms", "noise")
MEANS = np.array([60.0, 2000.0, 25.0, 30.0, 3.0, 0.0])
SCALES = np.array([12.0, 5.0, 4.0, 10.0, 1.0, 1.0])
WEIGHTS = np.array([0.12, 0.0, -0.5, 0.0, 0.8, 0.0])
LIMITS = ("{l1 = 1.2}", "{l1 = 1.5}", "{box = [-0.6, 0.6]}", "{linf = 0.5}", "{l1 = 3}")


def write_towns(folder, limits=LIMITS, model="", data="", training="rounds = 100"):
    """Write five CSV files with a target around 20, and a configuration with these limits."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    tables = []
    for i, limit in zip(range(5), itertools.cycle(limits), strict=False):
        X = MEANS + SCALES * (0.3 * rng.normal(size=6) + rng.normal(size=(80, 6)))
        y = 20 + (X - MEANS) @ WEIGHTS + 0.5 * rng.normal(size=80)
        text = ",".join([*COLUMNS, "price"]) + "\n"
        rows = (",".join(map(repr, row)) for row in np.column_stack([X, y]).round(4).tolist())
        (folder / f"town{i}.csv").write_text(text + "\n".join(rows))
        tables.append(f'[agents.town{i}]\nfile = "town{i}.csv"\nconstraint = {limit}\n')
    (folder / "train.toml").write_text(
        f'[model]\nkind = "least-squares"\n{model}\n[data]\ntarget = "price"\n{data}\n'
        f"[training]\nlocal_only = false\n{training}\n" + "\n".join(tables)
    )
    return folder / "train.toml"


def test_five_ordinary_files_end_with_good_models(tmp_path):
    job = prepare(write_towns(tmp_path), tmp_path / "run")
    result = job.run()
    outcome = Outcome.load(job.directory.outcome)
    assert min(agent.score for agent in outcome.agents) > 0.5
    assert outcome.relative_gap < 0.01
    assert outcome.warnings == ()
    models = TrainedModels.load(job.directory.models)
    for i, agent in enumerate(job.setup.problem.agents):
        # Limits apply to the coefficients in the units of the files, and not to the intercept.
        assert job.setup.constraints[i].contains(models.models[i, :6])
        assert models.models[i, 6] != 0
        # The loss is of centred data; it scores what the model predicts in the files' units.
        table = np.loadtxt(tmp_path / f"town{i}.csv", delimiter=",", skiprows=1)
        predicted = models.predict(f"town{i}", table[:, :6])
        assert abs(predicted.mean() - table[:, 6].mean()) < 1.0
        residuals = table[:, 6] - predicted
        mean_squares = [
            loss.value(result.models[i]) * loss.size for loss in (agent.loss, agent.test)
        ]
        assert residuals @ residuals / 2 == pytest.approx(sum(mean_squares), rel=1e-9)


def test_without_an_intercept_such_files_are_hopeless(tmp_path):
    job = prepare(write_towns(tmp_path, model="intercept = false"), tmp_path / "run")
    job.run()
    assert job.setup.scaling is None
    outcome = Outcome.load(job.directory.outcome)
    assert np.mean([agent.score for agent in outcome.agents]) < 0.2


def test_centring_does_not_change_coefficients_or_sets(tmp_path):
    job = prepare(write_towns(tmp_path), tmp_path / "run")
    scaling, agents = job.setup.scaling, job.setup.problem.agents
    assert (scaling.scale == 1).all()
    assert 15 < scaling.target_mean < 25
    for agent, constraint in zip(agents, job.setup.constraints, strict=True):
        assert agent.constraint is constraint
    x = np.random.default_rng(0).normal(size=(2, 7))
    given = scaling.to_original_units(x)
    np.testing.assert_array_equal(given[:, :6], x[:, :6])
    np.testing.assert_allclose(scaling.to_standardized_units(given), x, rtol=1e-10)


# -- the bound ------------------------------------------------------------------------------------


def test_the_default_bound_by_hand():
    numbers, labels = Model(kind="least-squares"), Model(kind="logistic")
    targets = [np.array([1.0, 3.0]), np.array([5.0])]  # around 3: mean squares 2 and 4
    assert intercept_bound(numbers, targets, 3.0) == pytest.approx(10 * np.sqrt(3))
    assert intercept_bound(labels, [], 0.0) == 30.0
    given = Model(kind="least-squares", intercept_bound=7.0)
    assert intercept_bound(given, targets, 3.0) == 7.0
    without = Model(kind="least-squares", intercept=False)
    assert intercept_bound(without, targets, 3.0) is None
    assert intercept_bound(numbers, [np.full(3, 4.0)], 4.0) == 1.0
    assert intercept_bound(numbers, [np.array([-1e200, 1e200])], 0.0) is None


def test_agents_with_few_rows_do_not_make_the_bound_tight():
    """The objective has the same weight for each agent, however few its rows are."""
    numbers = Model(kind="least-squares")
    targets = [np.tile([-1.0, 1.0], 50_000), np.array([1000.0, 1000.0])]
    center = np.concatenate(targets).mean()
    best = np.mean([y.mean() - center for y in targets])
    assert (
        intercept_bound(numbers, targets, center) > 10 * best > 100 * np.concatenate(targets).std()
    )


def test_the_report_states_the_bound(tmp_path):
    job = prepare(write_towns(tmp_path, training="rounds = 3"), tmp_path / "run")
    job.run()
    bound = job.setup.problem.agents[0].intercept_bound
    run = open_run(tmp_path / "run")
    assert run.config.model.intercept_bound == bound
    write_training_report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "model.intercept_bound" in page
    assert str(bound) in page
    # The directory is still that of the file, in which the bound is automatic.
    assert prepare(tmp_path / "train.toml", tmp_path / "run").setup.digest == job.setup.digest


def test_an_intercept_at_its_bound_is_a_warning(tmp_path):
    """Agents with different targets, whose own models need intercepts of their own."""
    path = write_towns(tmp_path, model="intercept_bound = 1e-4")
    prepare(path, tmp_path / "run").run()
    found = Outcome.load(tmp_path / "run" / "outcome.json").warnings
    (first, *_) = [w for w in found if w.kind == "intercept at its bound"]
    assert "its intercept is at its bound of 0.0001; set model.intercept_bound to a larger" in (
        first.sentence
    )


# -- exact zeros ----------------------------------------------------------------------------------

SPARSE = {
    "l1": "{l1 = 0.6}",
    "l1 and l2": "{intersection = [{l1 = 0.6}, {l2 = 0.55}]}",
    "simplex": "{simplex = 0.6}",
    "polyhedron": '"intersection(nonnegative(), halfspace([1, 1, 1, 1, 1, 1], 0.6))"',
}


@pytest.mark.parametrize("standardize", ["true", "false"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", SPARSE)
def test_coefficients_are_zero_where_the_projection_sets_zero(name, dtype, standardize, tmp_path):
    data = f'standardize = {standardize}\ndtype = "{dtype}"\nheld_out = 0'
    prepare(write_towns(tmp_path, [SPARSE[name]], data=data), tmp_path / "run").run()
    models = TrainedModels.load(tmp_path / "run" / "models.npz")
    sizes = np.abs(models.models[:, :6])
    assert (sizes.sum(axis=1) > 0.6 - 1e-5).all()  # the limits bind
    zero = sizes == 0
    assert zero.any(axis=1).all()
    assert zero.sum() >= 10
    assert sizes[~zero].min() > 1e-4
    assert not np.signbit(models.models[zero.nonzero()]).any()


@pytest.mark.parametrize(
    "spec", ["simplex(1)", "l1(1)", "halfspace([1, 1, 1, 1], 1)", "box(0.5, 1)"]
)
def test_a_projection_keeps_zeros_only_where_that_is_feasible(spec):
    convex = parse_set(spec)
    x = np.array([0.0, 0.6, 0.4 - 1e-8, 0.0])
    found = project_with_zeros(convex, x)
    assert convex.contains(found)
    np.testing.assert_allclose(found, convex.project(x), atol=1e-7)
    assert (found[[0, 3]] == (0.5 if spec.startswith("box") else 0.0)).all()
    far = np.array([0.0, 5.0, -5.0, 0.0])  # here the projection moves the zeros
    np.testing.assert_allclose(project_with_zeros(convex, far), convex.project(far), atol=1e-12)
