"""The report on trainings: a page on one training, or on several for comparison."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence

from pcfed.experiments.styles import method_styles
from pcfed.guarantees import gap_sentence
from pcfed.palette import Style, series_styles
from pcfed.report.comparison_metrics import MEGABYTE
from pcfed.report.models_section import models_section
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
    format_number,
    provenance_table,
    write_page,
)
from pcfed.report.training_charts import (
    agent_styles,
    agents_chart,
    compared_runs_chart,
    compared_scores_chart,
    overall_chart,
)
from pcfed.report.verdict_section import verdict_section
from pcfed.training.saved_run import SavedRun

LARGEST_DISTANCE = "largest distance from a set"

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
    page = run_page(*titled.popitem()) if len(runs) == 1 else _comparison_page(titled)
    write_page(page, path)


def run_page(title: str, run: SavedRun, status: str = "") -> Page:
    """Return the page on one training: verdict, certificate, course, models, settings.

    ``status`` says how far a training is that runs.
    """
    sections = [] if run.outcome is None else [verdict_section("run", run.outcome)]
    metrics = run_metrics(run)
    if metrics.get(LARGEST_DISTANCE) == "0":  # feasible, as it should be
        del metrics[LARGEST_DISTANCE]
    tiles = [Definitions(metrics, "tiles")] if metrics else []
    name = "State so far" if run.outcome is None else "Certificate"
    blocks: list[Block] = [] if status and run.outcome is None else [*_summary_blocks(run)]
    if blocks or tiles:
        sections.append(Section("run-certificate", name, [*blocks, *tiles]))
    if run.history:
        sections.append(Section("run-course", "Course of the training", _course_blocks(run)))
    if run.names:
        sections.append(models_section("run", run))
    sections.append(_settings_section(run))
    notes = [Paragraph(status, css_class="note live")] if status else []
    heading = f"Training {title}"
    return Page(f"{title}: pcfed", heading, _description(run), sections, GLOSSARY, notes)


def _comparison_page(runs: Mapping[str, SavedRun]) -> Page:
    """Return the page on several trainings: pictures, then what differs, then each in short."""
    opened, styles = list(runs.values()), training_styles(runs)
    charts = [*compared_scores_chart(runs, styles), *compared_runs_chart(runs, styles)]
    sections = []
    if charts:
        group = ChartGroup("comparison", charts, styles, "trainings")
        sections.append(Section("pictures", "Scores and course", [group]))
    settings, scores = compared_settings(opened), _compared_scores(opened)
    same = Paragraph("The settings are the same.")
    metrics = compared_metrics(opened)
    sections += [
        Section("metrics", "Results", [_side_table("Results", metrics, "metric", styles)]),
        Section(
            "settings",
            "Settings that differ",
            [_side_table("Settings", settings, "setting", styles) if settings else same],
        ),
    ]
    if scores:
        table = _side_table("Scores", scores, "agent", styles)
        sections.append(Section("scores", "Scores of the agents' own models", [table]))
    sections.append(Section("trainings", "The trainings", [_trainings_table(runs, styles)]))
    heading, lead = f"Comparison of {len(runs)} trainings", f"{', '.join(runs)}."
    return Page(f"{len(runs)} trainings: pcfed", heading, lead, sections, GLOSSARY)


def _trainings_table(runs: Mapping[str, SavedRun], styles: Mapping[str, Style]) -> Table:
    """Return what was trained and the certificate of every training, as sentences."""
    rows = []
    for title, run in runs.items():
        first, *notes = _summary_blocks(run)
        certificate = " ".join(filter(None, (first.label, first.text)))
        note = " ".join(each.text for each in notes)
        name = Cell(title, heading="row", note=str(run.path), style=styles[title])
        rows.append([name, Cell(_description(run)), Cell(certificate, note=note)])
    columns = ("training", "what was trained", "certificate")
    label, groups = "The trainings", [RowGroup(rows)]
    return Table(label, [Cell(name) for name in columns], groups, "verdicts", stacked=True)


def training_styles(runs: Mapping[str, SavedRun]) -> dict[str, Style]:
    """Return the style of every training: that of its algorithm if all algorithms are different."""
    names = [run.config.resolved()["algorithm"]["name"] for run in runs.values()]
    if len(set(names)) < len(names):
        return series_styles(runs)
    titles = {"PCFedAvg": "PC-FedAvg", "Scaffold": "SCAFFOLD"}  # as the experiments write them
    styles = method_styles(titles.get(name, name) for name in names)
    return dict(zip(runs, styles.values(), strict=True))


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
            "objective": format_number(outcome.objective, 6),
            "relative gap": format_number(outcome.relative_gap),
        }
        own = [agent.score for agent in outcome.agents if agent.score is not None]
        alone = [agent.local_score for agent in outcome.agents if agent.local_score is not None]
        for label, scores in (("own models", own), ("alone", alone)):
            if scores:
                name = f"mean {outcome.score_name}, {label}"
                metrics[name] = format_number(math.fsum(scores) / len(scores))
    if run.history:
        last = run.history[-1]
        metrics.setdefault("status", "not finished")
        metrics.setdefault("rounds", str(last.round))
        metrics.setdefault("objective", format_number(last.objective, 6))
        metrics["loss at the shared model"] = format_number(last.loss, 6)
        metrics[LARGEST_DISTANCE] = format_number(float(last.infeasibility.max()))
        metrics["megabytes sent"] = format_number((last.bytes_up + last.bytes_down) / MEGABYTE)
        metrics["seconds"] = format_number(last.seconds)
    return metrics


def _side_table(
    label: str, rows: Mapping[str, Sequence[str]], first: str, styles: Mapping[str, Style]
) -> Table:
    """Return values of several trainings side by side."""
    columns = [Cell(first), *(Cell(name, style=style) for name, style in styles.items())]
    cells = [[Cell(name, heading="row"), *map(Cell, values)] for name, values in rows.items()]
    return Table(label, columns, [RowGroup(cells)], "numbers agents side")


def _description(run: SavedRun) -> str:
    """Return what was trained, as a sentence."""
    size = f"{run.models.average.size} parameters each" if run.models else "not finished yet"
    algorithm = run.config.resolved()["algorithm"]
    settings = [f"{key} {_text(value)}" for key, value in algorithm.items() if key != "name"]
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


def _course_blocks(run: SavedRun) -> list[Block]:
    """Return the charts of a training over rounds."""
    blocks: list[Block] = [ChartGroup("run-overall", [overall_chart(run)])]
    if (each := agents_chart(run)) is not None:
        blocks.append(ChartGroup("run-each", [each], agent_styles(run), "agents"))
    return blocks


def _settings_section(run: SavedRun) -> Section:
    """Return the settings, the log and the versions of a training."""
    blocks: list[Block] = [Details("All settings, with defaults", _settings(run))]
    if run.log:
        blocks.append(Details("Log", text=run.log))
    provenance = {"run directory": str(run.path), **run.versions}
    blocks.append(provenance_table("Run directory and versions", provenance))
    return Section("run-settings", "Settings and log", blocks)


def _settings(run: SavedRun) -> dict[str, str]:
    """Return the configuration as dotted keys and values."""
    flat: dict[str, str] = {}
    for table, content in run.config.resolved().items():
        for key, value in content.items():
            pairs = value.items() if isinstance(value, dict) else [("", value)]
            flat |= {f"{table}.{key}{inner and '.'}{inner}": _text(each) for inner, each in pairs}
    config = run.config
    sets = {"defaults": config.defaults.constraint}
    sets |= {f"agents.{agent.name}": agent.constraint for agent in config.agents}
    return flat | {f"{table}.constraint": each.spec for table, each in sets.items()}


def _text(value: object) -> str:
    """Return a setting as files write it, without the quotation marks of a string."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _compared_scores(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """Return every agent's score by training, if all trainings have the same agents."""
    outcomes = [run.outcome for run in runs if run.outcome is not None]
    if len(outcomes) < len(runs) or len({run.names for run in runs}) > 1:
        return {}
    scores = {
        agents[0].agent: [format_number(agent.score) for agent in agents]
        for agents in zip(*(outcome.agents for outcome in outcomes), strict=True)
    }
    return scores if any(any(values) for values in scores.values()) else {}


def _side_by_side(columns: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return every key of some mappings with its value in each, or an empty string."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return {key: [column.get(key, "") for column in columns] for key in keys}
