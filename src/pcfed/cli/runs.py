"""``pcfed runs``: a table of all trainings in a folder."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table

from pcfed.cli.app import app, console, examples, say
from pcfed.training.run_list import RunSummary, list_runs

DEFAULT_FOLDER = Path("runs")

RECENT = timedelta(days=300)
"""Times of older trainings are shown with the year."""


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
        Column("model", no_wrap=True),
        *(
            Column(header, justify="right", no_wrap=True)
            for header in ("agents", "rounds", "gap", "own", "alone")
        ),
        Column("status", no_wrap=True),
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    for run in found:
        scores = map(_format, (run.score, run.local_score))
        counts = map(_format, (run.num_agents, run.rounds))
        name = str(run.path if run.path == folder else run.path.relative_to(folder))
        cells = [name, _format_time(run.when), run.model, *counts, _format_gap(run), *scores]
        table.add_row(*map(escape, cells), run.status.partition(":")[0])
    return table


def _format_time(when: datetime) -> str:
    """Return day and time, or the year instead of the time of what is long ago."""
    is_recent = datetime.now(when.tzinfo) - when < RECENT
    return f"{when:%d %b %H:%M}" if is_recent else f"{when:%d %b %Y}"


def _format_gap(run: RunSummary) -> str:
    gap = run.relative_gap
    if gap is None:
        return ""
    return f"{gap:.2g}" if gap >= 1e-3 or gap == 0 else f"{gap:.0e}"


def _format(number: float | None) -> str:
    if number is None:
        return ""
    return str(number) if isinstance(number, int) else f"{number:.3g}"
