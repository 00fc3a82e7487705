"""``pcfed train``: from a TOML file and data files to every agent's own model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from pcfed.cli.app import app, console, errors, say
from pcfed.guarantees import certify
from pcfed.result import Result
from pcfed.sets import ProjectionError
from pcfed.simulate import Evaluation
from pcfed.training.train import Job, prepare


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="The TOML file that describes the training.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the training; runs/ and the file's name by default."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Agents side by side.")] = 1,
) -> None:
    """Train every agent's own model as a TOML file says.

    Everything is checked before anything is written. Stop it with Ctrl-C at any time, or let it be
    killed: the same command goes on from the last rounds that were saved, to the same bits.
    """
    job = prepare(config, out)
    with Display(job.config.training.rounds) as display:
        result = job.run(workers=workers, callbacks=[display.update_round], tell=display.tell)
    if result.status == "interrupted":
        again = shlex.join(["pcfed", "train", str(config), *(["--out", str(out)] if out else [])])
        done = f"{result.state.round} of {job.config.training.rounds} rounds"
        errors.print(
            f"Stopped after {done}, all saved. Go on with: {escape(again)}", soft_wrap=True
        )
        raise typer.Exit(130)
    if result.status == "diverged":
        errors.print(f"[red]{escape(result.message)}[/red]", highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    console.print(_summary(job, result))
    say(_certificate(job, result))
    say(f"{result.message} Everything is in {job.folder.path}.")


class Display(Progress):
    """A bar over the rounds with the loss, the feasibility and the time left."""

    def __init__(self, rounds: int) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeRemainingColumn())
        super().__init__(*columns, TextColumn("{task.description}"), console=errors)
        self._task = self.add_task("reading", total=rounds)

    def update_round(self, seen: Evaluation) -> None:
        """Show an evaluated round."""
        record = seen.record
        outside = int(np.count_nonzero(record.infeasibility > 1e-6))
        text = (
            f"loss {record.loss:.4g}, {outside} of {seen.problem.m} outside their sets, "
            f"by {record.infeasibility.max():.2g} at most"
        )
        self.update(self._task, completed=record.round, description=text)

    def tell(self, text: str) -> None:
        """Show a sentence above the bar."""
        self.console.print(f"[yellow]{escape(text)}[/yellow]", highlight=False, soft_wrap=True)


def _summary(job: Job, result: Result) -> Table:
    """Return what became of each agent."""
    table = Table("agent", Column("set", overflow="fold"), "distance from it")
    table.add_column("held-out loss")
    table.add_column("held-out score")
    last = result.history[-1]
    for i, agent in enumerate(job.made.problem.agents):
        figures = (last.infeasibility[i], last.test_loss[i], last.test_accuracy[i])
        shown = ["" if np.isnan(figure) else f"{figure:.3g}" for figure in figures]
        table.add_row(escape(job.made.problem.names[i]), escape(repr(agent.constraint)), *shown)
    return table


def _certificate(job: Job, result: Result) -> str:
    """Say how far the models can be from the best."""
    try:
        found = certify(job.made.problem, result)
    except (ProjectionError, ValueError) as error:
        return f"No certificate: {error}"
    if found.gap is None or found.reason is not None:
        return f"No certificate: {found.reason}"
    share = found.gap / abs(found.objective) if found.objective else np.inf
    return (
        f"Made feasible, the models have the objective {found.objective:.6g}, which is at most "
        f"{found.gap:.3g} above the best ({100 * share:.2g} %)."
    )
