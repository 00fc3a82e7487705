"""What a finished training hands out: every agent's own model, ready to predict with."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax

from pcfed.arrays import Float64Array
from pcfed.config.train_file import Model
from pcfed.errors import did_you_mean, join_names, one_line, short_repr
from pcfed.guarantees import send_model
from pcfed.losses import Loss
from pcfed.notebook import html_table
from pcfed.simulation.result import Result, check_arrays, check_format
from pcfed.storage.archive import load_arrays, save_arrays
from pcfed.training.modules import named_shapes
from pcfed.training.setup import TrainingSetup
from pcfed.training.targets import Label
from pcfed.validation import floating

FORMAT = 1
"""Version of the file that ``TrainedModels.save`` writes."""

AVERAGE = "average"
"""What the average model is called beside the agents."""

LINEAR = ("softmax", "logistic", "least-squares")
KINDS = (*LINEAR, "torch")

Layout = Mapping[str, tuple[int, ...]]
"""Names and shapes of the parts of a model, in the order of its flat vector."""


@dataclass(frozen=True, eq=False)
class TrainedModels:
    r"""The models of a training, feasible and in the coordinates of the data as given.

    Attributes
    ----------
    kind : {"softmax", "logistic", "least-squares", "torch"}
        The model.
    names : tuple of str
        The agents.
    columns : tuple of str
        The features, in the order of the coefficients.
    labels : tuple of int or str, or None
        The labels of a classification, in the order of the outputs.
    layout : mapping of str to tuple of int
        The parts of a model, in the order of its flat vector: ``coefficients`` and, with an
        intercept, ``intercept``; the named parameters of a module.
    models : Array
        (m, n): $\hat x_i \in X_i$, one row an agent.
    average : Array
        (n,): the mean of the models.
    module : str or None
        Where a module is imported from, such as ``"my_models:Net"``.

    Examples
    --------
    >>> given = TrainedModels(kind="least-squares", names=("north", "south"), columns=("area", "rooms"),
    ...     labels=None, layout={"coefficients": (2,), "intercept": (1,)},
    ...     models=np.array([[1.0, 0.0, 5.0], [0.0, 2.0, 3.0]]), average=np.array([0.5, 1.0, 4.0]))
    >>> given.predict("north", [[10.0, 3.0]])
    array([15.])
    >>> given.predict("average", [[10.0, 3.0]])
    array([12.])
    """

    kind: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    labels: tuple[Label, ...] | None
    layout: Layout
    models: Float64Array
    average: Float64Array
    module: str | None = None

    def __repr__(self) -> str:
        return f"Delivered({len(self.names)} {self.kind} models, {self.average.size} parameters)"

    def _repr_html_(self) -> str:
        pairs = [(name, self.model(name)) for name in dict.fromkeys((*self.names, AVERAGE))]
        rows = [(name, *map(float, x[: len(self.columns)])) for name, x in pairs]
        linear = self.kind in ("logistic", "least-squares") and len(self.columns) <= 12
        columns = ("agent", *self.columns) if linear else ("agent",)
        return html_table(repr(self), columns, rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coefficients; of all parameters for a module."""
        return self.layout.get("coefficients", (self.average.size,))

    @property
    def intercept(self) -> bool:
        """Whether the models have one."""
        return self.kind in LINEAR and "intercept" in self.layout

    def model(self, agent: str) -> Float64Array:
        """Return the flat vector of an agent, by its name, or of ``"average"``."""
        if agent in self.names:
            own: Float64Array = self.models[self.names.index(agent)]
            return own
        if agent == AVERAGE:
            return self.average
        raise ValueError(
            f"agent must be one of {join_names((*self.names, AVERAGE))}, got {short_repr(agent)}; "
            f"{did_you_mean(agent, (*self.names, AVERAGE))}Give one of these."
        )

    def parts(self, agent: str) -> dict[str, Float64Array]:
        """Return the parts of an agent's model by their names, in their shapes."""
        ends = np.cumsum([math.prod(shape) for shape in self.layout.values()])[:-1]
        pieces = np.split(self.model(agent), ends)
        pairs = zip(self.layout.items(), pieces, strict=True)
        return {name: piece.reshape(shape) for (name, shape), piece in pairs}

    def predict(self, agent: str, X: ArrayLike, *, module: Any = None) -> NDArray[Any]:
        """Return what a model predicts for every row: labels, or numbers.

        Parameters
        ----------
        agent : str
            Whose model, or ``"average"``.
        X : array of shape (rows, features)
            The features, in the order of ``columns``.
        module : torch.nn.Module, optional
            Of kind torch, the module that was trained; its parameters are replaced in a copy.
        """
        scores = self.scores(agent, X, module=module)
        if self.labels is None:
            return scores[:, 0]
        places = scores[:, 0] > 0 if self.kind == "logistic" else scores.argmax(axis=1)
        return np.array(self.labels)[places.astype(np.intp)]

    def probabilities(self, agent: str, X: ArrayLike, *, module: Any = None) -> Float64Array:
        """Return the probability of every label, one row a row of X, in the order of ``labels``."""
        if self.labels is None:
            raise ValueError(
                f"probabilities must be of a classification, got {self.kind}; predict numbers."
            )
        scores = self.scores(agent, X, module=module)
        if self.kind == "logistic":
            return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
        found: Float64Array = softmax(scores, axis=1)
        return found

    def scores(self, agent: str, X: ArrayLike, *, module: Any = None) -> Float64Array:
        """Return the outputs of a model before they become labels, one row a row of X."""
        features = floating("Delivered.predict: X", X).astype(np.float64, copy=False)
        if features.ndim != 2 or features.shape[1] != len(self.columns):
            raise ValueError(
                f"Delivered.predict: X must have {len(self.columns)} columns, got shape "
                f"{features.shape}; give one row a sample, with {join_names(self.columns)}."
            )
        if self.kind not in LINEAR:
            from pcfed.training.exports import module_scores

            return module_scores(self, agent, features, module)
        parts = self.parts(agent)
        W = np.atleast_2d(parts["coefficients"])
        with np.errstate(over="ignore"):  # an infinite score is as good as a large one
            scores: Float64Array = features @ W.T + parts.get("intercept", 0.0)
        return scores

    def to_sklearn(self, agent: str) -> Any:
        """Return a fitted estimator of scikit-learn; see `pcfed.training.exports.to_sklearn`."""
        from pcfed.training.exports import to_sklearn

        return to_sklearn(self, agent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file (a NumPy archive, no pickle), whole or not at all.

        Parameters
        ----------
        path : path
            The file to write; an older one is replaced.
        """
        about = {
            "format": FORMAT,
            "kind": self.kind,
            "names": self.names,
            "columns": self.columns,
            "labels": self.labels,
            "layout": list(self.layout.items()),
            "module": self.module,
        }
        save_arrays(Path(path), about, {"models": self.models, "average": self.average})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TrainedModels:
        """Read what `save` wrote.

        Parameters
        ----------
        path : path
            The file to read.

        Raises
        ------
        ValueError
            If it is something else, or damaged: one sentence.
        """
        try:
            return _delivered_of(*load_arrays(Path(path)))
        except ValueError as error:
            raise ValueError(
                one_line(
                    f"{os.fspath(path)} must hold the models of a finished training, but {error}; "
                    "train again, or give another one."
                )
            ) from None


def deliver(model: Model, made: TrainingSetup, result: Result) -> TrainedModels:
    """Return the models of a training, moved into their sets.

    Parameters
    ----------
    model : Model
        What was trained.
    made : TrainingSetup
        The problem.
    result : Result
        What came out.

    Raises
    ------
    ProjectionError
        If a model cannot be moved into its set.
    """
    pairs = zip(made.problem.agents, result.models, strict=True)
    models = np.stack([send_model(agent, x) for agent, x in pairs])
    if made.scaling is not None:
        models = made.scaling.to_original_units(models)
        for x, constraint in zip(models, made.constraints, strict=True):  # what rounding moved
            part = x[: math.prod(made.problem.shape)]
            constraint.project(part, out=part)
        models += 0.0  # so that −0 is 0
    return TrainedModels(
        kind=model.kind,
        names=made.problem.names,
        columns=made.columns,
        labels=made.labels,
        layout=layout_of(made.problem.agents[0].loss),
        models=models,
        average=models.mean(axis=0),
        module=model.module,
    )


def layout_of(loss: Loss) -> Layout:
    """Return the names and shapes of the parts of a model."""
    if (named := named_shapes(loss)) is not None:
        return named
    layout = {"coefficients": loss.shape}
    return layout if loss.free is None else {**layout, "intercept": (loss.n - loss.free.start,)}


# -- reading a file that anybody may have written ---------------------------------------------


def _delivered_of(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> TrainedModels:
    """Return the models in a file, or raise half a sentence that says why there are none."""
    try:
        check_format(about, FORMAT)
        kind, module = about["kind"], about["module"]
        names, columns = _texts(about["names"]), _texts(about["columns"])
        labels, layout = _labels(about["labels"]), _layout(about["layout"])
    except (KeyError, TypeError):
        raise ValueError("it is something else") from None
    if kind not in KINDS or not (module is None or isinstance(module, str)):
        raise ValueError("it does not say what the models are")
    m, n = len(names), sum(math.prod(shape) for shape in layout.values())
    check_arrays(arrays, {"models": ((m, n), np.float64), "average": ((n,), np.float64)})
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("its models are not finite")
    if kind in LINEAR and layout != _expected(kind, len(columns), labels, "intercept" in layout):
        raise ValueError("its models do not fit its columns and labels")
    return TrainedModels(kind, names, columns, labels, layout, **arrays, module=module)


def _expected(kind: str, columns: int, labels: tuple[Label, ...] | None, intercept: bool) -> Layout:
    """Return the layout that a linear model must have; none if it must have other labels."""
    found = 0 if labels is None else len(labels)
    if not {"softmax": found >= 2, "logistic": found == 2, "least-squares": found == 0}[kind]:
        return {}
    softmax = kind == "softmax"
    layout = {"coefficients": (found, columns) if softmax else (columns,)}
    return {**layout, "intercept": (found if softmax else 1,)} if intercept else layout


def _texts(value: object) -> tuple[str, ...]:
    """Return a list of different texts, one at least."""
    if not (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        raise TypeError
    if len(set(value)) < len(value):
        raise ValueError("it has a name twice")
    return tuple(value)


def _labels(value: object) -> tuple[Label, ...] | None:
    """Return the labels: different whole numbers, or texts."""
    if value is None or (isinstance(value, list) and value and isinstance(value[0], str)):
        return None if value is None else _texts(value)
    if not (isinstance(value, list) and value and all(type(each) is int for each in value)):
        raise TypeError
    if len(set(value)) < len(value) or max(map(abs, value)) >= 2**63:
        raise ValueError("its labels are not different whole numbers")
    return tuple(value)


def _layout(value: object) -> Layout:
    """Return names and shapes, one at least."""
    if not (isinstance(value, list) and value and all(len(pair) == 2 for pair in value)):
        raise TypeError
    shapes = {}
    for name, shape in value:
        whole = all(type(size) is int and 0 <= size < 2**40 for size in shape)
        if not isinstance(name, str) or name in shapes or not whole:
            raise TypeError
        shapes[name] = tuple(shape)
    return shapes
