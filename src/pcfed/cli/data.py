"""``pcfed data``: which data sets there are, fetch them, where they are."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from pcfed import data
from pcfed.cli.app import DataDir, app, console

data_app = typer.Typer(help="Data sets: which there are, fetch them, where they are.")
app.add_typer(data_app, name="data", no_args_is_help=True)


@data_app.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """Show which data sets there are, and which are here already."""
    table = Table("name", "here", "folder", "megabytes")
    for name in data.available():
        status = data.status(name, data_dir=data_dir)
        folder = "comes with scikit-learn" if status.folder is None else str(status.folder)
        here = "yes" if status.ready else "no"
        table.add_row(name, here, folder, f"{status.size / 1e6:.1f}" if status.size else "")
    console.print(table)


@data_app.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(help="Data sets to fetch.")],
    data_dir: DataDir = None,
) -> None:
    """Fetch data sets, checked against their checksums."""
    for name in names:
        folder = data.fetch(name, data_dir=data_dir)
        console.print(f"{name}: {folder or 'comes with scikit-learn'}", highlight=False)


@data_app.command("path")
def path_of_data(
    name: Annotated[str | None, typer.Argument(help="A data set; else the cache.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Print the folder of a data set, whether it is there yet or not."""
    print(data.path(name, data_dir=data_dir) or "comes with scikit-learn")
