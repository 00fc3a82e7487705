"""The summary of a finished training: a verdict for every agent, and the file ``outcome.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.guarantees import certify
from pcfed.losses import Loss
from pcfed.notebook import html_list, html_table
from pcfed.problem import Agent
from pcfed.sets import Blocks, ConvexSet, ProjectionError, Usage
from pcfed.simulation.result import Result
from pcfed.storage.saved import Metadata, SavedJson, Upgrades
from pcfed.training.comparison import (
    Comparison,
    compare_on_held_out_rows,
    compare_training_losses,
)
from pcfed.training.run_warnings import RunEnd, RunWarning, find_warnings
from pcfed.training.setup import TrainingSetup
from pcfed.training.trained_models import TrainedModels

MAX_CONSTRAINT_LENGTH = 200
"""Longer descriptions of a set are cut."""


@dataclass(frozen=True)
class LimitUsage:
    """How much of its limit an agent's model uses.

    Attributes
    ----------
    text : str
        In the terms of the set, such as ``"uses 4.8 of 5 (l1 norm)"``.
    active : bool
        Whether the model is at the limit.
    share, multiplier : float or None
        As in `pcfed.sets.Usage`; the multiplier is for the objective of the training.
    gain : str or None
        The multiplier as a sentence; None if relaxing the limit gains nothing, or it is not known.
    """

    text: str
    active: bool
    share: float | None = None
    multiplier: float | None = None
    gain: str | None = None


@dataclass(frozen=True)
class AgentOutcome:
    r"""The verdict on one agent's model, which is feasible.

    Attributes
    ----------
    agent, constraint : str
        The agent's name and its set, as files write it.
    usage : LimitUsage or None
        How much of its limit the model uses.
    infeasibility : float
        The distance of the trained model from the set, before it was projected.
    distance : float
        The distance $\|x_i - \bar x\|$ of the model from the shared model, in the coordinates of
        the training.
    held_out : int
        The number of held-out rows.
    score, average_score, local_score : float or None
        On the agent's held-out rows: of its own model, of the shared model, and of a model that
        the agent trained alone. None where there are no such rows or no such model.
    against_alone, against_average : Comparison or None
        The own model against these two, with an interval of the difference.
    """

    agent: str
    constraint: str
    usage: LimitUsage | None
    infeasibility: float
    distance: float
    held_out: int
    score: float | None
    average_score: float | None
    local_score: float | None
    against_alone: Comparison | None
    against_average: Comparison | None

    @property
    def verdict(self) -> str:
        """The verdict in one sentence: on training alone, or on the shared model without that."""
        comparison = self.against_alone or self.against_average
        return "" if comparison is None else comparison.sentence


def _upgrade_format_1(contents: Metadata) -> Metadata:
    """Rename the keys that had other names in format 1."""
    upgraded = dict(contents)
    upgraded["score_name"] = upgraded.pop("measure")
    upgraded["agents"] = [
        {("infeasibility" if key == "moved" else key): value for key, value in each.items()}
        for each in upgraded["agents"]
    ]
    return _upgrade_format_2(upgraded)


def _upgrade_format_2(contents: Metadata) -> Metadata:
    """Add what format 2 did not have: there are no verdicts, and budgets have no unit."""
    agents = []
    for each in contents["agents"]:
        agent = dict(each)
        used, budget = agent.pop("used"), agent.pop("budget")
        usage = None
        if used is not None and budget is not None:
            usage = asdict(LimitUsage(f"uses {used:.4g} of {budget:.4g}", used >= budget))
        new = {"usage": usage, "held_out": 0, "against_alone": None, "against_average": None}
        agents.append({**agent, **new})
    return {**contents, "agents": agents, "warnings": []}


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
    warnings : tuple of RunWarning
        What went wrong, and what to try.
    """

    file_kind: ClassVar[str] = "training summary"
    format: ClassVar[int] = 3
    upgrades: ClassVar[Upgrades] = {1: _upgrade_format_1, 2: _upgrade_format_2}
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
    warnings: tuple[RunWarning, ...] = ()

    def __repr__(self) -> str:
        counts = f"{len(self.agents)} agents, {len(self.warnings)} warnings"
        return f"Outcome({self.status} after {self.rounds} rounds, {counts})"

    def _repr_html_(self) -> str:
        columns = ("agent", "limit", "gain", "own", "shared", "alone", "own model")
        rows = [
            (
                each.agent,
                each.usage and each.usage.text,
                each.usage and each.usage.multiplier,
                each.score,
                each.average_score,
                each.local_score,
                each.verdict.partition(": try")[0],
            )
            for each in self.agents
        ]
        sentences = [warning.sentence for warning in self.warnings]
        return html_table(repr(self), columns, rows, max_length=90) + html_list(sentences)

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Outcome:
        outcome: Outcome = _read(Outcome, contents)
        return outcome


def _read(kind: Any, value: Any) -> Any:
    """Return a value of JSON as a type: a dataclass, a tuple, a union, a literal or a number.

    Raise KeyError or TypeError if it has another type.
    """
    if is_dataclass(kind):
        types = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        if not isinstance(value, Mapping) or value.keys() - set(names):
            raise TypeError
        build: Any = kind
        return build(**{name: _read(types[name], value[name]) for name in names})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_read(arguments[0], each) for each in value)
    if origin is UnionType:  # of some type and None
        return None if value is None else _read(arguments[0], value)
    is_literal = origin is Literal and isinstance(value, str) and value in arguments
    # JSON's true is equal to 1 in Python, so types are compared.
    if not (is_literal or (kind in (str, bool, int, float) and type(value) is kind)):
        raise TypeError
    if kind is float and not math.isfinite(value):
        raise TypeError
    return value


# -- evaluation -----------------------------------------------------------------------------------


def evaluate_training(
    setup: TrainingSetup,
    result: Result,
    trained: TrainedModels,
    alone: Float64Array | None,
    notes: tuple[str, ...],
) -> Outcome:
    """Return the summary of a training that has ended.

    Limits are those of the feasible models in the units of the data; the objective, its gap and
    distances from the average are in the coordinates of the training.
    """
    objective = gap = relative_gap = None
    try:
        certificate = certify(setup.problem, result)
    except (ProjectionError, ValueError) as error:
        reason: str | None = str(error)
    else:
        objective, gap = _finite(certificate.objective), _finite(certificate.gap)
        relative_gap, reason = _finite(certificate.relative_gap), certificate.reason
    # Losses are functions of the coordinates of the training, sets of those of the data.
    own, average = trained.models, trained.average
    if setup.scaling is not None:
        *rows, average = setup.scaling.to_standardized_units(np.vstack([own, average]))
        own = np.array(rows)
    agents = tuple(_evaluate_agents(setup, result, trained, alone, own, average))
    return Outcome(
        status=result.status,
        rounds=result.state.round,
        score_name=trained.output.score_name,
        agents=agents,
        objective=objective,
        gap=gap,
        relative_gap=relative_gap,
        reason=reason,
        notes=notes,
        warnings=find_warnings(
            RunEnd(setup, result, own, agents, trained.output.score_name, relative_gap)
        ),
    )


def _evaluate_agents(
    setup: TrainingSetup,
    result: Result,
    trained: TrainedModels,
    alone: Float64Array | None,
    own: Float64Array,
    average: Float64Array,
) -> Iterator[AgentOutcome]:
    """Yield the verdict on every agent; ``own`` and ``average`` are as the losses take them."""
    problem, score_name = setup.problem, trained.output.score_name
    raw = result.models
    if setup.scaling is not None:
        raw = setup.scaling.to_original_units(raw)
    k = math.prod(problem.shape)
    directions = -_coefficient_gradients(setup, result, own)[:, :k]
    for i, agent in enumerate(problem.agents):
        constraint, model = setup.constraints[i], trained.models[i]
        lone = None if alone is None else agent.feasible_set.project(alone[i])
        excluded = constraint.distance(trained.average[:k]) > 1e-6 * np.linalg.norm(model[:k])
        reason = "its limit excludes the shared model" if excluded else ""
        usage = constraint.usage(model[:k], directions[i])
        yield AgentOutcome(
            agent=problem.names[i],
            constraint=_constraint_text(constraint, trained),
            usage=_limit_usage(usage, trained),
            infeasibility=constraint.distance(raw[i, :k]),
            distance=float(np.linalg.norm(own[i] - average)),
            held_out=setup.tests[i],
            score=_score(agent.test, own[i], score_name),
            average_score=_score(agent.test, average, score_name),
            local_score=_score(agent.test, lone, score_name),
            against_alone=_compare(
                agent, own[i], lone, "training alone", score_name, advice(agent)
            ),
            against_average=_compare(
                agent, own[i], average, "the shared model", score_name, reason
            ),
        )


def advice(agent: Agent) -> str:
    """Return what to try where an agent's own model is worse than training alone."""
    personalization = getattr(agent, "personalization", 0.0)
    options = ["another coupling, or pcfed tune"]
    if personalization < 1:
        options.insert(0, "a larger personalization")
    return f"try {', '.join(options)}"


def _coefficient_gradients(setup: TrainingSetup, result: Result, own: Float64Array) -> Float64Array:
    r"""Return the gradients of the objective in the agents' models, in the units of the data.

    The training uses $\hat w_j = s_j w_j$, so $\partial f / \partial w_j = s_j \, \partial f /
    \partial \hat w_j$. The intercept does not enter: limits do not apply to it.
    """
    center = result.center if setup.problem.center == "free" else None
    gradients = setup.problem.to_float64().gradient(own, center)
    k = math.prod(setup.problem.shape)
    if setup.scaling is not None:
        gradients[:, :k] *= np.tile(setup.scaling.scale, k // setup.scaling.scale.size)
    return gradients


def _limit_usage(usage: Usage, trained: TrainedModels) -> LimitUsage:
    """Return the usage with the names of columns and layers."""
    text = usage.text
    if usage.span is not None:
        text = f"{trained.part_name(*usage.span)}: {text}"
    gain, multiplier = None, _finite(usage.multiplier)
    if multiplier is not None and abs(multiplier) > 0:
        budget = usage.budget
        if usage.entry is not None:
            budget += f" of {trained.parameter_name(usage.entry)}"
        change = "one more unit" if multiplier > 0 else "one unit less"
        gain = f"{change} of {budget} would lower the objective by about {abs(multiplier):.3g}"
    return LimitUsage(text, usage.active, _finite(usage.share), multiplier, gain)


def _constraint_text(constraint: ConvexSet, trained: TrainedModels) -> str:
    """Return a set as files write it, with the names of the layers of a module."""
    text = constraint.spec
    if isinstance(constraint, Blocks) and not trained.kind.is_linear:
        n = trained.average.size
        spans = [slice(*span).indices(n)[:2] for span, _ in constraint.blocks]
        pairs = zip(spans, constraint.blocks, strict=True)
        text = ", ".join(f"{trained.part_name(*span)}: {m.spec}" for span, (_, m) in pairs)
    return text if len(text) <= MAX_CONSTRAINT_LENGTH else text[: MAX_CONSTRAINT_LENGTH - 1] + "…"


def _compare(
    agent: Agent,
    own: Float64Array,
    other: Array | None,
    other_name: str,
    score_name: str,
    advice: str,
) -> Comparison | None:
    """Compare on held-out rows, or by training losses if there are none."""
    if other is None:
        return None
    if agent.test is None:
        comparison = compare_training_losses(agent.loss, own, other, other_name)
        return None if _finite(comparison.difference) is None else comparison
    return compare_on_held_out_rows(
        agent.test, own, other, score_name=score_name, other_name=other_name, advice=advice
    )


def _score(held_out: Loss | None, x: Array | None, score_name: str) -> float | None:
    """Return the score of a model on held-out rows; None without rows or model."""
    if held_out is None or x is None:
        return None
    return _finite(held_out.value(x) if score_name == "loss" else held_out.accuracy(x))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
