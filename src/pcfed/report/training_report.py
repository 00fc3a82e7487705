"""The report on trainings: a page on one training, or on several for comparison."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from pcfed.guarantees import gap_sentence
from pcfed.report.charts import series_styles
from pcfed.report.comparison_metrics import MEGABYTE
from pcfed.report.page import (
    Block,
    Cell,
    ChartGroup,
    Definitions,
    Details,
    Page,
    Paragraph,
    RowGroup,
    Section,
    Table,
    provenance_table,
    write_page,
)
from pcfed.report.training_charts import (
    agent_styles,
    agents_chart,
    compared_runs_chart,
    overall_chart,
)
from pcfed.report.verdict_section import verdict_section
from pcfed.training.outcome import Outcome
from pcfed.training.saved_run import SavedRun
from pcfed.training.trained_models import AVERAGE, TrainedModels

MAX_AGENTS = 200
"""Largest number of rows in the table of agents."""
MAX_MODELS = 12
"""Largest number of models in the table of coefficients."""
MAX_COEFFICIENTS = 16
"""Largest number of rows in the table of coefficients."""

GLOSSARY: Mapping[str, str] = {
    "objective": "the mean over agents of their loss, of which the personalization is taken at "
    "the own model and the rest at the shared model, plus the coupling: half of σ times the "
    "squared distance of the two models.",
    "shared model": "the average of all agents' models, or the free center (training.center).",
    "relative gap": "an upper bound on how far the objective is above the optimum, as a fraction "
    "of the objective. It is proved, not estimated, for intercepts within model.intercept_bound.",
    "limit": "how much of its limit the delivered model uses, in the terms of its set. What one "
    "more unit of the limit would gain is the multiplier of the constraint: it holds for small "
    "changes, and while the others' limits stay as they are.",
    "95 % interval": "of the difference between two models on the same held-out rows. If it "
    "contains 0, there is no clear difference.",
    "infeasibility": "the Euclidean distance of the trained model from its set, before it was made "
    "feasible. The delivered model is in the set.",
    "distance from shared": "the Euclidean distance of the agent's own model from the shared "
    "model.",
    "own, shared, alone": "scores on the agent's held-out rows: of its own model, of the shared "
    "model, and of a model that the agent trained without the others.",
    "megabytes sent": "millions of bytes in all rounds, up and down, all agents together.",
}


def write_training_report(runs: Sequence[SavedRun], path: str | os.PathLike[str]) -> None:
    """Write a page on one training or on several: one HTML file that loads nothing from elsewhere.

    Parameters
    ----------
    runs : sequence of SavedRun
        What `pcfed.training.saved_run.open_run` returned.
    path : path
        The file to write; an existing file is replaced.

    Raises
    ------
    ValueError
        If there is nothing to report.
    ImportError
        If a package of the ``app`` extra is missing.
    """
    if not runs:
        raise ValueError("report: runs must not be empty, got none; give a run directory.")
    titled = runs_by_title(runs)
    if len(runs) == 1:
        ((title, run),) = titled.items()
        metrics = run_metrics(run)
        tiles = [Definitions(metrics, "tiles")] if metrics else []
        summary = Section("summary", "Summary", [*_summary_blocks(run), *tiles])
        sections = _run_sections("run", run)
        sections.insert(0 if run.outcome is None else 1, summary)  # after the verdict
        page = Page(f"{title}: pcfed", f"Training {title}", _description(run), sections, GLOSSARY)
    else:
        sections = [_comparison_section(titled)]
        for i, (title, run) in enumerate(titled.items()):
            blocks = [Paragraph(_description(run)), *_summary_blocks(run)]
            sections.append(Section(f"run-{i}", title, blocks, _run_sections(f"run-{i}", run)))
        heading = f"Comparison of {len(runs)} trainings"
        lead = f"The settings and the results of {', '.join(titled)}."
        page = Page(f"{len(runs)} trainings: pcfed", heading, lead, sections, GLOSSARY)
    write_page(page, path)


def runs_by_title(runs: Sequence[SavedRun]) -> dict[str, SavedRun]:
    """Return trainings by the name of their directory, or by its path if names are equal."""
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    return {
        name if names.count(name) == 1 else f"{name} ({i + 1})": run
        for i, (name, run) in enumerate(zip(names, runs, strict=True))
    }


def compared_metrics(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """Return the metrics at the end by name, with every training's value."""
    return _side_by_side([run_metrics(run) for run in runs])


def compared_settings(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """Return the settings that differ by name, with every training's value."""
    values = _side_by_side([_settings(run) for run in runs])
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def run_metrics(run: SavedRun) -> dict[str, str]:
    """Return the metrics of a training at its end; unknown ones are left out."""
    metrics: dict[str, str] = {}
    if run.outcome is not None:
        outcome = run.outcome
        metrics = {
            "status": outcome.status,
            "rounds": str(outcome.rounds),
            "objective": _format(outcome.objective, 6),
            "relative gap": _format(outcome.relative_gap),
        }
        own = [agent.score for agent in outcome.agents if agent.score is not None]
        alone = [agent.local_score for agent in outcome.agents if agent.local_score is not None]
        for label, scores in (("own models", own), ("alone", alone)):
            if scores:
                name = f"mean {outcome.score_name}, {label}"
                metrics[name] = _format(math.fsum(scores) / len(scores))
    if run.history:
        last = run.history[-1]
        metrics.setdefault("status", "not finished")
        metrics.setdefault("rounds", str(last.round))
        metrics["loss at the shared model"] = _format(last.loss, 6)
        metrics["largest distance from a set"] = _format(float(last.infeasibility.max()))
        metrics["megabytes sent"] = _format((last.bytes_up + last.bytes_down) / MEGABYTE)
        metrics["seconds"] = _format(last.seconds)
    return metrics


def _comparison_section(runs: Mapping[str, SavedRun]) -> Section:
    """Return metrics, settings, charts and scores of several trainings side by side."""
    opened = list(runs.values())
    styles = series_styles(runs)

    def table(label: str, rows: Mapping[str, Sequence[str]], first: str) -> Table:
        columns = [Cell(first), *(Cell(name, style=styles[name]) for name in runs)]
        cells = [[Cell(name, heading="row"), *map(Cell, values)] for name, values in rows.items()]
        return Table(label, columns, [RowGroup(cells)], "numbers agents side")

    settings = compared_settings(opened)
    same = Paragraph("The settings are the same.")
    sections = [
        Section("metrics", "Metrics", [table("Metrics", compared_metrics(opened), "metric")]),
        Section(
            "settings",
            "Settings that differ",
            [table("Settings", settings, "setting") if settings else same],
        ),
    ]
    charts = compared_runs_chart(runs)
    if charts:
        group = ChartGroup("comparison", charts, styles, "trainings")
        sections.append(Section("curves", "Training curves", [group]))
    scores = _compared_scores(opened)
    if scores:
        block = table("Scores", scores, "agent")
        sections.append(Section("scores", "Scores of the agents' own models", [block]))
    return Section("comparison", "Comparison", [], sections)


def _description(run: SavedRun) -> str:
    """Return what was trained, as a sentence."""
    size = f"{run.models.average.size} parameters each" if run.models else "not finished yet"
    algorithm = run.config.resolved()["algorithm"]
    settings = [f"{key} {value}" for key, value in algorithm.items() if key != "name"]
    with_settings = f" ({', '.join(settings)})" if settings else ""
    return (
        f"{len(run.names)} agent{'s' * (len(run.names) != 1)}, "
        f"{run.config.model.kind} models ({size}), "
        f"trained by {algorithm['name']}{with_settings}."
    )


def _summary_blocks(run: SavedRun) -> list[Paragraph]:
    """Return the certificate and the notes of a training."""
    outcome = run.outcome
    if outcome is None:
        text = "This is its state so far; rerun pcfed train to resume it."
        return [Paragraph(text, "Not finished.", "note")]
    notes = [Paragraph(note, css_class="note") for note in outcome.notes]
    return [Paragraph("", gap_sentence(outcome.objective, outcome.gap, outcome.reason)), *notes]


def _run_sections(place: str, run: SavedRun) -> list[Section]:
    """Return charts, agents, models and settings of one training, without those that are empty."""
    sections = []
    if run.outcome is not None:
        sections.append(verdict_section(place, run.outcome))
    if run.history:
        groups = [
            ChartGroup(f"{place}-overall", [overall_chart(run)]),
            ChartGroup(f"{place}-each", [agents_chart(run)], agent_styles(run), "agents"),
        ]
        sections.append(Section(f"{place}-curves", "Training curves", groups))
    if run.names:
        sections.append(Section(f"{place}-agents", "Agents", _agent_blocks(run)))
    if run.models is not None:
        sections.append(Section(f"{place}-models", "Models", [_coefficient_table(run.models)]))
    blocks: list[Block] = [Details("All settings, with defaults", _settings(run))]
    if run.log:
        blocks.append(Details("Log", text=run.log))
    provenance = {"run directory": str(run.path), **run.versions}
    blocks.append(provenance_table("Run directory and versions", provenance))
    return [*sections, Section(f"{place}-settings", "Settings and log", blocks)]


def _agent_blocks(run: SavedRun) -> list[Block]:
    """Return the table of agents, without empty columns and without rows beyond the limit."""
    rows = _outcome_rows(run.outcome) if run.outcome is not None else _history_rows(run)
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    classes = {name: "set" if name in ("set", "limit") else "" for name in names}
    headings = {name: "row" if name == "agent" else "" for name in names}
    columns = [Cell(name, css_class=classes[name]) for name in names]
    cells = [
        [Cell(row[name], headings[name], css_class=classes[name]) for name in names]
        for row in rows[:MAX_AGENTS]
    ]
    blocks: list[Block] = [Table("Agents", columns, [RowGroup(cells)], "numbers agents")]
    if len(rows) > MAX_AGENTS:
        text = (
            f"The first {MAX_AGENTS} of {len(rows)} agents; outcome.json in the run directory "
            "has all of them."
        )
        blocks.append(Paragraph(text, css_class="hint"))
    return blocks


def _outcome_rows(outcome: Outcome) -> list[dict[str, str]]:
    """Return the table of agents of a finished training."""
    return [
        {
            "agent": agent.agent,
            "set": agent.constraint,
            "limit": "" if agent.usage is None else agent.usage.text,
            "infeasibility": _format(agent.infeasibility),
            "distance from shared": _format(agent.distance),
            f"{outcome.score_name}: own": _format(agent.score),
            "shared": _format(agent.average_score),
            "alone": _format(agent.local_score),
        }
        for agent in outcome.agents
    ]


def _history_rows(run: SavedRun) -> list[dict[str, str]]:
    """Return the table of agents of an unfinished training, from its last evaluated round."""
    last = run.history[-1] if run.history else None
    return [
        {
            "agent": name,
            "set": run.config.agent(name).constraint.spec,
            "infeasibility": _format(float(last.infeasibility[i])) if last else "",
            "distance from shared": _format(float(last.distance[i])) if last else "",
            "score": _format(float(last.test_accuracy[i])) if last else "",
        }
        for i, name in enumerate(run.names)
    ]


def _coefficient_table(trained: TrainedModels) -> Table:
    """Return the largest coefficients of linear models, or the norms of the parts of modules."""
    models = [*trained.names[:MAX_MODELS], AVERAGE]
    parts = [trained.parts(name) for name in models]
    linear = trained.kind.is_linear
    if linear:
        names = _coefficient_names(trained)
        matrix = np.array([np.concatenate([p.ravel() for p in each.values()]) for each in parts]).T
    else:
        names = [f"{name} {tuple(shape)}" for name, shape in trained.layout.items()]
        matrix = np.array([[np.linalg.norm(p) for p in each.values()] for each in parts]).T
    largest = np.abs(matrix).max(axis=1)
    order = np.argsort(-largest, kind="stable")[:MAX_COEFFICIENTS] if linear else range(len(names))
    scale = float(largest.max()) or 1.0
    rows = [
        [
            Cell(names[i], heading="row"),
            *(Cell(_format(x), tint=round(x / scale, 3)) for x in matrix[i].tolist()),
        ]
        for i in order
    ]
    hint = "The Euclidean norm of every part."
    if linear:
        which = "All coefficients"
        if len(rows) < len(names):
            which = f"The {len(rows)} largest of {len(names)} coefficients"
        hint = f"{which}, largest first, in the units of the data."
    left_out = len(trained.names) - len(models) + 1
    if left_out:
        hint += f" {left_out} more agents are in models.npz."
    return Table(
        "Models",
        [Cell("column" if linear else "part"), *map(Cell, models)],
        [RowGroup(rows)],
        "numbers agents coefficients",
        hint=hint,
        signed_colours=linear,
    )


def _coefficient_names(trained: TrainedModels) -> list[str]:
    """Return the names of the coefficients of a linear model, in their order."""
    return [trained.parameter_name(i) for i in range(trained.average.size)]


def _settings(run: SavedRun) -> dict[str, str]:
    """Return the configuration as dotted keys and values."""
    flat: dict[str, str] = {}
    for table, content in run.config.resolved().items():
        for key, value in content.items():
            pairs = value.items() if isinstance(value, dict) else [("", value)]
            flat |= {f"{table}.{key}{inner and '.'}{inner}": str(each) for inner, each in pairs}
    return flat


def _compared_scores(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """Return every agent's score by training, if all trainings have the same agents."""
    outcomes = [run.outcome for run in runs if run.outcome is not None]
    if len(outcomes) < len(runs) or len({run.names for run in runs}) > 1:
        return {}
    scores = {
        agents[0].agent: [_format(agent.score) for agent in agents]
        for agents in zip(*(outcome.agents for outcome in outcomes), strict=True)
    }
    return scores if any(any(values) for values in scores.values()) else {}


def _side_by_side(columns: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return every key of some mappings with its value in each, or an empty string."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return {key: [column.get(key, "") for column in columns] for key in keys}


def _format(value: float | None, digits: int = 3) -> str:
    """Return a number for a table, or an empty string if it is unknown."""
    if value is None or math.isnan(value):
        return ""
    return "0" if abs(value) < 1e-12 else f"{value:.{digits}g}"
