"""The first section of a report on a training: a verdict for every agent, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pcfed.palette import Style, series_styles
from pcfed.report.charts import (
    Chart,
    Panel,
    Trace,
    keep_outliers_at_the_edge,
    plotly_text,
    rounded,
    row_height,
    row_layout,
)
from pcfed.report.page import Block, Cell, ChartGroup, Details, Paragraph, RowGroup, Section, Table
from pcfed.training.outcome import AgentOutcome, Outcome

MAX_DRAWN = 30
"""Largest number of agents in the charts: those with the worst verdicts."""
MAX_ROWS = 200
"""Largest number of agents in the table of verdicts."""
MAX_UNFOLDED = 12
"""Readers can unfold tables of more agents."""
MAX_NOTES = 3
"""Largest number of warnings above the charts; readers can unfold the others."""
MAX_WARNINGS = 30
"""Largest number of warnings that are shown."""

OWN, ALONE, SHARED = "own model", "training alone", "shared model"
OFFSETS = {OWN: -0.22, ALONE: 0.0, SHARED: 0.22}
"""Where the dots of an agent are, so that their intervals do not overlap."""
SYMBOLS = {OWN: "circle", ALONE: "diamond", SHARED: "square-open"}

VERDICT_WORDS = {
    "better": "better",
    "worse": "worse",
    "unclear": "without a clear difference",
    "same": "the same",
    "few rows": "with too few held-out rows to say",
    "training rows": "without held-out rows",
}
CAPTION = (
    "Scores on the agent's held-out rows. The line through a dot is the 95 % interval of the "
    "difference from the own model: where it does not reach the dot of the own model, the "
    "difference is clear. A triangle at an end of the axis is a score beyond it."
)
TRAINING_CAPTION = (
    "Scores on the agent's own rows, on which its model was trained: no rows are held out, so they "
    "say little about new rows."
)
LIMIT_CAPTION = (
    "How full every limit is: the share of a radius that the model uses, or the share of bounds or "
    "rows that are active."
)


def verdict_section(place: str, outcome: Outcome) -> Section:
    """Return how many models are better, warnings, charts of scores and limits, and a table."""
    warnings = [warning.sentence for warning in outcome.warnings]
    blocks: list[Block] = []
    if counts := _counts(outcome):
        blocks.append(Paragraph(counts, "Own models against training alone:"))
    blocks += [Paragraph(each, css_class="note") for each in warnings[:MAX_NOTES]]
    if more := warnings[MAX_NOTES:MAX_WARNINGS]:
        left_out = len(warnings) - MAX_WARNINGS
        end = [f"{left_out} more warnings are in outcome.json."] if left_out > 0 else []
        noun = "warning" if len(more) == 1 else "warnings"
        blocks.append(Details(f"{len(more)} more {noun}", text="\n".join(more + end)))
    charts = _charts(outcome)
    if charts:
        styles = series_styles(_drawn_series(outcome))
        blocks.append(ChartGroup(f"{place}-verdicts", charts, styles, "models"))
    blocks.append(_verdict_table(outcome))
    if len(outcome.agents) > MAX_ROWS:
        text = f"The first {MAX_ROWS} of {len(outcome.agents)} agents; outcome.json has all."
        blocks.append(Paragraph(text, css_class="hint"))
    return Section(f"{place}-verdict", "Verdict", blocks)


def _counts(outcome: Outcome) -> str:
    """Return how many models are better, worse and so on."""
    known = [each.against_alone.verdict for each in outcome.agents if each.against_alone]
    counts: Counter[str] = Counter(known)
    parts = [f"{counts[key]} {words}" for key, words in VERDICT_WORDS.items() if counts[key]]
    return f"{', '.join(parts)}." if parts else ""


# -- charts -------------------------------------------------------------------------------------


def _drawn_agents(outcome: Outcome) -> list[AgentOutcome]:
    """Return all agents, or those with the worst verdicts if there are many, in their order."""
    if len(outcome.agents) <= MAX_DRAWN:
        return list(outcome.agents)

    def difference(i: int) -> float:
        comparison = outcome.agents[i].against_alone
        return 0.0 if comparison is None else comparison.difference or 0.0

    worst = sorted(range(len(outcome.agents)), key=difference)[:MAX_DRAWN]
    return [outcome.agents[i] for i in sorted(worst)]


def _drawn_series(outcome: Outcome) -> list[str]:
    """Return the models whose scores are known."""
    fields = {OWN: "score", ALONE: "local_score", SHARED: "average_score"}
    return [
        name
        for name, field in fields.items()
        if any(getattr(agent, field) is not None for agent in outcome.agents)
    ]


def _charts(outcome: Outcome) -> list[Chart]:
    """Return a dot plot of the scores and bars of the limits, without empty ones."""
    agents, series = _drawn_agents(outcome), _drawn_series(outcome)
    only = ""
    if len(agents) < len(outcome.agents):
        only = f" Only {len(agents)} of {len(outcome.agents)} agents are drawn, the worst ones."
    charts = []
    if series:
        panel = _score_panel(outcome.score_name, agents, series)
        caption = CAPTION if _have_held_out_rows(agents) else TRAINING_CAPTION
        charts.append(Chart(f"Scores: {outcome.score_name}", caption + only, [panel]))
    if any(agent.usage is not None and agent.usage.share is not None for agent in agents):
        charts.append(Chart("Limits", LIMIT_CAPTION + only, [_limit_panel(agents)]))
    return charts


def _have_held_out_rows(agents: Sequence[AgentOutcome]) -> bool:
    """Return whether scores are of held-out rows; agents of a federation have none."""
    # Files of version 0.1 have neither comparisons nor the number of held-out rows.
    return not any(each.against_average and not each.held_out for each in agents)


def _score_panel(score_name: str, agents: Sequence[AgentOutcome], series: Sequence[str]) -> Panel:
    """Return dots for the models of every agent, with intervals of their differences."""
    styles = series_styles(series)
    traces = [_dots(name, score_name, agents, styles[name]) for name in series]
    texts = [f"{each.agent}: {each.verdict}" for each in agents if each.verdict]
    rows = "held-out rows" if _have_held_out_rows(agents) else "rows of the training"
    description = f"Dot plot of {score_name} on {rows}. {'. '.join(texts)}."
    layout = row_layout([agent.agent for agent in agents], score_name)
    keep_outliers_at_the_edge(traces, layout)
    return Panel("Scores", description, traces, layout, row_height(len(agents)))


def _dots(name: str, score_name: str, agents: Sequence[AgentOutcome], style: Style) -> Trace:
    """Return the scores of one kind of model, one dot per agent."""
    field = {OWN: "score", ALONE: "local_score", SHARED: "average_score"}[name]
    # A difference is positive where the own model is better; losses are better if lower.
    sign = 1.0 if score_name == "loss" else -1.0
    x, y, below, above, texts = [], [], [], [], []
    for i, agent in enumerate(agents):
        score = getattr(agent, field)
        if score is None:
            continue
        comparison = {ALONE: agent.against_alone, SHARED: agent.against_average}.get(name)
        ends = [score, score]
        if comparison is not None and agent.score is not None:
            known = [end for end in (comparison.low, comparison.high) if end is not None]
            ends = sorted(agent.score + sign * end for end in known) or ends
        x.append(score)
        y.append(i + OFFSETS[name])
        below.append(max(0.0, score - ends[0]))
        above.append(max(0.0, ends[1] - score))
        sentence = (
            "" if comparison is None else f"<br>own model: {plotly_text(comparison.sentence)}"
        )
        texts.append(f"{plotly_text(agent.agent)}, {name}: {score:.4g}{sentence}")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": rounded(x),
        "y": y,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": rounded(above),
            "arrayminus": rounded(below),
            "thickness": 1.5,
            "width": 3,
        },
        "marker": {"size": 9, "symbol": SYMBOLS[name]},
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"series": name, "colour": style.colour},
    }


def _limit_panel(agents: Sequence[AgentOutcome]) -> Panel:
    """Return a bar per agent that shows how full its limit is."""
    usages = [agent.usage for agent in agents]
    texts = ["" if usage is None else usage.text for usage in usages]
    rows, meta = list(range(len(agents))), {"series": "limits", "colour": "limit"}
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "limits",
        "x": rounded(100 * (usage.share or 0.0) if usage else 0.0 for usage in usages),
        "y": rows,
        "hoverinfo": "skip",
        "meta": meta,
    }
    # Beside the bars, because the text of a bar is not shown where the bar has no length.
    labels: Trace = {
        "type": "scatter",
        "mode": "text",
        "name": "limits",
        "x": [0] * len(agents),
        "y": rows,
        "text": [f" {plotly_text(text)}" for text in texts],
        "textposition": "middle right",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "meta": meta,
    }
    pairs = zip(agents, texts, strict=True)
    described = ". ".join(f"{agent.agent}: {text}" for agent, text in pairs)
    layout = row_layout([agent.agent for agent in agents], "percent of the limit")
    layout["xaxis"]["range"] = [0, 100]
    return Panel(
        "Limits",
        f"Bar chart of limits. {described}.",
        [bars, labels],
        layout,
        row_height(len(agents)),
    )


# -- the table ----------------------------------------------------------------------------------


def _verdict_table(outcome: Outcome) -> Table:
    """Return the verdicts and the limits of all agents as sentences."""
    rows = []
    for agent in outcome.agents[:MAX_ROWS]:
        comparisons = (agent.against_alone, agent.against_average)
        cells = [
            Cell(
                "" if each is None else each.sentence,
                css_class="" if each is None else each.verdict,
            )
            for each in comparisons
        ]
        usage = agent.usage
        text = agent.constraint if usage is None else usage.text
        note = "" if usage is None or usage.gain is None else usage.gain
        rows.append([Cell(agent.agent, heading="row"), *cells, Cell(text, note=note)])
    headings = ("agent", "own model and training alone", "own model and shared model", "limit")
    used = [0, *(k for k in (1, 2) if any(row[k].text for row in rows)), 3]
    return Table(
        "Verdicts",
        [Cell(headings[k]) for k in used],
        [RowGroup([[row[k] for k in used] for row in rows])],
        "verdicts",
        hint="Every interval is for one agent: of 20 agents without any difference, about one is "
        "expected to show one.",
        stacked=True,
        folded=f"All {len(rows)} verdicts in words" if len(rows) > MAX_UNFOLDED else "",
    )
