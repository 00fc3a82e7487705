"""The models of a finished training: every agent's own model, ready for predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcfed.arrays import Array, Float64Array
from pcfed.data.encoding import Encoding
from pcfed.errors import did_you_mean, join_names, short_repr
from pcfed.guarantees import feasible_model
from pcfed.losses import Loss
from pcfed.losses.kinds import MODEL_KINDS, Label, Layout, LinearKind, ModelKind, Output
from pcfed.notebook import html_table
from pcfed.problem import Agent
from pcfed.sets import ConvexSet
from pcfed.simulation.result import Result, check_arrays
from pcfed.standardize import Scaling
from pcfed.storage.archive import AnyArray
from pcfed.storage.saved import Metadata, SavedArchive
from pcfed.training.modules import initial_parameters
from pcfed.training.setup import TrainingSetup
from pcfed.validation import floating

AVERAGE = "average"
"""The name of the shared model, beside the names of the agents."""

ROUNDING = {np.dtype(np.float32): 1e-7, np.dtype(np.float64): 1e-14}
"""Coefficients up to this share of the largest are rounding errors, by the dtype of the steps."""

MAX_ZERO_STEPS = 50
"""Largest number of projections to make zeros exact."""

MAX_TABLE_COLUMNS = 12
"""Models with more coefficients are not shown as a table in notebooks."""


@dataclass(frozen=True, eq=False)
class TrainedModels(SavedArchive):
    r"""The models of a training, feasible and in the units of the data files.

    Attributes
    ----------
    kind : ModelKind
        The kind of model, one of ``pcfed.losses.kinds.MODEL_KINDS``.
    names : tuple of str
        The agents.
    columns : tuple of str
        The features, in the order of the coefficients.
    labels : tuple of int or str, or None
        The labels of a classification, in the order of the scores.
    layout : mapping of str to tuple of int
        The names and shapes of the parameters, in the order of the flat vector: ``coefficients``
        and perhaps ``intercept`` of a linear model, the named parameters of a module.
    models : Array
        (m, n): $\hat x_i \in X_i$, one row per agent.
    average : Array
        (n,): the mean of the models.
    module : str or None
        Where a module is imported from, such as ``"my_models:Net"``.
    encoding : Encoding
        How the columns of data files become the features.

    Examples
    --------
    >>> models = TrainedModels(kind=MODEL_KINDS["least-squares"], names=("north", "south"),
    ...     columns=("area", "rooms"), labels=None,
    ...     layout={"coefficients": (2,), "intercept": (1,)},
    ...     models=np.array([[1.0, 0.0, 5.0], [0.0, 2.0, 3.0]]), average=np.array([0.5, 1.0, 4.0]))
    >>> models.predict("north", [[10.0, 3.0]])
    array([15.])
    >>> models.predict("average", [[10.0, 3.0]])
    array([12.])
    """

    file_kind: ClassVar[str] = "file of trained models"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "rerun pcfed train to write it again."

    kind: ModelKind
    names: tuple[str, ...]
    columns: tuple[str, ...]
    labels: tuple[Label, ...] | None
    layout: Layout
    models: Float64Array
    average: Float64Array
    module: str | None = None
    encoding: Encoding = field(default_factory=lambda: Encoding(()))

    def __post_init__(self) -> None:
        if not self.encoding.columns:  # by default, features are the columns
            object.__setattr__(self, "encoding", Encoding(self.columns))

    @staticmethod
    def from_result(
        kind: ModelKind, setup: TrainingSetup, result: Result, module: str | None = None
    ) -> TrainedModels:
        """Return the models of a run, projected onto the agents' sets.

        A projection may fail with a `ProjectionError`. A module is imported from ``module``.
        """
        pairs = zip(setup.problem.agents, result.models, strict=True)
        models = np.stack([delivered_model(agent, x) for agent, x in pairs])
        center = result.center
        if setup.scaling is not None:
            center = setup.scaling.to_original_units(center[None])[0]
            k = math.prod(setup.problem.shape)
            models = models_of_data(setup.scaling, models, setup.constraints, k)
        return TrainedModels(
            kind=kind,
            names=setup.problem.names,
            columns=setup.columns,
            labels=setup.labels,
            layout=_layout_of(setup.problem.agents[0].loss),
            models=models,
            average=models.mean(axis=0) if setup.problem.center == "average" else center,
            module=module,
            encoding=setup.encoding,
        )

    def __repr__(self) -> str:
        counts = f"{len(self.names)} {self.kind} models, {self.average.size} parameters"
        return f"TrainedModels({counts})"

    def _repr_html_(self) -> str:
        models = [(name, self.model(name)) for name in self.names_and_average]
        rows = [(name, *map(float, x[: len(self.columns)])) for name, x in models]
        has_one_row = self.shape == (len(self.columns),)
        fits = self.kind.is_linear and has_one_row and len(self.columns) <= MAX_TABLE_COLUMNS
        columns = ("agent", *self.columns) if fits else ("agent",)
        return html_table(repr(self), columns, rows)

    @property
    def output(self) -> Output:
        """What the models predict."""
        return self.kind.output_for(self.labels)

    @property
    def names_and_average(self) -> tuple[str, ...]:
        """The agents and ``"average"``, which an agent may be called, too."""
        return tuple(dict.fromkeys((*self.names, AVERAGE)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coefficients; of all parameters for a module."""
        return self.layout.get("coefficients", (self.average.size,))

    @property
    def intercept(self) -> bool:
        """Whether the models are linear with an intercept."""
        return self.kind.is_linear and "intercept" in self.layout

    def model(self, agent: str) -> Float64Array:
        """Return the flat vector of an agent, by its name, or of ``"average"``."""
        if agent in self.names:
            own: Float64Array = self.models[self.names.index(agent)]
            return own
        if agent == AVERAGE:
            return self.average
        names = (*self.names, AVERAGE)
        raise ValueError(
            f"agent must be one of {join_names(names)}, got {short_repr(agent)}; "
            f"{did_you_mean(agent, names)}Give one of these."
        )

    def parts(self, agent: str) -> dict[str, Float64Array]:
        """Return the parameters of an agent's model by their names, in their shapes."""
        ends = np.cumsum([math.prod(shape) for shape in self.layout.values()])[:-1]
        pieces = np.split(self.model(agent), ends)
        pairs = zip(self.layout.items(), pieces, strict=True)
        return {name: piece.reshape(shape) for (name, shape), piece in pairs}

    def parameter_name(self, entry: int) -> str:
        """Return the name of one parameter: a column, or a layer of a module and a position."""
        start = 0
        for name, shape in self.layout.items():
            size = math.prod(shape)
            if entry < start + size:
                if not self.kind.is_linear:
                    return f"{name}, entry {entry - start}"
                row, column = divmod(entry - start, shape[-1])
                label = self.columns[column] if name == "coefficients" else "(intercept)"
                if not self.has_row_per_label:
                    return label
                return f"{label} → {(self.labels or ())[row if name == 'coefficients' else column]}"
            start += size
        raise IndexError(entry)

    def part_name(self, start: int, stop: int) -> str:
        """Return the name of consecutive parameters: a layer of a module, or the columns."""
        ends = np.cumsum([0, *(math.prod(shape) for shape in self.layout.values())]).tolist()
        if not self.kind.is_linear:
            for name, begin, end in zip(self.layout, ends, ends[1:], strict=False):
                if (begin, end) == (start, stop):
                    return name
        first, last = self.parameter_name(start), self.parameter_name(stop - 1)
        return first if stop - start == 1 else f"{first} to {last}"

    @property
    def has_row_per_label(self) -> bool:
        """Whether the coefficients are a matrix with one row per label."""
        return len(self.shape) == 2 and self.labels is not None

    def predict(self, agent: str, X: ArrayLike, *, module: Any = None) -> NDArray[Any]:
        """Return the prediction of a model for every row: labels, or numbers.

        Parameters
        ----------
        agent : str
            The agent whose model it is, or ``"average"``.
        X : array of shape (rows, features)
            The features, in the order of ``columns``.
        module : torch.nn.Module, optional
            For models of kind torch, the module that was trained; its parameters are replaced in a
            copy.
        """
        predictions = self.output.predict(self.scores(agent, X, module=module))
        return predictions if self.labels is None else np.array(self.labels)[predictions]

    def probabilities(self, agent: str, X: ArrayLike, *, module: Any = None) -> Float64Array:
        """Return the probability of every label, one row a row of X, in the order of ``labels``."""
        if self.labels is None:
            raise ValueError(
                f"probabilities must be of a classification, got {self.kind}; predict numbers."
            )
        return self.output.probabilities(self.scores(agent, X, module=module))

    def scores(self, agent: str, X: ArrayLike, *, module: Any = None) -> Float64Array:
        """Return the raw outputs of a model, one row a row of X; `predict` is derived from them."""
        features = floating("TrainedModels.predict: X", X).astype(np.float64, copy=False)
        if features.ndim != 2 or features.shape[1] != len(self.columns):
            raise ValueError(
                f"TrainedModels.predict: X must have {len(self.columns)} columns, got shape "
                f"{features.shape}; give one row a sample, with {join_names(self.columns)}."
            )
        if isinstance(self.kind, LinearKind):
            return self.kind.scores(self.parts(agent), features)
        from pcfed.training.exports import module_scores

        return module_scores(self, agent, features, module)

    def to_sklearn(self, agent: str) -> Any:
        """Return a fitted estimator of scikit-learn; see `pcfed.training.exports.to_sklearn`."""
        from pcfed.training.exports import to_sklearn

        return to_sklearn(self, agent)

    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        metadata: dict[str, Any] = {
            "kind": self.kind.name,
            "names": self.names,
            "columns": self.columns,
            "labels": self.labels,
            "layout": list(self.layout.items()),
            "module": self.module,
        }
        if not self.encoding.is_plain:
            metadata["encoding"] = self.encoding.to_json()
        return metadata, {"models": self.models, "average": self.average}

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, AnyArray]) -> TrainedModels:
        kind, module = MODEL_KINDS.get(metadata["kind"]), metadata["module"]
        names, columns = _read_names(metadata["names"]), _read_names(metadata["columns"])
        labels, layout = _read_labels(metadata["labels"]), _read_layout(metadata["layout"])
        if kind is None or not (module is None or isinstance(module, str)):
            raise ValueError("it does not say what the models are")
        m, n = len(names), sum(math.prod(shape) for shape in layout.values())
        check_arrays(arrays, {"models": ((m, n), np.float64), "average": ((n,), np.float64)})
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("its models are not finite")
        if isinstance(kind, LinearKind):
            expected = kind.layout(len(columns), labels, intercept="intercept" in layout)
            if layout != expected or not kind.output.accepts(labels):
                raise ValueError("its models do not fit its columns and labels")
        encoding = Encoding(columns)
        if "encoding" in metadata:
            encoding = Encoding.from_json(metadata["encoding"])
            if encoding.features != columns:
                raise ValueError("its columns do not fit its features")
        models, average = arrays["models"], arrays["average"]
        return TrainedModels(
            kind, names, columns, labels, layout, models, average, module, encoding
        )


def delivered_model(agent: Agent, model: Array) -> Float64Array:
    """Return an agent's feasible model, with exact zeros; see `project_with_zeros`."""
    feasible = feasible_model(agent, model)
    intercept = agent.loss.intercept_slice
    # The set does not apply to a free intercept, whose size says nothing about the coefficients.
    k = feasible.size if intercept is None or agent.constrain_intercept else intercept.start
    rounding = ROUNDING[np.dtype(agent.loss.dtype)]
    feasible[:k] = project_with_zeros(agent.constraint, model[:k], rounding=rounding)
    return feasible


def models_of_data(
    scaling: Scaling, models: Float64Array, constraints: Sequence[ConvexSet], k: int
) -> Float64Array:
    """Return feasible models in the units of the data; their first k numbers are coefficients."""
    models = scaling.to_original_units(models)
    # Going back to the units of the data rounds, which may leave the set again.
    for x, constraint in zip(models, constraints, strict=True):
        x[:k] = project_with_zeros(constraint, x[:k])
    return models + 0.0  # turns -0.0 into 0.0


def project_with_zeros(convex: ConvexSet, x: Array, *, rounding: float = 0.0) -> Float64Array:
    """Return the projection of coefficients, in which zeros are exact zeros.

    Some projections leave rounding errors in place of zeros: those onto polyhedra, and onto a
    simplex where the coefficients are of float32 steps, which spreads the rounding error of their
    sum. Such entries are set to zero and the result is projected again, until it is in the set.
    These are entries that were zero before, and all up to ``rounding`` times the largest.
    """
    x = np.asarray(x, np.float64)
    projected = np.asarray(convex.project(x), np.float64) + 0.0  # so that −0 is 0
    size = np.abs(projected)
    zero = size <= np.where(x == 0, ROUNDING[np.dtype(np.float32)], rounding) * size.max()
    candidate = projected.copy()
    for _ in range(MAX_ZERO_STEPS):
        candidate[zero] = 0.0
        if convex.contains(candidate):
            return candidate
        candidate = np.asarray(convex.project(candidate), np.float64)
    return projected


def _layout_of(loss: Loss) -> Layout:
    """Return the names and shapes of the parameters of a loss."""
    if (start := initial_parameters(loss)) is not None:
        module: Any = loss
        return {name: part.shape for name, part in module.unpack(start).items()}
    layout = {"coefficients": loss.shape}
    if loss.intercept_slice is None:
        return layout
    return {**layout, "intercept": (loss.n - loss.intercept_slice.start,)}


# -- checks of metadata, which may come from any file -----------------------------------------


def _read_names(value: object) -> tuple[str, ...]:
    """Return one or more different strings."""
    if not (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        raise TypeError
    if len(set(value)) < len(value):
        raise ValueError("it has a name twice")
    return tuple(value)


def _read_labels(value: object) -> tuple[Label, ...] | None:
    """Return the labels: different integers, or different strings."""
    if value is None:
        return None
    if not (isinstance(value, list) and value):
        raise TypeError
    if isinstance(value[0], str):
        return _read_names(value)
    if not all(type(each) is int for each in value):
        raise TypeError
    if len(set(value)) < len(value) or max(map(abs, value)) >= 2**63:
        raise ValueError("its labels are not different integers of 64 bits")
    return tuple(value)


def _read_layout(value: object) -> Layout:
    """Return one or more names and shapes."""
    if not (isinstance(value, list) and value and all(len(pair) == 2 for pair in value)):
        raise TypeError
    shapes = {}
    for name, shape in value:
        are_sizes = all(type(size) is int and 0 <= size < 2**40 for size in shape)
        if not isinstance(name, str) or name in shapes or not are_sizes:
            raise TypeError
        shapes[name] = tuple(shape)
    return shapes
