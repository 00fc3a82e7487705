"""What all commands share: the application, its consoles, and the handling of errors."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from pcfed.data import DataError
from pcfed.errors import ClusterError, install_command, one_line
from pcfed.extras import MissingExtra
from pcfed.storage.atomic import FileError

app = typer.Typer(
    help="Federated learning in which every agent has its own model in its own constraint set.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

FLOWER_PACKAGES = ("cryptography", "flwr", "httpx")

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory with your own data sets; it is searched before anything is downloaded.",
        envvar="PCFED_DATA",
    ),
]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Use another value for a key of the file, such as training.rounds=30; repeatable.",
    ),
]


def run_app() -> NoReturn:
    """Run the application; errors are printed, one sentence per line, and the exit code is 2."""
    try:
        app(standalone_mode=True)
    except MissingExtra as missing:
        print_error(str(missing))
        sys.exit(2)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        extra = "flower" if package in FLOWER_PACKAGES else "experiments"
        print_error(
            f"This command needs the package {missing.name!r}, which is not installed; "
            f"run {install_command(extra)}."
        )
        sys.exit(2)
    except (ValueError, DataError, FileError, ImportError, ClusterError) as error:
        print_error(str(error))
        sys.exit(2)
    except MemoryError:
        print_error(
            "This command needs more memory than there is; give it less data or smaller files, or "
            "free memory."
        )
        sys.exit(2)
    except SystemError as error:  # Python itself failed, for example at its limit of recursion
        print_error(one_line(f"Python could not process the files ({error}); make them smaller."))
        sys.exit(2)
    sys.exit(0)


@app.callback(invoke_without_command=True)
def _version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        console.print(f"pcfed {version('pcfed')}", highlight=False)
        raise typer.Exit


def examples(*commands: str) -> str:
    """Return example commands as the last paragraphs of a command's help."""
    # Help texts keep line breaks only between paragraphs.
    return "\n\n".join(["Examples:", *map(escape, commands)])


def say(text: str) -> None:
    """Print a text as it is, without markup, colours or line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.file.flush()  # a pipe or a file is buffered otherwise, and the command may take long


def print_error(text: str) -> None:
    """Print a text in red to the standard error stream."""
    errors.print(f"[red]{escape(text)}[/red]", highlight=False, soft_wrap=True)
