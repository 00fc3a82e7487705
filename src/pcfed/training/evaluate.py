"""The evaluation of a finished training: certificate, use of budgets, scores on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pcfed.arrays import Array
from pcfed.errors import short_repr
from pcfed.guarantees import Certificate, certify
from pcfed.losses import Loss
from pcfed.problem import Problem
from pcfed.sets import ProjectionError
from pcfed.simulation.result import Result
from pcfed.training.outcome import AgentOutcome, Outcome
from pcfed.training.setup import TrainingSetup
from pcfed.training.trained_models import TrainedModels

MAX_CONSTRAINT_LENGTH = 200
"""Longer descriptions of a set are cut."""


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

    Parameters
    ----------
    setup : TrainingSetup
        The agents, with their held-out rows.
    result : Result
        The run.
    trained : TrainedModels
        The feasible models.
    local : Result or None
        The run in which every agent trains alone.
    notes : tuple of str
        Remarks for readers.
    """
    certificate, reason = _certify(setup.problem, result)
    return Outcome(
        status=result.status,
        rounds=result.state.round,
        score_name=trained.output.score_name,
        agents=tuple(_evaluate_agents(setup, result, trained, local)),
        objective=None if certificate is None else _finite(certificate.objective),
        gap=None if certificate is None else _finite(certificate.gap),
        relative_gap=None if certificate is None else _finite(certificate.relative_gap),
        reason=reason if certificate is None else certificate.reason,
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


def _certify(problem: Problem, result: Result) -> tuple[Certificate | None, str | None]:
    """Return the certificate of the models, or why there is none."""
    try:
        return certify(problem, result), None
    except (ProjectionError, ValueError) as error:
        return None, str(error)


def _score(held_out: Loss | None, x: Array | None, score_name: str) -> float | None:
    """Return the score of a model on held-out rows; None without rows or model."""
    if held_out is None or x is None:
        return None
    return _finite(held_out.value(x) if score_name == "loss" else held_out.accuracy(x))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
