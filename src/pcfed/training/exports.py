"""Models for other programs: NumPy arrays, PyTorch parameters, scikit-learn coefficients."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.errors import install_command, one_line
from pcfed.storage.atomic import write_atomically
from pcfed.training.trained_models import TrainedModels


@dataclass(frozen=True)
class ExportFormat:
    """A file format: its suffix, and a function that writes the model of one agent or of all."""

    suffix: str
    write: Callable[[TrainedModels, str | None, IO[bytes]], None]


def export(models: TrainedModels, path: Path, to: str, agent: str | None = None) -> None:
    """Write the model of an agent, of ``"average"`` or by default all models, for another program.

    The formats are ``"npz"`` (arrays by name), ``"torch"`` (a file for ``torch.load(...,
    weights_only=True)``) and ``"sklearn"`` (JSON with the attributes of a fitted estimator).
    """
    if agent is not None:
        models.model(agent)  # refuses an unknown agent before a file is opened
    write = EXPORT_FORMATS[to].write
    write_atomically(path, lambda stream: write(models, agent, stream))


def state_dict(models: TrainedModels, agent: str) -> dict[str, Any]:
    """Return the parameters of a model for ``load_state_dict``; of ``nn.Linear`` if it is linear.

    The outputs of the layer are the scores: one for least squares and for logistic regression,
    where a positive one means the second label, and one for each label for softmax.
    """
    torch = _import_torch()
    parameters = models.kind.torch_parameters(models.parts(agent))
    return {name: torch.tensor(values) for name, values in parameters.items()}


def module_scores(models: TrainedModels, agent: str, X: Float64Array, module: Any) -> Float64Array:
    """Return the outputs of a module with an agent's parameters, one row a row of X, in float64."""
    if module is None:
        raise ValueError(
            f"predictions need the module of the training, {models.module}, got none; give it "
            "(pcfed predict: --module-folder)."
        )
    torch, own = _import_torch(), copy.deepcopy(module).double().eval()
    state = state_dict(models, agent)
    try:
        if own.load_state_dict(state, strict=False).unexpected_keys:
            raise ValueError(f"it does not have all of {', '.join(state)}")
        with torch.no_grad():
            output = own(torch.from_numpy(X)).numpy()
        scores: Float64Array = output.reshape(len(X), -1)
    except Exception as error:  # the user's code may raise anything
        raise ValueError(
            one_line(f"the module must be that of the training, {models.module}, but {error}", 300)
        ) from None
    return scores


def sklearn_attributes(models: TrainedModels, agent: str) -> dict[str, Any]:
    """Return an estimator's name in ``sklearn.linear_model`` and its attributes, as in JSON."""
    columns = list(models.columns)
    fitted = models.kind.sklearn_attributes(models.parts(agent), models.labels)
    return {**fitted, "feature_names_in_": columns, "n_features_in_": len(columns)}


def to_sklearn(models: TrainedModels, agent: str) -> Any:
    """Return a fitted estimator of ``sklearn.linear_model`` with an agent's model.

    It takes arrays with the columns of the training in their order, or a data frame that has them.
    """
    try:
        linear_model = importlib.import_module("sklearn.linear_model")
    except ImportError:
        raise ImportError(
            "to_sklearn: scikit-learn is not installed; run pip install scikit-learn."
        ) from None
    attributes = sklearn_attributes(models, agent)
    estimator = getattr(linear_model, attributes.pop("estimator"))()
    for name, value in attributes.items():
        setattr(estimator, name, np.array(value) if isinstance(value, list) else value)
    # scikit-learn compares names with those of a data frame only if they are an array of objects.
    estimator.feature_names_in_ = estimator.feature_names_in_.astype(object)
    return estimator


def _write_npz(models: TrainedModels, agent: str | None, stream: IO[bytes]) -> None:
    arrays: dict[str, Any] = {"columns": np.array(models.columns)}
    if models.labels is not None:
        arrays["labels"] = np.array(models.labels)
    for name in [agent] if agent else models.names_and_average:
        prefix = "" if agent else f"{name}/"
        arrays |= {f"{prefix}{part}": values for part, values in models.parts(name).items()}
    np.savez(stream, allow_pickle=False, **arrays)


def _write_torch(models: TrainedModels, agent: str | None, stream: IO[bytes]) -> None:
    _import_torch().save(_one_or_all(state_dict, models, agent), stream)


def _write_sklearn(models: TrainedModels, agent: str | None, stream: IO[bytes]) -> None:
    attributes = _one_or_all(sklearn_attributes, models, agent)
    stream.write(json.dumps(attributes, indent=1).encode())


def _one_or_all(
    convert: Callable[[TrainedModels, str], dict[str, Any]],
    models: TrainedModels,
    agent: str | None,
) -> dict[str, Any]:
    """Return the converted model of one agent, or those of all by name."""
    if agent:
        return convert(models, agent)
    return {name: convert(models, name) for name in models.names_and_average}


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ImportError(
            f"export: torch is not installed; run {install_command('torch')}."
        ) from None


EXPORT_FORMATS = {
    "npz": ExportFormat(".npz", _write_npz),
    "torch": ExportFormat(".pt", _write_torch),
    "sklearn": ExportFormat(".json", _write_sklearn),
}
"""The formats by name."""
