"""``pcfed data``: list and download data sets, and print where they are."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from pcfed import data
from pcfed.cli.app import DataDir, app, console, examples

data_app = typer.Typer(help="List and download data sets, and print where they are.")
app.add_typer(data_app, name="data", no_args_is_help=True)


@data_app.command("list", epilog=examples("pcfed data list"))
def list_data(data_dir: DataDir = None) -> None:
    """List the data sets, and whether they are on this machine."""
    table = Table("name", "downloaded", "folder", "megabytes")
    for name in (*data.available(), *data.tables()):
        status = data.status(name, data_dir=data_dir)
        folder = "comes with scikit-learn" if status.folder is None else str(status.folder)
        ready = "yes" if status.ready else "no"
        table.add_row(name, ready, folder, f"{status.size / 1e6:.1f}" if status.size else "")
    console.print(table)


@data_app.command("fetch", epilog=examples("pcfed data fetch mnist swissmetro"))
def fetch_data(
    names: Annotated[list[str], typer.Argument(help="Data sets to download.")],
    data_dir: DataDir = None,
) -> None:
    """Download data sets and verify their checksums."""
    for name in names:
        folder = data.fetch(name, data_dir=data_dir)
        console.print(f"{name}: {folder or 'comes with scikit-learn'}", highlight=False)


@data_app.command("path", epilog=examples("pcfed data path", "pcfed data path mnist"))
def path_of_data(
    name: Annotated[str | None, typer.Argument(help="A data set; by default the cache.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Print the folder of a data set, which need not exist yet."""
    print(data.path(name, data_dir=data_dir) or "comes with scikit-learn")
