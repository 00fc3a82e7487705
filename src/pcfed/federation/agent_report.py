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
from pcfed.guarantees import feasible_model
from pcfed.problem import Agent
from pcfed.report.page import Definitions, Page, Section, Table, table_of, write_page
from pcfed.storage.archive import save_arrays

FORMAT = 1
"""Version of the model file."""

GLOSSARY = {
    "loss": "of the model on the agent's own rows; lower is better.",
    "accuracy or R²": "on the agent's own rows: the fraction of rows that a classifier predicts "
    "correctly, or the coefficient of determination of a regression.",
    "distance from the set": "the Euclidean distance of a model from the agent's constraint set; "
    "zero is feasible.",
    "infeasibility": "the distance of the trained model from the set, before it was made feasible.",
    "budget used": "the smallest t for which the model is in t times the set; 100 % is the "
    "boundary.",
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


def use_of_budget(agent: Agent, model: Float64Array) -> float | None:
    r"""Return the fraction of its budget that a model uses: the smallest $t$ with $x \in t X$.

    At 1 the model is on the boundary of the set $X$. The result is None if the set does not
    contain zero, because $t$ is then not defined.

    Examples
    --------
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> agent = Agent(LeastSquares(np.eye(2), np.ones(2)), L1Ball(4.0), 0.1)
    >>> round(use_of_budget(agent, np.array([1.0, -2.0])), 6)
    0.75
    """
    feasible_set = agent.feasible_set
    if not feasible_set.contains(np.zeros_like(model)):
        return None
    low, high = 0.0, 1.0
    for _ in range(40):  # bisection to 2⁻⁴⁰
        middle = (low + high) / 2
        low, high = (low, middle) if feasible_set.contains(model / middle) else (middle, high)
    return high if high > 1e-9 else 0.0


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
    feasible = feasible_model(agent, model)
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
    title = f"Metrics on {name}'s {agent.loss.size} rows"
    sections = [
        Section("training", "Training", [_summary(agent, model, feasible, metadata)]),
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
    used = use_of_budget(agent, feasible)
    return Definitions(
        {
            "training": f"{metadata['training']}, {metadata['round']} rounds with "
            f"{metadata['m']} agents",
            "constraint": repr(agent.constraint)[:400],
            "infeasibility": f"{agent.feasible_set.distance(model):.3g}",
            "budget used": "not defined for this set" if used is None else f"{100 * used:.4g} %",
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
