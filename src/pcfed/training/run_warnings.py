"""Warnings about a finished training: what was seen, and what to try.

Every check yields sentences about single agents. Many agents with the same warning share one
sentence, so that a reader sees every kind of problem at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pcfed.algorithms import PCFedSplit
from pcfed.arrays import Float64Array
from pcfed.simulation.result import Result
from pcfed.training.comparison import MIN_ROWS
from pcfed.training.setup import TrainingSetup

if TYPE_CHECKING:
    from pcfed.training.outcome import AgentOutcome

MAX_SENTENCES = 3
"""Further agents with the same warning are only listed."""

MAX_NAMES = 8
"""Names in a list of agents at most."""

MAX_RELATIVE_GAP = 0.01
"""A training with a larger certified gap has not converged."""

MAX_LOSS_RATIO = 2.0
"""There is a warning if an own model's loss is more than this many times that of training alone."""

MIN_LOSS_SHARE = 0.05
"""A difference of training losses counts if it is at least this share of the loss at the start."""

MAX_CURVATURE_FACTOR = 100.0
"""There is a warning if curvatures exceed by this factor what the loss expects."""


@dataclass(frozen=True)
class RunWarning:
    """A warning about a training.

    Attributes
    ----------
    kind : str
        What it is about: ``"negative R²"``, ``"missing labels"``, ``"constant model"``, …
    agents : tuple of str
        The agents that it is about; empty if it is about all.
    sentence : str
        What was seen, and what to try.
    """

    kind: str
    agents: tuple[str, ...]
    sentence: str


class RunEnd(NamedTuple):
    """What the checks read; ``own`` has the feasible models in the coordinates of the training."""

    setup: TrainingSetup
    result: Result
    own: Float64Array
    agents: Sequence[AgentOutcome]
    score_name: str
    relative_gap: float | None

    @property
    def personalizations(self) -> list[float]:
        """The share of every agent's loss that is taken at its own model."""
        agents = self.setup.problem.agents
        return [float(getattr(agent, "personalization", 0.0)) for agent in agents]


def find_warnings(end: RunEnd) -> tuple[RunWarning, ...]:
    """Return the warnings about a finished training, the most general first."""
    found = [*_not_converged(end), *_limits_without_effect(end)]
    checks = (
        _large_losses,
        _negative_scores,
        _constant_models,
        _missing_labels,
        _intercepts_at_bounds,
        _refused_updates,
        _large_noise,
        _large_curvatures,
    )
    for check in checks:
        found += _merged(list(check(end)))
    return tuple(found)


def _merged(found: list[RunWarning]) -> list[RunWarning]:
    """Return the first sentences of a kind, and one that lists all further agents."""
    rest = [name for warning in found[MAX_SENTENCES:] for name in warning.agents]
    if not rest:
        return found
    names = ", ".join(rest[:MAX_NAMES])
    more = f" and {len(rest) - MAX_NAMES} more" if len(rest) > MAX_NAMES else ""
    sentence = f"{names}{more}: the same ({found[0].kind})."
    return [*found[:MAX_SENTENCES], RunWarning(found[0].kind, tuple(rest), sentence)]


# -- checks of the whole training -----------------------------------------------------------------


def _not_converged(end: RunEnd) -> Iterator[RunWarning]:
    """Yield a warning if the certified gap is large and the run did all of its rounds."""
    gap = end.relative_gap
    if gap is None or gap <= MAX_RELATIVE_GAP or end.result.status != "finished":
        return
    more = f"set training.rounds to more than {end.result.state.round}"
    if not isinstance(end.setup.algorithm, PCFedSplit):
        more += ', or algorithm.name = "PCFedSplit"'
    size = f"{100 * gap:.2g} %" if gap < 10 else f"{gap:.2g} times its value"
    yield RunWarning(
        "not converged",
        (),
        f"The training has not converged: its objective may be up to {size} above the optimum; "
        f"{more}.",
    )


def _limits_without_effect(end: RunEnd) -> Iterator[RunWarning]:
    """Yield a warning if no model is at its limit, so that all own models are the average."""
    usages = [agent.usage for agent in end.agents]
    if len(usages) < 2 or any(usage is None or usage.active for usage in usages):
        return
    if max(end.personalizations) > 0:
        return
    seen = "no agent has a limit" if _no_limits(end) else "no model is at its limit"
    yield RunWarning(
        "limits without effect",
        (),
        f"The limits have no effect: {seen}, so every agent's own model is the shared model; "
        "tighten a constraint, or set personalization above 0.",
    )


def _no_limits(end: RunEnd) -> bool:
    return all(agent.usage is not None and agent.usage.text == "no limit" for agent in end.agents)


# -- checks of every agent ------------------------------------------------------------------------


def _large_losses(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents whose own model has a much larger loss than training alone."""
    start = end.setup.start
    origin = np.zeros(end.setup.problem.n) if start is None else start
    pairs = zip(end.agents, end.setup.problem.agents, end.own, end.personalizations, strict=True)
    for seen, agent, own, personalization in pairs:
        comparison = seen.against_alone
        if comparison is None:
            continue
        if comparison.verdict == "worse" and end.score_name == "loss":
            mine, alone, where = seen.score, seen.local_score, f"{seen.held_out} held-out rows"
        elif comparison.verdict == "training rows":
            mine = agent.loss.value(own)
            alone, where = mine + (comparison.difference or 0.0), "its training rows"
            if mine - alone < MIN_LOSS_SHARE * agent.loss.value(origin):
                continue
        else:
            continue
        if mine is None or alone is None or mine <= MAX_LOSS_RATIO * alone:
            continue
        remedy = "try another coupling, more rounds, or pcfed tune"
        if personalization < 1:
            remedy = "set personalization = 1 to train its own model on its own loss, or pcfed tune"
        yield RunWarning(
            "large loss",
            (seen.agent,),
            f"{seen.agent}: its own model has the loss {mine:.3g} on {where}, training alone has "
            f"{alone:.3g}; {remedy}.",
        )


def _negative_scores(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents whose R² is negative on held-out rows."""
    if end.score_name != "R²":
        return
    intercept = end.setup.problem.agents[0].loss.intercept_slice is not None
    remedy = "relax its constraint, or take a larger personalization"
    if not intercept:
        remedy = f"set model.intercept = true, {remedy}"
    for agent in end.agents:
        if agent.score is not None and agent.score < 0:
            yield RunWarning(
                "negative R²",
                (agent.agent,),
                f"{agent.agent}: predicts worse than the mean of its target, with R² "
                f"{agent.score:.3g} on {agent.held_out} held-out rows; {remedy}.",
            )


def _constant_models(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents whose model predicts the same for all rows."""
    k, labels = math.prod(end.setup.problem.shape), end.setup.labels
    for seen, agent, own in zip(end.agents, end.setup.problem.agents, end.own, strict=True):
        remedy = "relax its constraint, lower its coupling, or take a larger personalization"
        if end.setup.start is None and not own[:k].any():
            yield RunWarning(
                "constant model",
                (seen.agent,),
                f"{seen.agent}: all coefficients are 0, so its model predicts the same for every "
                f"row; {remedy}.",
            )
            continue
        loss = agent.loss if agent.test is None else agent.test
        predictions = loss.sample_predictions(own)
        if predictions is None or len(predictions) < MIN_ROWS["labels"]:
            continue
        rows = predictions.reshape(len(predictions), -1)
        if not (rows == rows[0]).all() or loss.accuracy(own) == 1:
            continue
        shown = rows[0, 0] if labels is None else labels[int(rows[0, 0])]
        text = f"{shown:.4g}" if labels is None else f'"{shown}"'
        kind = "held-out" if agent.test is not None else "training"
        yield RunWarning(
            "constant model",
            (seen.agent,),
            f"{seen.agent}: its model predicts {text} for all {len(rows)} {kind} rows; {remedy}.",
        )


def _missing_labels(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents that have no training rows of some label."""
    for seen, missing in zip(end.agents, end.setup.missing_labels, strict=True):
        if missing:
            names = ", ".join(f'"{label}"' for label in missing[:4])
            more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
            word = "label" if len(missing) == 1 else "labels"
            yield RunWarning(
                "missing labels",
                (seen.agent,),
                f"{seen.agent}: no training row has the {word} {names}{more}, which its model can "
                "only learn from other agents; add such rows, or take a larger coupling.",
            )


def _intercepts_at_bounds(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents whose intercept is at its bound, where agents have such bounds."""
    for seen, agent, own in zip(end.agents, end.setup.problem.agents, end.own, strict=True):
        bound, intercept = agent.intercept_bound, agent.loss.intercept_slice
        if bound is None or intercept is None:
            continue
        if np.abs(own[intercept]).max() >= (1 - 1e-6) * bound:
            yield RunWarning(
                "intercept at its bound",
                (seen.agent,),
                f"{seen.agent}: its intercept is at its bound of {bound:.4g}; set "
                "model.intercept_bound to a larger number.",
            )


def _refused_updates(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents some of whose updates were refused."""
    for i, seen in enumerate(end.agents):
        refusals = [refusal for refusal in end.result.refusals if refusal.agent == i]
        if refusals:
            count = "an update was" if len(refusals) == 1 else f"{len(refusals)} updates were"
            last = refusals[-1]
            yield RunWarning(
                "refused updates",
                (seen.agent,),
                f"{seen.agent}: {count} refused, the last in round {last.round} "
                f"({last.reason.rstrip('.')}); check its data for very large values, or set "
                "data.standardize = true.",
            )


def _large_noise(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents whose privacy budget needs much noise."""
    for seen, spent in zip(end.agents, end.result.privacy, strict=False):  # empty without budgets
        sentence = spent and spent.noise_warning(seen.agent, end.setup.problem.n)
        if sentence is not None:
            yield RunWarning("large noise", (seen.agent,), sentence)


def _large_curvatures(end: RunEnd) -> Iterator[RunWarning]:
    """Yield agents whose curvature was far underestimated, so that their steps were cut."""
    factors = end.result.state.private.get("factor")
    if factors is None:
        return
    for i, (seen, agent) in enumerate(zip(end.agents, end.setup.problem.agents, strict=True)):
        # Where a loss expects no curvature, the factor is the curvature itself.
        known = math.isfinite(agent.loss.smoothness())
        if known and (factor := float(factors[i].max())) > MAX_CURVATURE_FACTOR:
            yield RunWarning(
                "large curvature",
                (seen.agent,),
                f"{seen.agent}: its steps had to be {factor:.0f} times shorter than its loss lets "
                "expect; check its data for outliers, or set data.standardize = true.",
            )
