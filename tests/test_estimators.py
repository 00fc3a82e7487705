"""The estimators of pcfed.estimators: scikit-learn's own checks, agents, constraints, errors."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pcfed import Agent, PCFedAvg, PCFedSplit, Problem, certify, run
from pcfed.errors import install_command
from pcfed.estimators import FederatedClassifier, FederatedRegressor
from pcfed.losses import LeastSquares
from pcfed.sets import Box, L1Ball, NuclearBall

EXPECTED_FAILURES: dict[str, str] = {}
"""The checks of scikit-learn that do not apply, with the reason of each: at present all pass."""


@parametrize_with_checks(
    [FederatedClassifier(), FederatedRegressor()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def towns(seed=0, rows=60):
    """Return the data of two agents with labels in words and features of different sizes."""
    rng = np.random.default_rng(seed)
    data = {}
    for name, shift in (("north", 0.3), ("south", -0.3)):
        X = rng.normal(size=(rows, 3)) * [1.0, 10.0, 0.1] + [5.0, shift, 0.0]
        score = (X - [5.0, 0.0, 0.0]) @ [2.0, 0.1, 0.0] + 0.5 * rng.normal(size=rows)
        data[name] = X, score
    return data


def labels(data, *names):
    """Return the same data with labels instead of numbers."""
    cuts = np.quantile(np.concatenate([y for _, y in data.values()]), [0.4, 0.7][: len(names) - 1])
    return {n: (X, np.array(names)[np.digitize(y, cuts)]) for n, (X, y) in data.items()}


NUMBERS = towns()
BINARY = labels(NUMBERS, "sick", "well")
CLASSES = labels(NUMBERS, "low", "middle", "top")


@pytest.mark.parametrize(
    "spec", [L1Ball(0.5), "l1(0.5)", {"l1": 0.5}], ids=["set", "text", "mapping"]
)
@pytest.mark.parametrize(
    ("estimator", "data"),
    [
        (FederatedClassifier(), BINARY),
        (FederatedClassifier(), CLASSES),
        (FederatedRegressor(), NUMBERS),
    ],
    ids=["two labels", "three labels", "numbers"],
)
def test_models_are_in_their_sets_in_the_units_of_the_data(estimator, data, spec):
    fitted = clone(estimator).fit(data, constraints={"north": spec, "south": Box(-1, 1)})
    assert list(fitted.models_) == ["north", "south"]
    assert np.abs(fitted.models_["north"]).sum() == pytest.approx(0.5)
    assert np.abs(fitted.models_["south"]).max() <= 1 + 1e-12
    assert fitted.result_.status == "stopped"
    assert fitted.certificate_.relative_gap <= 1e-6
    for name, (X, y) in data.items():
        own, shared = fitted.score(X, y, agent=name), fitted.score(X, y)
        assert min(own, shared) > 0.3
    assert (estimator.set_params(l2=0.1).l2, fitted.l2) == (0.1, 0.0)
    estimator.set_params(l2=0.0)


def test_rows_with_the_names_of_their_agents_are_the_same_as_a_mapping():
    X, y = (np.concatenate(parts) for parts in zip(*BINARY.values(), strict=True))
    names = np.repeat(list(BINARY), 60)
    order = np.random.default_rng(1).permutation(len(y))
    order = order[np.argsort(names[order], kind="stable")]
    mixed = np.argsort(np.argsort(order) % 7, kind="stable")
    limits = {"south": L1Ball(1.0)}
    one = FederatedClassifier().fit(BINARY, constraints=limits)
    other = FederatedClassifier().fit(
        pd.DataFrame(X[mixed], columns=["a", "b", "c"]),
        y[mixed],
        agents=names[mixed],
        constraints=limits,
    )
    for name in BINARY:
        np.testing.assert_allclose(one.models_[name], other.models_[name], rtol=1e-6, atol=1e-8)
    assert list(other.feature_names_in_) == ["a", "b", "c"]
    assert other.n_features_in_ == one.n_features_in_ == 3


def test_one_agent_without_constraints_is_ordinary_regression():
    X, y = NUMBERS["north"]
    found, expected = FederatedRegressor().fit(X, y), LinearRegression().fit(X, y)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-3)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), atol=1e-3)
    assert found.intercept_ == pytest.approx(expected.intercept_, abs=1e-2)
    X, y = BINARY["north"]
    N = len(y)
    federated = FederatedClassifier(l2=0.1, rounds=300).fit(X, y)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    reference = LogisticRegression(C=1 / (0.1 * N), tol=1e-10).fit(scaled, y)
    np.testing.assert_allclose(
        federated.predict_proba(X), reference.predict_proba(scaled), atol=1e-3
    )
    assert federated.classes_.tolist() == ["sick", "well"]


def test_the_problem_is_that_of_the_library():
    """Without scaling and intercept, nothing but the problem itself is left."""
    model = FederatedRegressor(standardize=False, fit_intercept=False, rounds=30, tolerance=1e-15)
    model.fit(NUMBERS, constraints={"north": L1Ball(0.5), "south": L1Ball(5.0)})
    sets = (L1Ball(0.5), L1Ball(5.0))
    agents = [
        Agent(LeastSquares(*pair), limit, 0.1, 0.5, name=name)
        for (name, pair), limit in zip(NUMBERS.items(), sets, strict=True)
    ]
    problem = Problem(agents, center="free")
    result = run(problem, PCFedSplit(), rounds=30, local_steps=10)
    expected = certify(problem, result).models
    np.testing.assert_allclose(list(model.models_.values()), expected, rtol=1e-9, atol=1e-12)
    assert model.intercepts_ == {"north": 0.0, "south": 0.0}


def test_probabilities_add_up_and_agree_with_predictions():
    for data in (BINARY, CLASSES):
        model = FederatedClassifier().fit(data)
        X, _ = data["north"]
        shares = model.predict_proba(X, agent="south")
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        found = model.predict(X, agent="south")
        assert (model.classes_[shares.argmax(axis=1)] == found).all()


def test_scikit_learns_tools_take_them():
    X, y = (np.concatenate(parts) for parts in zip(*BINARY.values(), strict=True))
    names = np.repeat(list(BINARY), 60)
    scores = cross_val_score(FederatedClassifier(rounds=20), X, y, cv=3, params={"agents": names})
    assert scores.mean() > 0.8
    search = GridSearchCV(FederatedClassifier(rounds=20), {"coupling": [0.01, 1.0]}, cv=2)
    assert search.fit(X, y, agents=names).best_score_ > 0.8
    pipe = make_pipeline(StandardScaler(), FederatedClassifier(rounds=20, standardize=False))
    assert pipe.fit(X, y, federatedclassifier__agents=names).score(X, y) > 0.8


def test_a_fitted_estimator_can_be_pickled():
    model = FederatedClassifier(rounds=5).fit(BINARY)
    X, _ = BINARY["north"]
    same = pickle.loads(pickle.dumps(model))
    assert (same.predict(X, agent="north") == model.predict(X, agent="north")).all()


X0, Y0 = NUMBERS["north"]
FITTED = FederatedRegressor(rounds=2).fit(NUMBERS)
ERRORS = {
    "unknown agent": (
        lambda: FITTED.predict(X0, agent="nort"),
        r"Regressor: agent must be one of 'north', 'south', got 'nort'; did you mean 'north'\?",
    ),
    "unknown agent of a score": (lambda: FITTED.score(X0, Y0, agent="east"), "got 'east'; Leave"),
    "constraints of nobody": (
        lambda: FederatedRegressor().fit(NUMBERS, constraints={"nort": L1Ball(1)}),
        r"constraints must be of agents that have data, got 'nort'; did you mean 'north'\? The age",
    ),
    "different features": (
        lambda: FederatedRegressor().fit({"a": (X0, Y0), "b": (X0[:, :2], Y0)}),
        "Regressor.fit: agent 'b' has 2 features but agent 'a' has 3; give all agents the same",
    ),
    "no pair": (
        lambda: FederatedRegressor().fit({"a": X0}),
        r"the data of agent 'a' must be a pair \(X, y\), got ndarray; give its features",
    ),
    "no rows": (lambda: FederatedRegressor().fit({}), "a mapping must have the rows of at least"),
    "mapping and y": (lambda: FederatedRegressor().fit(NUMBERS, Y0), "given without y and agents"),
    "lengths": (
        lambda: FederatedRegressor().fit({"a": (X0, Y0[:5])}),
        "FederatedRegressor.fit: agent 'a': Found input variables with inconsistent numbers",
    ),
    "agents of another length": (
        lambda: FederatedRegressor().fit(X0, Y0, agents=["a"]),
        r"agents must have one name per row of X, got shape \(1,\) for 60 rows; give",
    ),
    "one class": (
        lambda: FederatedClassifier().fit({"a": (X0, ["x"] * 60)}),
        "Classifier.fit: y must have at least two classes, got only 1 class, .*'x'.*; add data",
    ),
    "set of another length": (
        lambda: FederatedRegressor().fit(NUMBERS, constraints={"north": Box([0, 0], 1)}),
        "constraint of agent 'north': Box: the set has 2 entries, but the model has 3; give",
    ),
    "set that cannot be scaled": (
        lambda: FederatedRegressor().fit(NUMBERS, constraints={"north": NuclearBall((1, 3), 1)}),
        "constraint of agent 'north': NuclearBall.* Or set standardize=False",
    ),
    "wrong set": (
        lambda: FederatedRegressor().fit(NUMBERS, constraints={"north": "l3(1)"}),
        "parse_set: 'l3' is not a set; valid names are",
    ),
    "algorithm": (
        lambda: FederatedRegressor(algorithm="PCFedSplit").fit(NUMBERS),
        "algorithm must be an Algorithm, got 'PCFedSplit'",
    ),
    "standardize": (
        lambda: FederatedRegressor(standardize="yes").fit(NUMBERS),
        "FederatedRegressor: standardize must be True or False, got 'yes'",
    ),
}


@pytest.mark.parametrize(("call", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_run_that_diverges_is_an_error():
    model = FederatedRegressor(algorithm=PCFedAvg(1e6, 1e6), center="average", rounds=50)
    with pytest.raises(ValueError, match=r"Regressor.fit: the training diverged: .*step"):
        model.fit(NUMBERS)


def test_unfitted_estimators_do_not_predict():
    with pytest.raises(NotFittedError):
        FederatedRegressor().predict(X0)


def test_notebooks_show_agents_and_charts():
    assert FITTED.constraints_.keys() == {"north", "south"}
    assert "not yet" in FederatedRegressor()._repr_html_()
    text = FITTED._repr_mimebundle_()["text/html"]
    assert all(word in text for word in ("north", "south", "<svg", "objective by round"))


@pytest.mark.parametrize("package", ["pcfed", "pcfed.estimators"])
def test_only_the_estimators_need_scikit_learn(package):
    code = f"import sys; sys.modules['sklearn'] = None; import {package}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if package == "pcfed":
        assert done.returncode == 0
    else:
        assert f"run {install_command('sklearn')}." in done.stderr.splitlines()[-1]


def test_a_training_that_ends_early_warns():
    with pytest.warns(ConvergenceWarning, match=r"after 2 rounds .* raise rounds"):
        FederatedClassifier(rounds=2, local_steps=1).fit(BINARY, constraints="l1(1)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedClassifier().fit(BINARY, constraints="l1(1)")
