"""What an agent keeps after a training: its feasible model, and a report for its owner.

All of it is written to the agent's own folder and is sent to nobody. The folder is then the run
directory of a training of one agent, which `pcfed report`, `compare`, `predict` and `export` open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.algorithms import Algorithm
from pcfed.algorithms.registry import to_mapping
from pcfed.arrays import Array, Float64Array
from pcfed.config.federation_files import AgentFile, ServerModel
from pcfed.config.train_file import Config, read_config
from pcfed.federation.paths import MODEL, REPORT
from pcfed.problem import Agent
from pcfed.standardize import Scaling
from pcfed.storage.archive import save_arrays
from pcfed.training.comparison import (
    Comparison,
    compare_on_held_out_rows,
    compare_training_losses,
)
from pcfed.training.directory import RunMetadata
from pcfed.training.outcome import AgentOutcome, LimitUsage, Outcome
from pcfed.training.run_warnings import RunWarning
from pcfed.training.saved_run import open_run
from pcfed.training.trained_models import TrainedModels, delivered_model, models_of_data

FORMAT = 1
"""Version of the model file."""

LINEAR_KEYS = {"kind", "intercept", "intercept_bound", "l2"}

NOTES = (
    "One of the {m} agents of the training {training}. This folder stays with the agent.",
    "Scores are those on {rows}.",
)
PRIVATE = (
    "model.npz and models.npz are private for the rows, with ε {epsilon:g} and δ {delta:g}; this "
    "report and all other files of this folder are not."
)
NO_SHARED_MODEL = "The algorithm has no shared model; the own model stands for it."


@dataclass(frozen=True)
class AgentFiles:
    """The agent's file, the model that the server trains, and the scaling of the data, if any."""

    agent: AgentFile
    model: ServerModel
    scaling: Scaling | None = None

    @property
    def model_metadata(self) -> dict[str, Any]:
        """What the parameters of the model are."""
        linear = self.model.model_dump(include=LINEAR_KEYS)
        return {"model": linear, **self.model.model_dump(exclude=LINEAR_KEYS)}


@dataclass(frozen=True, eq=False)
class AgentEnd:
    """An agent at the end of a training.

    ``model`` is its trained model and ``shared`` the shared one, None if the server has none;
    ``metadata`` is that of the server's last message.
    """

    name: str
    agent: Agent
    model: Array
    shared: Array | None
    algorithm: Algorithm
    metadata: Mapping[str, Any]


def save_results(folder: Path, end: AgentEnd, files: AgentFiles | None) -> None:
    """Write an agent's feasible model and, if its files are known, a run directory with a report.

    A run directory has the names of columns and labels, which only the files have.
    """
    feasible = delivered_model(end.agent, end.model)
    scaling = None if files is None else files.scaling
    delivered = feasible
    if files is not None and scaling is not None:
        k = math.prod(end.agent.loss.shape)
        delivered = models_of_data(scaling, feasible[None], [files.agent.constraint], k)[0]
    described = {
        "what": "the feasible model of an agent of pcfed",
        "format": FORMAT,
        "name": end.name,
        "training": end.metadata["training"],
        "rounds": end.metadata["round"],
        "shape": list(end.agent.loss.shape),
        **({} if files is None else files.model_metadata),
    }
    save_arrays(folder / MODEL, described, {"model": delivered})
    if files is None:
        return
    models = _trained_models(end, delivered, files)
    models.save(folder / "models.npz")
    _outcome(end, feasible, models, files).save(folder / "outcome.json")
    # There is no digest: pcfed train must not continue in this folder.
    RunMetadata.of(_config(folder, end, files), digest="").save(folder / "config.json")
    # Flower starts a process for each message, and only the last one needs a report.
    from pcfed.report import write_training_report

    write_training_report([open_run(folder)], folder / REPORT)


def _config(folder: Path, end: AgentEnd, files: AgentFiles) -> Config:
    """Return the settings in the form of train.toml, without defaults that do not apply."""
    own = {"file", "target", "constraint", "coupling", "personalization"}
    metadata, model = end.metadata, files.model
    tables = {
        "model": model.model_dump(include=LINEAR_KEYS, exclude_none=True),
        "data": {
            "features": list(model.features),
            "dtype": model.dtype,
            "held_out": files.agent.held_out,
            "standardize": model.standardize,
        },
        "algorithm": to_mapping(end.algorithm),
        "training": {
            "rounds": max(1, int(metadata["round"])),
            "local_steps": metadata["steps"],
            "seed": metadata["seed"],
            "center": metadata["center"],
            "batch": files.agent.batch,
            "local_only": False,
        },
        "agents": {end.name: files.agent.model_dump(include=own)},
    }
    return read_config(tables, folder / "config.json")


def _trained_models(end: AgentEnd, own: Float64Array, files: AgentFiles) -> TrainedModels:
    """Return the own model and the shared one in the units of the data, ready for predictions."""
    model, shared = files.model, own
    if end.shared is not None:
        shared = np.asarray(end.shared, np.float64)
        if files.scaling is not None:
            shared = files.scaling.to_original_units(shared[None])[0]
    return TrainedModels(
        kind=model.kind,
        names=(end.name,),
        columns=tuple(model.features),
        labels=model.labels,
        layout=model.kind.layout(len(model.features), model.labels, intercept=model.intercept),
        models=own[None],
        average=shared,
    )


def _outcome(
    end: AgentEnd, feasible: Float64Array, models: TrainedModels, files: AgentFiles
) -> Outcome:
    """Return the verdict on the own model, and the certificate of all models.

    Losses are functions of ``feasible`` in the coordinates of the training, and limits of
    ``models`` in the units of the data.
    """
    agent, metadata, constraint = end.agent, end.metadata, files.agent.constraint
    trained, own = np.asarray(end.model, np.float64), models.models[0]
    if files.scaling is not None:
        trained = files.scaling.to_original_units(trained[None])[0]
    usage = constraint.usage(_constrained(agent, own))
    shared = None if end.shared is None else np.asarray(end.shared, np.float64)
    verdict = AgentOutcome(
        agent=end.name,
        constraint=constraint.spec[:200],
        usage=LimitUsage(usage.text, usage.active, usage.share),
        infeasibility=constraint.distance(_constrained(agent, trained)),
        distance=0.0 if shared is None else float(np.linalg.norm(feasible - shared)),
        held_out=0 if agent.test is None else agent.test.size,
        score=None if shared is None else _score(agent, feasible),
        average_score=None if shared is None else _score(agent, shared),
        local_score=None,
        against_alone=None,
        against_average=None if shared is None else _compare(agent, feasible, shared, models),
    )
    objective, gap = metadata.get("objective"), metadata.get("gap")
    is_known = objective is not None and gap is not None
    rows = "the rows of the training" if agent.test is None else "held-out rows"
    notes = [note.format(**metadata, rows=rows) for note in NOTES]
    if agent.privacy is not None:
        notes.append(PRIVATE.format(**vars(agent.privacy)))
    return Outcome(
        status="finished",
        rounds=int(metadata["round"]),
        score_name=models.output.score_name,
        agents=(verdict,),
        objective=objective,
        gap=gap,
        relative_gap=gap / abs(objective) if is_known and objective else None,
        reason=None if is_known else str(metadata.get("reason", "not all agents took part in one")),
        notes=tuple(notes if shared is not None else [*notes, NO_SHARED_MODEL]),
        warnings=tuple(
            RunWarning("own model", (end.name,), each) for each in model_warnings(agent, feasible)
        ),
    )


def _compare(
    agent: Agent, own: Float64Array, shared: Float64Array, models: TrainedModels
) -> Comparison | None:
    """Compare the own model with the shared one, on held-out rows if there are any."""
    name = "the shared model"
    if agent.test is None:
        return compare_training_losses(agent.loss, own, shared, name)
    score_name = models.output.score_name
    return compare_on_held_out_rows(agent.test, own, shared, score_name=score_name, other_name=name)


def _score(agent: Agent, x: Array) -> float | None:
    score = (agent.test or agent.loss).accuracy(x)
    return float(score) if math.isfinite(score) else None


def local_metrics(agent: Agent, model: Array, names: Sequence[str]) -> dict[str, float]:
    """Return some of ``METRICS`` of a model on the agent's data, without those not finite."""
    functions: dict[str, Callable[[], float]] = {
        "loss": lambda: agent.loss.value(model),
        "accuracy": lambda: agent.loss.accuracy(model),
        "infeasibility": lambda: agent.feasible_set.distance(model),
        "rows": lambda: agent.loss.size,
    }
    values = {name: float(functions[name]()) for name in names}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def model_warnings(agent: Agent, model: Float64Array) -> list[str]:
    """Return what the agent's owner should know about its model, judged by its own rows."""
    found = []
    remedy = "relax its constraint, or ask for more rounds or a weaker coupling"
    if agent.loss.convex and not _constrained(agent, model).any():
        found.append(f"All coefficients are 0, so the model predicts the same for all; {remedy}.")
    elif (score := agent.loss.accuracy(model)) < 0:
        found.append(
            f"The model predicts worse than the mean of the target, with R² {score:.3g} on the "
            f"agent's {agent.loss.size} rows; {remedy}."
        )
    bound, intercept = agent.intercept_bound, agent.loss.intercept_slice
    if bound is not None and np.abs(model[intercept]).max() >= (1 - 1e-6) * bound:
        found.append(
            f"The intercept is at its bound of {bound:.4g}; ask the server for a larger "
            "model.intercept_bound."
        )
    return found


def _constrained(agent: Agent, model: Float64Array) -> Float64Array:
    """Return the parameters that the agent's constraint applies to."""
    intercept = agent.loss.intercept_slice
    return model if intercept is None or agent.constrain_intercept else model[: intercept.start]
