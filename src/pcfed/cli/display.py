"""The terminal output of a training: progress while it runs, a table of results at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from pcfed.cli.app import errors
from pcfed.cli.progress import ProgressBar
from pcfed.guarantees import gap_sentence
from pcfed.simulation import Evaluation
from pcfed.simulation.result import Record
from pcfed.training.outcome import AgentOutcome, Outcome

MAX_AGENTS = 5
"""Largest number of agents whose distances are shown during training: the largest distances."""

MAX_VERDICTS = 10
"""Largest number of agents whose verdict is printed at the end."""

MAX_NAME_LENGTH = 24
"""Longer names of agents are cut in the table."""

FEASIBLE = 1e-6
"""A model counts as inside its set up to this distance."""


class Display(ProgressBar):
    """The progress of a training, with the agents' distances from their sets below it."""

    def __init__(self, rounds: int, names: Sequence[str]) -> None:
        # Before the constructor of rich, which draws the display once.
        self._names = names
        self._last: Record | None = None
        super().__init__(errors)
        label = "search of a coupling"
        self._search = self.add_task(label, total=None, visible=False, unit="trainings")
        self._federated = self.add_task("federated training", total=rounds)
        label = "every agent alone, for comparison"
        self._alone = self.add_task(label, total=None, visible=False, unit="")

    def show_search(self, done: int, total: int) -> None:
        """Show how many trainings of the search of a coupling are done."""
        self.update(self._search, completed=done, total=total, visible=done < total)

    def show_round(self, evaluation: Evaluation) -> None:
        """Show an evaluated round of the federated training."""
        self._last = record = evaluation.record
        text = f"loss {record.loss:.4g}, objective {record.objective:.5g}"
        self.update(self._federated, completed=record.round, description=text)

    def show_alone(self, done: int, total: int) -> None:
        """Show how far the training of every agent alone has come."""
        self._last = None
        self.update(self._alone, completed=done, total=total, visible=True)

    def notify(self, message: str) -> None:
        """Print a message above the progress bar."""
        self.console.print(f"[yellow]{escape(message)}[/yellow]", highlight=False, soft_wrap=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the progress bars and the table of distances."""
        yield self.make_tasks_table(self.tasks)
        if self._last is not None:
            yield distance_table(self._names, self._last.infeasibility.tolist())


def distance_table(names: Sequence[str], infeasibility: Sequence[float]) -> Table:
    """Return the distances of all agents from their sets, or the largest ones of many agents."""
    table = Table.grid(padding=(0, 2))
    order = np.argsort(infeasibility, kind="stable")[::-1]
    show_all = len(names) <= MAX_AGENTS
    for i in sorted(order) if show_all else order[:MAX_AGENTS]:
        outside = infeasibility[i] > FEASIBLE
        text = f"{infeasibility[i]:.2g} outside its set" if outside else "inside its set"
        if outside or show_all:
            table.add_row("", escape(_shorten(names[i], 40)), text)
    if not show_all:
        inside = sum(distance <= FEASIBLE for distance in infeasibility)
        table.add_row("", "", f"{inside} of {len(names)} agents inside their sets")
    return table


def agent_table(outcome: Outcome) -> Table:
    """Return the limit and the scores of each agent, without columns that are empty."""
    table = Table(
        Column("agent", overflow="ellipsis", no_wrap=True, max_width=MAX_NAME_LENGTH),
        Column("limit", overflow="fold"),
        caption=_caption(outcome),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    columns = {
        "gain": [_format(each.usage.multiplier if each.usage else None) for each in outcome.agents],
        "own": [_format(agent.score) for agent in outcome.agents],
        "shared": [_format(agent.average_score) for agent in outcome.agents],
        "alone": [_format(agent.local_score) for agent in outcome.agents],
    }
    columns = {header: cells for header, cells in columns.items() if any(cells)}
    for header in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for i, agent in enumerate(outcome.agents):
        cells = [column[i] for column in columns.values()]
        text = agent.usage.text if agent.usage is not None else agent.constraint
        table.add_row(escape(agent.agent), escape(_shorten(text, 80)), *cells)
    return table


def verdicts(outcome: Outcome) -> list[str]:
    """Return the verdict on every agent's own model, then everything that needs attention.

    Of many agents, only those whose model is clearly better or worse than training alone are named.
    """
    known = [agent for agent in outcome.agents if agent.verdict]
    named = known
    if len(known) > MAX_VERDICTS:
        named = [each for each in known if _is_clear(each)]
        named.sort(key=_difference)
    lines = [f"{agent.agent}: {agent.verdict}." for agent in named[:MAX_VERDICTS]]
    left = len(known) - len(lines)
    if left:
        clear = sum(map(_is_clear, known)) - len(lines)
        what = f"{clear} with a clear difference" if clear else "no clear difference"
        lines.append(f"{left} more agents: {what}; pcfed report shows all of them.")
    moved = [agent for agent in outcome.agents if agent.infeasibility > FEASIBLE]
    if moved:
        most = max(moved, key=lambda agent: agent.infeasibility)
        lines.append(
            f"{len(moved)} of {len(outcome.agents)} models were outside their limits and have been "
            f"projected, {most.agent} by {most.infeasibility:.3g}."
        )
    return lines


def _difference(agent: AgentOutcome) -> float:
    comparison = agent.against_alone
    return 0.0 if comparison is None else comparison.difference or 0.0


def _is_clear(agent: AgentOutcome) -> bool:
    comparison = agent.against_alone
    return comparison is not None and comparison.verdict in ("better", "worse")


def _caption(outcome: Outcome) -> str | None:
    """Return what the columns are."""
    parts = []
    if any(agent.usage and agent.usage.multiplier for agent in outcome.agents):
        parts.append("gain: decrease of the objective per unit that a limit is relaxed")
    if any(agent.score is not None for agent in outcome.agents):
        parts.append(f"own, shared, alone: {outcome.score_name} on held-out rows")
    return "\n".join(parts) or None


def certificate(outcome: Outcome) -> str:
    """Return the certificate of the models as one sentence."""
    return gap_sentence(outcome.objective, outcome.gap, outcome.reason)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return "<1e-9" if 0 < value < 1e-9 else f"{value:.3g}"
