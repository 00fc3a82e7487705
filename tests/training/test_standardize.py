"""Columns of any size: sums alone are shared, and sets stay those of what is delivered."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from pcfed.sets import Box, L1Ball, L2Ball, WholeSpace
from pcfed.standardize import Scaling, send_squares, send_totals
from pcfed.training import Outcome, TrainedModels, prepare
from tests.training.folders import SHARED_CONFIG, folder_with

SIZES = np.array([1000.0, 1.0, 0.01])
MEANS = np.array([5000.0, 0.0, -0.3])
WEIGHTS = np.array([0.002, -1.5, 90.0])
SETS = {"north": "l1(0.5)", "south": "box(-2, [0.001, 2, 50])", "west": "l2(20)"}
PARSED = {"north": L1Ball(0.5), "south": Box(-2, [0.001, 2, 50]), "west": L2Ball(20)}


def data(seed, rows=60):
    rng = np.random.default_rng(seed)
    X = MEANS + SIZES * rng.normal(size=(rows, 3))
    return X, X @ WEIGHTS + 4.0 + 0.5 * rng.normal(size=rows)


def config(folder, intercept, standardize=True):
    """A training of three agents with columns of very different sizes."""
    tables = []
    for i, (name, spec) in enumerate(SETS.items()):
        X, y = data(i)
        lines = (",".join(repr(float(v)) for v in (*row, t)) for row, t in zip(X, y, strict=True))
        (folder / f"{name}.csv").write_text("a,b,c,y\n" + "\n".join(lines))
        tables.append(
            f'[agents.{name}]\nfile = "{name}.csv"\nconstraint = "{spec}"\ncoupling = 0.5\n'
        )
    path = folder / "train.toml"
    path.write_text(
        f'model = {{kind = "least-squares", intercept = {str(intercept).lower()}}}\n'
        f'data = {{target = "y", held_out = 0, standardize = {str(standardize).lower()}}}\n'
        "training = {rounds = 800, local_steps = 3, local_only = false, eval_every = 800, "
        'center = "average"}\ndefaults = {personalization = 0}\n' + "".join(tables)
    )
    return path


def solved(intercept):
    """The optimum in the coordinates of the data, with the coupling in those of the training."""
    parts = [data(i) for i in range(3)]
    every = np.vstack([X for X, _ in parts])
    mean = every.mean(axis=0) if intercept else np.zeros(3)
    scale = np.sqrt(((every - mean) ** 2).mean(axis=0))
    w = [cp.Variable(3) for _ in parts]
    b = [cp.Variable() if intercept else 0.0 for _ in parts]
    hat = [cp.hstack([cp.multiply(scale, wi), bi + mean @ wi]) for wi, bi in zip(w, b, strict=True)]
    middle = sum(hat) / 3
    loss = 0
    for (X, y), own in zip(parts, hat, strict=True):
        Z = np.column_stack([(X - mean) / scale, np.full(len(X), float(intercept))])
        loss += cp.sum_squares(Z @ middle - y) / (2 * len(y)) + 0.25 * cp.sum_squares(own - middle)
    limits = [cp.norm1(w[0]) <= 0.5, w[1] >= -2, w[1] <= [0.001, 2, 50], cp.norm2(w[2]) <= 20]
    problem = cp.Problem(cp.Minimize(loss / 3), limits)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    return np.array(
        [[*wi.value, *([bi.value] if intercept else [])] for wi, bi in zip(w, b, strict=True)]
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_the_optimum_is_that_of_a_solver_in_the_coordinates_of_the_data(intercept, tmp_path):
    job = prepare(config(tmp_path, intercept), tmp_path / "run")
    job.run()
    given, best = TrainedModels.load(job.directory.models).models, solved(intercept)
    units = np.append(1 / SIZES, 1.0 if intercept else [])
    error = np.abs((given - best) / units).max() / np.abs(best / units).max()
    assert error < 1e-5
    for x, convex in zip(given, PARSED.values(), strict=True):
        assert convex.distance(x[:3]) <= 1e-14 * np.abs(x).max()
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.relative_gap is None or outcome.relative_gap < 0.01
    north = outcome.agents[0]
    assert north.constraint == "l1(0.5)"
    assert north.usage.share == np.abs(given[0, :3]).sum() / 0.5 <= 1 + 1e-15


def test_without_it_such_columns_are_hopeless_and_a_warning_says_so(tmp_path):
    job = prepare(config(tmp_path, False, standardize=False), tmp_path / "run")
    (warning,) = job.setup.warnings
    assert ": a is about" in warning
    assert warning.endswith("set data.standardize = true.")
    job.run()
    given, best = TrainedModels.load(job.directory.models).models, solved(False)
    assert np.abs((given - best) * SIZES).max() > 0.5 * np.abs(best * SIZES).max()


def test_only_sums_are_shared():
    matrices = [data(i, rows)[0] for i, rows in enumerate((5, 40, 2))]
    for X in matrices:
        totals = send_totals(X)
        assert totals.shape == (4,)
        assert totals[0] == len(X)
        assert send_squares(X, totals[1:] / len(X)).shape == (2, 3)
    whole = np.vstack(matrices)
    other = [whole[40:], whole[:3], whole[3:40]]  # the same sums with other agents
    for intercept in (True, False):
        mine, theirs = (Scaling.fit(each, intercept=intercept) for each in (matrices, other))
        np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-12)
        np.testing.assert_allclose(mine.scale, theirs.scale, rtol=1e-12)
    np.testing.assert_allclose(Scaling.fit(matrices, intercept=True).scale, whole.std(axis=0))


def test_numbers_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(3)
    X = 1e9 + rng.normal(size=(1000, 1))
    scaling = Scaling.fit([X[:300], X[300:]], intercept=True)
    assert scaling.scale[0] == pytest.approx(X.std(), rel=1e-6)
    constant = Scaling.fit([np.full((7, 2), [0.1, 0.0])], intercept=True)
    assert constant.scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
def test_models_predict_the_same_in_both_coordinates(intercept, outputs):
    rng = np.random.default_rng(4)
    X = data(0)[0]
    scaling = Scaling.fit([X], intercept=intercept)
    models = rng.normal(size=(2, outputs * (3 + intercept)))
    given = scaling.to_original_units(models)
    np.testing.assert_allclose(scaling.to_standardized_units(given), models, rtol=1e-10)
    for hat, x in zip(models, given, strict=True):
        for k in range(outputs):
            take = slice(3 * k, 3 * k + 3)
            b_hat, b = (hat[3 * outputs + k], x[3 * outputs + k]) if intercept else (0, 0)
            np.testing.assert_allclose(
                scaling.transform(X) @ hat[take] + b_hat, X @ x[take] + b, rtol=1e-9, atol=1e-9
            )


def test_softmax_with_intercept_and_blocks(tmp_path):
    text = SHARED_CONFIG.replace("{l1 = 5}", '{blocks = {"0:2" = {l1 = 0.1}}}')
    text = text.replace('target = "load"', 'target = "load"\nstandardize = true')
    text += "[training]\nrounds = 60\n"
    job = prepare(folder_with(tmp_path, config=text), tmp_path / "run")
    job.run()
    given = TrainedModels.load(job.directory.models)
    assert np.abs(given.models[0, :2]).sum() <= 0.1 * (1 + 1e-12)
    assert isinstance(job.setup.constraints[1], WholeSpace)
    row = Outcome.load(job.directory.outcome).agents[0]
    assert row.usage.share == pytest.approx(np.abs(given.models[0, :2]).sum() / 0.1)
    assert row.usage.text == "area → a to rooms → a: uses 0.1 of 0.1 (l1 norm)"


def test_a_set_that_cannot_be_mapped_is_refused(tmp_path):
    text = SHARED_CONFIG.replace("{l1 = 5}", '"nuclear((2, 2), 1)"')
    text = text.replace('target = "load"', 'target = "load"\nstandardize = true')
    with pytest.raises(
        ValueError, match=r"agents.north: NuclearBall: .* set data.standardize = fal"
    ):
        prepare(folder_with(tmp_path, config=text), tmp_path / "run")
    short = text.replace('"nuclear((2, 2), 1)"', "{box = [[0, 0], [1, 1]]}")
    with pytest.raises(ValueError, match=r"Box: the set has 2 entries, but the model of .* has 4"):
        prepare(folder_with(tmp_path, config=short), tmp_path / "run")
