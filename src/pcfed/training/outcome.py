"""The summary of a finished training: the table at its end, and the file ``outcome.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np

from pcfed.arrays import Array
from pcfed.errors import short_repr
from pcfed.guarantees import certify
from pcfed.losses import Loss
from pcfed.sets import ProjectionError
from pcfed.simulation.result import Result
from pcfed.storage.saved import Metadata, SavedJson, Upgrades
from pcfed.training.setup import TrainingSetup
from pcfed.training.trained_models import TrainedModels

MAX_CONSTRAINT_LENGTH = 200
"""Longer descriptions of a set are cut."""

T = TypeVar("T", "AgentOutcome", "Outcome")


@dataclass(frozen=True)
class AgentOutcome:
    r"""The summary of one agent's model, which is feasible.

    Attributes
    ----------
    agent, constraint : str
        The agent's name and its set.
    used, budget : float or None
        How much of its budget the model uses, where the set has one: the radius of a ball, the b
        of a halfspace.
    infeasibility : float
        The distance of the trained model from the set, before it was projected.
    distance : float
        The distance $\|x_i - \bar x\|$ of the model from the average model.
    score, average_score, local_score : float or None
        On the agent's held-out rows: of its own model, of the average model, and of a model that
        the agent trained alone. None where there are no such rows or no such model.
    """

    agent: str
    constraint: str
    used: float | None
    budget: float | None
    infeasibility: float
    distance: float
    score: float | None
    average_score: float | None
    local_score: float | None


def _upgrade_format_1(contents: Metadata) -> Metadata:
    """Rename the keys that had other names in format 1."""
    upgraded = dict(contents)
    upgraded["score_name"] = upgraded.pop("measure")
    upgraded["agents"] = [
        {("infeasibility" if key == "moved" else key): value for key, value in each.items()}
        for each in upgraded["agents"]
    ]
    return upgraded


@dataclass(frozen=True)
class Outcome(SavedJson):
    r"""The summary of a training.

    Attributes
    ----------
    status : str
        How the run ended.
    rounds : int
        The number of rounds.
    score_name : {"accuracy", "R²", "loss"}
        What the scores are.
    agents : tuple of AgentOutcome
        In the order of the roster.
    objective : float or None
        $f$ of the feasible models, in the coordinates of the training.
    gap, relative_gap : float or None
        A bound on its distance from the optimum, and this bound as a share of the objective.
    reason : str or None
        Why there is no gap.
    notes : tuple of str
        Remarks for readers of the table.
    """

    file_kind: ClassVar[str] = "training summary"
    format: ClassVar[int] = 2
    upgrades: ClassVar[Upgrades] = {1: _upgrade_format_1}
    advice: ClassVar[str] = "rerun pcfed train to write it again."
    max_bytes: ClassVar[int] = 2**28

    status: str
    rounds: int
    score_name: str
    agents: tuple[AgentOutcome, ...]
    objective: float | None
    gap: float | None
    relative_gap: float | None
    reason: str | None
    notes: tuple[str, ...] = ()

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Outcome:
        table = dict(contents)
        table["agents"] = tuple(_from_table(AgentOutcome, each) for each in table["agents"])
        table["notes"] = tuple(table["notes"])
        if not all(isinstance(note, str) for note in table["notes"]):
            raise TypeError
        return _from_table(Outcome, table)


ALLOWED_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (float,),
    "float | None": (float, type(None)),
    "tuple[str, ...]": (tuple,),
    "tuple[AgentOutcome, ...]": (tuple,),
}
"""The Python types of the fields in a JSON file, by their annotations."""


def _from_table(kind: type[T], table: Mapping[str, Any]) -> T:
    """Return a dataclass from its fields, or raise KeyError or TypeError."""
    for field in fields(kind):
        value = table[field.name]
        if type(value) not in ALLOWED_TYPES[str(field.type)]:
            raise TypeError
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError
    return kind(**table)


# -- evaluation -----------------------------------------------------------------------------------


def evaluate_training(
    setup: TrainingSetup,
    result: Result,
    trained: TrainedModels,
    local: Result | None,
    notes: tuple[str, ...],
) -> Outcome:
    """Return the summary of a training that has ended.

    Budgets and distances are those of the feasible models in the units of the data; the objective
    and its gap are of the problem that was solved, in the coordinates of the training.
    """
    objective = gap = relative_gap = None
    try:
        certificate = certify(setup.problem, result)
    except (ProjectionError, ValueError) as error:
        reason: str | None = str(error)
    else:
        objective, gap = _finite(certificate.objective), _finite(certificate.gap)
        relative_gap, reason = _finite(certificate.relative_gap), certificate.reason
    return Outcome(
        status=result.status,
        rounds=result.state.round,
        score_name=trained.output.score_name,
        agents=tuple(_evaluate_agents(setup, result, trained, local)),
        objective=objective,
        gap=gap,
        relative_gap=relative_gap,
        reason=reason,
        notes=notes,
    )


def _evaluate_agents(
    setup: TrainingSetup, result: Result, trained: TrainedModels, local: Result | None
) -> Iterator[AgentOutcome]:
    """Yield the summary of every agent."""
    problem, score_name = setup.problem, trained.output.score_name
    raw = result.models
    scored = np.vstack([trained.models, trained.average])
    if setup.scaling is not None:
        # Sets speak of the data's units, held-out losses of the training's coordinates.
        raw = setup.scaling.to_original_units(raw)
        scored = setup.scaling.to_standardized_units(scored)
    intercept = problem.agents[0].loss.intercept_slice
    num_coefficients = problem.n if intercept is None else intercept.start
    for i, agent in enumerate(problem.agents):
        constraint, model = setup.constraints[i], trained.models[i]
        used, budget = constraint.budget_use(model[:num_coefficients]) or (None, None)
        own = None if local is None else agent.feasible_set.project(local.models[i])
        yield AgentOutcome(
            agent=problem.names[i],
            constraint=short_repr(constraint, MAX_CONSTRAINT_LENGTH),
            used=used,
            budget=budget,
            infeasibility=constraint.distance(raw[i, :num_coefficients]),
            distance=float(np.linalg.norm(model - trained.average)),
            score=_score(agent.test, scored[i], score_name),
            average_score=_score(agent.test, scored[-1], score_name),
            local_score=_score(agent.test, own, score_name),
        )


def _score(held_out: Loss | None, x: Array | None, score_name: str) -> float | None:
    """Return the score of a model on held-out rows; None without rows or model."""
    if held_out is None or x is None:
        return None
    return _finite(held_out.value(x) if score_name == "loss" else held_out.accuracy(x))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
