"""``pcfed report`` and ``pcfed compare``: what came of trainings, as a page and as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pcfed.cli.app import app, console, say
from pcfed.report.training import differences, titled, view_of, write_training_report
from pcfed.training.saved_run import open_run

Out = Annotated[Path | None, typer.Option(help="The page to write.")]


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a training, finished or not.")],
    out: Out = None,
) -> None:
    """Write a page on a training: how it went, every agent's model and figures, the certificate.

    It is one HTML file, report.html in the folder by default, and needs nothing else.
    """
    path = run / "report.html" if out is None else out
    write_training_report([open_run(run)], path)
    say(f"Open {path}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of trainings.")],
    out: Out = None,
) -> None:
    """Put trainings side by side: what differs in their settings, and what came of them.

    The page is compare.html by default.
    """
    if len(runs) < 2:
        raise ValueError(f"compare: give at least two folders, got {runs[0]}; see pcfed report.")
    opened = titled([open_run(run) for run in runs])
    found = {name: view_of("", name, run).figures for name, run in opened.items()}
    rows = {key: [each.get(key, "") for each in found.values()] for key in _keys(found)}
    for title, lines in (("settings", differences(list(opened.values()))), ("figures", rows)):
        table = Table(title, *map(escape, opened), box=SIMPLE_HEAD)
        for key, values in lines.items():
            table.add_row(escape(key), *map(escape, values))
        console.print(table)
    path = Path("compare.html") if out is None else out
    write_training_report(list(opened.values()), path)
    say(f"Open {path}")


def _keys(found: dict[str, dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for figures in found.values() for key in figures))
