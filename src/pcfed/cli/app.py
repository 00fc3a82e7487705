"""What all commands share: the application, its consoles, and how mistakes end."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from pcfed.data import DataError
from pcfed.storage.atomic import FileError

app = typer.Typer(
    help="Federated learning in which every agent keeps its own model inside its own limits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="A directory with data sets of your own; used before anything is fetched.",
        envvar="PCFED_DATA",
    ),
]


def run_app() -> NoReturn:
    """Run the application; errors are printed, one sentence per line, and the exit code is 2."""
    try:
        app(standalone_mode=True)
    except ModuleNotFoundError as missing:
        extra = "flower" if missing.name in ("cryptography", "flwr") else "experiments"
        errors.print(
            f"[red]This command needs the package {missing.name!r}, which is not installed; "
            f"run pip install 'pcfed\\[{extra}]'.[/red]",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(2)
    except (ValueError, DataError, FileError, ImportError) as mistake:
        errors.print(f"[red]{escape(str(mistake))}[/red]", highlight=False, soft_wrap=True)
        sys.exit(2)
    sys.exit(0)


@app.callback(invoke_without_command=True)
def _version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        console.print(f"pcfed {version('pcfed')}", highlight=False)
        raise typer.Exit


def say(text: str) -> None:
    """Print without colours that the text does not ask for."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
