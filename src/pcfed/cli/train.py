"""``pcfed train``: from a TOML file and data files to every agent's own model."""

from __future__ import annotations

import re
import shlex
import sys
import threading
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import click
import typer
import typer.core
from rich.markup import escape

from pcfed.cli.app import Overrides, app, console, errors, examples, print_error, say
from pcfed.cli.display import Display, agent_table, certificate, verdicts
from pcfed.report.live_training import LiveTraining
from pcfed.simulation import Ray
from pcfed.simulation.result import Result
from pcfed.training.outcome import Outcome
from pcfed.training.trackers import TrackerGroup, open_trackers
from pcfed.training.trainer import Trainer, prepare

THIS_MACHINE = "local"
"""The value of ``--ray`` without an address."""

ADDRESS = re.compile(r"(\w+://)?[^/\s]+:\d+")
"""What follows ``--ray`` if it is an address, which may be refused, and not another argument."""


class TrainCommand(typer.core.TyperCommand):
    """The command, whose option ``--ray`` may stand alone: then a cluster is started here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, once every ``--ray`` has an address."""
        given: list[str] = []
        for arg, following in zip_longest(args, args[1:], fillvalue=""):
            given.append(arg)
            if arg == "--ray" and not (following == "auto" or ADDRESS.fullmatch(following)):
                given.append(THIS_MACHINE)
        return super().parse_args(ctx, given)


@app.command(
    cls=TrainCommand,
    epilog=examples(
        "pcfed train train.toml",
        "pcfed train train.toml --live",
        "pcfed train train.toml --out runs/second --set defaults.coupling=1",
        "pcfed train train.toml --out runs/fedavg --set algorithm.name=FedAvg",
        "pcfed train train.toml --ray auto --actors 8",
    ),
)
def train(
    config: Annotated[Path, typer.Argument(help="The TOML file that describes the training.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Run directory; by default runs/ and the name of the TOML file."),
    ] = None,
    overrides: Overrides = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of threads; by default as many as are useful.")
    ] = None,
    allow_import: Annotated[
        bool, typer.Option("--allow-import", help="Run the Python file that model.module names.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write the history to a CSV file.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the history for TensorBoard to this folder.")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Also record the history as a run of MLflow.")
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Serve the report in the browser, while the training runs."),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Run the agents on a Ray cluster: that at the address, auto for the one of this "
            "machine, or a new one on this machine.",
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(min=1, help="Processes on the cluster; by default one per processor."),
    ] = None,
) -> None:
    """Train every agent's own model as described in a TOML file.

    Everything is checked before anything is written. You can stop the training with Ctrl-C at any
    time; after that, or after a crash, the same command resumes it from the last saved round, and
    the result is the same to the last bit.
    """
    if actors is not None and ray is None:
        raise ValueError(f"--actors must be given with --ray, got {actors} without; add --ray.")
    backend = None if ray is None else Ray(None if ray == THIS_MACHINE else ray, actors)
    trainer = prepare(
        config, out, allow_import=allow_import, overrides=overrides or (), backend=backend
    )
    tracking = open_trackers(trainer, csv=csv, tensorboard=tensorboard, mlflow=mlflow)
    if not live:
        _print_result(trainer, _run(trainer, tracking, workers))
        return
    page = LiveTraining(trainer)
    with page.server() as server:
        say(f"The report of the training is at {server.address}")
        result = _run(trainer, tracking, workers, page)
        page.end(result.message)
        _print_result(trainer, result)
        say(f"The report stays at {server.address} until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def _run(
    trainer: Trainer,
    tracking: TrackerGroup,
    workers: int | None,
    page: LiveTraining | None = None,
) -> Result:
    """Run the training and show its progress on the terminal, and on a page if there is one."""
    shown_by: list[Display | LiveTraining] = [] if page is None else [page]
    rounds, names = trainer.config.training.rounds, trainer.setup.problem.names
    with Display(rounds, names, trainer.stop) as display, tracking:
        tracking.notify = display.notify
        shown_by.append(display)

        def show_search(done: int, total: int) -> None:
            for each in shown_by:
                each.show_search(done, total)

        def show_alone(done: int, total: int) -> None:
            for each in shown_by:
                each.show_alone(done, total)

        try:
            result = trainer.run(
                workers="auto" if workers is None else workers,
                callbacks=[*(each.show_round for each in shown_by), tracking.on_evaluation],
                on_search=show_search,
                on_alone=show_alone,
                notify=display.notify,
            )
        except KeyboardInterrupt:  # during rounds, Ctrl-C only sets the status of the result
            display.notify("Stopped before the first round; rerun the command to begin again.")
            raise typer.Exit(130) from None
        tracking.status = result.status
    return result


def _print_result(trainer: Trainer, result: Result) -> None:
    """Print the verdicts and the certificate, or why there are none."""
    if result.status == "interrupted":
        done = f"{result.state.round} of {trainer.config.training.rounds} rounds"
        command = escape(shlex.join(["pcfed", *sys.argv[1:]]))
        errors.print(f"Stopped after {done}; all are saved. Resume with: {command}", soft_wrap=True)
        raise typer.Exit(130)
    if result.status == "diverged":
        print_error(result.message)
        raise typer.Exit(1)
    if not trainer.directory.outcome.exists():  # the display has shown the reason
        raise typer.Exit(1)
    outcome, directory = Outcome.load(trainer.directory.outcome), trainer.directory.path
    console.print(agent_table(outcome))
    for sentence in (*verdicts(outcome), *outcome.notes, certificate(outcome)):
        say(sentence)
    for warning in outcome.warnings:
        console.print(
            f"[yellow]{escape(warning.sentence)}[/yellow]", highlight=False, soft_wrap=True
        )
    say(f"{result.message} Everything is in {directory}. Next:")
    say(f"  pcfed report {shlex.quote(str(directory))}")
