"""What an agent has in the end: its feasible model, and a page that tells its owner about it.

Both lie in the agent's own folder, and nobody else gets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.federation.paths import MODEL, REPORT
from pcfed.federation.protocol import Scalar
from pcfed.guarantees import send_model
from pcfed.problem import Agent
from pcfed.storage.archive import save_arrays
from pcfed.storage.atomic import write_atomically

FORMAT = 1
"""Version of the file of a model."""


def measures(agent: Agent, model: Array, names: Sequence[str]) -> dict[str, float]:
    """Return some of ``METRICS`` of a model on the agent's data; those without meaning left out.

    Parameters
    ----------
    agent : Agent
        Whose data and set.
    model : Array
        The model.
    names : sequence of str
        Which measures.
    """
    ways: dict[str, Callable[[], float]] = {
        "loss": lambda: agent.loss.value(model),
        "accuracy": lambda: agent.loss.accuracy(model),
        "infeasibility": lambda: agent.feasible_set.distance(model),
        "rows": lambda: agent.loss.size,
    }
    found = {name: float(ways[name]()) for name in names}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def use_of_budget(agent: Agent, model: Float64Array) -> float | None:
    r"""Return how much of its limits a model uses: the smallest $t$ with $x \in t X$.

    1 is the boundary. None where limits have no size: the set does not contain zero.

    Parameters
    ----------
    agent : Agent
        Whose set.
    model : Array
        A point in it.

    Examples
    --------
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> agent = Agent(LeastSquares(np.eye(2), np.ones(2)), L1Ball(4.0), 0.1)
    >>> round(use_of_budget(agent, np.array([1.0, -2.0])), 6)
    0.75
    """
    limits = agent.feasible_set
    if not limits.contains(np.zeros_like(model)):
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if limits.contains(model / middle) else (middle, high)
    return high if high > 1e-9 else 0.0


def save_outcome(
    folder: Path,
    name: str,
    agent: Agent,
    model: Array,
    average: Array | None,
    facts: Mapping[str, Scalar],
    about: Mapping[str, Any],
) -> None:
    """Write an agent's feasible model and its report.

    Parameters
    ----------
    folder : Path
        Where.
    name : str
        The agent's name.
    agent : Agent
        Its data, set and coupling.
    model : Array
        Its model as training left it.
    average : Array or None
        The average of all agents' models, where the server knows it.
    facts : mapping
        Those of the server's last message.
    about : mapping
        What to say of the parameters.
    """
    feasible = send_model(agent, model)
    said = {
        "what": "the feasible model of an agent of pcfed",
        "format": FORMAT,
        "name": name,
        "training": facts["training"],
        "rounds": facts["round"],
        "shape": list(agent.loss.shape),
        **about,
    }
    save_arrays(folder / MODEL, said, {"model": feasible})
    page = _page(name, agent, model, feasible, average, facts)
    write_atomically(folder / REPORT, page.encode())


def _page(
    name: str,
    agent: Agent,
    model: Array,
    feasible: Float64Array,
    average: Array | None,
    facts: Mapping[str, Scalar],
) -> str:
    """Return the report: what a person should know, without scripts."""
    use = use_of_budget(agent, feasible)
    rows = {
        "Training": f"{facts['training']}, {facts['round']} rounds with {facts['m']} agents",
        "Constraint": repr(agent.constraint)[:400],
        "Distance from it when training ended": f"{agent.feasible_set.distance(model):.3g}",
        "Use of its budget": "it has no size" if use is None else f"{100 * use:.4g} %",
        "Certificate": str(facts.get("certificate", "There is none.")),
    }
    models = {"its own model": feasible}
    if average is not None:
        models["the average of all agents"] = np.asarray(average, np.float64)
    table = "".join(
        f"<tr><th scope=row>{escape(each)}<td>{agent.loss.value(x):.6g}"
        f"<td>{_share(agent.loss.accuracy(x))}<td>{agent.feasible_set.distance(x):.3g}"
        for each, x in models.items()
    )
    listed = "".join(f"<dt>{escape(key)}<dd>{escape(value)}" for key, value in rows.items())
    return PAGE.format(
        name=escape(name), facts=listed, table=table, size=agent.loss.size, model=MODEL
    )


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f} %"


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name}: its own model</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: auto; padding: 1rem }}
dt {{ font-weight: 600 }} dd {{ margin: 0 0 .6rem; overflow-wrap: anywhere }}
table {{ border-collapse: collapse }} th, td {{ padding: .3rem .8rem; text-align: right }}
th:first-child {{ text-align: left }} tr {{ border-bottom: 1px solid #8886 }}
</style>
<h1>{name}: its own model</h1>
<p>The model is in <code>{model}</code>, inside the constraint. This page and that file stay with
{name}; only a certificate, if its owner agrees, sends the model to the server, to be summed.</p>
<dl>{facts}</dl>
<h2>On its own {size} rows</h2>
<table>
<tr><th scope=col>model<th scope=col>loss<th scope=col>accuracy or R²<th scope=col>distance from set
{table}
</table>
</html>
"""
