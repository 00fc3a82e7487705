"""The end of a training: models that are in their sets, and how good they are."""

from __future__ import annotations

import math

import numpy as np

from pcfed.algorithms import Algorithm, Local, PCFedAvg
from pcfed.arrays import Array
from pcfed.errors import short_repr
from pcfed.guarantees import Certificate, certify
from pcfed.losses import LeastSquares, Loss
from pcfed.problem import Problem
from pcfed.sets import ProjectionError
from pcfed.simulation.result import Result
from pcfed.training.outcome import AgentOutcome, Outcome
from pcfed.training.setup import TrainingSetup
from pcfed.training.step_search import first_step
from pcfed.training.trained_models import TrainedModels

LONGEST = 200
"""Characters of a set in the table at most."""


def alone(problem: Problem, algorithm: Algorithm, halvings: int) -> Local:
    r"""Return the method by which agents train alone, with the penalty $\rho = L_f$.

    No number in it depends on how many rounds there are.

    Parameters
    ----------
    problem : Problem
        The agents.
    algorithm : Algorithm
        That of the training, for losses whose smoothness is not known: models move as fast.
    halvings : int
        How often its step was halved.
    """
    if 0 < problem.L_f < math.inf:
        return Local("auto", problem.L_f)
    step = first_step(algorithm, problem, halvings).step
    number = step if isinstance(step, float) else 0.1
    number /= problem.m if isinstance(algorithm, PCFedAvg) else 1
    return Local(number, 0.3 / number)


def outcome_of(
    made: TrainingSetup,
    result: Result,
    delivered: TrainedModels,
    local: Result | None,
    notes: tuple[str, ...],
) -> Outcome:
    """Return the figures of a training that has ended.

    Budgets and distances are those of the models that are delivered; the objective and its gap are
    of the problem that was solved, in the coordinates of the training.

    Parameters
    ----------
    made : TrainingSetup
        The agents, with their held-out rows.
    result : Result
        What the run came to.
    delivered : TrainedModels
        The models.
    local : Result or None
        The agents' trainings alone.
    notes : tuple of str
        What a reader should know.
    """
    found, reason = _certified(made.problem, result)
    models, trained = delivered.models, result.models
    tested = np.vstack([models, delivered.average])
    if made.scaling is not None:
        trained, tested = (
            made.scaling.to_original_units(trained),
            made.scaling.to_standardized_units(tested),
        )
    measure = _measure(made.problem.agents[0].loss)
    coefficients = (
        made.problem.n if (free := made.problem.agents[0].loss.free) is None else free.start
    )
    rows = []
    for i, (agent, constraint) in enumerate(
        zip(made.problem.agents, made.constraints, strict=True)
    ):
        used, budget = constraint.budget(models[i, :coefficients]) or (None, None)
        own = None if local is None else agent.feasible_set.project(local.models[i])
        rows.append(
            AgentOutcome(
                agent=made.problem.names[i],
                constraint=short_repr(constraint, LONGEST),
                used=used,
                budget=budget,
                moved=constraint.distance(trained[i, :coefficients]),
                distance=float(np.linalg.norm(models[i] - delivered.average)),
                score=_score(agent.test, tested[i], measure),
                average_score=_score(agent.test, tested[-1], measure),
                local_score=_score(agent.test, own, measure),
            )
        )
    return Outcome(
        status=result.status,
        rounds=result.state.round,
        measure=measure,
        agents=tuple(rows),
        objective=None if found is None else _finite(found.objective),
        gap=None if found is None else _finite(found.gap),
        relative_gap=None if found is None else _finite(found.relative_gap),
        reason=reason if found is None else found.reason,
        notes=notes,
    )


def _certified(problem: Problem, result: Result) -> tuple[Certificate | None, str | None]:
    """Return the certificate of the models, or why there is none."""
    try:
        return certify(problem, result), None
    except (ProjectionError, ValueError) as error:
        return None, str(error)


def _measure(loss: Loss) -> str:
    """Return what the accuracy of a loss is."""
    if math.isnan(loss.accuracy(np.zeros(loss.n))):
        return "loss"
    return "R²" if isinstance(loss, LeastSquares) else "accuracy"


def _score(test: Loss | None, x: Array | None, measure: str) -> float | None:
    """Return how good a model is on held-out rows."""
    if test is None or x is None:
        return None
    return _finite(test.value(x) if measure == "loss" else test.accuracy(x))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
