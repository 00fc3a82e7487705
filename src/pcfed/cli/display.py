"""What a person sees of a training while it runs, and the table at its end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from pcfed.cli.app import errors
from pcfed.simulation.result import Record
from pcfed.simulation.run import Evaluation
from pcfed.training.outcome import Outcome

MOST = 5
"""Agents at most whose distances are shown while training goes on: the worst."""

INSIDE = 1e-6
"""A model that is nearer to its set than this is called inside."""


class Display(Progress):
    """A bar over the rounds with the loss and the time left, and under it who is outside its set.

    Where the output is no terminal, only the sentences of `tell` are printed.

    Parameters
    ----------
    rounds : int
        How many there will be at most.
    names : sequence of str
        The agents.
    """

    def __init__(self, rounds: int, names: Sequence[str]) -> None:
        self._names = names
        self._last: Record | None = None
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeRemainingColumn())
        text = TextColumn("{task.description}")
        super().__init__(*columns, text, console=errors, disable=not errors.is_terminal)
        self._together = self.add_task("together", total=rounds)
        self._alone = self.add_task("every agent alone, to compare", total=rounds, visible=False)

    def watch(self, seen: Evaluation) -> None:
        """Show an evaluated round."""
        self._last = seen.record
        text = f"loss {seen.record.loss:.4g}"
        self.update(self._together, completed=seen.record.round, description=text)

    def watch_alone(self, seen: Evaluation) -> None:
        """Show how far the agents are that train alone."""
        self._last = None
        self.update(self._alone, completed=seen.record.round, visible=True)

    def tell(self, text: str) -> None:
        """Show a sentence above the bar."""
        self.console.print(f"[yellow]{escape(text)}[/yellow]", highlight=False, soft_wrap=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars, and the distances of the agents that are farthest outside."""
        yield self.make_tasks_table(self.tasks)
        if self._last is not None:
            yield distances(self._names, self._last.infeasibility.tolist())


def distances(names: Sequence[str], infeasibility: Sequence[float]) -> Table:
    """Return who is how far outside its set: of many agents the worst, and how many are inside."""
    table = Table.grid(padding=(0, 2))
    order = np.argsort(infeasibility, kind="stable")[::-1]
    few = len(names) <= MOST
    for i in sorted(order) if few else order[:MOST]:
        far = infeasibility[i]
        if far > INSIDE or few:
            place = f"{far:.2g} outside its set" if far > INSIDE else "inside its set"
            table.add_row("", escape(_cut(names[i], 40)), place)
    if not few:
        inside = sum(far <= INSIDE for far in infeasibility)
        table.add_row("", "", f"{inside} of {len(names)} agents inside their sets")
    return table


def summary(outcome: Outcome) -> Table:
    """Return what became of each agent; columns without a figure are left out."""
    scored = any(each.score is not None for each in outcome.agents)
    caption = f"own, average, alone: {outcome.score_name} on held-out rows" if scored else None
    agent, kind = Column("agent", no_wrap=True), Column("set", overflow="ellipsis")
    table = Table(agent, kind, caption=caption, box=SIMPLE_HEAD, pad_edge=False)
    columns = {
        "uses": [_used(each.used, each.budget) for each in outcome.agents],
        "outside by": [_short(each.infeasibility) for each in outcome.agents],
        "own": [_short(each.score) for each in outcome.agents],
        "average": [_short(each.average_score) for each in outcome.agents],
        "alone": [_short(each.local_score) for each in outcome.agents],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for i, each in enumerate(outcome.agents):
        cells = [column[i] for column in shown.values()]
        constraint = re.sub(r"\b[a-z_]+=", "", each.constraint).replace(" ", "")  # L1Ball(1.0)
        table.add_row(escape(each.agent), escape(_cut(constraint, 28)), *cells)
    return table


def certificate(outcome: Outcome) -> str:
    """Say how far the models can be from the best."""
    if outcome.gap is None or outcome.objective is None:
        return f"No certificate: {outcome.reason}"
    share = math.inf if outcome.relative_gap is None else outcome.relative_gap
    return (
        f"Made feasible, the models have the objective {outcome.objective:.6g}, which is at most "
        f"{outcome.gap:.3g} above the best ({100 * share:.2g} %)."
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _used(used: float | None, budget: float | None) -> str:
    return "" if used is None or budget is None else f"{used:.4g} of {budget:.4g}"


def _short(figure: float | None) -> str:
    if figure is not None and 0 < figure < 1e-9:
        return "<1e-9"
    return "" if figure is None else f"{figure:.3g}"
