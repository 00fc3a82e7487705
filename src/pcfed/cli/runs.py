"""``pcfed runs``: a table of all trainings in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table

from pcfed.cli.app import app, console, examples, say
from pcfed.training.run_list import RunSummary, list_runs

DEFAULT_FOLDER = Path("runs")


@app.command(epilog=examples("pcfed runs", "pcfed runs my-trainings"))
def runs(
    folder: Annotated[
        Path, typer.Argument(help="The folder that has the run directories.")
    ] = DEFAULT_FOLDER,
) -> None:
    """List the trainings in a folder, the newest first.

    Rounds are those that are done; gap is the certified relative gap to the optimum; own and alone
    are mean scores on held-out rows, of the agents' own models and of models trained alone.
    """
    if not folder.is_dir() and folder != DEFAULT_FOLDER:
        raise ValueError(f"runs: there must be a folder {folder}, got none; check the path.")
    found = list_runs(folder)
    if not found:
        say(f"There are no trainings in {folder}; pcfed train starts one.")
        return
    console.print(_table(found, folder))
    for run in found:
        if run.status.startswith("broken: "):
            say(f"{run.path} is broken: {run.status.removeprefix('broken: ').rstrip('.')}.")


def _table(found: list[RunSummary], folder: Path) -> Table:
    """Return one line per training."""
    table = Table(
        Column("run", overflow="fold", min_width=6),
        Column("when", no_wrap=True),
        Column("model", overflow="fold"),
        *(
            Column(header, justify="right", no_wrap=True)
            for header in ("agents", "rounds", "gap", "own", "alone")
        ),
        Column("status", no_wrap=True),
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    for run in found:
        gap = "" if run.relative_gap is None else f"{run.relative_gap:.2g}"
        scores = map(_format, (run.score, run.local_score))
        counts = map(_format, (run.num_agents, run.rounds))
        name = str(run.path if run.path == folder else run.path.relative_to(folder))
        cells = [name, f"{run.when:%Y-%m-%d %H:%M}", run.model, *counts, gap, *scores]
        table.add_row(*map(escape, cells), run.status.partition(":")[0])
    return table


def _format(number: float | None) -> str:
    if number is None:
        return ""
    return str(number) if isinstance(number, int) else f"{number:.3g}"
