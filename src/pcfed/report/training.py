"""Reports of trainings: one page of one, or of several side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcfed.report.charts import Chart, Style
from pcfed.report.courses import course_of, courses, looks
from pcfed.report.measures import MEGABYTE
from pcfed.report.render import Drawn, render
from pcfed.storage.atomic import write_atomically
from pcfed.training.saved_run import SavedRun
from pcfed.training.trained_models import AVERAGE, TrainedModels

MOST_AGENTS = 200
"""Agents in a table at most."""
MOST_MODELS = 12
"""Models whose coefficients stand side by side."""
MOST_COEFFICIENTS = 16
"""Coefficients in a table, the largest."""


@dataclass(frozen=True)
class Coefficient:
    """One row of the table of coefficients: which, and its value in every model."""

    name: str
    values: Sequence[float]
    strengths: Sequence[float]


@dataclass(frozen=True)
class Weights:
    """The largest coefficients of some models, or the sizes of the parts of modules."""

    models: Sequence[str]
    rows: Sequence[Coefficient]
    number: int
    left_out: int
    parts: bool


@dataclass(frozen=True)
class Part:
    """Some charts and where they are."""

    id: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class View:
    """All that a page says of one training."""

    id: str
    title: str
    run: SavedRun
    styles: Mapping[str, Style]
    whole: Part
    each: Part
    weights: Weights | None

    @property
    def in_short(self) -> str:
        """What was trained, in a sentence."""
        run = self.run
        m, method = len(run.names), run.config.algorithm
        what = f"{run.models.average.size} parameters each" if run.models else "not finished yet"
        return f"{m} agents, {run.config.model.kind} models ({what}), trained by {method!r}."

    @property
    def certificate(self) -> str | None:
        """How far the models can be from the best, in a sentence."""
        found = self.run.outcome
        if found is None:
            return None
        if found.gap is None or found.objective is None:
            return f"There is no certificate: {found.reason}"
        share = "" if found.relative_gap is None else f" ({100 * found.relative_gap:.2g} %)"
        return (
            f"The delivered models are all inside their sets. Their objective is "
            f"{found.objective:.6g}, and the best possible is at most {found.gap:.3g} below{share}."
        )

    @property
    def figures(self) -> dict[str, str]:
        """The figures at the end, ready to show; what is not known is missing."""
        run = self.run
        found: dict[str, str] = {}
        if run.outcome is not None:
            outcome = run.outcome
            found = {"status": outcome.status, "rounds": str(outcome.rounds)}
            found["objective"] = shown(outcome.objective, 6)
            found["relative gap"] = shown(outcome.relative_gap)
            scores = [each.score for each in outcome.agents if each.score is not None]
            alone = [e.local_score for e in outcome.agents if e.local_score is not None]
            if scores:
                found[f"mean {outcome.score_name}, own models"] = shown(
                    math.fsum(scores) / len(scores)
                )
            if alone:
                found[f"mean {outcome.score_name}, alone"] = shown(math.fsum(alone) / len(alone))
        if run.history:
            last = run.history[-1]
            found.setdefault("status", "not finished")
            found.setdefault("rounds", str(last.round))
            found["loss at the average"] = shown(last.loss, 6)
            found["largest distance from a set"] = shown(float(last.infeasibility.max()))
            found["megabytes sent"] = shown((last.bytes_up + last.bytes_down) / MEGABYTE)
            found["seconds"] = shown(last.seconds)
        return found

    @property
    def agents(self) -> list[dict[str, str]]:
        """The table of agents: as the outcome says, or as far as the history goes."""
        run = self.run
        if run.outcome is not None:
            rows = [
                {
                    "agent": each.agent,
                    "set": each.constraint,
                    "uses": f"{each.used:.4g} of {each.budget:.4g}"
                    if each.used is not None and each.budget is not None
                    else "",
                    "outside by": shown(each.infeasibility),
                    "from the average": shown(each.distance),
                    f"{run.outcome.score_name}: own": shown(each.score),
                    "average": shown(each.average_score),
                    "alone": shown(each.local_score),
                }
                for each in run.outcome.agents
            ]
        else:
            last = run.history[-1] if run.history else None
            rows = [
                {
                    "agent": name,
                    "set": str(run.config.agent(name).constraint),
                    "outside by": shown(float(last.infeasibility[i])) if last else "",
                    "from the average": shown(float(last.distance[i])) if last else "",
                    "score": shown(float(last.test_accuracy[i])) if last else "",
                }
                for i, name in enumerate(run.names)
            ]
        empty = [name for name in (rows[0] if rows else ()) if not any(row[name] for row in rows)]
        return [{k: v for k, v in row.items() if k not in empty} for row in rows]


def write_training_report(runs: Sequence[SavedRun], path: str | os.PathLike[str]) -> None:
    """Write a page on one training, or on several side by side: one file that needs nothing else.

    Parameters
    ----------
    runs : sequence of SavedRun
        What `pcfed.training.saved_run.open_run` returned.
    path : path
        The file to write; an older one is replaced.

    Raises
    ------
    ValueError
        If there is nothing to report.
    ImportError
        If a package of the ``app`` extra is missing.
    """
    if not runs:
        raise ValueError("report: runs must not be empty, got none; give a folder.")
    views = [view_of(f"run-{i}", title, run) for i, (title, run) in enumerate(titled(runs).items())]
    together = Together(views) if len(runs) > 1 else None
    drawn: list[Drawn] = [part for view in views for part in (view.whole, view.each)]
    if together is not None:
        drawn.append(together)
    page = render(
        "training.html",
        drawn,
        views=views,
        together=together,
        most=MOST_AGENTS,
        settings=settings,
    )
    write_atomically(Path(path), page)


def titled(runs: Sequence[SavedRun]) -> dict[str, SavedRun]:
    """Return trainings by a short name: the folder's, or the path where that is not enough."""
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    return {
        name if names.count(name) == 1 else f"{name} ({i + 1})": run
        for i, (name, run) in enumerate(zip(names, runs, strict=True))
    }


class Together:
    """What several trainings have and have not in common."""

    id = "together"

    def __init__(self, views: Sequence[View]) -> None:
        runs = {view.title: view.run for view in views}
        self.styles = looks(runs)
        self.charts = courses(runs)
        self.differences = differences(list(runs.values()))
        figures = [view.figures for view in views]
        self.figures = {
            name: [each.get(name, "") for each in figures]
            for name in dict.fromkeys(name for each in figures for name in each)
        }
        self.scores = _scores(list(runs.values()))


def differences(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """Return the keys of the configurations that differ, with every training's value."""
    flat = [settings(run) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    values = {key: [each.get(key, "") for each in flat] for key in keys}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def settings(run: SavedRun) -> dict[str, str]:
    """Return the configuration as keys and values, one line each."""
    flat: dict[str, str] = {}
    for table, content in run.config.resolved().items():
        for key, value in content.items():
            pairs = value.items() if isinstance(value, dict) else [("", value)]
            flat |= {f"{table}.{key}{inner and '.'}{inner}": str(each) for inner, each in pairs}
    return flat


def shown(value: float | None, digits: int = 3) -> str:
    """Return a figure for a table; nothing for one that is not known."""
    if value is None or math.isnan(value):
        return ""
    return "0" if abs(value) < 1e-12 else f"{value:.{digits}g}"


def _scores(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """Return every agent's score by training, where all trainings have the same agents."""
    outcomes = [run.outcome for run in runs]
    if any(each is None for each in outcomes) or len({run.names for run in runs}) > 1:
        return {}
    found = {}
    for row in zip(*(each.agents for each in outcomes if each), strict=True):
        found[row[0].agent] = [shown(each.score) for each in row]
    return found if any(any(scores) for scores in found.values()) else {}


def view_of(place: str, title: str, run: SavedRun) -> View:
    """Return what a page says of a training."""
    styles, charts = course_of(run)
    whole, each = Part(f"{place}-whole", charts[:1]), Part(f"{place}-each", charts[1:])
    weights = None if run.models is None else _weights(run.models)
    return View(place, title, run, styles, whole, each, weights)


def _weights(given: TrainedModels) -> Weights:
    """Return the largest coefficients of the models, or the sizes of the parts of modules."""
    models = [*given.names[:MOST_MODELS], AVERAGE]
    parts = [given.parts(name) for name in models]
    linear = given.kind.is_linear
    if linear:
        names = _coefficient_names(given)
        matrix = np.array([np.concatenate([p.ravel() for p in each.values()]) for each in parts]).T
    else:
        names = [f"{name} {tuple(shape)}" for name, shape in given.layout.items()]
        matrix = np.array([[np.linalg.norm(p) for p in each.values()] for each in parts]).T
    largest = np.abs(matrix).max(axis=1)
    order = np.argsort(-largest, kind="stable")[: MOST_COEFFICIENTS if linear else None]
    scale = float(largest.max()) or 1.0
    rows = [
        Coefficient(names[i], matrix[i].tolist(), (matrix[i] / scale).round(3).tolist())
        for i in (order if linear else sorted(order))
    ]
    return Weights(models, rows, len(names), len(given.names) - len(models) + 1, not linear)


def _coefficient_names(given: TrainedModels) -> list[str]:
    """Return what the coefficients of a linear model are called, in their order."""
    if len(given.shape) == 1 or given.labels is None:
        return [*given.columns, "(intercept)"][: given.average.size]
    names = [f"{column} → {label}" for label in given.labels for column in given.columns]
    return names + [f"(intercept) → {label}" for label in given.labels] * given.intercept
