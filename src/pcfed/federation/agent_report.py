"""What an agent keeps after a training: its feasible model, and a report for its owner.

Both are written to the agent's own folder and are sent to nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.federation.paths import MODEL, REPORT
from pcfed.problem import Agent
from pcfed.report.page import Definitions, Page, Paragraph, Section, Table, table_of, write_page
from pcfed.storage.archive import save_arrays
from pcfed.training.trained_models import delivered_model

FORMAT = 1
"""Version of the model file."""

GLOSSARY = {
    "loss": "of the model on the agent's own rows; lower is better.",
    "accuracy or R²": "on the agent's own rows: the fraction of rows that a classifier predicts "
    "correctly, or the coefficient of determination of a regression.",
    "distance from the set": "the Euclidean distance of a model from the agent's constraint set; "
    "zero is feasible.",
    "infeasibility": "the distance of the trained model from the set, before it was made feasible.",
    "limit": "how much of its limit the model in the file uses, in the terms of the set.",
}


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


def save_model_and_report(
    folder: Path,
    name: str,
    agent: Agent,
    model: Array,
    average: Array | None,
    metadata: Mapping[str, Any],
    model_metadata: Mapping[str, Any],
) -> None:
    """Write an agent's feasible model and its report.

    ``average`` is the average of all agents' models, if the server knows it; ``metadata`` is that
    of the server's last message, and ``model_metadata`` says what the model's parameters are.
    """
    feasible = delivered_model(agent, model)
    described = {
        "what": "the feasible model of an agent of pcfed",
        "format": FORMAT,
        "name": name,
        "training": metadata["training"],
        "rounds": metadata["round"],
        "shape": list(agent.loss.shape),
        **model_metadata,
    }
    save_arrays(folder / MODEL, described, {"model": feasible})
    models = {"own model": feasible}
    if average is not None:
        models["average of all agents"] = np.asarray(average, np.float64)
    warnings = [Paragraph(each, css_class="note") for each in model_warnings(agent, feasible)]
    title = f"Metrics on {name}'s {agent.loss.size} rows"
    sections = [
        Section("training", "Training", [*warnings, _summary(agent, model, feasible, metadata)]),
        Section("metrics", title, [_metrics_table(agent, models)]),
    ]
    heading = f"Model of {name}"
    lead = (
        f"The model is in the file {MODEL} and satisfies the constraint. The file and this page "
        f"stay with {name}. The model is sent to the server only for a certificate, if the owner "
        "has agreed to one, and only to be summed."
    )
    write_page(Page(f"{heading}: pcfed", heading, lead, sections, GLOSSARY), folder / REPORT)


def _summary(
    agent: Agent, model: Array, feasible: Float64Array, metadata: Mapping[str, Any]
) -> Definitions:
    """Return the training, the constraint and how the model satisfies it."""
    bound = agent.intercept_bound
    return Definitions(
        {
            "training": f"{metadata['training']}, {metadata['round']} rounds with "
            f"{metadata['m']} agents",
            "constraint": agent.constraint.spec[:400],
            "infeasibility": f"{agent.feasible_set.distance(model):.3g}",
            "limit": agent.constraint.usage(_constrained(agent, feasible)).text,
            **({} if bound is None else {"intercept": f"at most {bound:.4g} in absolute value"}),
            "certificate": str(metadata.get("certificate", "There is none.")),
        }
    )


def _metrics_table(agent: Agent, models: Mapping[str, Float64Array]) -> Table:
    """Return the metrics of some models on the agent's rows."""
    rows = []
    for label, x in models.items():
        accuracy = agent.loss.accuracy(x)
        score = "–" if math.isnan(accuracy) else f"{100 * accuracy:.2f} %"
        distance = f"{agent.feasible_set.distance(x):.3g}"
        rows.append([label, f"{agent.loss.value(x):.6g}", score, distance])
    columns = ["model", "loss", "accuracy or R²", "distance from the set"]
    return table_of("Metrics", columns, rows, "numbers agents")
