"""``pcfed report`` and ``pcfed compare``: the results of trainings, as a page and as a table."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pcfed.cli.app import app, console, examples, say
from pcfed.report import write_training_report
from pcfed.report.training_report import compared_metrics, compared_settings, runs_by_title
from pcfed.training.saved_run import open_run

Out = Annotated[Path | None, typer.Option(help="The HTML file to write.")]


@app.command(
    epilog=examples(
        "pcfed report runs/train",
        "pcfed report runs/train --open --out train.html",
        "pcfed report agent/agent.heating",
    )
)
def report(
    run: Annotated[Path, typer.Argument(help="The run directory of a training, finished or not.")],
    out: Out = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Write a page on a training: verdicts, the certificate, its course, every agent's model.

    The page is one HTML file that loads nothing from elsewhere; by default report.html in the run
    directory.
    """
    path = run / "report.html" if out is None else out
    if (run / "status.json").exists():  # of a federation's server, which has no models
        from pcfed.federation.server_report import write_server_report

        write_server_report(run, path)
    else:
        write_training_report([open_run(run)], path)
    if open_page and webbrowser.open(path.resolve().as_uri()):
        say(f"{path} is open in the browser.")
    else:
        say(f"Open {path}")


@app.command(
    epilog=examples("pcfed compare runs/first runs/second", "pcfed compare runs/a runs/b runs/c")
)
def compare(
    runs: Annotated[list[Path], typer.Argument(help="The run directories of trainings.")],
    out: Out = None,
) -> None:
    """Compare trainings: scores and courses, the results, the settings that differ.

    The page is compare.html by default.
    """
    if len(runs) < 2:
        raise ValueError(
            f"compare: give at least two run directories, got {runs[0]}; "
            "pcfed report writes a page on one."
        )
    opened = runs_by_title([open_run(run) for run in runs])
    trainings = list(opened.values())
    tables = {"settings": compared_settings(trainings), "metrics": compared_metrics(trainings)}
    for title, rows in tables.items():
        table = Table(title, *map(escape, opened), box=SIMPLE_HEAD)
        for key, values in rows.items():
            table.add_row(escape(key), *map(escape, values))
        console.print(table)
    path = Path("compare.html") if out is None else out
    write_training_report(trainings, path)
    say(f"Open {path}")
