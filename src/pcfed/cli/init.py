"""``pcfed init``: an example that runs at once, to be changed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pcfed.cli.app import app, examples, say
from pcfed.training.example import write_example


@app.command(epilog=examples("pcfed init", "pcfed init clinics"))
def init(
    folder: Annotated[Path, typer.Argument(help="The folder; this one by default.")] = Path(),
) -> None:
    """Write an example: a commented train.toml and data of five clinics, each with its own limit.

    Nothing is overwritten.
    """
    config, _, *tables = write_example(folder)
    say(f"{config} and {len(tables)} data files in {tables[0].parent}. Next:")
    say(f"  pcfed train {shlex.quote(str(config))}")
