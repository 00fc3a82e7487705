"""``pcfed train``: from a TOML file and data files to every agent's own model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pcfed.cli.app import app, console, errors, say
from pcfed.cli.display import Display, certificate, summary
from pcfed.training.outcome import Outcome
from pcfed.training.trackers import open_trackers
from pcfed.training.trainer import prepare


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="The TOML file that describes the training.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the training; runs/ and the file's name by default."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Agents side by side.")] = 1,
    allow_import: Annotated[
        bool, typer.Option("--allow-import", help="Run the file that model.module names.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="The history as a CSV file, too.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="The history for TensorBoard, in this folder.")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="The history as a run of MLflow.")
    ] = False,
) -> None:
    """Train every agent's own model as a TOML file says.

    Everything is checked before anything is written. Stop it with Ctrl-C at any time, or let it be
    killed: the same command goes on from the last rounds that were saved, to the same bits.
    """
    trainer = prepare(config, out, allow_import=allow_import)
    tracking = open_trackers(trainer, csv=csv, tensorboard=tensorboard, mlflow=mlflow)
    with Display(trainer.config.training.rounds, trainer.setup.problem.names) as display, tracking:
        tracking.notify = display.tell
        result = trainer.run(
            workers=workers,
            callbacks=[display.watch, tracking.on_evaluation],
            local_callbacks=[display.watch_alone],
            notify=display.tell,
        )
        tracking.status = result.status
    if result.status == "interrupted":
        given = {"--out": out, "--csv": csv, "--tensorboard": tensorboard}
        options = [each for name, path in given.items() if path for each in (name, str(path))]
        flags = [*["--mlflow"] * mlflow, *["--allow-import"] * allow_import]
        again = shlex.join(["pcfed", "train", str(config), *options, *flags])
        done = f"{result.state.round} of {trainer.config.training.rounds} rounds"
        errors.print(
            f"Stopped after {done}, all saved. Go on with: {escape(again)}", soft_wrap=True
        )
        raise typer.Exit(130)
    if result.status == "diverged":
        errors.print(f"[red]{escape(result.message)}[/red]", highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    if not trainer.directory.outcome.exists():  # it was told why
        raise typer.Exit(1)
    outcome = Outcome.load(trainer.directory.outcome)
    console.print(summary(outcome))
    for sentence in (*outcome.notes, certificate(outcome)):
        say(sentence)
    say(f"{result.message} Everything is in {trainer.directory.path}. Next:")
    say(f"  pcfed report {shlex.quote(str(trainer.directory.path))}")
