r"""Estimators in scikit-learn's manner: linear models of several agents, trained together.

`FederatedClassifier` and `FederatedRegressor` solve the problem of `pcfed.problem` for logistic or
softmax regression and for least squares, in this process. Features are centred and scaled as in
`pcfed.standardize`; constraints and fitted models are in the units of the data as given.

The module needs scikit-learn, the extra ``sklearn``; ``import pcfed`` does not.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from pcfed.errors import did_you_mean, install_command, join_names, short_repr

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise ImportError(
        "pcfed.estimators: scikit-learn 1.6 or newer is not installed; "
        f"run {install_command('sklearn')}."
    ) from None

from pcfed.algorithms import Algorithm, PCFedSplit
from pcfed.arrays import Float64Array
from pcfed.guarantees import Gap, certify
from pcfed.losses.intercepts import default_intercept_bound
from pcfed.losses.kinds import LEAST_SQUARES, LINEAR_KINDS, LOGISTIC, SOFTMAX, LinearKind
from pcfed.notebook import bar_chart, html_table, line_chart
from pcfed.problem import DEFAULT_COUPLING, Agent, Center, Problem
from pcfed.sets import ConvexSet, WholeSpace, parse_set
from pcfed.simulation import run
from pcfed.standardize import Scaling
from pcfed.validation import boolean, type_text

__all__ = ["FederatedClassifier", "FederatedRegressor"]

FAR_FROM_OPTIMUM = 0.1
"""The certified relative gap above which ``fit`` warns."""

ONLY_AGENT = "agent 0"
"""The name of the agent if the data are those of one agent without a name."""

Parts = dict[str, Float64Array]
"""The coefficients and, if there is one, the intercept of a model."""


class _FederatedLinearModel(BaseEstimator, ABC):
    """What both estimators have in common: parameters, reading of data, training, models."""

    def __init__(
        self,
        *,
        personalization: float = 0.5,
        coupling: float = DEFAULT_COUPLING,
        center: Center = "free",
        rounds: int = 100,
        local_steps: int = 10,
        tolerance: float = 1e-6,
        algorithm: Algorithm | None = None,
        fit_intercept: bool = True,
        standardize: bool = True,
        l2: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.personalization = personalization
        self.coupling = coupling
        self.center = center
        self.rounds = rounds
        self.local_steps = local_steps
        self.tolerance = tolerance
        self.algorithm = algorithm
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.l2 = l2
        self.seed = seed

    # -- data -----------------------------------------------------------------------------------

    @abstractmethod
    def _encode(self, y: NDArray[Any]) -> tuple[LinearKind, NDArray[Any]]:
        """Return the kind of model and the targets as its loss expects them."""

    def _read(
        self, X: Any, y: Any, agents: Any
    ) -> tuple[tuple[str, ...], list[Float64Array], list[NDArray[Any]]]:
        """Return the names of the agents, and the features and targets of each."""
        if isinstance(X, Mapping) and not issparse(X):  # a sparse matrix of keys is a mapping, too
            return self._read_mapping(X, y, agents)
        numeric = isinstance(self, RegressorMixin)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric)
        if agents is None:
            return (ONLY_AGENT,), [X], [y]
        given = np.asarray(agents)
        if given.shape != (len(X),):
            raise ValueError(
                f"{self._where}.fit: agents must have one name per row of X, got shape "
                f"{given.shape} for {len(X)} rows; give the agent of every row."
            )
        names, positions = np.unique(given, return_inverse=True)
        rows = [np.flatnonzero(positions == i) for i in range(len(names))]
        texts = tuple(str(name) for name in names.tolist())
        return texts, [X[index] for index in rows], [y[index] for index in rows]

    def _read_mapping(
        self, data: Mapping[Any, Any], y: Any, agents: Any
    ) -> tuple[tuple[str, ...], list[Float64Array], list[NDArray[Any]]]:
        """Return names, features and targets from ``{name: (X, y)}``."""
        if y is not None or agents is not None or not data:
            raise ValueError(
                f"{self._where}.fit: a mapping must have the rows of at least one agent and be "
                "given without y and agents; call fit({'north': (X, y)}) or fit(X, y, agents=...)."
            )
        matrices: list[Float64Array] = []
        targets: list[NDArray[Any]] = []
        for name, pair in data.items():
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ValueError(
                    f"{self._where}.fit: the data of agent {short_repr(name)} must be a pair "
                    f"(X, y), got {type_text(pair)}; give its features and targets."
                )
            columns = np.shape(pair[0])[1:2]
            if matrices and columns and columns[0] != self.n_features_in_:
                raise ValueError(
                    f"{self._where}.fit: agent {short_repr(name)} has {columns[0]} features but "
                    f"agent {short_repr(next(iter(data)))} has {self.n_features_in_}; give all "
                    "agents the same features in the same order."
                )
            numeric = isinstance(self, RegressorMixin)
            options = {"dtype": np.float64, "y_numeric": numeric, "reset": not matrices}
            try:
                matrix, target = validate_data(self, *pair, **options)
            except ValueError as error:
                where = f"{self._where}.fit: agent {short_repr(name)}"
                raise ValueError(f"{where}: {error}") from None
            matrices.append(matrix)
            targets.append(target)
        return tuple(map(str, data)), matrices, targets

    def _sets(self, constraints: Any, names: tuple[str, ...]) -> list[ConvexSet]:
        """Return the set of every agent; the whole space for agents without one."""
        if constraints is None:
            return [WholeSpace()] * len(names)
        # A mapping such as {"l1": 2} is one set for all agents, unless an agent has this name.
        if not isinstance(constraints, Mapping) or _is_set(constraints, names):
            return [parse_set(constraints)] * len(names)
        given = {str(name): spec for name, spec in constraints.items()}
        for name in given:
            if name not in names:
                raise ValueError(
                    f"{self._where}.fit: constraints must be of agents that have data, got "
                    f"{short_repr(name)}; {did_you_mean(name, names)}The agents are "
                    f"{join_names(names)}."
                )
        return [parse_set(given[name]) if name in given else WholeSpace() for name in names]

    # -- training -------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, agents: Any, constraints: Any) -> None:
        """Train the models and set the attributes that both estimators have."""
        intercept = boolean(f"{self._where}: fit_intercept", self.fit_intercept)
        names, matrices, targets = self._read(X, y, agents)
        kind, encoded = self._encode(np.concatenate(targets))
        ends = np.cumsum([len(each) for each in targets])[:-1]
        ys = np.split(encoded, ends)
        scaling = Scaling.fit(matrices, intercept=intercept)
        if not boolean(f"{self._where}: standardize", self.standardize):
            scaling = scaling.without_scale()
        if kind is LEAST_SQUARES and intercept:
            scaling = scaling.with_target_mean(ys)
        bound = default_intercept_bound(kind, ys, scaling.target_mean) if intercept else None
        sets = self._sets(constraints, names)
        roster = [
            self._agent(kind, scaling, bound, *each)
            for each in zip(names, matrices, ys, sets, strict=True)
        ]
        self._kind_name, self.names_ = kind.name, names
        self.constraints_ = dict(zip(names, sets, strict=True))
        self.problem_ = Problem(roster, self.center)
        self.result_ = run(
            self.problem_,
            PCFedSplit() if self.algorithm is None else self.algorithm,
            rounds=self.rounds,
            local_steps=self.local_steps,
            seed=self.seed,
            stop=Gap(self.tolerance, relative=True),
        )
        if self.result_.status == "diverged":
            raise ValueError(f"{self._where}.fit: the training diverged: {self.result_.message}")
        self.certificate_ = certify(self.problem_, self.result_)
        self._warn_if_far_from_optimum()
        self._set_models(scaling)

    def _warn_if_far_from_optimum(self) -> None:
        """Say that the models may be far from the best ones, if nothing proves the contrary."""
        gap, objective = self.certificate_.gap, self.certificate_.objective
        if gap is not None and FAR_FROM_OPTIMUM * abs(objective) < gap < math.inf:
            warnings.warn(
                f"{self._where}.fit: after {self.result_.state.round} rounds the objective, "
                f"{objective:.3g}, may still be {gap:.3g} above the optimum; raise rounds, or give "
                "features and constraints of similar sizes.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _agent(
        self,
        kind: LinearKind,
        scaling: Scaling,
        bound: float | None,
        name: str,
        X: Float64Array,
        y: NDArray[Any],
        constraint: ConvexSet,
    ) -> Agent:
        """Return an agent with its loss on scaled data and its set for scaled coefficients."""
        labels = None if kind is LEAST_SQUARES else range(len(self.classes_))
        loss = kind.build_loss(
            scaling.transform(X),
            y - scaling.target_mean if labels is None else y,
            labels,
            intercept=self.fit_intercept,
            l2=self.l2,
            dtype="float64",
        )
        size = int(np.prod(loss.shape))
        try:
            scaled = scaling.transform_constraint(constraint, size, option="standardize=False")
        except ValueError as error:
            where = f"{self._where}.fit: the constraint of agent {short_repr(name)}"
            raise ValueError(f"{where}: {error}") from None
        return Agent(
            *(loss, scaled, self.coupling, self.personalization), name=name, intercept_bound=bound
        )

    def _set_models(self, scaling: Scaling) -> None:
        """Set the models in the units of the data as given."""
        both = np.vstack([self.certificate_.models, self.certificate_.center])
        *own, shared = [self._parts(x) for x in scaling.to_original_units(both)]
        self._own_parts = dict(zip(self.names_, own, strict=True))
        self._shared_parts = own[0] if len(own) == 1 else shared
        self.models_ = {name: parts["coefficients"] for name, parts in self._own_parts.items()}
        zero = np.zeros(len(np.atleast_2d(own[0]["coefficients"])))
        self.intercepts_: dict[str, Any] = {
            n: p.get("intercept", zero) for n, p in self._own_parts.items()
        }
        self.coef_ = self._shared_parts["coefficients"]
        self.intercept_: Any = self._shared_parts.get("intercept", zero)

    def _parts(self, x: Float64Array) -> Parts:
        """Return the coefficients, as ``coef_`` has them, and the intercept of a flat model."""
        loss = self.problem_.agents[0].loss
        split = loss.n if loss.intercept_slice is None else loss.intercept_slice.start
        coefficients = x[:split].reshape(loss.shape)
        if self._kind is LOGISTIC:
            coefficients = coefficients[None]
        return {"coefficients": coefficients} | ({"intercept": x[split:]} if x[split:].size else {})

    # -- predictions ----------------------------------------------------------------------------

    def _scores(self, X: Any, agent: Any) -> Float64Array:
        """Return the scores of every row by an agent's model, or by the shared one."""
        check_is_fitted(self)
        parts = self._shared_parts if agent is None else self._model_of(agent)
        matrix = validate_data(self, X, reset=False, dtype=np.float64)
        return self._kind.scores(parts, matrix)

    def _model_of(self, agent: Any) -> Parts:
        """Return the model of an agent."""
        name = str(agent)
        if name not in self._own_parts:
            raise ValueError(
                f"{self._where}: agent must be one of {join_names(self.names_)}, got "
                f"{short_repr(agent)}; {did_you_mean(name, self.names_)}Leave it out for the "
                "shared model."
            )
        return self._own_parts[name]

    @property
    def _kind(self) -> LinearKind:
        """The kind of model; not stored, because kinds are compared by identity."""
        return LINEAR_KINDS[self._kind_name]

    @property
    def _where(self) -> str:
        return type(self).__name__

    # -- notebooks ------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        """Return the agents with their own losses, and the objective by round, once fitted."""
        if not hasattr(self, "result_"):
            return html_table(repr(self), ("fitted",), [("not yet; call fit",)])
        pairs = zip(self.problem_.agents, self.certificate_.models, strict=True)
        losses = [agent.loss.value(model) for agent, model in pairs]
        rows = [
            (name, agent.loss.size, self.constraints_[name], loss)
            for name, agent, loss in zip(self.names_, self.problem_.agents, losses, strict=True)
        ]
        table = html_table(repr(self), ("agent", "samples", "set", "loss of its own model"), rows)
        points = [(record.round, record.objective) for record in self.result_.history]
        charts = line_chart("objective by round", points)
        return table + charts + bar_chart("loss of the own model", self.names_, losses)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Return what notebooks show; they prefer this to ``_repr_html_``."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


class FederatedClassifier(ClassifierMixin, _FederatedLinearModel):
    """Logistic or softmax regression of several agents, each within its own set.

    Two classes give logistic regression with one row of coefficients, more give softmax regression
    with one row per class.

    Parameters
    ----------
    personalization : float
        How much of an agent's loss is taken at its own model, in [0, 1].
    coupling : float
        The weight of the squared distance of an agent's model from the shared one.
    center : {"free", "average"}
        Whether the shared model is a model of its own, or the average of the agents' models.
    rounds, local_steps : int
        The largest number of rounds, and the number of local steps in a round.
    tolerance : float
        The training ends when the objective is certified to be within this fraction of its optimum,
        which needs bounded sets for all agents.
    algorithm : Algorithm, optional
        ``PCFedSplit()`` by default.
    fit_intercept : bool
        Whether models have an intercept; constraints do not apply to it.
    standardize : bool
        Whether features are scaled for the training. Constraints and models are not affected.
    l2 : float
        The weight of half the squared norm of the scaled coefficients in every loss.
    seed : int
        The seed of all random numbers.

    Attributes
    ----------
    names_ : tuple of str
        The agents.
    constraints_ : dict
        The set of every agent, by its name.
    models_, intercepts_ : dict
        The coefficients and the intercept of every agent's own model, by its name.
    coef_, intercept_ : array
        Those of the shared model; with one agent, of its own model.
    certificate_ : Certificate
        How far the objective is from its optimum at most; in scaled units.
    result_, problem_ : Result, Problem
        The run and its problem, in scaled units.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    classes_ : array
        The labels.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.estimators import FederatedClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3))
    >>> y = np.where(X @ [2.0, 1.0, 0.0] > 0, "sick", "well")
    >>> data = {"north": (X[:60], y[:60]), "south": (X[60:], y[60:])}
    >>> model = FederatedClassifier().fit(data, constraints={"north": "l1(2)", "south": "l2(9)"})
    >>> float(np.abs(model.models_["north"]).sum().round(6))
    2.0
    >>> model.predict([[1.0, 1.0, 0.0]], agent="north")
    array(['sick'], dtype='<U4')
    """

    def fit(
        self, X: Any, y: Any = None, *, agents: ArrayLike | None = None, constraints: Any = None
    ) -> Self:
        """Train the models of all agents together.

        Parameters
        ----------
        X : array of shape (samples, features), or mapping
            The features of all agents, or ``{name: (X, y)}``.
        y : array of shape (samples,)
            The labels, numbers or text; left out with a mapping.
        agents : array of shape (samples,), optional
            The agent of every row; by default all rows are those of one agent.
        constraints : set or mapping, optional
            The sets of the coefficients: ``{name: L1Ball(2.0)}``, ``{name: "l1(2)"}``,
            ``{name: {"l1": 2}``, or one set for all agents. Agents without a set are not limited.
        """
        self._fit(X, y, agents, constraints)
        return self

    def _encode(self, y: NDArray[Any]) -> tuple[LinearKind, NDArray[Any]]:
        check_classification_targets(y)
        self.classes_, positions = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{self._where}.fit: y must have at least two classes, got only 1 class, "
                f"{short_repr(self.classes_[0])}; add data of another class."
            )
        return (LOGISTIC if len(self.classes_) == 2 else SOFTMAX), positions

    def decision_function(self, X: Any, *, agent: Any = None) -> Float64Array:
        """Return the scores of every row; for two classes that of the second class."""
        scores = self._scores(X, agent)
        return scores[:, 0] if self._kind is LOGISTIC else scores

    def predict(self, X: Any, *, agent: Any = None) -> NDArray[Any]:
        """Return the labels that an agent's own model predicts; by default the shared model."""
        scores = self._scores(X, agent)
        labels: NDArray[Any] = self.classes_[self._kind.output.predict(scores)]
        return labels

    def predict_proba(self, X: Any, *, agent: Any = None) -> Float64Array:
        """Return the probability of every class, one column per class."""
        scores = self._scores(X, agent)
        return self._kind.output.probabilities(scores)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, agent: Any = None) -> float:
        """Return the fraction of rows whose label is predicted correctly."""
        found = self.predict(X, agent=agent)
        return float(accuracy_score(y, found, sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, _FederatedLinearModel):
    """Least squares of several agents, each within its own set.

    Parameters and attributes are those of `FederatedClassifier`, without ``classes_``.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.estimators import FederatedRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y, town = X @ [3.0, 1.0] + 5.0, np.repeat(["north", "south"], 50)
    >>> model = FederatedRegressor().fit(X, y, agents=town, constraints={"north": {"l1": 2}})
    >>> model.models_["north"].round(3) + 0.0
    array([1.943, 0.057])
    >>> model.predict([[0.0, 0.0]], agent="south").round(2)
    array([5.])
    """

    def fit(
        self, X: Any, y: Any = None, *, agents: ArrayLike | None = None, constraints: Any = None
    ) -> Self:
        """Train the models of all agents together; the arguments are those of the classifier."""
        self._fit(X, y, agents, constraints)
        if len(self.intercept_) == 1:
            self.intercept_ = float(self.intercept_[0])
            self.intercepts_ = {name: float(b[0]) for name, b in self.intercepts_.items()}
        return self

    def _encode(self, y: NDArray[Any]) -> tuple[LinearKind, NDArray[Any]]:
        return LEAST_SQUARES, column_or_1d(y).astype(np.float64)

    def predict(self, X: Any, *, agent: Any = None) -> Float64Array:
        """Return the numbers that an agent's own model predicts; by default the shared model."""
        scores = self._scores(X, agent)
        return self._kind.output.predict(scores)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, agent: Any = None) -> float:
        """Return the coefficient of determination, R²."""
        return float(r2_score(y, self.predict(X, agent=agent), sample_weight=sample_weight))


def _is_set(spec: Mapping[Any, Any], names: tuple[str, ...]) -> bool:
    """Return whether a mapping describes one set and not the sets of agents."""
    if any(str(name) in names for name in spec):
        return False
    try:
        parse_set(spec)
    except ValueError:
        return False
    return True
