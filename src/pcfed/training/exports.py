"""Models for other programs: plain NumPy arrays, PyTorch parameters, scikit-learn coefficients."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from pcfed.arrays import Float64Array
from pcfed.errors import one_line
from pcfed.storage.atomic import write_atomically
from pcfed.training.trained_models import AVERAGE, LINEAR, TrainedModels

Writer = Callable[[TrainedModels, str | None, IO[bytes]], object]


def export(given: TrainedModels, path: Path, to: str, agent: str | None = None) -> None:
    """Write models to a file of another form.

    Parameters
    ----------
    given : TrainedModels
        The models.
    path : Path
        The file; an older one is replaced.
    to : {"npz", "torch", "sklearn"}
        The form: arrays by name; what ``torch.load`` reads with ``weights_only=True``; JSON with
        the attributes of a fitted estimator.
    agent : str, optional
        Whose model, or ``"average"``; by default all of them, by name.

    Raises
    ------
    ValueError
        If the form does not suit the models.
    ImportError
        If PyTorch is needed and not installed.
    """
    if agent is not None:
        given.model(agent)  # it is known
    write = FORMS[to][1]
    write_atomically(path, lambda stream: write(given, agent, stream))


def state_dict(given: TrainedModels, agent: str) -> dict[str, Any]:
    """Return the parameters of a model for ``load_state_dict``; of ``nn.Linear`` if it is linear.

    Its outputs are the scores: one for least squares and for logistic regression, where a positive
    one means the second label, and one a label for softmax.
    """
    torch = _torch()
    parts = given.parts(agent)
    if given.kind in LINEAR:
        linear = {"weight": np.atleast_2d(parts["coefficients"])}
        parts = {**linear, "bias": parts["intercept"]} if given.intercept else linear
    return {name: torch.tensor(part) for name, part in parts.items()}


def module_scores(given: TrainedModels, agent: str, X: Float64Array, module: Any) -> Float64Array:
    """Return the outputs of a module with an agent's parameters, one row a row of X, in float64.

    Raises
    ------
    ValueError
        If there is no module, or another one than that of the training.
    """
    if module is None:
        raise ValueError(
            f"predictions need the module of the training, {given.module}, got none; give it "
            "(pcfed predict: --module-folder)."
        )
    torch, own = _torch(), copy.deepcopy(module).double().eval()
    state = state_dict(given, agent)
    try:
        if own.load_state_dict(state, strict=False).unexpected_keys:
            raise ValueError(f"it has not all of {', '.join(state)}")
        with torch.no_grad():
            output = own(torch.from_numpy(X)).numpy()
        scores: Float64Array = output.reshape(len(X), -1)
    except Exception as error:  # it is code of others
        raise ValueError(
            one_line(f"the module must be that of the training, {given.module}, but {error}", 300)
        ) from None
    return scores


def attributes(given: TrainedModels, agent: str) -> dict[str, Any]:
    """Return the attributes of a fitted estimator of scikit-learn, as JSON has them."""
    if given.kind not in LINEAR:
        raise ValueError(
            f"export: sklearn has linear models only, got {given.kind}; export to torch or npz."
        )
    parts = given.parts(agent)
    W, b = np.atleast_2d(parts["coefficients"]), parts.get("intercept")
    b = np.zeros(len(W)) if b is None else b
    if given.labels is None:
        found = {"estimator": "LinearRegression", "coef_": W[0].tolist(), "intercept_": float(b[0])}
    else:
        if len(W) == 2:  # scikit-learn has one row for two labels
            W, b = W[1:] - W[:1], b[1:] - b[:1]
        found = {"estimator": "LogisticRegression", "coef_": W.tolist(), "intercept_": b.tolist()}
        found["classes_"] = list(given.labels)
    return {**found, "feature_names_in_": list(given.columns), "n_features_in_": len(given.columns)}


def to_sklearn(given: TrainedModels, agent: str) -> Any:
    """Return a fitted ``LogisticRegression`` or ``LinearRegression`` with an agent's model.

    It takes arrays with the columns of the training in their order, or a data frame that has them.

    Parameters
    ----------
    given : TrainedModels
        The models.
    agent : str
        Whose model, or ``"average"``.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.
    """
    try:
        models = importlib.import_module("sklearn.linear_model")
    except ImportError:
        raise ImportError(
            "to_sklearn: scikit-learn is not installed; run pip install scikit-learn."
        ) from None
    facts = attributes(given, agent)
    estimator = getattr(models, facts.pop("estimator"))()
    for name, value in facts.items():
        setattr(estimator, name, np.array(value) if isinstance(value, list) else value)
    estimator.feature_names_in_ = estimator.feature_names_in_.astype(object)
    return estimator


def _everyone(given: TrainedModels) -> list[str]:
    return list(dict.fromkeys((*given.names, AVERAGE)))


def _npz(given: TrainedModels, agent: str | None, stream: IO[bytes]) -> None:
    arrays: dict[str, Any] = {"columns": np.array(given.columns)}
    if given.labels is not None:
        arrays["labels"] = np.array(given.labels)
    for name in [agent] if agent else _everyone(given):
        before = "" if agent else f"{name}/"
        arrays |= {f"{before}{part}": values for part, values in given.parts(name).items()}
    np.savez(stream, allow_pickle=False, **arrays)


def _pt(given: TrainedModels, agent: str | None, stream: IO[bytes]) -> None:
    found = state_dict(given, agent) if agent else None
    _torch().save(found or {name: state_dict(given, name) for name in _everyone(given)}, stream)


def _json(given: TrainedModels, agent: str | None, stream: IO[bytes]) -> None:
    found = attributes(given, agent) if agent else None
    facts = found or {name: attributes(given, name) for name in _everyone(given)}
    stream.write(json.dumps(facts, indent=1).encode())


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ImportError(
            "export: torch is not installed; run pip install 'pcfed[torch]'."
        ) from None


FORMS: dict[str, tuple[str, Writer]] = {
    "npz": (".npz", _npz),
    "torch": (".pt", _pt),
    "sklearn": (".json", _json),
}
"""The end of a file's name and what writes it, for every form."""
